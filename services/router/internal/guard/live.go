package guard

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/wiggle-run/wiggle/pkg/faults"
	"github.com/wiggle-run/wiggle/pkg/identity"
	"github.com/wiggle-run/wiggle/services/router/internal/pause"
	"github.com/wiggle-run/wiggle/services/router/internal/principals"
)

const (
	// recheckTimeout bounds the question whether a stream's caller is still who it was.
	recheckTimeout = 400 * time.Millisecond
	// maxRechecks is how many credentials are asked for at the same time.
	maxRechecks = 16
	// reconnectAfter is when a caller whose stream ends for no fault of its own should come back.
	reconnectAfter = 50 * time.Millisecond
)

// Authenticator knows whose credentials are.
type Authenticator interface {
	Lookup(context.Context, principals.Credential) (*identity.Principal, error)
}

// live is the calls under way that may last: they end with their callers' credentials (AUT-5).
type live struct {
	known Authenticator
	every time.Duration // between looks at all of them

	changes atomic.Uint64
	wake    chan struct{}

	mu    sync.Mutex
	calls map[*call]struct{}
	due   map[*call]struct{}
}

// call is one of them.
type call struct {
	rule       *Rule
	credential principals.Credential
	cancel     context.CancelCauseFunc
	principal  atomic.Pointer[identity.Principal]
}

func newLive(known Authenticator, every time.Duration) *live {
	return &live{
		known: known, every: every, wake: make(chan struct{}, 1), calls: map[*call]struct{}{}, due: map[*call]struct{}{},
	}
}

// track adds a call until leave is called. before is the count of changes before its caller was looked up: a change since
// then may have missed the call, so it is looked at again.
func (l *live) track(
	ctx context.Context, rule *Rule, credential principals.Credential, p *identity.Principal, before uint64,
) (tracked context.Context, leave func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := func() {}
	if ends := p.Message().GetExpiresAt(); ends != nil {
		timer := time.AfterFunc(time.Until(ends.AsTime()), func() {
			cancel(faults.Unauthenticated("the API key or session has ended; set WIGGLE_API_KEY to one that is valid, or sign in again"))
		})
		stop = func() { timer.Stop() }
	}
	c := &call{rule: rule, credential: credential, cancel: cancel}
	c.principal.Store(p)
	l.mu.Lock()
	l.calls[c] = struct{}{}
	if l.changes.Load() != before {
		l.due[c] = struct{}{}
		l.signal()
	}
	l.mu.Unlock()
	return ctx, func() {
		stop()
		l.mu.Lock()
		delete(l.calls, c)
		delete(l.due, c)
		l.mu.Unlock()
		cancel(nil)
	}
}

// changed notes whom a change concerns. It does not block.
func (l *live) changed(ch principals.Change) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.changes.Add(1)
	for c := range l.calls {
		if ch.Concerns(c.principal.Load()) {
			l.due[c] = struct{}{}
		}
	}
	if len(l.due) > 0 {
		l.signal()
	}
}

func (l *live) signal() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// run looks at calls until ctx is done: at those that a change concerns, and at all of them now and then, as the auth service
// may have been out of reach when something changed.
func (l *live) run(ctx context.Context) {
	next := time.Now().Add(l.every)
	for pause.For(ctx, time.Until(next), l.wake) {
		l.mu.Lock()
		if !time.Now().Before(next) {
			next = time.Now().Add(pause.Jitter(l.every))
			for c := range l.calls {
				l.due[c] = struct{}{}
			}
		}
		due := map[principals.Credential][]*call{}
		for c := range l.due {
			due[c.credential] = append(due[c.credential], c)
		}
		clear(l.due)
		l.mu.Unlock()
		l.recheck(ctx, due)
	}
}

// recheck asks once for each credential.
func (l *live) recheck(ctx context.Context, due map[principals.Credential][]*call) {
	var wg sync.WaitGroup
	room := make(chan struct{}, maxRechecks)
	for credential, calls := range due {
		room <- struct{}{}
		wg.Go(func() {
			defer func() { <-room }()
			ctx, cancel := context.WithTimeout(ctx, recheckTimeout)
			defer cancel()
			p, err := l.known.Lookup(ctx, credential)
			for _, c := range calls {
				c.judge(p, err)
			}
		})
	}
	wg.Wait()
}

// judge ends a call whose caller is none any more, or may do less or more than when it began.
func (c *call) judge(p *identity.Principal, err error) {
	switch {
	case errors.Is(err, faults.ErrUnauthenticated):
		c.cancel(err)
	case err != nil:
		c.cancel(faults.Unavailable(reconnectAfter, "whether the caller is still known cannot be found out now; connect again"))
	case c.rule.Action == "" || p.Permissions().AllowsEverywhere(c.rule.Action),
		slices.Equal(p.Permissions().Scopes(c.rule.Action), c.principal.Load().Permissions().Scopes(c.rule.Action)):
		c.principal.Store(p)
	default:
		c.cancel(faults.Unavailable(reconnectAfter, "what the caller may do has changed; connect again"))
	}
}

// causeOf is why the guard ended a call, or else its own error.
func causeOf(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	if fault, ok := errors.AsType[*faults.Error](context.Cause(ctx)); ok {
		return fault
	}
	return err
}
