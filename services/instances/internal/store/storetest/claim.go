package storetest

import (
	"slices"
	"sync"
	"time"

	"github.com/wiggle-run/wiggle/services/instances/internal/machine"
	"github.com/wiggle-run/wiggle/services/instances/internal/store"
)

// ids lists what was claimed.
func ids(claimed []store.Claimed) []machine.ID {
	list := make([]machine.ID, len(claimed))
	for i, c := range claimed {
		list[i] = c.Token.ID
	}
	return list
}

func (s *shard) expectIDs(what string, got []store.Claimed, want ...machine.ID) {
	s.Helper()
	if !slices.Equal(ids(got), want) {
		s.Errorf("%s: claimed %x, want %x", what, ids(got), want)
	}
}

// Priority first, then the older instance, then the older token.
func testClaimOrder(s *shard) {
	m := one("w", 1)
	a := s.start(m, `1`, priority(5))
	b := s.start(m, `1`, priority(5))
	low := s.start(m, `1`, priority(0))
	high := s.start(m, `1`, priority(9))
	s.expectIDs("three", s.claim(3), high, a, b)
	s.expectIDs("the rest", s.claim(3), low)
	s.expectIDs("none", s.claim(3))
}

func onQueues(names ...string) func(*store.Claim) { return func(c *store.Claim) { c.Queues = names } }

func testClaimQueues(s *shard) {
	q1, q2 := one("w", 1, queue("q1")), one("v", 1, queue("q2"))
	a := s.start(q1, `1`)
	b := s.start(q2, `1`)
	high := s.start(q2, `1`, priority(8))
	d := s.start(q1, `1`)
	other := s.start(q1, `1`, in("other"))
	s.expectIDs("no such queue", s.claim(9, onQueues("q3")))
	s.expectIDs("both", s.claim(3, onQueues("q1", "q2", "q3")), high, a, b)
	s.expectIDs("one", s.claim(3, onQueues("q1")), d)
	s.expectIDs("other namespace", s.claim(3, onQueues("q1"), func(c *store.Claim) { c.Namespace = "other" }), other)
}

func bound(bindings ...store.Binding) func(*store.Claim) {
	return func(c *store.Claim) { c.Workflows = bindings }
}

func testClaimBindings(s *shard) {
	a1 := s.start(one("a", 1), `1`)
	a2 := s.start(one("a", 2), `1`)
	b1 := s.start(one("b", 1), `1`)
	b2 := s.start(one("b", 2), `1`)
	s.expectIDs("neither", s.claim(9, bound(store.Binding{Workflow: "c"}, store.Binding{Workflow: "a", Version: 3})))
	s.expectIDs("a2 and b", s.claim(9, bound(store.Binding{Workflow: "a", Version: 2}, store.Binding{Workflow: "b"})), a2, b1, b2)
	s.expectIDs("all", s.claim(9), a1)
}

func testClaimBytes(s *shard) {
	m := one("w", 1)
	want := []machine.ID{s.start(m, `"123456789"`), s.start(m, `"12"`), s.start(m, `"3456"`), s.start(m, `"5"`)}
	atMost := func(n int) func(*store.Claim) { return func(c *store.Claim) { c.MaxBytes = n } }
	s.expectIDs("the first in any case", s.claim(9, atMost(1)), want[0])
	s.expectIDs("what fits", s.claim(9, atMost(10)), want[1:3]...)
	s.expectIDs("the rest", s.claim(9), want[3])
}

// A lease never outlasts the attempt's timeout.
func testClaimLease(s *shard) {
	s.start(one("w", 1, timeout(time.Minute)), `1`)
	s.start(one("w", 2), `1`)
	claimed := s.claim(2)
	capped, plain := claimed[0].Token, claimed[1].Token
	if !capped.Deadline.Equal(capped.LeasedAt.Add(time.Minute)) || !capped.LeaseUntil.Equal(capped.Deadline) {
		s.Errorf("leased at %s until %s, deadline %s", capped.LeasedAt, capped.LeaseUntil, capped.Deadline)
	}
	if !plain.Deadline.IsZero() || !plain.LeaseUntil.Equal(plain.LeasedAt.Add(long)) {
		s.Errorf("leased at %s until %s, deadline %s", plain.LeasedAt, plain.LeaseUntil, plain.Deadline)
	}
	for _, t := range []*machine.Token{capped, plain} {
		if t.State != machine.Leased || t.Fence != 1 || t.Attempt != 1 || t.Worker != worker {
			s.Errorf("claimed %+v", t)
		}
		if got := s.view(t.Instance).Tokens[0]; got.State != machine.Leased || got.Fence != 1 || !got.LeaseUntil.Equal(t.LeaseUntil) ||
			!got.Deadline.Equal(t.Deadline) || !got.LeasedAt.Equal(t.LeasedAt) || got.Worker != worker {
			s.Errorf("stored %+v, claimed %+v", got, t)
		}
	}
}

