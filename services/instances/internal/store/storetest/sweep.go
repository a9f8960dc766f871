package storetest

import (
	"slices"
	"time"

	"github.com/wiggle-run/wiggle/services/instances/internal/machine"
	"github.com/wiggle-run/wiggle/services/instances/internal/store"
)

func (s *shard) tick(holder string, term time.Duration) store.Tick {
	s.Helper()
	tick, err := s.Tick(s.Context(), holder, term, true)
	s.must(err)
	return tick
}

// The lease is its holder's until the term is over; then it is anyone's.
func testTickLease(s *shard) {
	for range 2 {
		if !s.tick("a", long).Holder {
			s.Error("the first does not hold, or not again")
		}
	}
	if s.tick("b", long).Holder || !s.tick("a", 0).Holder {
		s.Error("another holds a lease that is held, or its holder does not")
	}
	if !s.tick("b", long).Holder {
		s.Error("the lease is not taken over when its term is over")
	}
	if s.tick("a", long).Holder {
		s.Error("who lost the lease holds it still")
	}
}

func testTickTells(s *shard) {
	empty := s.tick("a", long)
	if empty.Now.IsZero() || !empty.NextDue.IsZero() || !empty.NextExpiry.IsZero() || len(empty.Ready) != 0 {
		s.Errorf("an empty shard tells %+v", empty)
	}
	for _, q := range []string{"b", "a", "a", "c"} {
		s.start(one("w", 1, queue(q)), `1`)
	}
	s.start(one("w", 1, queue("a")), `1`, in("x"))
	s.start(one("w", 1, queue("later")), `1`, delayed(2*long))
	s.start(one("w", 1, queue("later")), `1`, delayed(long))
	s.claim(1, onQueues("c"))
	leased := s.claim(2, onQueues("b"), func(c *store.Claim) { c.Lease = time.Minute })
	if other := s.tick("b", long); !other.NextExpiry.IsZero() || len(other.Ready) == 0 || other.NextDue.IsZero() {
		s.Errorf("who does not hold the lease is told %+v, want all but the next expiry", other)
	}
	if tick, err := s.Tick(s.Context(), "a", long, false); err != nil || !tick.Holder || tick.Now.IsZero() ||
		!tick.NextDue.IsZero() || !tick.NextExpiry.IsZero() || len(tick.Ready) != 0 {
		s.Errorf("a tick that does not look tells %+v, %v", tick, err)
	}
	tick := s.tick("a", long)
	want := []store.QueueKey{{Namespace: namespace, Queue: "a"}, {Namespace: "x", Queue: "a"}}
	if !slices.Equal(tick.Ready, want) {
		s.Errorf("ready are %v, want %v", tick.Ready, want)
	}
	if !tick.NextExpiry.Equal(leased[0].Token.LeaseUntil) {
		s.Errorf("next expiry is %s, want %s", tick.NextExpiry, leased[0].Token.LeaseUntil)
	}
	if in := tick.NextDue.Sub(tick.Now); in <= long-time.Minute || in > long {
		s.Errorf("next due in %s, want in an hour", in)
	}
}

func testDue(s *shard) {
	m := one("w", 1)
	last := s.start(m, `1`, delayed(3*long))
	first := s.start(m, `1`, delayed(long))
	middle := s.start(m, `1`, delayed(2*long))
	s.start(m, `1`)
	now := s.tick("a", long).Now
	for _, test := range []struct {
		before time.Time
		limit  int
		want   []machine.ID
	}{
		{now, 10, nil},
		{now.Add(5 * long), 10, []machine.ID{first, middle, last}},
		{now.Add(5 * long), 2, []machine.ID{first, middle}},
		{now.Add(2*long + time.Minute), 10, []machine.ID{first, middle}},
	} {
		due, err := s.Due(s.Context(), test.before, test.limit)
		s.must(err)
		if got := refs(due); !slices.Equal(got, test.want) {
			s.Errorf("due in %s, at most %d: %x, want %x", test.before.Sub(now), test.limit, got, test.want)
		}
	}
	due, err := s.Due(s.Context(), now.Add(5*long), 1)
	s.must(err)
	if due[0].Instance != first || due[0].DueAt.Sub(now) > long || due[0].DueAt.Sub(now) < long-time.Minute {
		s.Errorf("due is %+v", due[0])
	}
	exactly, err := s.Due(s.Context(), due[0].DueAt, 10)
	s.must(err)
	if len(exactly) != 1 {
		s.Errorf("a token is not due at its very time: %+v", exactly)
	}
}

