package memstore

import (
	"bytes"
	"cmp"
	"container/heap"
	"context"
	"slices"

	"github.com/wiggle-run/wiggle/services/instances/internal/machine"
	"github.com/wiggle-run/wiggle/services/instances/internal/store"
)

// readyQueues holds what may be claimed: for each queue a heap for each version of
// a workflow, so that a worker that serves few of them looks at those alone.
type readyQueues map[store.QueueKey]map[store.Binding]*readyHeap

// readyRef names a claimable token and how it is ordered. A token that moved on
// leaves its reference behind, to be dropped when it comes up.
type readyRef struct {
	priority     int16
	instance, id machine.ID
}

// compareReady orders by priority, then the older instance, then the older token.
func compareReady(a, b readyRef) int {
	return cmp.Or(cmp.Compare(b.priority, a.priority), bytes.Compare(a.instance[:], b.instance[:]), bytes.Compare(a.id[:], b.id[:]))
}

type readyHeap []readyRef

func (h readyHeap) Len() int           { return len(h) }
func (h readyHeap) Less(i, j int) bool { return compareReady(h[i], h[j]) < 0 }
func (h readyHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *readyHeap) Push(x any)        { *h = append(*h, x.(readyRef)) } //nolint:forcetypeassert // heap.Interface
func (h *readyHeap) Pop() any {
	last := len(*h) - 1
	x := (*h)[last]
	*h = (*h)[:last]
	return x
}

func (q readyQueues) push(in *machine.Instance, t *machine.Token) {
	key := store.QueueKey{Namespace: in.Namespace, Queue: t.Queue}
	version := store.Binding{Workflow: in.Workflow, Version: in.Version}
	if q[key][version] == nil {
		put(q, key, version, &readyHeap{})
	}
	heap.Push(q[key][version], readyRef{priority: t.Priority, instance: t.Instance, id: t.ID})
}

// top is the first token of a heap that may be claimed; nil if there is none.
func (s *Store) top(key store.QueueKey, h *readyHeap) *machine.Token {
	for len(*h) > 0 {
		ref := (*h)[0]
		t := s.tokens[ref.id]
		if t != nil && t.State == machine.Ready && t.DueAt.IsZero() && t.Queue == key.Queue && t.Priority == ref.priority {
			return t
		}
		heap.Pop(h)
	}
	return nil
}

// Claim implements [store.Store].
func (s *Store) Claim(ctx context.Context, c store.Claim) ([]store.Claimed, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	budget := c.MaxBytes
	if budget == 0 {
		budget = store.DefaultClaimBytes
	}
	var claimed []store.Claimed
	for len(claimed) < c.Max {
		t := s.best(c)
		if t == nil {
			break
		}
		if budget -= len(t.View.Data); budget < 0 && len(claimed) > 0 {
			break
		}
		leased, err := machine.Claim(now, t, c.Worker, c.Lease)
		if err != nil {
			return nil, err
		}
		s.putToken(leased)
		claimed = append(claimed, s.claimed(leased))
	}
	return claimed, nil
}

// best is the first token of all heaps that the claim looks at.
func (s *Store) best(c store.Claim) *machine.Token {
	var best *machine.Token
	for _, queue := range c.Queues {
		key := store.QueueKey{Namespace: c.Namespace, Queue: queue}
		for version, h := range s.ready[key] {
			if !serves(c.Workflows, version) {
				continue
			}
			t := s.top(key, h)
			if t != nil && (best == nil || compareReady(order(t), order(best)) < 0) {
				best = t
			}
		}
	}
	return best
}

func order(t *machine.Token) readyRef {
	return readyRef{priority: t.Priority, instance: t.Instance, id: t.ID}
}

// serves reports whether a worker with these bindings serves a version.
func serves(bindings []store.Binding, version store.Binding) bool {
	return len(bindings) == 0 || slices.ContainsFunc(bindings, func(b store.Binding) bool {
		return b.Workflow == version.Workflow && (b.Version == 0 || b.Version == version.Version)
	})
}

// claimed adds to a leased token what its task carries.
func (s *Store) claimed(t *machine.Token) store.Claimed {
	c := store.Claimed{Token: t.Clone(), Instance: s.instances[t.Instance].Clone()}
	c.Instance.Context = machine.Payload{}
	if parent := s.tokens[t.Parent]; parent != nil {
		c.Base = parent.View
	}
	if t.Width > 0 {
		c.Results = s.results(t.ID)
	}
	return c
}

// results are what the branches of a token brought to its join, by index.
func (s *Store) results(parent machine.ID) []store.Result {
	results := make([]store.Result, 0, len(s.children[parent]))
	for index, id := range s.children[parent] {
		child := s.tokens[id]
		results = append(results, store.Result{Index: index, Key: child.Key, HasResult: child.HasResult, View: child.View})
	}
	slices.SortFunc(results, func(a, b store.Result) int { return cmp.Compare(a.Index, b.Index) })
	return results
}

// Beat implements [store.Store].
func (s *Store) Beat(ctx context.Context, beats []store.Beat) ([]store.BeatResult, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	results := make([]store.BeatResult, len(beats))
	for i, b := range beats {
		t, err := machine.Beat(now, s.tokens[b.Token], b.Fence, b.Extend, b.Progress)
		if err != nil {
			continue // lost, which is an answer
		}
		s.putToken(t)
		results[i].LeaseUntil = t.LeaseUntil
	}
	return results, nil
}
