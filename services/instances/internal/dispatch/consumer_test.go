package dispatch_test

import (
	"errors"
	"sync"
	"testing"

	"github.com/wiggle-run/wiggle/services/instances/internal/dispatch"
	"github.com/wiggle-run/wiggle/services/instances/internal/machine"
	"github.com/wiggle-run/wiggle/services/instances/internal/store"
)

// inbox is where a test's consumer gets its tasks.
type inbox struct {
	mu    sync.Mutex
	tasks []store.Claimed
	came  chan struct{}
}

func newInbox() *inbox { return &inbox{came: make(chan struct{}, 1000)} }

func (b *inbox) deliver(tasks []store.Claimed) {
	b.mu.Lock()
	b.tasks = append(b.tasks, tasks...)
	b.mu.Unlock()
	for range tasks {
		b.came <- struct{}{}
	}
}

// await waits for n more tasks and returns all that came so far.
func (b *inbox) await(n int) []store.Claimed {
	for range n {
		<-b.came
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.tasks
}

// idle waits until the consumer has seen that the rows hold nothing for it.
func idle(t *testing.T, b *bench) {
	t.Helper()
	if c, err := b.Claim(t.Context(), claimUpTo(1), 0); err != nil || len(c) > 0 {
		t.Fatalf("there is something to claim: %v, %v", c, err)
	}
}

// TestConsumerGetsWhatAStartMakes: the first step of an instance is leased in the
// start's own transaction to a consumer with room, and the following ones in those of
// its reports (WRK-11).
func TestConsumerGetsWhatAStartMakes(t *testing.T) {
	t.Parallel()
	b, in := newBench(t, nil), newInbox()
	c := b.Consume(claimUpTo(0), in.deliver)
	defer c.Close()
	c.Grant(1)
	b.Settle(c)
	batches := len(b.store.batches)
	start := newStart()
	b.Start([]dispatch.StartItem{start})
	first := in.await(1)[0]
	if n := len(b.store.batches) - batches; n != 1 {
		t.Fatalf("the start and its first task took %d transactions", n)
	}
	if first.Token.State != machine.Leased || first.Token.Worker != "w" || first.Token.Fence != 1 || c.Credits() != 0 {
		t.Fatalf("got %+v, %d credits left", first.Token, c.Credits())
	}
	answers := make(chan []dispatch.Outcome, 1)
	b.Submit([]dispatch.Event{dispatch.Report(dispatch.Lease(first.Token), result(`1`))}, c, 1, func(o []dispatch.Outcome) { answers <- o })
	second := (<-answers)[0]
	if second.Err != nil || second.Next == nil || second.Next.Token.Node != "b" || c.Credits() != 0 {
		t.Fatalf("the report was answered with %+v, %d credits left", second, c.Credits())
	}
	b.Submit([]dispatch.Event{dispatch.Report(dispatch.Lease(second.Next.Token), result(`2`))}, c, 1, func(o []dispatch.Outcome) { answers <- o })
	if last := (<-answers)[0]; last.Err != nil || last.Next != nil {
		t.Fatalf("the last report was answered with %+v", last)
	}
	if c.Credits() != 1 {
		t.Fatalf("%d credits after the credit of the last report was not needed", c.Credits())
	}
	if n := len(b.store.batches) - batches; n != 3 {
		t.Fatalf("a chain of two took %d transactions", n)
	}
}

// TestConsumerClaimsWhatWaits: what is in the rows goes first, and is claimed as
// credits come.
func TestConsumerClaimsWhatWaits(t *testing.T) {
	t.Parallel()
	b, in := newBench(t, nil), newInbox()
	var items []dispatch.StartItem
	for range 10 {
		items = append(items, newStart())
	}
	b.Start(items)
	c := b.Consume(claimUpTo(0), in.deliver)
	defer c.Close()
	c.Grant(4)
	if got := in.await(4); len(got) != 4 || c.Credits() != 0 {
		t.Fatalf("got %d tasks, %d credits left", len(got), c.Credits())
	}
	b.Start([]dispatch.StartItem{newStart()})
	c.Grant(7)
	got := in.await(7)
	idle(t, b)
	seen := map[machine.ID]bool{}
	for _, task := range got {
		if seen[task.Token.ID] {
			t.Fatal("a task came twice")
		}
		seen[task.Token.ID] = true
	}
	if len(got) != 11 {
		t.Fatalf("got %d tasks of 11", len(got))
	}
}

// TestConsumerCreditsOfAFailedBatch: what was not committed was not given.
func TestConsumerCreditsOfAFailedBatch(t *testing.T) {
	t.Parallel()
	var broken error
	b, in := newBench(t, func(store.Keys) error { return broken }), newInbox()
	c := b.Consume(claimUpTo(0), in.deliver)
	defer c.Close()
	c.Grant(2)
	b.Settle(c)
	start := newStart()
	b.store.after = func() error { return errors.New("the database is away") }
	if r := b.Start([]dispatch.StartItem{start}); r[0].Err == nil {
		t.Fatal("the start succeeded")
	}
	if c.Credits() != 2 {
		t.Fatalf("%d credits of 2 after a batch that failed", c.Credits())
	}
	b.store.after = nil
	if r := b.Start([]dispatch.StartItem{start}); r[0].Err != nil {
		t.Fatal(r[0].Err)
	}
	if got := in.await(1); len(got) != 1 || c.Credits() != 1 {
		t.Fatalf("got %d tasks, %d credits left", len(got), c.Credits())
	}
}

// TestConsumerThatCloses: it gets nothing more, and other workers get what it would have had.
func TestConsumerThatCloses(t *testing.T) {
	t.Parallel()
	b, in := newBench(t, nil), newInbox()
	c := b.Consume(claimUpTo(0), in.deliver)
	c.Grant(5)
	b.Settle(c)
	if c.Revoke(2) != 2 || c.Close() != 3 || c.Close() != 0 {
		t.Fatal("credits were lost")
	}
	b.Start([]dispatch.StartItem{newStart()})
	if got, err := b.Claim(t.Context(), claimUpTo(1), 0); err != nil || len(got) != 1 {
		t.Fatalf("a poll got %v, %v", got, err)
	}
}
