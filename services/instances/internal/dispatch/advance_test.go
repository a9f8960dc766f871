package dispatch_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/wiggle-run/wiggle/services/instances/internal/dispatch"
	"github.com/wiggle-run/wiggle/services/instances/internal/machine"
	"github.com/wiggle-run/wiggle/services/instances/internal/store"
)

// first starts an instance and claims its first task.
func first(t *testing.T, b *bench) (machine.ID, store.Claimed) {
	t.Helper()
	start := newStart()
	b.Start([]dispatch.StartItem{start})
	claimed, err := b.Claim(t.Context(), claimUpTo(1), 0)
	if err != nil || len(claimed) != 1 {
		t.Fatal(claimed, err)
	}
	return start.Event.ID, claimed[0]
}

// TestGuardedReport: a report on a token that this process leased, and that concerns it
// alone, is written without a read; the end of an instance is not (WRK-18).
func TestGuardedReport(t *testing.T) {
	t.Parallel()
	b := newBench(t, nil)
	id, task := first(t, b)
	claim := claimUpTo(1)
	o := b.ApplyAndClaim([]dispatch.Event{dispatch.Report(dispatch.Lease(task.Token), result(`1`))}, &claim)[0]
	if o.Err != nil || o.Next == nil || b.store.guarded != 1 {
		t.Fatalf("answered with %+v, %d guarded", o, b.store.guarded)
	}
	o = b.ApplyAndClaim([]dispatch.Event{dispatch.Report(dispatch.Lease(o.Next.Token), result(`2`))}, &claim)[0]
	if o.Err != nil || !o.Changes.Ended || b.store.guarded != 1 {
		t.Fatalf("answered with %+v, %d guarded", o, b.store.guarded)
	}
	rows, err := b.store.History(t.Context(), id, store.HistoryKey{}, 10)
	if err != nil || len(rows) != 4 {
		t.Fatalf("the history has %d entries: %v", len(rows), err)
	}
	for i, row := range rows[1:] {
		if row.Key.RecordedAt.Before(rows[i].Key.RecordedAt) {
			t.Errorf("entry %d was recorded before the one before it", i+1)
		}
	}
}

// TestEmittingReportIsLocked: a report that adds to the event log is written with its instance locked, as readers of the log
// rely on (EVT-3); those told of it are told once it is committed, and of none that is not.
func TestEmittingReportIsLocked(t *testing.T) {
	t.Parallel()
	b := newBench(t, nil)
	logged := 0
	b.OnEvents(func() { logged++ })
	_, task := first(t, b)
	if logged != 1 {
		t.Errorf("of a start was told %d times", logged)
	}
	report := result(`1`)
	report.Events = []machine.Emitted{{Type: "wf.mine"}}
	var refused *machine.EmitError
	if o := b.Apply([]dispatch.Event{dispatch.Report(dispatch.Lease(task.Token), report)})[0]; !errors.As(o.Err, &refused) || logged != 1 {
		t.Errorf("answered with %v, told %d times", o.Err, logged)
	}
	report.Events[0].Type = "mine"
	claim := claimUpTo(1)
	o := b.ApplyAndClaim([]dispatch.Event{dispatch.Report(dispatch.Lease(task.Token), report)}, &claim)[0]
	if o.Err != nil || o.Next == nil || b.store.guarded != 0 || logged != 2 {
		t.Fatalf("answered with %+v, %d guarded, told %d times", o, b.store.guarded, logged)
	}
	o = b.ApplyAndClaim([]dispatch.Event{dispatch.Report(dispatch.Lease(o.Next.Token), result(`2`))}, nil)[0]
	if o.Err != nil || logged != 3 {
		t.Errorf("answered with %v, told %d times", o.Err, logged)
	}
	page, err := b.store.ReadEvents(t.Context(), 0, 10)
	if err != nil || len(page.Events) != 3 || page.Events[1].Type != "mine" {
		t.Errorf("the log is %+v, %v", page.Events, err)
	}
}

