package storetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	"github.com/wiggle-run/wiggle/services/instances/internal/machine"
	"github.com/wiggle-run/wiggle/services/instances/internal/store"
)

const (
	started       = wigglev1.HistoryKind_HISTORY_KIND_STARTED
	stepCompleted = wigglev1.HistoryKind_HISTORY_KIND_STEP_COMPLETED
	completed     = wigglev1.HistoryKind_HISTORY_KIND_COMPLETED
	cancelled     = wigglev1.HistoryKind_HISTORY_KIND_CANCELLED
)

func testChain(s *shard) {
	m := chain()
	id := s.start(m, `{"n":1}`)
	s.expect(id, machine.Running, `{"n":1}`)
	s.report(m, s.claimOne(), `{"n":2}`)
	s.expect(id, machine.Running, `{"n":2}`)
	c := s.claimOne()
	if c.Token.Node != "b" || string(c.Token.View.Data) != `{"n":2}` || c.Token.Fence != 2 {
		s.Errorf("claimed %+v", c.Token)
	}
	s.report(m, c, "")
	s.expect(id, machine.Completed, `{"n":2}`)
	if got, want := s.kinds(id), []wigglev1.HistoryKind{started, stepCompleted, stepCompleted, completed}; !slices.Equal(got, want) {
		s.Errorf("history is %v, want %v", got, want)
	}
	if v := s.view(id); v.Instance.EndedAt.Before(v.Instance.CreatedAt) || v.Instance.CreatedAt.IsZero() {
		s.Errorf("created at %s, ended at %s", v.Instance.CreatedAt, v.Instance.EndedAt)
	}
}

func testBatchSeesItself(s *shard) {
	m, id := chain(), s.newID()
	s.must(s.Update(s.Context(), store.Keys{Instances: []machine.ID{id}}, func(w *store.World) error {
		c, err := m.Start(s.env(w.Now), machine.Start{ID: id, Namespace: namespace, Input: json(`1`)})
		if err != nil {
			return err
		}
		w.Put(c, id)
		if c, err = m.Cancel(s.env(w.Now), w.Instance(id), "never mind"); err != nil {
			return err
		}
		w.Put(c, id)
		return nil
	}))
	s.expect(id, machine.Cancelled, `1`)
	if got, want := s.kinds(id), []wigglev1.HistoryKind{started, cancelled}; !slices.Equal(got, want) {
		s.Errorf("history is %v, want %v", got, want)
	}
	if got := s.claim(1); len(got) != 0 {
		s.Errorf("claimed %+v of an instance that has ended", got[0].Token)
	}
}

func testApplyFails(s *shard) {
	m, id, failure := chain(), s.newID(), errors.New("no")
	err := s.Update(s.Context(), store.Keys{Instances: []machine.ID{id}}, func(w *store.World) error {
		c, err := m.Start(s.env(w.Now), machine.Start{ID: id, Namespace: namespace})
		s.must(err)
		w.Put(c, id)
		return failure
	})
	if !errors.Is(err, failure) {
		s.Errorf("error is %v, want apply's", err)
	}
	if _, err := s.Instance(s.Context(), id, 0); !errors.Is(err, store.ErrNotFound) {
		s.Errorf("after a failed apply the instance gives %v", err)
	}
	if rows, err := s.History(s.Context(), id, store.HistoryKey{}, 10); len(rows) != 0 || err != nil {
		s.Errorf("after a failed apply there is history: %v, %v", rows, err)
	}
}

func testEmptyBatch(s *shard) {
	calls := 0
	s.must(s.Update(s.Context(), store.Keys{}, func(w *store.World) error {
		calls++
		if w.Now.IsZero() {
			s.Error("the world has no time")
		}
		return nil
	}))
	if calls != 1 {
		s.Errorf("apply was called %d times", calls)
	}
}

