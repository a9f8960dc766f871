package rpc

import (
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/wiggle-run/wiggle/services/instances/internal/store"
)

const (
	// maxUnconfirmed bounds the tasks that are remembered of one stream, and those of all
	// streams that have ended. A task that is forgotten comes back as its lease runs out.
	maxUnconfirmed = 100_000
	// unconfirmedFor is how long the tasks of a stream that broke are remembered.
	unconfirmedFor = time.Minute
)

// sentTasks are the tasks of a stream that its worker has not confirmed, in the order
// in which they were sent.
type sentTasks struct {
	before int64 // how many were sent before these
	leases []store.Lease
}

func (s *sentTasks) add(l store.Lease) {
	if len(s.leases) == maxUnconfirmed {
		s.leases = s.leases[1:]
		s.before++
	}
	s.leases = append(s.leases, l)
}

// confirm takes note that the worker has got so many tasks in all. It is false if that
// many were not sent.
func (s *sentTasks) confirm(n int64) bool {
	got := n - s.before
	if got > int64(len(s.leases)) {
		return false
	}
	if got > 0 {
		s.leases, s.before = s.leases[got:], n
	}
	return true
}

// workerKey names a worker on a shard. The queues are part of it: whoever says that it is the worker, and may take tasks of
// its own queues only, has nothing to do with what was sent of others.
type workerKey struct {
	shard                     int
	namespace, queues, worker string
}

// keyOf is the key of a worker's stream.
func keyOf(shard int, c *store.Claim) workerKey {
	queues := slices.Sorted(slices.Values(c.Queues))
	return workerKey{
		shard: shard, namespace: c.Namespace, queues: strings.Join(slices.Compact(queues), "\x00"), worker: c.Worker,
	}
}

// attendance is one stream of a worker.
type attendance struct {
	key workerKey
	// held is what the worker's next hello says that it holds; nil as long as there was
	// none.
	held map[store.Lease]struct{}
}

// unconfirmed keeps, by worker, the tasks that were sent on streams that broke and not
// confirmed. The worker's next hello says which of them it has; the others are to be
// handed back. Its zero value is ready for use.
type unconfirmed struct {
	mu      sync.Mutex
	streams map[workerKey][]*attendance
	broken  map[workerKey]remains
	total   int // leases in broken
}

// remains is what a worker's broken streams have left.
type remains struct {
	leases []store.Lease
	until  time.Time
}

// join begins a stream whose worker holds some tasks. It returns the tasks that earlier
// streams sent and the worker does not have. A stream of the worker that has not ended
// yet is an earlier one too: what it leaves is judged when it ends.
func (u *unconfirmed) join(key workerKey, held map[store.Lease]struct{}, now time.Time) (*attendance, []store.Lease) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.forget(now)
	for _, earlier := range u.streams[key] {
		if earlier.held == nil {
			earlier.held = held
		}
	}
	a := &attendance{key: key}
	if u.streams == nil {
		u.streams, u.broken = map[workerKey][]*attendance{}, map[workerKey]remains{}
	}
	u.streams[key] = append(u.streams[key], a)
	left := u.broken[key].leases
	delete(u.broken, key)
	u.total -= len(left)
	return a, missing(left, held)
}

// leave ends a stream. It returns the tasks that the worker is known not to have.
func (u *unconfirmed) leave(a *attendance, sent []store.Lease, now time.Time) []store.Lease {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.forget(now)
	u.streams[a.key] = slices.DeleteFunc(u.streams[a.key], func(o *attendance) bool { return o == a })
	if len(u.streams[a.key]) == 0 {
		delete(u.streams, a.key)
	}
	if a.held != nil {
		return missing(sent, a.held)
	}
	sent = sent[:min(len(sent), maxUnconfirmed-u.total)]
	if len(sent) > 0 {
		u.total += len(sent)
		u.broken[a.key] = remains{leases: slices.Concat(u.broken[a.key].leases, sent), until: now.Add(unconfirmedFor)}
	}
	return nil
}

// forget drops what is too old. The mutex is held.
func (u *unconfirmed) forget(now time.Time) {
	for key, r := range u.broken {
		if now.After(r.until) {
			u.total -= len(r.leases)
			delete(u.broken, key)
		}
	}
}

// missing are the leases that are not held.
func missing(leases []store.Lease, held map[store.Lease]struct{}) []store.Lease {
	var out []store.Lease
	for _, l := range leases {
		if _, ok := held[l]; !ok {
			out = append(out, l)
		}
	}
	return out
}
