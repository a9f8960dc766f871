package principals

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/wiggle-run/wiggle/pkg/identity"
)

// entry is what is known of a credential. It does not change once stored, but for used and its place.
type entry struct {
	key       Key
	principal *identity.Principal // nil: refused
	revision  int64               // at which it was read
	asked     time.Time           // before it was read
	renewAt   time.Time           // when to ask again in advance
	ends      time.Time           // of the credential itself; zero: never

	used  atomic.Bool // since the clock's hand passed
	place int         // in the ring of its shard
}

// ended tells whether the credential is over by itself.
func (e *entry) ended(now time.Time) bool { return !e.ends.IsZero() && !now.Before(e.ends) }

// storeShards is how many locks a store has.
const storeShards = 64

// store is a bounded map of entries. What was not used for longest goes first, about: each shard is a clock.
type store struct {
	perShard int
	size     atomic.Int64
	shards   [storeShards]storeShard
}

type storeShard struct {
	mu      sync.RWMutex
	entries map[Key]*entry
	ring    []*entry
	hand    int
}

// newStore makes a store of at most so many entries, rounded up to a multiple of its shards.
func newStore(limit int) *store {
	s := &store{perShard: max((limit+storeShards-1)/storeShards, 1)}
	for i := range s.shards {
		s.shards[i].entries = map[Key]*entry{}
	}
	return s
}

// shard is the shard of a key. Keys are hashes, so any byte does.
func (s *store) shard(key *Key) *storeShard { return &s.shards[key[0]%storeShards] }

// get returns the entry of a key, or nil.
func (s *store) get(key *Key) *entry {
	shard := s.shard(key)
	shard.mu.RLock()
	e := shard.entries[*key]
	shard.mu.RUnlock()
	if e != nil && !e.used.Load() {
		e.used.Store(true)
	}
	return e
}

// put stores an entry in place of the one with its key, if any.
func (s *store) put(e *entry) {
	shard := s.shard(&e.key)
	shard.mu.Lock()
	defer shard.mu.Unlock()
	switch old := shard.entries[e.key]; {
	case old != nil:
		e.place = old.place
		shard.ring[e.place] = e
	case len(shard.ring) < s.perShard:
		e.place = len(shard.ring)
		shard.ring = append(shard.ring, e)
		s.size.Add(1)
	default:
		victim := shard.victim()
		delete(shard.entries, victim.key)
		e.place = victim.place
		shard.ring[e.place] = e
	}
	shard.entries[e.key] = e
}

// victim is the first from the hand on that was not used since the hand passed it. The mutex is held.
func (s *storeShard) victim() *entry {
	for {
		e := s.ring[s.hand%len(s.ring)]
		s.hand = (s.hand + 1) % len(s.ring)
		if !e.used.Swap(false) {
			return e
		}
	}
}

// drop removes an entry, unless another has taken its place.
func (s *store) drop(e *entry) {
	shard := s.shard(&e.key)
	shard.mu.Lock()
	defer shard.mu.Unlock()
	if shard.entries[e.key] == e {
		s.remove(shard, e)
	}
}

// dropIf removes the entries that match.
func (s *store) dropIf(match func(*entry) bool) {
	for i := range s.shards {
		shard := &s.shards[i]
		shard.mu.Lock()
		for _, e := range shard.entries {
			if match(e) {
				s.remove(shard, e)
			}
		}
		shard.mu.Unlock()
	}
}

// remove takes an entry out. The shard's mutex is held.
func (s *store) remove(shard *storeShard, e *entry) {
	delete(shard.entries, e.key)
	last := shard.ring[len(shard.ring)-1]
	shard.ring[e.place], last.place = last, e.place
	shard.ring[len(shard.ring)-1] = nil
	shard.ring = shard.ring[:len(shard.ring)-1]
	s.size.Add(-1)
}