func refs(list []store.TokenRef) []machine.ID {
	var ids []machine.ID
	for _, r := range list {
		ids = append(ids, r.Token)
	}
	return ids
}

func testExpired(s *shard) {
	m := one("w", 1)
	for range 4 {
		s.start(m, `1`)
	}
	over := func(c *store.Claim) { c.Lease = 0 }
	a, b := s.claimOne(over).Token, s.claimOne(over).Token
	s.claim(2)
	expired, err := s.Expired(s.Context(), 10)
	s.must(err)
	if got := refs(expired); !slices.Equal(got, []machine.ID{a.ID, b.ID}) {
		s.Errorf("expired are %x, want %x and %x", got, a.ID, b.ID)
	}
	if expired[0].Fence != 1 || expired[0].Instance != a.Instance {
		s.Errorf("expired is %+v", expired[0])
	}
	if expired, err = s.Expired(s.Context(), 1); len(expired) != 1 || err != nil {
		s.Errorf("one expired: %+v, %v", expired, err)
	}
	s.must(s.update(on(store.Claimed{Token: a}), a.Instance, func(w *store.World) (*machine.Changes, error) {
		return m.Expire(s.env(w.Now), w.State(a.Instance, a.ID), a.Fence)
	}))
	if expired, err = s.Expired(s.Context(), 10); len(expired) != 1 || err != nil || expired[0].Token != b.ID {
		s.Errorf("after one was taken back, expired are %+v, %v", expired, err)
	}
}

// A retry is not claimable before its time.
func testRetryDue(s *shard) {
	m := one("w", 1)
	id := s.start(m, `1`)
	c := s.claimOne()
	s.must(s.update(on(c), id, func(w *store.World) (*machine.Changes, error) {
		return m.Fail(s.env(w.Now), w.State(id, id), machine.Fail{Fence: 1, Type: "E", HasRetryDelay: true, RetryDelay: time.Microsecond})
	}))
	s.expectIDs("before it is woken", s.claim(1))
	due, err := s.Due(s.Context(), s.tick("a", long).Now.Add(time.Second), 10)
	s.must(err)
	if len(due) != 1 {
		s.Fatalf("due are %+v", due)
	}
	s.wake(m, due[0])
	again := s.claimOne()
	if again.Token.Attempt != 2 || again.Token.Fence != 2 || again.Token.Failure.GetType() != "E" {
		s.Errorf("claimed again %+v", again.Token)
	}
}

// What waits is counted by queue, up to the limit, and what has gone to a worker, or waits for a time, is not.
func testBacklog(s *shard) {
	for range 3 {
		s.start(one("w", 1, queue("a")), `1`)
	}
	s.start(one("w", 1, queue("b")), `1`)
	s.start(one("w", 1, queue("a")), `1`, in("x"))
	s.start(one("w", 1, queue("c")), `1`, delayed(long))
	s.claim(1, onQueues("b"))
	keys := []store.QueueKey{
		{Namespace: namespace, Queue: "a"}, {Namespace: namespace, Queue: "b"}, {Namespace: namespace, Queue: "c"},
	}
	for limit, want := range map[int]int{10: 3, 2: 2} {
		found, err := s.Backlog(s.Context(), keys, limit)
		s.must(err)
		if len(found) != 1 || found[0].QueueKey != keys[0] || found[0].Tokens != want || found[0].Oldest < 0 {
			s.Errorf("with limit %d the backlog is %+v, want %d in %v", limit, found, want, keys[0])
		}
	}
}
