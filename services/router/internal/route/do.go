package route

import (
	"context"
	"errors"
	"net"
	"slices"
	"time"

	"connectrpc.com/connect"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/wiggle-run/wiggle/pkg/faults"
	"github.com/wiggle-run/wiggle/pkg/rpc"
	"github.com/wiggle-run/wiggle/services/router/internal/backends"
	"github.com/wiggle-run/wiggle/services/router/internal/pause"
)

const (
	// maxTries bounds how often a call is made. One process may be gone and the next on its way out; more than that is
	// a shard that is down, and the caller's to wait for.
	maxTries = 4
	// firstBackoff is the pause before a call is made again where no other process is at hand. It doubles.
	firstBackoff = 20 * time.Millisecond
	// retryAfter is what callers are told to wait for a shard: a failover takes about as long.
	retryAfter = time.Second
)

// Forwarder makes calls to the processes of a set.
type Forwarder struct {
	set     *backends.Set
	calls   metric.Int64Counter
	retries metric.Int64Counter
}

// NewForwarder makes a forwarder that counts its calls and retries.
func NewForwarder(set *backends.Set, meter metric.Meter) (*Forwarder, error) {
	calls, err := meter.Int64Counter("wiggle.router.calls", metric.WithUnit("{call}"),
		metric.WithDescription("Calls to instances processes, by shard, method and outcome."))
	if err != nil {
		return nil, err
	}
	retries, err := meter.Int64Counter("wiggle.router.retries", metric.WithUnit("{call}"),
		metric.WithDescription("Calls that were made again, by shard and method."))
	if err != nil {
		return nil, err
	}
	return &Forwarder{set: set, calls: calls, retries: retries}, nil
}

// Set is the set of processes that calls go to.
func (f *Forwarder) Set() *backends.Set { return f.set }

// Call says what is called.
type Call struct {
	// Shard is where the call goes. It is named in the header Wiggle-Shard.
	Shard int
	// Method names the call in metrics.
	Method string
	// Timeout bounds it, all tries together.
	Timeout time.Duration
	// NewWork keeps it from processes that are going down.
	NewWork bool
	// Once makes it at most once.
	Once bool
	// Bytes is how much payload it holds, where that may be much.
	Bytes int
	// Yields has it refused first where a process has much to do: it only makes more work.
	Yields bool
}

// Do makes a call, on another process if the first cannot answer it. Its error is a *faults.Error, or that of ctx.
func Do[T any](
	ctx context.Context, f *Forwarder, c Call, call func(ctx context.Context, client backends.Client) (T, error),
) (T, error) {
	ctx, cancel := context.WithTimeout(rpc.WithShard(ctx, c.Shard), c.Timeout)
	defer cancel()
	var (
		zero  T
		tried []*backends.Process
		last  error
		next  = firstBackoff
	)
	for try := range maxTries {
		p, fresh := f.pick(c, tried)
		if try > 0 {
			if !fresh && !pause.For(ctx, pause.Jitter(next), f.set.Changed()) {
				return zero, f.timedOut(ctx, c, last)
			}
			next *= 2
			f.retries.Add(ctx, 1, metric.WithAttributes(attribute.Int("shard", c.Shard), attribute.String("method", c.Method)))
			if p == nil {
				p, _ = f.pick(c, tried) // one may have come back
			}
		}
		if p == nil {
			if try == 0 {
				break // nothing serves the shard: known without asking
			}
			continue
		}
		res, again, err := attempt(ctx, f, c, p, call)
		switch {
		case err == nil:
			f.count(ctx, c, "ok")
			return res, nil
		case ctx.Err() != nil:
			return zero, f.timedOut(ctx, c, err)
		case !again:
			f.count(ctx, c, faults.CodeOf(err).String())
			return zero, err
		}
		tried, last = append(tried, p), err
		if c.Once || refused(err) && !f.untried(c, tried) {
			break // with a refusal the shard is down, not the process, and nobody else has it ready
		}
	}
	f.count(ctx, c, "unavailable")
	if last != nil && kind(last) != "" {
		return zero, last
	}
	return zero, faults.ShardUnavailable(c.Shard, retryAfter).WithCause(last)
}