// Whoever starts an instance last finds it there, so that exactly one start made it.
func testStartRaced(s *shard) {
	m := chain()
	for range 20 {
		id := s.newID()
		var made atomic.Int32
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				mine := false
				if err := s.Update(s.Context(), store.Keys{Instances: []machine.ID{id}}, func(w *store.World) error {
					if mine = w.Instance(id) == nil; !mine {
						return nil
					}
					c, err := m.Start(s.env(w.Now), machine.Start{ID: id, Namespace: namespace, Input: json(`1`)})
					w.Put(c, id)
					return err
				}); err != nil {
					s.Error(err)
				}
				if mine {
					made.Add(1)
				}
			})
		}
		wg.Wait()
		if made.Load() != 1 {
			s.Errorf("%d starts made the instance", made.Load())
		}
		if got := s.claim(10); len(got) != 1 || got[0].Token.ID != id {
			s.Errorf("claimed %d tokens", len(got))
		}
		if got := s.kinds(id); len(got) != 1 {
			s.Errorf("history is %v", got)
		}
	}
}

func testStartedAgain(s *shard) {
	m := chain()
	id := s.start(m, `1`)
	s.must(s.Update(s.Context(), store.Keys{Instances: []machine.ID{id, s.newID()}}, func(w *store.World) error {
		in := w.Instance(id)
		if in == nil || in.Workflow != "chain" || in.Version != 1 || in.Namespace != namespace || in.State != machine.Running {
			s.Errorf("loaded %+v", in)
		}
		return nil
	}))
}

// An instance may end as it starts: nothing is left but itself and its history.
func testStartEnds(s *shard) {
	ok := compile("ends", 1, "end", map[string]*wigglev1.Node{"end": end()})
	s.expect(s.start(ok, `7`), machine.Completed, `7`)
	failed := compile("fails", 1, "end", map[string]*wigglev1.Node{
		"end": {Kind: &wigglev1.Node_End{End: &wigglev1.EndNode{Failed: true, Reason: "why"}}},
	})
	id := s.start(failed, `8`)
	s.expect(id, machine.Failed, `8`)
	if f := s.view(id).Instance.Failure; f.GetMessage() != "why" {
		s.Errorf("failure is %v", f)
	}
}

func testCancelKeepsContext(s *shard) {
	m := forEach(0)
	id := s.start(m, `[1,2,3]`)
	s.claim(1)
	s.cancel(m, id)
	s.expect(id, machine.Cancelled, `[1,2,3]`)
	if v := s.view(id); v.Instance.Failure.GetMessage() != "because" {
		s.Errorf("failure is %v", v.Instance.Failure)
	}
	if got := s.claim(10); len(got) != 0 {
		s.Errorf("claimed %d tokens of a cancelled instance", len(got))
	}
}

// What the last report made of the context is kept, although its token is never written.
func testFailureKeepsContext(s *shard) {
	m := compile("until", 1, "a", map[string]*wigglev1.Node{
		"a":     task("sleep", nil),
		"sleep": {Kind: &wigglev1.Node_Sleep{Sleep: &wigglev1.SleepNode{Until: &wigglev1.SleepNode_Instant{Instant: "/at"}, Next: "end"}}},
		"end":   end(),
	})
	id := s.start(m, `{}`)
	s.report(m, s.claimOne(), `{"at":"no time"}`)
	s.expect(id, machine.Failed, `{"at":"no time"}`)

	m = one("fails", 1, attempts(1))
	id = s.start(m, `{"kept":true}`)
	c := s.claimOne()
	s.must(s.update(on(c), id, func(w *store.World) (*machine.Changes, error) {
		return m.Fail(s.env(w.Now), w.State(id, id), machine.Fail{Fence: c.Token.Fence, Type: "E"})
	}))
	s.expect(id, machine.Failed, `{"kept":true}`)
}

// Branches that arrive at the same time, in any number of processes, are each
// counted off once.
func testSiblings(s *shard) {
	const n, workers = 40, 4
	m := forEach(0)
	id := s.start(m, "["+strings.TrimSuffix(strings.Repeat("0,", n), ",")+"]")
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			for range n / workers {
				s.report(m, s.claimOne(), `{}`)
			}
		})
	}
	wg.Wait()
	c := s.claimOne()
	if c.Token.ID != id || c.Token.Node != "combine" || len(c.Results) != n {
		s.Errorf("claimed %+v with %d results", c.Token, len(c.Results))
	}
}

