package dispatch_test

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/oklog/ulid/v2"
	"go.opentelemetry.io/otel/metric/noop"

	"github.com/wiggle-run/wiggle/pkg/clock"
	"github.com/wiggle-run/wiggle/proto/definition"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	"github.com/wiggle-run/wiggle/services/instances/internal/dispatch"
	"github.com/wiggle-run/wiggle/services/instances/internal/machine"
	"github.com/wiggle-run/wiggle/services/instances/internal/store"
	"github.com/wiggle-run/wiggle/services/instances/internal/store/memstore"
)

// twoSteps is a chain of two tasks.
func twoSteps() *wigglev1.Definition {
	return &wigglev1.Definition{Name: "two", Version: 1, Start: "a", Nodes: map[string]*wigglev1.Node{
		"a":   {Kind: &wigglev1.Node_Task{Task: &wigglev1.TaskNode{Next: "b"}}},
		"b":   {Kind: &wigglev1.Node_Task{Task: &wigglev1.TaskNode{Next: "end"}}},
		"end": {Kind: &wigglev1.Node_End{End: &wigglev1.EndNode{}}},
	}}
}

// bench runs a shard over a store that tests may wrap.
type bench struct {
	*dispatch.Shard
	store *hooked
}

// hooked lets a test hold or fail a store's updates.
type hooked struct {
	store.Store
	before func(keys store.Keys) error
	after  func() error // runs in the transaction, once all is applied

	// advance runs before an Advance, which fails with its error.
	advance func(moves []store.Move) error

	mu      sync.Mutex
	batches []int
	guarded int // moves that went the guarded way
}

func (h *hooked) Update(ctx context.Context, keys store.Keys, apply func(*store.World) error) error {
	if h.before != nil {
		if err := h.before(keys); err != nil {
			return err
		}
	}
	h.mu.Lock()
	h.batches = append(h.batches, len(keys.Instances))
	h.mu.Unlock()
	return h.Store.Update(ctx, keys, func(w *store.World) error {
		if err := apply(w); err != nil || h.after == nil {
			return err
		}
		return h.after()
	})
}

func (h *hooked) Advance(ctx context.Context, now time.Time, moves []store.Move) ([]bool, error) {
	h.mu.Lock()
	h.batches = append(h.batches, len(moves))
	h.guarded += len(moves)
	h.mu.Unlock()
	if h.advance != nil {
		if err := h.advance(moves); err != nil {
			return nil, err
		}
	}
	return h.Store.Advance(ctx, now, moves)
}

func newBench(t *testing.T, before func(store.Keys) error) *bench {
	t.Helper()
	return newBenchWith(t, dispatch.DefaultConfig(), before)
}

func newBenchWith(t *testing.T, cfg dispatch.Config, before func(store.Keys) error) *bench {
	t.Helper()
	mem := memstore.New(time.Now)
	def := twoSteps()
	if _, _, err := mem.Register(t.Context(), "default", "two", func([]store.Definition) (store.Definition, error) {
		return store.Definition{Namespace: "default", Workflow: "two", Version: 1, Fingerprint: definition.Fingerprint(def), Graph: def}, nil
	}); err != nil {
		t.Fatal(err)
	}
	metrics, err := dispatch.NewMetrics(noop.Meter{})
	if err != nil {
		t.Fatal(err)
	}
	h := &hooked{Store: mem, before: before}
	b := &bench{Shard: dispatch.New(3, h, clock.Real{}, cfg, metrics, slog.New(slog.DiscardHandler)), store: h}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- b.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return b
}

func newStart() dispatch.StartItem {
	return dispatch.StartItem{Workflow: "two", Event: machine.Start{ID: machine.ID(ulid.Make()), Namespace: "default", Priority: 5}}
}

func claimUpTo(most int) store.Claim {
	return store.Claim{Namespace: "default", Queues: []string{"default"}, Worker: "w", Lease: time.Minute, Max: most}
}

func result(text string) machine.Report {
	return machine.Report{Kind: machine.OutcomeResult, Result: machine.Payload{Data: []byte(text)}}
}

// TestChain runs an instance to its end, with every report sent twice (WRK-5).
func TestChain(t *testing.T) {
	t.Parallel()
	b := newBench(t, nil)
	start := newStart()
	if s := b.Start([]dispatch.StartItem{start, start}); !s[0].Created || s[1].Created || s[0].Err != nil || s[1].Err != nil {
		t.Fatalf("the same start twice in a batch: %+v", s)
	}
	for _, node := range []string{"a", "b"} {
		claimed, err := b.Claim(t.Context(), claimUpTo(10), time.Second)
		if err != nil || len(claimed) != 1 || claimed[0].Token.Node != node {
			t.Fatalf("claim at %s: %v, %v", node, claimed, err)
		}
		ev := dispatch.Report(dispatch.Lease(claimed[0].Token), result(`1`))
		for i, o := range b.Apply([]dispatch.Event{ev, ev}) {
			if o.Err != nil || o.Changes.Duplicate != (i == 1) {
				t.Fatalf("report %d at %s: %+v", i, node, o)
			}
		}
		if o := b.Apply([]dispatch.Event{ev})[0]; o.Err != nil || !o.Changes.Duplicate {
			t.Fatalf("report sent again at %s: %+v", node, o)
		}
	}
	in, err := b.WaitEnd(t.Context(), start.Event.ID)
	if err != nil || in.State != machine.Completed || string(in.Context.Data) != "1" {
		t.Fatalf("end: %+v, %v", in, err)
	}
}