// attempt makes a call on one process, and tells whether another try makes sense.
func attempt[T any](
	ctx context.Context, f *Forwarder, c Call, p *backends.Process, call func(context.Context, backends.Client) (T, error),
) (res T, again bool, err error) {
	leave, ok := p.Enter(c.Bytes, c.Yields)
	if !ok {
		return res, !c.Yields, crowded(c)
	}
	defer leave()
	alive := p.Alive()
	tryCtx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := context.AfterFunc(alive, cancel) // the process is gone: no answer will come
	defer stop()
	res, err = call(tryCtx, p.Client)
	switch {
	case err == nil:
		return res, false, nil
	case ctx.Err() != nil:
		return res, false, err
	case alive.Err() != nil:
		return res, true, faults.Unavailable(retryAfter, "the service does not answer; try again").WithCause(err)
	case broken(err):
		f.set.Failed(alive, p, err, unreachable(err))
		return res, true, err
	}
	return res, refused(err) || faults.CodeOf(err) == faults.CodeUnavailable && kind(err) == "", err
}

// StreamFailed takes note that a stream to a process ended with err. alive was its [backends.Process.Alive] when the
// stream began.
func (f *Forwarder) StreamFailed(alive context.Context, p *backends.Process, err error) {
	if broken(err) {
		f.set.Failed(alive, p, err, unreachable(err))
	}
}

// crowded is the error of a call for which there is no room at a process.
func crowded(c Call) error {
	wait := pause.Between(retryAfter/2, 3*retryAfter/2)
	if c.Yields {
		return faults.Overloaded(wait, "shard %d has more calls in hand than it takes; try again later", c.Shard)
	}
	return faults.Unavailable(wait, "shard %d has more calls in hand than it takes; try again", c.Shard)
}

// pick is the first process that was not tried, or, when all were, the first that is still there.
func (f *Forwarder) pick(c Call, tried []*backends.Process) (p *backends.Process, fresh bool) {
	list := f.candidates(c)
	for _, p := range list {
		if !slices.Contains(tried, p) {
			return p, true
		}
	}
	if len(list) == 0 {
		return nil, false
	}
	return list[0], false
}

func (f *Forwarder) untried(c Call, tried []*backends.Process) bool {
	_, fresh := f.pick(c, tried)
	return fresh
}

func (f *Forwarder) candidates(c Call) []*backends.Process {
	shard := f.set.Shard(c.Shard)
	if c.NewWork {
		return shard.Accepting
	}
	return shard.Processes
}

// timedOut is the error of a call whose time is over: the caller's own, or the time that we give a shard.
func (f *Forwarder) timedOut(ctx context.Context, c Call, last error) error {
	f.count(context.WithoutCancel(ctx), c, "timeout")
	if cause := context.Cause(ctx); errors.Is(cause, context.Canceled) {
		return faults.FromError(cause)
	}
	return faults.ShardUnavailable(c.Shard, retryAfter).WithCause(last)
}

func (f *Forwarder) count(ctx context.Context, c Call, outcome string) {
	f.calls.Add(ctx, 1, metric.WithAttributes(attribute.Int("shard", c.Shard), attribute.String("method", c.Method),
		attribute.String("outcome", outcome)))
}

// broken tells whether the network, not the process, made the error.
func broken(err error) bool {
	ce, ok := errors.AsType[*connect.Error](err)
	return ok && !connect.IsWireError(ce) && ce.Code() != connect.CodeResourceExhausted
}

// unreachable tells whether the connection could not be made or ended, which concerns every call to the process; else the
// trouble may be this call's alone.
func unreachable(err error) bool {
	if ce, ok := errors.AsType[*connect.Error](err); ok && ce.Code() == connect.CodeUnavailable {
		return true
	}
	_, ok := errors.AsType[net.Error](err)
	return ok
}

// refused tells whether a process answered that it cannot reach the shard, which another one may.
func refused(err error) bool {
	return errors.Is(err, faults.ErrShardUnavailable) || errors.Is(err, faults.ErrShardUnknown)
}

func kind(err error) string {
	if e, ok := errors.AsType[*faults.Error](err); ok {
		return e.Kind()
	}
	return ""
}