func testClaimNothing(s *shard) {
	s.expectIDs("nothing there", s.claim(5))
	m := one("w", 1)
	s.start(m, `1`, delayed(long))
	s.start(m, `1`)
	s.expectIDs("no queue", s.claim(5, onQueues()))
	s.expectIDs("no room", s.claim(0))
	if got := s.claim(5); len(got) != 1 {
		s.Errorf("claimed %d, want the one that is not delayed", len(got))
	}
}

// Claims at the same time share out the tokens.
func testClaimConcurrently(s *shard) {
	const n, claimers = 200, 6
	m := one("w", 1)
	for range n {
		s.start(m, `1`)
	}
	var mu sync.Mutex
	seen := map[machine.ID]int{}
	var wg sync.WaitGroup
	for range claimers {
		wg.Go(func() {
			for {
				claimed := s.claim(7)
				mu.Lock()
				for _, c := range claimed {
					seen[c.Token.ID]++
				}
				done := len(seen) == n
				mu.Unlock()
				if done {
					return
				}
			}
		})
	}
	wg.Wait()
	for id, times := range seen {
		if times != 1 {
			s.Errorf("%x was claimed %d times", id, times)
		}
	}
}

func testClaimCarries(s *shard) {
	m := one("w", 3)
	trace := map[string]string{"traceparent": "00-11"}
	id := s.start(m, `1`, priority(2), func(ev *machine.Start) { ev.Trace = trace })
	c := s.claimOne()
	in := c.Instance
	if in == nil || in.ID != id || in.Namespace != namespace || in.Workflow != "w" || in.Version != 3 || in.Priority != 2 ||
		in.State != machine.Running || in.Trace["traceparent"] != "00-11" || in.CreatedAt.IsZero() || !in.Context.Absent() {
		s.Errorf("claimed with instance %+v", in)
	}
	if !c.Base.Absent() || c.Results != nil {
		s.Errorf("claimed with base %v and results %v", c.Base, c.Results)
	}
	want := s.view(id)
	if !in.CreatedAt.Equal(want.Instance.CreatedAt) {
		s.Errorf("created at %s, want %s", in.CreatedAt, want.Instance.CreatedAt)
	}
}

func testBeat(s *shard) {
	m := one("w", 1)
	for range 3 {
		s.start(m, `1`)
	}
	claimed := s.claim(3)
	a, b, c := claimed[0].Token, claimed[1].Token, claimed[2].Token
	got, err := s.Beat(s.Context(), []store.Beat{
		{Token: c.ID, Fence: 1, Extend: 2 * long, Progress: json(`"half"`)},
		{Token: b.ID, Fence: 2, Extend: 2 * long}, // another's lease
		{Token: s.newID(), Fence: 1, Extend: long},
		{Token: a.ID, Fence: 1, Extend: 3 * long},
		{Token: a.ID, Fence: 1, Extend: 3 * long}, // twice
	})
	s.must(err)
	if len(got) != 5 || got[0].LeaseUntil.Before(c.LeasedAt.Add(2*long)) || !got[1].LeaseUntil.IsZero() || !got[2].LeaseUntil.IsZero() ||
		got[3].LeaseUntil.Before(a.LeasedAt.Add(3*long)) || got[4].LeaseUntil.Before(a.LeasedAt.Add(3*long)) {
		s.Errorf("beats are answered %+v", got)
	}
	if stored := s.view(b.Instance).Tokens[0]; !stored.LeaseUntil.Equal(b.LeaseUntil) {
		s.Error("a beat under another fence extended a lease")
	}
	s.must(s.Update(s.Context(), on(claimed[2]), func(w *store.World) error {
		if t := w.State(c.Instance, c.ID).Token; string(t.Progress.Data) != `"half"` || !t.LeaseUntil.Equal(got[0].LeaseUntil) {
			s.Errorf("stored %+v", t)
		}
		return nil
	}))
	if _, err := s.Beat(s.Context(), []store.Beat{{Token: c.ID, Fence: 1, Extend: long}}); err != nil {
		s.Error(err)
	}
	s.must(s.Update(s.Context(), on(claimed[2]), func(w *store.World) error {
		if t := w.State(c.Instance, c.ID).Token; string(t.Progress.Data) != `"half"` {
			s.Errorf("a beat without progress left %q", t.Progress.Data)
		}
		return nil
	}))
	if got, err := s.Beat(s.Context(), nil); len(got) != 0 || err != nil {
		s.Errorf("no beats give %v, %v", got, err)
	}
}

func testBeatCapped(s *shard) {
	s.start(one("w", 1, timeout(2*long)), `1`)
	c := s.claimOne()
	got, err := s.Beat(s.Context(), []store.Beat{{Token: c.Token.ID, Fence: 1, Extend: 9 * long}})
	s.must(err)
	if !got[0].LeaseUntil.Equal(c.Token.Deadline) {
		s.Errorf("lease until %s, want the deadline %s", got[0].LeaseUntil, c.Token.Deadline)
	}
}
