package sweep

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/wiggle-run/wiggle/pkg/clock"
	"github.com/wiggle-run/wiggle/services/instances/internal/dispatch"
	"github.com/wiggle-run/wiggle/services/instances/internal/machine"
	"github.com/wiggle-run/wiggle/services/instances/internal/store"
)

// What bounds a sweeper.
const (
	// TickEvery is the pause between looks at an idle shard.
	TickEvery = 2 * time.Second
	// Term is how long a sweep lease lasts unless it is renewed, and so how long
	// timers and expired leases wait when the process dies that sweeps. A holder may
	// be late by a whole tick; that it loses the lease to another does no harm.
	Term = 5 * time.Second
	// page is how many tokens are read at a time, and wakePages how many pages of timers in memory are woken at a time: enough
	// for a few batches of each lane, so that none waits for the other.
	page      = 500
	wakePages = 4
	// expiredPages is how many pages of expired leases are read at a time, as finding them reads every lease.
	expiredPages = 10
	// remembered is how many timers are kept in memory; beyond it the tick finds them.
	remembered = 100_000
	// retryPause is how long a sweeper waits after the shard's database failed.
	retryPause = time.Second
	// leaveTime bounds giving the sweep lease back.
	leaveTime = time.Second
	// tickAtLeast keeps leases that end one after the other from making a tick each.
	tickAtLeast = 50 * time.Millisecond
	// lookPart is the part of the time that a sweeper may look at the shard, a fiftieth: a
	// look reads every lease, and what is dead and not yet vacuumed. Between looks a tick
	// only renews the sweep lease.
	lookPart = 50
)

// Sweeper sweeps one shard for one process.
type Sweeper struct {
	shard  *dispatch.Shard
	clock  clock.Clock
	holder string
	log    *slog.Logger

	mu     sync.Mutex
	timers timers
	tickAt time.Time // by the clock of this process
	look   bool      // read timers at the next tick, whoever holds the lease
	nudge  chan struct{}

	ticked    time.Time
	lookAt    time.Time   // the earliest time of the next look
	holds     atomic.Bool // the sweep lease, as of the last tick
	failed    bool
	afterTick func(context.Context) error // what else is done at each tick
	afterLook func(context.Context, store.Tick) error
}

// New makes the sweeper of a shard. The shard tells it of timers and leases.
func New(s *dispatch.Shard, c clock.Clock, holder string, log *slog.Logger) *Sweeper {
	w := &Sweeper{shard: s, clock: c, holder: holder, log: log.With("shard", s.ID()), nudge: make(chan struct{}, 1)}
	s.OnTimes(w.set, w.leased)
	return w
}

// AfterTick adds something to do at each tick. It must be called before Run.
func (w *Sweeper) AfterTick(do func(context.Context) error) { w.afterTick = do }

// AfterLook adds something to do after each look at the shard. It must be called before
// Run.
func (w *Sweeper) AfterLook(do func(context.Context, store.Tick) error) { w.afterLook = do }

// Sweeps tells whether this process sweeps the shard, as far as it knows.
func (w *Sweeper) Sweeps() bool { return w.holds.Load() }

// set takes note of a timer. Where too many are remembered, the shard is looked at
// when it is due.
func (w *Sweeper) set(due time.Time, ref store.TokenRef) {
	local := w.local(due)
	w.mu.Lock()
	var sooner bool
	if w.timers.len() >= remembered {
		w.look = true
		sooner = w.tickBy(local)
	} else {
		sooner = w.timers.push(ref)
	}
	w.mu.Unlock()
	if sooner {
		w.wake()
	}
}

// leased takes note of a lease: the shard is looked at when it ends.
func (w *Sweeper) leased(until time.Time) {
	local := w.local(until)
	w.mu.Lock()
	sooner := w.tickBy(local)
	w.mu.Unlock()
	if sooner {
		w.wake()
	}
}

