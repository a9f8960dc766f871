package dispatch_test

import (
	"testing"
	"time"

	"github.com/wiggle-run/wiggle/services/instances/internal/dispatch"
	"github.com/wiggle-run/wiggle/services/instances/internal/machine"
	"github.com/wiggle-run/wiggle/services/instances/internal/store"
)

// TestGoOn: the step that follows a report is leased to the reporter in the
// report's transaction, once, and a repeated report brings it again (WRK-11, WRK-5).
func TestGoOn(t *testing.T) {
	t.Parallel()
	b := newBench(t, nil)
	start := newStart()
	b.Start([]dispatch.StartItem{start})
	claim := claimUpTo(10)
	claimed, err := b.Claim(t.Context(), claim, 0)
	if err != nil || len(claimed) != 1 {
		t.Fatal(claimed, err)
	}
	ev := dispatch.Report(dispatch.Lease(claimed[0].Token), result(`{"n":1}`))
	batches := len(b.store.batches)
	first := b.ApplyAndClaim([]dispatch.Event{ev}, &claim)[0]
	if len(b.store.batches) != batches+1 {
		t.Fatalf("the report took %d transactions", len(b.store.batches)-batches)
	}
	next := first.Next
	if first.Err != nil || next == nil || next.Token.Node != "b" || next.Token.Fence != 2 || next.Token.Worker != "w" ||
		next.Token.State != machine.Leased || string(next.Token.View.Data) != `{"n":1}` {
		t.Fatalf("the report was answered with %+v", first)
	}
	again := b.ApplyAndClaim([]dispatch.Event{ev}, &claim)[0]
	if again.Err != nil || !again.Changes.Duplicate || again.Next == nil || again.Next.Token.Fence != 2 {
		t.Fatalf("the report sent again was answered with %+v", again)
	}
	other := claim
	other.Worker = "another"
	if o := b.ApplyAndClaim([]dispatch.Event{ev}, &other)[0]; o.Err != nil || o.Next != nil {
		t.Fatalf("another worker that repeats the report got %+v", o.Next)
	}
	if c, err := b.Claim(t.Context(), claim, 0); err != nil || len(c) != 0 {
		t.Fatalf("a poll got what is leased: %v, %v", c, err)
	}
	last := b.ApplyAndClaim([]dispatch.Event{dispatch.Report(dispatch.Lease(next.Token), result(`2`))}, &claim)[0]
	if last.Err != nil || last.Next != nil {
		t.Fatalf("the last report was answered with %+v", last)
	}
	if in, err := b.WaitEnd(t.Context(), start.Event.ID); err != nil || in.State != machine.Completed {
		t.Fatal(in, err)
	}
}

// TestGoOnOnlyWhatIsServed: queues, bindings and room are kept.
func TestGoOnOnlyWhatIsServed(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*store.Claim){
		"another queue":    func(c *store.Claim) { c.Queues = []string{"other"} },
		"another workflow": func(c *store.Claim) { c.Workflows = []store.Binding{{Workflow: "three"}} },
		"another version":  func(c *store.Claim) { c.Workflows = []store.Binding{{Workflow: "two", Version: 2}} },
		"another tenant":   func(c *store.Claim) { c.Namespace = "other" },
		"no room":          func(c *store.Claim) { c.Max = 0 },
	} {
		b := newBench(t, nil)
		b.Start([]dispatch.StartItem{newStart()})
		claimed, err := b.Claim(t.Context(), claimUpTo(1), 0)
		if err != nil || len(claimed) != 1 {
			t.Fatal(claimed, err)
		}
		claim := claimUpTo(10)
		change(&claim)
		if o := b.ApplyAndClaim([]dispatch.Event{dispatch.Report(dispatch.Lease(claimed[0].Token), result(`1`))}, &claim)[0]; o.Err != nil || o.Next != nil {
			t.Errorf("%s: answered with %+v", name, o)
		}
		if c, err := b.Claim(t.Context(), claimUpTo(1), time.Second); err != nil || len(c) != 1 || c[0].Token.Node != "b" {
			t.Errorf("%s: a poll got %v, %v", name, c, err)
		}
	}
}