// TestGuardRefuses: what is not as this process knows it goes the locked way, and is
// answered with what is true.
func TestGuardRefuses(t *testing.T) {
	t.Parallel()
	away := errors.New("the database is away")
	for name, c := range map[string]struct {
		advance func(b *bench, id machine.ID, task store.Claimed) error
		want    error
	}{
		"cancelled meanwhile": {func(b *bench, id machine.ID, _ store.Claimed) error {
			_, err := b.Cancel(t.Context(), id, "enough")
			return err
		}, machine.ErrLeaseLost},
		"released meanwhile": {func(b *bench, _ machine.ID, task store.Claimed) error {
			return b.Apply([]dispatch.Event{dispatch.Release(dispatch.Lease(task.Token))})[0].Err
		}, machine.ErrLeaseLost},
		"failed before it was written": {func(*bench, machine.ID, store.Claimed) error { return away }, nil},
		"failed after it was written": {func(b *bench, _ machine.ID, task store.Claimed) error {
			again := dispatch.Report(dispatch.Lease(task.Token), result(`1`))
			return errors.Join(away, b.Apply([]dispatch.Event{again})[0].Err)
		}, nil},
	} {
		b := newBench(t, nil)
		id, task := first(t, b)
		b.store.advance = func([]store.Move) error {
			b.store.advance = nil
			if err := c.advance(b, id, task); err != nil {
				return fmt.Errorf("before the write: %w", err)
			}
			return nil
		}
		claim := claimUpTo(1)
		o := b.ApplyAndClaim([]dispatch.Event{dispatch.Report(dispatch.Lease(task.Token), result(`1`))}, &claim)[0]
		if !errors.Is(o.Err, c.want) {
			t.Errorf("%s: answered with %v, want %v", name, o.Err, c.want)
		}
		if (o.Next != nil) != (c.want == nil && name == "failed before it was written") {
			t.Errorf("%s: brought %+v", name, o.Next)
		}
	}
}

// TestEventsOnOneTokenKeepTheirOrder: whichever of them could go the guarded way.
func TestEventsOnOneTokenKeepTheirOrder(t *testing.T) {
	t.Parallel()
	b := newBench(t, nil)
	_, task := first(t, b)
	l := dispatch.Lease(task.Token)
	o := b.Apply([]dispatch.Event{dispatch.Release(l), dispatch.Report(l, result(`1`))})
	if o[0].Err != nil || !errors.Is(o[1].Err, machine.ErrLeaseLost) || b.store.guarded != 0 {
		t.Errorf("released: %v, and then reported: %v; %d guarded", o[0].Err, o[1].Err, b.store.guarded)
	}
}

// TestHeldIsBounded: what is kept of leased tokens has a limit, and what is not kept is
// read.
func TestHeldIsBounded(t *testing.T) {
	t.Parallel()
	cfg := dispatch.DefaultConfig()
	cfg.HeldBytes = 3 * 64 * 2048
	b := newBenchWith(t, cfg, nil)
	var items []dispatch.StartItem
	for range 1000 {
		items = append(items, newStart())
	}
	b.Start(items)
	claimed, err := b.Claim(t.Context(), claimUpTo(1000), 0)
	if err != nil || len(claimed) != 1000 {
		t.Fatal(len(claimed), err)
	}
	if n, most := b.Held(), cfg.HeldBytes/1024; n == 0 || n > most {
		t.Errorf("%d tokens are held, want at most %d", n, most)
	}
	events := make([]dispatch.Event, len(claimed))
	for i, c := range claimed {
		events[i] = dispatch.Report(dispatch.Lease(c.Token), result(`1`))
	}
	for _, o := range b.Apply(events) {
		if o.Err != nil {
			t.Fatal(o.Err)
		}
	}
	if b.store.guarded == 0 || b.store.guarded > cfg.HeldBytes/1024 {
		t.Errorf("%d reports were guarded", b.store.guarded)
	}
	if b.Held() != 0 {
		t.Errorf("%d tokens are held after their reports", b.Held())
	}
}