func testCombine(s *shard) {
	m := forEach(0)
	id := s.start(m, `{"b":2,"a":1,"c":3}`)
	v := s.view(id)
	if v.Active != 4 || v.Tokens[0].State != machine.Joined || v.Tokens[0].Pending != 3 {
		s.Errorf("%d active, the first is %+v", v.Active, v.Tokens[0])
	}
	claimed := s.claim(10)
	for _, i := range []int{2, 0, 1} {
		if base := string(claimed[i].Base.Data); base != `{"b":2,"a":1,"c":3}` {
			s.Errorf("base is %s", base)
		}
		s.report(m, claimed[i], fmt.Sprintf(`%s0`, claimed[i].Token.View.Data))
	}
	c := s.claimOne()
	if !c.Base.Absent() || len(c.Results) != 3 {
		s.Fatalf("combine has base %q and %d results", c.Base.Data, len(c.Results))
	}
	for i, want := range []string{"10", "20", "30"} {
		r := c.Results[i]
		if r.Index != int32(i) || r.Key != string(rune('a'+i)) || !r.HasResult || string(r.View.Data) != want {
			s.Errorf("result %d is %+v with %s", i, r, r.View.Data)
		}
	}
	s.report(m, c, `"all"`)
	s.expect(id, machine.Completed, `"all"`)
}

// A combine may be followed by the next fan-out of the same token: the old
// children go, the new ones stay.
func testFanOutAgain(s *shard) {
	m := compile("twice", 1, "each", map[string]*wigglev1.Node{
		"each": each(0), "body": task("join", nil), "join": join("combine"), "combine": task("each2", nil),
		"each2": {Kind: &wigglev1.Node_ForEach{ForEach: &wigglev1.ForEachNode{Body: "body2", Join: "join2"}}},
		"body2": task("join2", nil), "join2": join("combine2"), "combine2": task("end", nil), "end": end(),
	})
	id := s.start(m, `[1,2]`)
	for range 2 {
		s.report(m, s.claimOne(), "")
	}
	s.report(m, s.claimOne(), `[3,4,5]`)
	claimed := s.claim(10)
	if len(claimed) != 3 || s.view(id).Active != 4 {
		s.Fatalf("claimed %d of the second fan-out, %d tokens are active", len(claimed), s.view(id).Active)
	}
	for _, c := range claimed {
		s.report(m, c, "")
	}
	c := s.claimOne()
	if len(c.Results) != 3 || string(c.Results[0].View.Data) != "3" {
		s.Errorf("the second combine has %+v", c.Results)
	}
	s.report(m, c, `0`)
	s.expect(id, machine.Completed, `0`)
}

func testLetIn(s *shard) {
	m := forEach(1)
	id := s.start(m, `[10,20,30]`)
	for _, want := range []string{"10", "20", "30"} {
		claimed := s.claim(10)
		if len(claimed) != 1 || string(claimed[0].Token.View.Data) != want {
			s.Fatalf("claimed %d, want element %s", len(claimed), want)
		}
		s.report(m, claimed[0], "")
		if want == "30" {
			break
		}
		tick, err := s.Tick(s.Context(), "me", long, true)
		s.must(err)
		due, err := s.Due(s.Context(), tick.Now, 10)
		s.must(err)
		if len(due) != 1 || due[0].Instance != id || due[0].DueAt.IsZero() {
			s.Fatalf("after element %s these are due: %+v", want, due)
		}
		s.wake(m, due[0])
	}
	s.report(m, s.claimOne(), `"done"`)
	s.expect(id, machine.Completed, `"done"`)
}

func testManyChildren(s *shard) {
	const n = 10_000
	m := forEach(0)
	id := s.start(m, "["+strings.TrimSuffix(strings.Repeat("0,", n), ",")+"]")
	v, err := s.Instance(s.Context(), id, 3)
	s.must(err)
	if v.Active != n+1 || len(v.Tokens) != 3 || v.Tokens[0].ID != id {
		s.Errorf("%d active, %d listed", v.Active, len(v.Tokens))
	}
	claimed := s.claim(500)
	if len(claimed) != 500 || claimed[0].Token.Index != 0 || claimed[499].Token.Index != 499 {
		s.Errorf("claimed %d", len(claimed))
	}
	s.cancel(m, id)
	s.expect(id, machine.Cancelled, string(v.Instance.Context.Data))
}