// tickBy moves the next tick forward, if it is later than that.
func (w *Sweeper) tickBy(at time.Time) bool {
	if earliest := w.ticked.Add(tickAtLeast); at.Before(earliest) {
		at = earliest
	}
	if !at.Before(w.tickAt) {
		return false
	}
	w.tickAt = at
	return true
}

// local turns a time of the shard's clock into one of ours.
func (w *Sweeper) local(t time.Time) time.Time {
	return t.Add(w.clock.Now().Sub(w.shard.Now()))
}

func (w *Sweeper) wake() {
	select {
	case w.nudge <- struct{}{}:
	default:
	}
}

// Run sweeps until ctx is done, and then leaves the sweep lease to others.
func (w *Sweeper) Run(ctx context.Context) error {
	defer w.leave(ctx)
	for ctx.Err() == nil {
		due, stop := w.clock.At(w.next())
		select {
		case <-ctx.Done():
		case <-due:
			w.runOnce(ctx)
		case <-w.nudge:
		}
		stop()
	}
	return nil
}

// leave ends the sweep lease, so that nobody has to wait for its term to end. A tick that failed may have got it all the same.
func (w *Sweeper) leave(ctx context.Context) {
	if !w.holds.Load() && !w.failed {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaveTime)
	defer cancel()
	if _, err := w.shard.Store().Tick(ctx, w.holder, 0, false); err != nil {
		w.log.Warn("the sweep lease is not given back; others wait until it ends", "error", err)
	}
}

// next is when there is something to do.
func (w *Sweeper) next() time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	at := w.tickAt
	if first, ok := w.timers.first(); ok {
		if local := w.local(first); local.Before(at) {
			at = local
		}
	}
	return at
}

// runOnce wakes what is due and looks at the shard if it is time.
func (w *Sweeper) runOnce(ctx context.Context) {
	err := w.wakeDue()
	if err == nil && !w.clock.Now().Before(w.tickTime()) {
		err = w.tick(ctx)
	}
	if err != nil {
		w.after(retryPause)
	}
	w.report(err)
}

func (w *Sweeper) tickTime() time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.tickAt
}

// after sets the next tick.
func (w *Sweeper) after(pause time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ticked = w.clock.Now()
	w.tickAt = w.ticked.Add(pause)
}

// report logs when sweeping begins to fail and when it works again.
func (w *Sweeper) report(err error) {
	switch failed := err != nil; {
	case failed && !w.failed:
		w.log.Warn("timers and leases of the shard stand still until its database answers", "error", err)
	case !failed && w.failed:
		w.log.Info("timers and leases of the shard go on")
	}
	w.failed = err != nil
}

// wakeDue wakes the timers in memory that are due.
func (w *Sweeper) wakeDue() error {
	for {
		w.mu.Lock()
		refs := w.timers.pop(w.shard.Now(), wakePages*page)
		w.mu.Unlock()
		if len(refs) == 0 {
			return nil
		}
		if err := w.wakeAll(refs); err != nil {
			return err
		}
		if len(refs) < wakePages*page {
			return nil
		}
	}
}

func (w *Sweeper) wakeAll(refs []store.TokenRef) error {
	events := make([]dispatch.Event, len(refs))
	for i, ref := range refs {
		events[i] = dispatch.Wake(ref)
	}
	return w.apply(events, refs, func(ref store.TokenRef) { w.shard.TimerLate(w.shard.Now().Sub(ref.DueAt)) })
}

// apply runs events of the sweep. That a token is not due, or is gone, is no
// failure: another process was faster. What the database did not take is kept. done is
// told of what was applied; it may be nil.
func (w *Sweeper) apply(events []dispatch.Event, refs []store.TokenRef, done func(store.TokenRef)) error {
	var failure error
	for i, o := range w.shard.Apply(events) {
		switch {
		case o.Err == nil:
			if done != nil {
				done(refs[i])
			}
		case errors.Is(o.Err, machine.ErrLeaseLost):
		case errors.Is(o.Err, machine.ErrNotDue):
			w.early(refs[i])
		default:
			failure = o.Err
			w.early(refs[i])
		}
	}
	return failure
}

