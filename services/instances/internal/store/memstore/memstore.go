// Package memstore keeps a shard in memory, for the test server and for tests of
// what stands on a store. It passes the suite of package storetest, as the
// PostgreSQL store does, and means the same by every method: times are kept to
// the microsecond, values that were handed in or out are never shared with the
// caller's (payloads are, which nobody changes in place), and an Update whose
// apply fails writes nothing. Nothing survives the process.
//
// One mutex guards instances and tokens; definitions have their own, so that
// apply may read definitions while an Update runs.
package memstore

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/wiggle-run/wiggle/services/instances/internal/machine"
	"github.com/wiggle-run/wiggle/services/instances/internal/store"
)

// Store is a shard in memory.
type Store struct {
	clock func() time.Time
	defs  definitions

	mu        sync.Mutex // guards what follows
	instances map[machine.ID]*machine.Instance
	tokens    map[machine.ID]*machine.Token
	// members are an instance's tokens, children a token's, by index.
	members  map[machine.ID]map[machine.ID]struct{}
	children map[machine.ID]map[int32]machine.ID
	ready    readyQueues
	due      dueHeap
	leased   map[machine.ID]struct{}
	history  map[machine.ID][]record
	lease    sweepLease
	events   eventLog
}

var _ store.Store = (*Store)(nil)

// New makes an empty store. clock is the shard's clock; nil is the system's.
func New(clock func() time.Time) *Store {
	if clock == nil {
		clock = time.Now
	}
	return &Store{
		clock:     clock,
		defs:      definitions{byKey: map[definitionKey]store.Definition{}},
		instances: map[machine.ID]*machine.Instance{},
		tokens:    map[machine.ID]*machine.Token{},
		members:   map[machine.ID]map[machine.ID]struct{}{},
		children:  map[machine.ID]map[int32]machine.ID{},
		ready:     readyQueues{},
		leased:    map[machine.ID]struct{}{},
		history:   map[machine.ID][]record{},
		events:    eventLog{consumers: map[string]store.EventConsumer{}},
	}
}

// now is the time as PostgreSQL would tell it.
func (s *Store) now() time.Time { return micro(s.clock()) }

// micro cuts a time to what PostgreSQL keeps.
func micro(t time.Time) time.Time {
	if t.IsZero() {
		return time.Time{}
	}
	return t.UTC().Truncate(time.Microsecond)
}

// Update implements [store.Store].
func (s *Store) Update(ctx context.Context, keys store.Keys, apply func(*store.World) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	w := s.load(keys)
	if err := apply(w); err != nil {
		return err
	}
	if err := s.check(w.Writes()); err != nil {
		return err
	}
	s.write(w.Now, w.Writes())
	return nil
}

func (s *Store) load(keys store.Keys) *store.World {
	w := store.NewWorld(s.now())
	for _, id := range keys.Instances {
		if in := s.instances[id]; in != nil {
			w.LoadInstance(in.Clone())
		}
	}
	for _, id := range keys.Tokens {
		t := s.tokens[id]
		if t == nil {
			continue
		}
		w.LoadToken(t.Clone())
		if parent := s.tokens[t.Parent]; parent != nil {
			w.LoadToken(parent.Clone())
		}
	}
	for _, k := range keys.Latest {
		if d, ok := s.defs.latest(k.Namespace, k.Workflow); ok {
			w.LoadLatest(k, d.Version)
		}
	}
	for _, l := range w.Missing(keys.Leases) {
		if settled, ok := s.settled(l); ok {
			w.LoadSettled(l, settled)
		}
	}
	return w
}

// check refuses what the constraints of a database would.
func (s *Store) check(ws *store.Writes) error {
	for id := range ws.Instances {
		if s.instances[id] == nil {
			return fmt.Errorf("memstore: update of instance %x, which is not there", id)
		}
	}
	for id := range ws.NewTokens {
		if s.tokens[id] != nil {
			return fmt.Errorf("memstore: insert of token %x, which is there", id)
		}
	}
	for id := range ws.Tokens {
		if s.tokens[id] == nil {
			return fmt.Errorf("memstore: update of token %x, which is not there", id)
		}
	}
	return nil
}

func (s *Store) write(now time.Time, ws *store.Writes) {
	for id, in := range ws.NewInstances {
		s.putInstance(in, ws.Ended[id])
	}
	for id, in := range ws.Instances {
		s.putInstance(in, ws.Ended[id])
	}
	for _, parent := range ws.Merged {
		for _, id := range s.children[parent] {
			s.removeToken(id)
		}
	}
	for _, t := range ws.NewTokens {
		s.putToken(t.Clone())
	}
	for _, t := range ws.Tokens {
		s.putToken(t.Clone())
	}
	for i, l := range ws.LetIn {
		id, ok := s.children[l.Parent][l.Index]
		if child := s.tokens[id]; ok && child.Held {
			ws.LetIn[i].Token = id
			child = child.Clone()
			child.DueAt = l.DueAt
			s.putToken(child)
		}
	}
	for instance := range ws.Ended {
		for id := range s.members[instance] {
			s.removeToken(id)
		}
	}
	for i, e := range ws.History {
		s.record(now, int32(i), e)
	}
	for _, e := range ws.Events {
		s.events.append(now, e)
	}
}

// putInstance writes an instance. One that ended without a context keeps its first
// token's.
func (s *Store) putInstance(in *machine.Instance, ended bool) {
	in = in.Clone()
	if root := s.tokens[in.ID]; ended && in.Context.Absent() && root != nil {
		in.Context = root.View
	}
	in.CreatedAt, in.EndedAt = micro(in.CreatedAt), micro(in.EndedAt)
	s.instances[in.ID] = in
}

// putToken writes a token, which becomes the store's, and indexes it.
func (s *Store) putToken(t *machine.Token) {
	for _, at := range []*time.Time{&t.DueAt, &t.QueuedAt, &t.LeasedAt, &t.LeaseUntil, &t.Deadline, &t.Settled.RetryAt} {
		*at = micro(*at)
	}
	t.Timeout = t.Timeout.Truncate(time.Microsecond)
	if s.tokens[t.ID] == nil {
		put(s.members, t.Instance, t.ID, struct{}{})
		if !t.Parent.IsZero() {
			put(s.children, t.Parent, t.Index, t.ID)
		}
	}
	s.tokens[t.ID] = t
	delete(s.leased, t.ID)
	switch {
	case t.State == machine.Leased:
		s.leased[t.ID] = struct{}{}
	case t.State == machine.Ready && t.DueAt.IsZero():
		s.ready.push(s.instances[t.Instance], t)
	}
	if !t.DueAt.IsZero() {
		s.due.push(t)
	}
}

// removeToken removes a token. The ready and due heaps drop it when they meet it.
func (s *Store) removeToken(id machine.ID) {
	t := s.tokens[id]
	delete(s.tokens, id)
	delete(s.leased, id)
	remove(s.members, t.Instance, id)
	if !t.Parent.IsZero() {
		remove(s.children, t.Parent, t.Index)
	}
}

// put and remove keep a map of maps without empty ones.
func put[K, L comparable, V any](m map[K]map[L]V, k K, l L, v V) {
	if m[k] == nil {
		m[k] = map[L]V{}
	}
	m[k][l] = v
}

func remove[K, L comparable, V any](m map[K]map[L]V, k K, l L) {
	delete(m[k], l)
	if len(m[k]) == 0 {
		delete(m, k)
	}
}