func testLatest(s *shard) {
	s.register("w", 1, "one")
	s.register("w", 7, "seven")
	keys := []store.WorkflowKey{
		{Namespace: namespace, Workflow: "w"}, {Namespace: namespace, Workflow: "none"}, {Namespace: "other", Workflow: "w"},
	}
	s.must(s.Update(s.Context(), store.Keys{Latest: keys}, func(w *store.World) error {
		for i, want := range []int32{7, 0, 0} {
			if got := w.Latest(keys[i]); got != want {
				s.Errorf("latest of %v is %d, want %d", keys[i], got, want)
			}
		}
		return nil
	}))
}

// A report that is sent again is known: from the token, and from the history when
// the token has moved on or is gone (WRK-5).
func testSettled(s *shard) {
	m := chain()
	id := s.start(m, `1`)
	first := s.claimOne()
	s.report(m, first, `2`)
	second := s.claimOne()
	s.report(m, second, `3`)
	for _, c := range []store.Claimed{first, second} {
		keys := on(c)
		keys.Leases = append(keys.Leases, store.Lease{Instance: id, Token: id, Fence: 77})
		s.must(s.Update(s.Context(), keys, func(w *store.World) error {
			if got := w.Settled(keys.Leases[0]); got.Fence != c.Token.Fence || got.By != machine.ByReport {
				s.Errorf("lease %d is settled as %+v", c.Token.Fence, got)
			}
			if got := w.Settled(keys.Leases[1]); got.Fence != 0 || got.By != machine.NotSettled {
				s.Errorf("a lease that never was is settled as %+v", got)
			}
			return nil
		}))
	}
}

func testSettledByFailure(s *shard) {
	m := one("w", 1)
	id := s.start(m, `1`)
	c := s.claimOne()
	var retryAt int64
	fail := machine.Fail{Fence: 1, Type: "E", HasRetryDelay: true, RetryDelay: long}
	s.must(s.update(on(c), id, func(w *store.World) (*machine.Changes, error) {
		changes, err := m.Fail(s.env(w.Now), w.State(id, id), fail)
		retryAt = changes.RetryAt.UnixMicro()
		return changes, err
	}))
	s.must(s.update(on(c), id, func(w *store.World) (*machine.Changes, error) {
		changes, err := m.Fail(s.env(w.Now), w.State(id, id), fail)
		if !changes.Duplicate || changes.RetryAt.UnixMicro() != retryAt {
			s.Errorf("repeated, the failure gives %+v", changes)
		}
		return changes, err
	}))
	s.cancel(m, id)
	s.must(s.Update(s.Context(), on(c), func(w *store.World) error {
		if got := w.Settled(on(c).Leases[0]); got.Fence != 1 || got.By != machine.ByFailure || got.RetryAt.UnixMicro() != retryAt {
			s.Errorf("settled as %+v, want a retry at %d", got, retryAt)
		}
		return nil
	}))
}

func testUnknownKeys(s *shard) {
	id := s.newID()
	keys := store.Keys{
		Instances: []machine.ID{id, id}, Tokens: []machine.ID{id, id},
		Leases: []store.Lease{{Instance: id, Token: id, Fence: 1}},
	}
	s.must(s.Update(s.Context(), keys, func(w *store.World) error {
		if st := w.State(id, id); st.Instance != nil || st.Token != nil || st.Parent != nil {
			s.Errorf("loaded %+v", st)
		}
		return nil
	}))
}

func testCancelledContext(s *shard) {
	ctx, cancel := context.WithCancel(s.Context())
	cancel()
	if err := s.Update(ctx, store.Keys{}, func(*store.World) error { return nil }); !errors.Is(err, context.Canceled) {
		s.Errorf("update under a cancelled context gives %v", err)
	}
	if _, err := s.Claim(ctx, store.Claim{Namespace: namespace, Queues: []string{"q"}, Max: 1}); !errors.Is(err, context.Canceled) {
		s.Errorf("claim under a cancelled context gives %v", err)
	}
}
