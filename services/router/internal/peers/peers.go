// Package peers calls the services that any of their processes can serve: search, leader and auth. Calls go to one process for as
// long as it answers, and then to the next, so that a process that is gone costs one call a moment and no caller an
// error. Which processes there are is configured; one that is down is found by trying.
package peers

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/wiggle-run/wiggle/pkg/faults"
	"github.com/wiggle-run/wiggle/pkg/rpc"
)

// retryAfter is what callers are told to wait when no process answers.
const retryAfter = time.Second

// Peers are the processes of one service, with a client of type C for each. It is safe for concurrent use.
type Peers[C any] struct {
	service, setting string
	clients          []C
	preferred        atomic.Uint32
}

// New makes peers. Messages name the service and the setting that lists its processes.
func New[C any](service, setting string, clients ...C) *Peers[C] {
	return &Peers[C]{service: service, setting: setting, clients: clients}
}

// Configured tells whether there are any.
func (p *Peers[C]) Configured() bool { return len(p.clients) > 0 }

// Do makes a call, on the next process if one does not answer; the call must be safe to repeat. Its error is a
// *faults.Error, or that of ctx.
func Do[C, T any](ctx context.Context, p *Peers[C], timeout time.Duration, call func(context.Context, C) (T, error)) (T, error) {
	var zero T
	if !p.Configured() {
		return zero, p.unimplemented()
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	first := p.preferred.Load()
	var refusal error // of a process that answers, and lacks something that another may have
	for i := range p.clients {
		at := (int(first) + i) % len(p.clients)
		res, err := call(ctx, p.clients[at])
		switch {
		case faults.CodeOf(err) == faults.CodeDeadlineExceeded: // it hangs, for what we know: another is asked first from now on
			p.prefer(first, at+1)
			return res, err
		case err == nil || !away(err):
			p.prefer(first, at)
			return res, err
		}
		if e, ok := errors.AsType[*faults.Error](err); ok && e.Kind() != "" && refusal == nil {
			refusal = err
		}
		if ctx.Err() != nil {
			break
		}
	}
	if errors.Is(context.Cause(ctx), context.Canceled) {
		return zero, context.Cause(ctx)
	}
	if refusal != nil {
		return zero, refusal
	}
	return zero, faults.Unavailable(retryAfter, "the %s service does not answer", p.service)
}

// Once makes a call that must not be made twice, on the process that answered last. When that is away it is not known whether
// the call was made, and the error says so. Other errors are those of [Do].
func Once[C, T any](ctx context.Context, p *Peers[C], timeout time.Duration, call func(context.Context, C) (T, error)) (T, error) {
	var zero T
	if !p.Configured() {
		return zero, p.unimplemented()
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	first := p.preferred.Load()
	res, err := call(ctx, p.clients[int(first)%len(p.clients)])
	if err == nil || !away(err) && faults.CodeOf(err) != faults.CodeDeadlineExceeded {
		return res, err
	}
	p.prefer(first, int(first)+1)
	return zero, faults.Unavailable(retryAfter, "the %s service did not confirm the call, which may or may not have been applied;"+
		" look before you repeat it", p.service).WithCause(err)
}

func (p *Peers[C]) unimplemented() error {
	return faults.Unimplemented("this cluster runs no %s service, or the router does not know it: set %s", p.service, p.setting)
}

// prefer has a process asked first, unless another call has changed that meanwhile.
func (p *Peers[C]) prefer(before uint32, at int) {
	p.preferred.CompareAndSwap(before, uint32(at%len(p.clients))) //nolint:gosec // an index
}

// away tells whether another process may do better.
func away(err error) bool {
	return rpc.PeerGone(err) || faults.CodeOf(err) == faults.CodeUnavailable
}
