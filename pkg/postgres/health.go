package postgres

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

const (
	// probePauseMax bounds the pause between two probes of a member that is down; the pause is drawn from the upper half.
	probePauseMax = 500 * time.Millisecond
	// probeAnswerTimeout bounds a probe's question once it is connected.
	probeAnswerTimeout = time.Second
	// retryAfter is the hint in errors of a member that is down: within it a returned member is noticed.
	retryAfter = 500 * time.Millisecond
	// resetGap keeps the connections that break together from resetting the pool once each.
	resetGap = 50 * time.Millisecond
)

// State is what a pool believes about its member; the package comment draws the transitions.
type State int

const (
	// Untried means no call has been made yet.
	Untried State = iota
	// Up means the last thing known is good.
	Up
	// Suspect means a connection broke and a probe is under way; calls are still tried.
	Suspect
	// Down means calls fail at once until a probe succeeds.
	Down
)

// String returns the state in lower case.
func (s State) String() string {
	names := [...]string{"untried", "up", "suspect", "down"}
	if s < 0 || int(s) >= len(names) {
		return "invalid state"
	}
	return names[s]
}

// Health is what is known about a member without asking it.
type Health struct {
	// Name is MemberConfig.Name.
	Name string
	// State is the state of the pool, Reason why it is Suspect or Down, in words that name no host.
	State  State
	Reason string
	// Class is what calls fail with while Down: Unavailable or ReadOnly.
	Class Class
	// Since is when State was entered, by this process's clock.
	Since time.Time
	// LastSuccess and LastFailure are when a call last worked, and when the connection or the server last failed; zero if
	// never. Errors of statements are not failures here.
	LastSuccess, LastFailure time.Time
}

// Usable reports whether a call would be tried.
func (h Health) Usable() bool { return h.State != Down }

// downState is what calls fail with while a member is down.
type downState struct {
	class  Class
	reason string
	cause  error
}

func (d *downState) fail(p *Pool, op string) error {
	e := p.newError(op, d.class, d.cause)
	e.Reason = d.reason
	return e
}

// Health returns what is known about the member; it asks nobody.
func (p *Pool) Health() Health {
	p.mu.Lock()
	h := p.health
	p.mu.Unlock()
	if at := p.lastSuccess.Load(); at != 0 {
		h.LastSuccess = time.Unix(0, at)
	}
	return h
}

// succeeded notes a call that the server answered.
func (p *Pool) succeeded() {
	if p.lastSuccess.Swap(time.Now().UnixNano()) == 0 {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.health.State == Untried {
			p.enter(Up, nil)
		}
	}
}

// failed notes an error of the connection or of the server's role and acts on it.
func (p *Pool) failed(err error, connecting bool) {
	state := Suspect
	if connecting || isReadOnly(err) {
		state = Down
	}
	if !connecting {
		p.resetOnce()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return
	}
	p.health.LastFailure = time.Now()
	if p.health.State < state {
		p.enter(state, err)
	}
	if !p.probing {
		p.probing = true
		p.probes.Go(p.probeUntilUp)
	}
}

// resetOnce empties the pool, unless another connection's failure has just done so.
func (p *Pool) resetOnce() {
	now := time.Now().UnixNano()
	if last := p.lastReset.Load(); now-last > int64(resetGap) && p.lastReset.CompareAndSwap(last, now) {
		p.raw.Reset()
	}
}

// enter changes the state; p.mu is held.
func (p *Pool) enter(state State, cause error) {
	from := p.health.State
	p.health.State, p.health.Since = state, time.Now()
	p.health.Reason, p.health.Class = "", OK
	p.down.Store(nil)
	if cause != nil {
		p.health.Reason = reason(cause)
		p.health.Class = Unavailable
		if isReadOnly(cause) {
			p.health.Class = ReadOnly
		}
		if state == Down {
			p.down.Store(&downState{class: p.health.Class, reason: p.health.Reason, cause: cause})
		}
	}
	level := slog.LevelInfo
	if state == Down {
		level = slog.LevelWarn
	}
	p.cfg.Logger.Log(context.Background(), level, "database member changed state", "member", p.cfg.Name,
		"from", from.String(), "to", state.String(), "reason", p.health.Reason, "cause", causeText(cause))
	if p.cfg.OnState != nil {
		p.cfg.OnState(p.health)
	}
}

// probeUntilUp runs from the first failure until a probe succeeds or the pool is closed.
func (p *Pool) probeUntilUp() {
	for {
		err := p.probeOnce(p.stopCtx)
		if p.stopCtx.Err() != nil {
			return
		}
		p.mu.Lock()
		if err == nil {
			p.probing = false
			p.lastSuccess.Store(time.Now().UnixNano())
			p.enter(Up, nil)
			p.mu.Unlock()
			return
		}
		p.health.LastFailure = time.Now()
		if p.health.State != Down || p.health.Reason != reason(err) {
			p.enter(Down, err)
		}
		p.mu.Unlock()
		if !pause(p.stopCtx, probePauseMax/2+rand.N(probePauseMax/2)) { //nolint:gosec // jitter
			return
		}
	}
}

// probeOnce connects outside the pool and asks whether the member can do its work. A server that is only full answers.
func (p *Pool) probeOnce(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, p.connectBudget()+probeAnswerTimeout)
	defer cancel()
	conn, err := pgx.ConnectConfig(ctx, p.probe.Copy())
	if err != nil {
		if isFull(err) {
			return nil
		}
		return err
	}
	defer func() { _ = conn.Close(ctx) }()
	var readOnly bool
	// Simple protocol and no settings: works through any pooler.
	err = conn.QueryRow(ctx, "select pg_is_in_recovery() or current_setting('default_transaction_read_only')::bool",
		pgx.QueryExecModeSimpleProtocol).Scan(&readOnly)
	if err == nil && readOnly && !p.cfg.ReadOnly {
		return errNotWritable
	}
	return err
}

// connectBudget is the time in which every host of the connection string can have been tried.
func (p *Pool) connectBudget() time.Duration {
	return p.cfg.ConnectTimeout * time.Duration(1+len(p.probe.Fallbacks))
}

func isReadOnly(err error) bool {
	pgErr, ok := errors.AsType[*pgconn.PgError](err)
	return errors.Is(err, errNotWritable) || (ok && pgErr.Code == stateReadOnly)
}

func isFull(err error) bool {
	pgErr, ok := errors.AsType[*pgconn.PgError](err)
	return ok && pgErr.Code == stateTooManyConnections
}

// pause waits for d and reports whether ctx is still alive.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}