// TestRepeatBehindNextCall: a call that was applied is answered as it was, also
// when it is sent again in the very batch in which its token moves on or goes.
func TestRepeatBehindNextCall(t *testing.T) {
	t.Parallel()
	b := newBench(t, nil)
	b.Start([]dispatch.StartItem{newStart()})
	claim := func() store.Lease {
		t.Helper()
		claimed, err := b.Claim(t.Context(), claimUpTo(1), time.Second)
		if err != nil || len(claimed) != 1 {
			t.Fatal(claimed, err)
		}
		return dispatch.Lease(claimed[0].Token)
	}
	failed := dispatch.Fail(claim(), machine.Fail{HasRetryDelay: true})
	if o := b.Apply([]dispatch.Event{failed})[0]; o.Err != nil {
		t.Fatal(o.Err)
	}
	first := dispatch.Report(claim(), result(`1`))
	for i, o := range b.Apply([]dispatch.Event{first, failed}) {
		if o.Err != nil || o.Changes.Duplicate != (i == 1) {
			t.Fatalf("event %d of a token that moves on: %+v", i, o)
		}
	}
	last := dispatch.Report(claim(), result(`2`))
	for i, o := range b.Apply([]dispatch.Event{last, first}) {
		if o.Err != nil || o.Changes.Duplicate != (i == 1) {
			t.Fatalf("event %d of an instance that ends: %+v", i, o)
		}
	}
}

// TestBatchesGrowWhileOneCommits: nothing waits for company, and what comes while
// a batch commits is the next one (WRK-10).
func TestBatchesGrowWhileOneCommits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		first := true
		b := newBench(t, func(store.Keys) error {
			if first {
				first = false
				<-release
			}
			return nil
		})
		items := make([]dispatch.StartItem, 41)
		for i := range items {
			items[i] = newStart()
			items[i].Event.ID[15] = 0 // all in one lane
		}
		var calls sync.WaitGroup
		calls.Go(func() { b.Start(items[:1]) })
		synctest.Wait() // the first commits alone
		for i := 1; i < len(items); i++ {
			calls.Go(func() { b.Start(items[i : i+1]) })
		}
		synctest.Wait()
		close(release)
		calls.Wait()
		if len(b.store.batches) != 2 || b.store.batches[0] != 1 || b.store.batches[1] != 40 {
			t.Fatalf("batches: %v, want 1 and 40", b.store.batches)
		}
	})
}

// TestOneBadItemFailsAlone: an item that the database refuses is found (WRK-10).
func TestOneBadItemFailsAlone(t *testing.T) {
	t.Parallel()
	bad := newStart()
	refusal := errors.New("value too long")
	b := newBench(t, func(k store.Keys) error {
		if slices.Contains(k.Instances, bad.Event.ID) {
			return refusal
		}
		return nil
	})
	items := []dispatch.StartItem{newStart(), bad, newStart(), {Workflow: "unknown", Event: newStart().Event}}
	for i := range items {
		items[i].Event.ID[15] = 0
	}
	bad.Event.ID[15] = 0
	got := b.Start(items)
	if got[0].Err != nil || !got[0].Created || !errors.Is(got[1].Err, refusal) || got[2].Err != nil || !errors.Is(got[3].Err, dispatch.ErrNoWorkflow) {
		t.Fatalf("outcomes: %+v", got)
	}
}

// TestClaimWaits: a parked poll is woken by what becomes ready (WRK-13), and one
// whose caller is gone leaves nothing leased.
func TestClaimWaits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, nil)
		type answer struct {
			claimed []store.Claimed
			err     error
		}
		answers := make(chan answer, 2)
		for range 2 {
			go func() {
				c, err := b.Claim(t.Context(), claimUpTo(1), time.Minute)
				answers <- answer{c, err}
			}()
		}
		synctest.Wait()
		b.Start([]dispatch.StartItem{newStart()})
		if a := <-answers; a.err != nil || len(a.claimed) != 1 {
			t.Fatalf("the first parked poll got %+v", a)
		}
		b.Start([]dispatch.StartItem{newStart()})
		if a := <-answers; a.err != nil || len(a.claimed) != 1 {
			t.Fatalf("the second parked poll got %+v", a)
		}

		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		b.Start([]dispatch.StartItem{newStart()})
		if c, err := b.Claim(ctx, claimUpTo(1), time.Minute); err != nil || len(c) != 0 {
			t.Fatalf("a caller that is gone got %v, %v", c, err)
		}
		if c, err := b.Claim(t.Context(), claimUpTo(5), 0); err != nil || len(c) != 1 {
			t.Fatalf("what was claimed for it is not there: %v, %v", c, err)
		}
	})
}

// TestDrain: parked polls and waits end, reports go on.
func TestDrain(t *testing.T) {
	t.Parallel()
	b := newBench(t, nil)
	start := newStart()
	b.Start([]dispatch.StartItem{start})
	claimed, err := b.Claim(t.Context(), claimUpTo(1), 0)
	if err != nil || len(claimed) != 1 {
		t.Fatal(claimed, err)
	}
	done := make(chan error, 2)
	go func() { _, err := b.Claim(t.Context(), claimUpTo(1), time.Hour); done <- err }()
	go func() { _, err := b.WaitEnd(t.Context(), start.Event.ID); done <- err }()
	b.Drain()
	for range 2 {
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	}
	if o := b.Apply([]dispatch.Event{dispatch.Report(dispatch.Lease(claimed[0].Token), result(`2`))})[0]; o.Err != nil {
		t.Fatalf("a report while draining: %v", o.Err)
	}
}
