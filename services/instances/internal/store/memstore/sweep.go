package memstore

import (
	"bytes"
	"cmp"
	"container/heap"
	"context"
	"slices"
	"time"

	"github.com/wiggle-run/wiggle/services/instances/internal/machine"
	"github.com/wiggle-run/wiggle/services/instances/internal/store"
)

// sweepLease is the lease of the shard's sweeps.
type sweepLease struct {
	holder string
	term   int64
	until  time.Time
}

// dueHeap holds the tokens that wait for a time. As in the ready heaps, what moved
// on is dropped when it comes up.
type dueHeap []dueRef

type dueRef struct {
	at time.Time
	id machine.ID
}

func (h dueHeap) Len() int { return len(h) }
func (h dueHeap) Less(i, j int) bool {
	return cmp.Or(h[i].at.Compare(h[j].at), bytes.Compare(h[i].id[:], h[j].id[:])) < 0
}
func (h dueHeap) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *dueHeap) Push(x any)   { *h = append(*h, x.(dueRef)) } //nolint:forcetypeassert // heap.Interface
func (h *dueHeap) Pop() any {
	last := len(*h) - 1
	x := (*h)[last]
	*h = (*h)[:last]
	return x
}

func (h *dueHeap) push(t *machine.Token) { heap.Push(h, dueRef{at: t.DueAt, id: t.ID}) }

// firstDue is the token that is due first; nil if none waits for a time.
func (s *Store) firstDue() *machine.Token {
	for len(s.due) > 0 {
		if t := s.tokens[s.due[0].id]; t != nil && t.DueAt.Equal(s.due[0].at) {
			return t
		}
		heap.Pop(&s.due)
	}
	return nil
}

// Tick implements [store.Store].
func (s *Store) Tick(ctx context.Context, holder string, term time.Duration, look bool) (store.Tick, error) {
	if err := ctx.Err(); err != nil {
		return store.Tick{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	tick := store.Tick{Now: s.now()}
	if s.lease.holder == holder || !tick.Now.Before(s.lease.until) {
		if s.lease.holder != holder {
			s.lease.term++
		}
		s.lease.holder, s.lease.until = holder, tick.Now.Add(term)
		tick.Holder = true
	}
	if !look {
		return tick, nil
	}
	if t := s.firstDue(); t != nil {
		tick.NextDue = t.DueAt
	}
	for id := range s.leased {
		if !tick.Holder {
			break
		}
		if until := s.tokens[id].LeaseUntil; tick.NextExpiry.IsZero() || until.Before(tick.NextExpiry) {
			tick.NextExpiry = until
		}
	}
	tick.Ready = s.readyKeys()
	return tick, nil
}

// readyKeys lists the queues that hold something to claim, in order, and forgets
// the others.
func (s *Store) readyKeys() []store.QueueKey {
	var keys []store.QueueKey
	for key, versions := range s.ready {
		for version, h := range versions {
			if s.top(key, h) == nil {
				delete(versions, version)
			}
		}
		if len(versions) == 0 {
			delete(s.ready, key)
			continue
		}
		keys = append(keys, key)
	}
	slices.SortFunc(keys, func(a, b store.QueueKey) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Queue, b.Queue))
	})
	return keys
}

// Backlog implements [store.Store].
func (s *Store) Backlog(ctx context.Context, queues []store.QueueKey, limit int) ([]store.QueueBacklog, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	found := make([]store.QueueBacklog, len(queues))
	place := make(map[store.QueueKey]int, len(queues))
	for i, key := range queues {
		found[i].QueueKey = key
		place[key] = i
	}
	for _, t := range s.tokens {
		if t.State != machine.Ready || !t.DueAt.IsZero() {
			continue
		}
		i, ok := place[store.QueueKey{Namespace: s.instances[t.Instance].Namespace, Queue: t.Queue}]
		if !ok || found[i].Tokens == limit {
			continue
		}
		found[i].Tokens++
		found[i].Oldest = max(found[i].Oldest, now.Sub(t.QueuedAt))
	}
	return slices.DeleteFunc(found, func(q store.QueueBacklog) bool { return q.Tokens == 0 }), nil
}

// Due implements [store.Store].
func (s *Store) Due(ctx context.Context, before time.Time, limit int) ([]store.TokenRef, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var refs []store.TokenRef
	var popped []dueRef
	seen := map[machine.ID]bool{}
	for len(refs) < limit {
		t := s.firstDue()
		if t == nil || t.DueAt.After(before) {
			break
		}
		ref, _ := heap.Pop(&s.due).(dueRef)
		if !seen[t.ID] {
			seen[t.ID] = true
			popped = append(popped, ref)
			refs = append(refs, refTo(t))
		}
	}
	for _, ref := range popped {
		heap.Push(&s.due, ref)
	}
	return refs, nil
}

// Expired implements [store.Store].
func (s *Store) Expired(ctx context.Context, limit int) ([]store.TokenRef, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	var expired []*machine.Token
	for id := range s.leased {
		if t := s.tokens[id]; !now.Before(t.LeaseUntil) {
			expired = append(expired, t)
		}
	}
	slices.SortFunc(expired, func(a, b *machine.Token) int {
		return cmp.Or(a.LeaseUntil.Compare(b.LeaseUntil), bytes.Compare(a.ID[:], b.ID[:]))
	})
	refs := make([]store.TokenRef, 0, min(limit, len(expired)))
	for _, t := range expired[:min(limit, len(expired))] {
		refs = append(refs, refTo(t))
	}
	return refs, nil
}

func refTo(t *machine.Token) store.TokenRef {
	return store.TokenRef{Instance: t.Instance, Token: t.ID, Fence: t.Fence, DueAt: t.DueAt}
}
