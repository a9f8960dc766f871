package election

import (
	"context"
	"errors"
	"sync"
	"time"
)

// Why the leading of a process ends.
var (
	errOver     = errors.New("the time of the lease is over")
	errReplaced = errors.New("another process holds the lease")
	errStopping = errors.New("the process stops")
)

// reign is one time of leading.
type reign struct {
	term   int64
	ctx    context.Context //nolint:containedctx // the lifetime of the duties, which is what a reign is
	cancel context.CancelCauseFunc
	done   chan struct{} // closed when the duties have ended
	err    error         // of the duties; valid after done

	mu    sync.Mutex
	until time.Time // with a monotonic reading
	timer *time.Timer
}

// HandingBack tells whether the context of a duty has ended because the process stops. Then the lease is its own until
// the duties have ended, and what they still write on their way is right.
func HandingBack(ctx context.Context) bool {
	r, ok := ctx.Value(reignKey{}).(*reign)
	return !ok || errors.Is(context.Cause(ctx), errStopping) && r.inTime()
}

type reignKey struct{}

// newReign begins a reign that lasts until the given time, and what is to be done in it.
func newReign(ctx context.Context, term int64, until time.Time, duties func(ctx context.Context, term int64) error) *reign {
	r := &reign{term: term, until: until, done: make(chan struct{})}
	ctx, r.cancel = context.WithCancelCause(ctx)
	r.ctx = context.WithValue(ctx, reignKey{}, r)
	r.timer = time.AfterFunc(time.Until(until), func() { _ = r.check() })
	go func() {
		defer close(r.done)
		r.err = duties(r.ctx, term)
	}()
	return r
}

// extend moves the end of the reign on. A reign that has ended does not come back.
func (r *reign) extend(until time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ctx.Err() != nil || !until.After(r.until) {
		return
	}
	r.until = until
	r.timer.Reset(time.Until(until))
}

// check ends the reign if its time is over, and says why it has ended.
func (r *reign) check() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ctx.Err() == nil && !time.Now().Before(r.until) {
		r.cancel(errOver)
	}
	if r.ctx.Err() != nil {
		return context.Cause(r.ctx)
	}
	return nil
}

// inTime tells whether the lease is not over yet.
func (r *reign) inTime() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return time.Now().Before(r.until)
}

// end ends the reign and waits for its duties.
func (r *reign) end(why error) error {
	r.cancel(why)
	<-r.done
	r.mu.Lock()
	defer r.mu.Unlock()
	r.timer.Stop()
	return r.err
}

// Guard is asked before each write of a duty. It gives a context that ends with the lease as it is known now, or says why
// the process leads no more. A context without a reign, as in tests of a duty, passes.
func Guard(ctx context.Context) (context.Context, context.CancelFunc, error) {
	r, ok := ctx.Value(reignKey{}).(*reign)
	if !ok {
		return ctx, func() {}, ctx.Err()
	}
	if err := r.check(); err != nil {
		return nil, nil, err
	}
	r.mu.Lock()
	until := r.until
	r.mu.Unlock()
	ctx, cancel := context.WithDeadlineCause(ctx, until, errOver)
	return ctx, cancel, nil
}
