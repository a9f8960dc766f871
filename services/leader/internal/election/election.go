package election

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/wiggle-run/wiggle/pkg/lifecycle"
)

// How long things take. A leader that vanishes is replaced when its lease is over, at most Length after its last
// renewal, and a process that stands by has asked, at most a RenewEvery later.
const (
	// Length is how long a lease lasts unless it is renewed.
	Length = 3 * time.Second
	// Margin is by how much sooner a leader takes its lease for over than the database does: clocks may differ in rate by a
	// tenth.
	Margin = Length / 10
	// RenewEvery is the pause between two looks at the lease, by whoever holds it and by whoever stands by.
	RenewEvery = time.Second
	// retryEvery is the pause after one that failed.
	retryEvery = 250 * time.Millisecond
	// askTime bounds one look: a leader has time for two before its lease is over.
	askTime = time.Second
	// releaseTime bounds giving the lease back.
	releaseTime = time.Second
)

// Config says who stands for election, and for what.
type Config struct {
	// Lease is the row. Required.
	Lease Lease
	// Holder names the process, and no other that ever was. Required.
	Holder string
	// Duties are what a leader does. It returns when ctx has ended, or with a *FencedError. Required.
	Duties func(ctx context.Context, term int64) error
	// Logger gets what operators have to know. Required.
	Logger *slog.Logger
}

// Election is one process's part in it.
type Election struct {
	cfg   Config
	log   *slog.Logger
	floor int64 // the latest term that a write has met
	reign *reign
	known string // who held the lease at the last look
	away  bool   // home did not answer at the last look

	leading atomic.Pointer[reign]
}

// New makes a process's part in the election.
func New(cfg Config) *Election {
	return &Election{cfg: cfg, log: cfg.Logger.With("process", cfg.Holder)}
}

// Term is the term under which this process leads now; false if it does not.
func (e *Election) Term() (int64, bool) {
	r := e.leading.Load()
	if r == nil || r.check() != nil {
		return 0, false
	}
	return r.term, true
}

// Run stands for election until ctx is done, and then hands the lease back. It may be called once.
func (e *Election) Run(ctx context.Context) error {
	for ctx.Err() == nil {
		pause := e.look(ctx)
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		case <-e.ended():
			e.end(errReplaced)
			select {
			case <-ctx.Done():
			case <-time.After(retryEvery):
			}
		}
	}
	e.resign(ctx)
	return nil
}

// ended is closed when the duties have ended by themselves.
func (e *Election) ended() <-chan struct{} {
	if e.reign == nil {
		return nil
	}
	return e.reign.done
}

// look asks for the lease, acts on the answer, and tells when to look again.
func (e *Election) look(ctx context.Context) time.Duration {
	if e.reign != nil && e.reign.check() != nil {
		e.end(errOver)
	}
	ask := Ask{Holder: e.cfg.Holder, Floor: e.floor, Length: Length}
	if e.reign != nil {
		ask.Term = e.reign.term
	}
	sent := time.Now()
	asking, cancel := context.WithTimeout(context.WithoutCancel(ctx), askTime) // an answer that nobody waits for may be a lease
	standing, err := e.cfg.Lease.Try(asking, ask)
	cancel()
	if ctx.Err() != nil {
		if standing.Held && e.reign == nil {
			e.release(ctx, standing.Term)
		}
		return 0
	}
	e.report(standing, err)
	until := sent.Add(Length - Margin)
	switch {
	case err != nil:
		return retryEvery // the reign ends by itself when its time is over
	case !standing.Held:
		e.end(errReplaced)
	case e.reign != nil && e.reign.term == standing.Term:
		e.reign.extend(until)
		if e.reign.check() != nil { // the answer came too late: duties have been told to end
			return 0
		}
	default:
		e.end(errOver)
		if !time.Now().Before(until) {
			return 0 // another look takes it anew
		}
		e.begin(ctx, standing.Term, until)
	}
	return RenewEvery - RenewEvery/20 + rand.N(RenewEvery/10) //nolint:gosec // jitter
}

// begin begins to lead. The duties' context outlives ctx: they are ended one by one when the process stops.
func (e *Election) begin(ctx context.Context, term int64, until time.Time) {
	e.log.Info("this process leads now", "term", term)
	e.reign = newReign(context.WithoutCancel(ctx), term, until, e.cfg.Duties)
	e.leading.Store(e.reign)
}

// end ends the leading, if there is any, and waits for the duties.
func (e *Election) end(why error) {
	if e.reign == nil {
		return
	}
	if cause := context.Cause(e.reign.ctx); cause != nil {
		why = cause
	}
	err := e.reign.end(why)
	if fenced, ok := errors.AsType[*FencedError](err); ok {
		e.floor = max(e.floor, fenced.Term)
		why = fenced
	}
	e.log.Warn("this process leads no more", "term", e.reign.term, "reason", why)
	e.leading.Store(nil)
	e.reign = nil
}

// resign ends the leading, and then gives the lease back.
func (e *Election) resign(ctx context.Context) {
	if e.reign == nil {
		return
	}
	term := e.reign.term
	_ = e.reign.end(errStopping)
	e.leading.Store(nil)
	e.reign = nil
	e.release(ctx, term)
}

// release gives the lease back, so that another process need not wait for its end.
func (e *Election) release(ctx context.Context, term int64) {
	ctx, cancel := context.WithTimeout(lifecycle.DrainContext(ctx), releaseTime)
	defer cancel()
	if err := e.cfg.Lease.Release(ctx, e.cfg.Holder, term); err != nil {
		e.log.Warn("the lease is not given back; others wait until it is over", "term", term, "error", err)
		return
	}
	e.log.Info("this process leads no more; the lease is given back", "term", term)
}

// report logs when home stops and begins to answer, and who leads.
func (e *Election) report(s Standing, err error) {
	switch {
	case err != nil && !e.away:
		e.log.Warn("the lease cannot be looked at; a leader goes on until it is over", "error", err)
	case err == nil && e.away:
		e.log.Info("the lease can be looked at again")
	}
	e.away = err != nil
	if err == nil && !s.Held && s.Holder != e.known && s.Holder != "" {
		e.log.Info("another process leads; this one stands by", "leader", s.Holder, "term", s.Term)
	}
	if err == nil {
		e.known = s.Holder
	}
}