// early puts a timer back that our clock took for due. Whatever else the store
// has to say of it the next tick finds out.
func (w *Sweeper) early(ref store.TokenRef) {
	if ref.DueAt.After(w.shard.Now()) {
		w.set(ref.DueAt, ref)
	}
}

// tick looks at the shard: who sweeps it, what is due, what is ready.
func (w *Sweeper) tick(ctx context.Context) error {
	began := w.clock.Now()
	look := !began.Before(w.lookAt)
	t, err := w.shard.Store().Tick(ctx, w.holder, Term, look)
	if err != nil {
		return fmt.Errorf("look at the shard: %w", err)
	}
	held := w.holds.Swap(t.Holder)
	w.shard.Saw(t.Now)
	pause := TickEvery - time.Duration(rand.Int64N(int64(TickEvery/8))) //nolint:gosec // jitter
	w.after(pause)
	if t.Holder && !held && !look {
		w.lookAt = began // whoever had the lease before may have gone with timers that it alone remembered
	}
	until := w.nextLook(look, began, pause)
	for _, key := range t.Ready {
		w.shard.Ready(key)
	}
	if err := w.shard.CheckEnds(ctx); err != nil {
		return err
	}
	if w.afterTick != nil {
		if err := w.afterTick(ctx); err != nil {
			return err
		}
	}
	if !look {
		return nil
	}
	if w.afterLook != nil {
		if err := w.afterLook(ctx, t); err != nil {
			return err
		}
	}
	w.mu.Lock()
	mine := w.look
	w.look = false
	w.mu.Unlock()
	if !t.Holder && !mine {
		return nil
	}
	if !t.NextDue.IsZero() && t.NextDue.Before(t.Now.Add(until)) {
		if err := w.readDue(ctx, t.Now.Add(until)); err != nil {
			return err
		}
	}
	if t.NextExpiry.IsZero() {
		return nil
	}
	if t.NextExpiry.After(t.Now) {
		w.leased(t.NextExpiry)
		return nil
	}
	return w.expire(ctx)
}

// nextLook notes what a look took, or that one is wanting, and tells how far ahead timers have to be read: up to the next
// look.
func (w *Sweeper) nextLook(looked bool, began time.Time, pause time.Duration) time.Duration {
	now := w.clock.Now()
	if looked {
		w.lookAt = now.Add(lookPart * now.Sub(began))
		return max(pause, w.lookAt.Sub(now))
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.tickBy(w.lookAt)
	return pause
}

// readDue takes a page of timers into memory that nobody may remember. Where
// there are more they are read when these are done.
func (w *Sweeper) readDue(ctx context.Context, before time.Time) error {
	refs, err := w.shard.Store().Due(ctx, before, page)
	if err != nil {
		return fmt.Errorf("read timers: %w", err)
	}
	w.mu.Lock()
	for _, ref := range refs {
		w.timers.push(ref)
	}
	if len(refs) == page {
		w.tickBy(w.local(refs[page-1].DueAt))
	}
	w.mu.Unlock()
	return w.wakeDue()
}

// expire takes leases back until no page is full.
func (w *Sweeper) expire(ctx context.Context) error {
	for ctx.Err() == nil {
		all, err := w.shard.Store().Expired(ctx, expiredPages*page)
		if err != nil {
			return fmt.Errorf("read expired leases: %w", err)
		}
		for refs := range slices.Chunk(all, page) {
			events := make([]dispatch.Event, len(refs))
			for i, ref := range refs {
				events[i] = dispatch.Expire(store.Lease{Instance: ref.Instance, Token: ref.Token, Fence: ref.Fence})
			}
			if err := w.apply(events, refs, nil); err != nil {
				return err
			}
		}
		if len(all) < expiredPages*page {
			break
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.tickBy(w.clock.Now()) // for the next lease that ends
	return nil
}
