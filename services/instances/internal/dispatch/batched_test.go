package dispatch_test

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/wiggle-run/wiggle/proto/definition"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	"github.com/wiggle-run/wiggle/services/instances/internal/dispatch"
	"github.com/wiggle-run/wiggle/services/instances/internal/machine"
	"github.com/wiggle-run/wiggle/services/instances/internal/store"
)

// newBatchedBench has a batched chain of four tasks.
func newBatchedBench(t *testing.T) (*bench, func() store.Claimed) {
	t.Helper()
	b := newBench(t, nil)
	def := &wigglev1.Definition{
		Name: "four", Version: 1, Start: "a", Nodes: map[string]*wigglev1.Node{},
		Defaults: &wigglev1.Defaults{Mode: wigglev1.Mode_MODE_BATCHED},
	}
	for i, next := range []string{"b", "c", "d", "end"} {
		def.Nodes[string("abcd"[i])] = &wigglev1.Node{Kind: &wigglev1.Node_Task{Task: &wigglev1.TaskNode{Next: next}}}
	}
	def.Nodes["end"] = &wigglev1.Node{Kind: &wigglev1.Node_End{End: &wigglev1.EndNode{}}}
	if _, _, err := b.store.Register(t.Context(), "default", "four", func([]store.Definition) (store.Definition, error) {
		return store.Definition{Namespace: "default", Workflow: "four", Version: 1, Fingerprint: definition.Fingerprint(def), Graph: def}, nil
	}); err != nil {
		t.Fatal(err)
	}
	return b, func() store.Claimed {
		t.Helper()
		start := newStart()
		start.Workflow = "four"
		b.Start([]dispatch.StartItem{start})
		claimed, err := b.Claim(t.Context(), claimUpTo(1), time.Second)
		if err != nil || len(claimed) != 1 {
			t.Fatal(claimed, err)
		}
		return claimed[0]
	}
}

func followed(nodes ...string) []machine.Following {
	out := make([]machine.Following, len(nodes))
	for i, n := range nodes {
		out[i] = machine.Following{Node: n, Report: result(`"` + n + `"`)}
	}
	return out
}

// TestReportBatch: a batch is one transaction, brings the step behind its last, and is
// answered as before when it is repeated, with that step (WRK-5, WRK-11, WRK-14).
func TestReportBatch(t *testing.T) {
	t.Parallel()
	b, claim := newBatchedBench(t)
	task := claim()
	ev := dispatch.ReportBatch(dispatch.Lease(task.Token), result(`"a"`), followed("b", "c"), nil)
	going := claimUpTo(10)
	batches := len(b.store.batches)
	for i := range 3 {
		o := b.ApplyAndClaim([]dispatch.Event{ev}, &going)[0]
		if o.Err != nil || o.Changes.Duplicate != (i > 0) || o.Next == nil || o.Next.Token.Node != "d" || o.Next.Token.Fence != 4 ||
			string(o.Next.Token.View.Data) != `"c"` {
			t.Fatalf("time %d: answered with %+v", i, o)
		}
	}
	if n := len(b.store.batches) - batches; n != 3 {
		t.Errorf("three calls took %d transactions", n)
	}
	// With the last of the batch in the same transaction.
	both := b.Apply([]dispatch.Event{dispatch.Report(store.Lease{Instance: task.Token.Instance, Token: task.Token.ID, Fence: 4}, result(`4`)), ev})
	if both[0].Err != nil || both[1].Err != nil || !both[1].Changes.Duplicate {
		t.Errorf("the last report, and the batch again: %+v", both)
	}
	if in, err := b.WaitEnd(t.Context(), task.Token.Instance); err != nil || in.State != machine.Completed {
		t.Fatal(in, err)
	}
}

// TestBadBatchFailsAlone: what a refused batch would have done is not there, neither
// for events behind it in the same transaction.
func TestBadBatchFailsAlone(t *testing.T) {
	t.Parallel()
	b, claim := newBatchedBench(t)
	task, other := claim(), claim()
	lease := dispatch.Lease(task.Token)
	outcomes := b.Apply([]dispatch.Event{
		dispatch.ReportBatch(lease, result(`"a"`), followed("b", "d"), nil),
		dispatch.ReportBatch(dispatch.Lease(other.Token), result(`"a"`), followed("b", "c", "d"), nil),
		dispatch.ReportBatch(lease, result(`"again"`), followed("b"), nil),
	})
	if _, ok := errors.AsType[*machine.BatchError](outcomes[0].Err); !ok || outcomes[1].Err != nil || outcomes[2].Err != nil || outcomes[2].Changes.Duplicate {
		t.Fatalf("outcomes %+v", outcomes)
	}
	view, err := b.Store().Instance(t.Context(), task.Token.Instance, 1)
	if err != nil || view.Tokens[0].Node != "c" || view.Tokens[0].Position != 2 || view.Tokens[0].Fence != 2 {
		t.Fatalf("the token is %+v, %v", view.Tokens, err)
	}
	rows, err := b.Store().History(t.Context(), task.Token.Instance, store.HistoryKey{}, 10)
	var outputs []string
	for _, r := range rows[1:] {
		outputs = append(outputs, string(r.Entry.GetOutput().GetData()))
	}
	if err != nil || !slices.Equal(outputs, []string{`"again"`, `"b"`}) {
		t.Errorf("the history has %v, %v", outputs, err)
	}
}
