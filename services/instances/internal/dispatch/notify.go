package dispatch

import (
	"sync"

	"github.com/wiggle-run/wiggle/services/instances/internal/machine"
	"github.com/wiggle-run/wiggle/services/instances/internal/store"
)

// hints fans out which queues have tasks to the routers that watch.
type hints struct {
	mu       sync.Mutex
	watchers map[*Watcher]struct{}
}

// Watcher receives hints, each queue at most once until it is taken.
type Watcher struct {
	hints *hints
	c     chan struct{}

	mu     sync.Mutex
	queues set[store.QueueKey]
}

// Watch subscribes to hints. Close it.
func (s *Shard) Watch() *Watcher {
	w := &Watcher{hints: &s.hints, c: make(chan struct{}, 1), queues: set[store.QueueKey]{}}
	s.hints.mu.Lock()
	defer s.hints.mu.Unlock()
	if s.hints.watchers == nil {
		s.hints.watchers = make(map[*Watcher]struct{})
	}
	s.hints.watchers[w] = struct{}{}
	return w
}

// C carries a value when there are hints to take.
func (w *Watcher) C() <-chan struct{} { return w.c }

// Take removes and returns the queues that have tasks.
func (w *Watcher) Take() []store.QueueKey {
	w.mu.Lock()
	defer w.mu.Unlock()
	keys := make([]store.QueueKey, 0, len(w.queues))
	for k := range w.queues {
		keys = append(keys, k)
	}
	clear(w.queues)
	return keys
}

// Close ends the subscription.
func (w *Watcher) Close() {
	w.hints.mu.Lock()
	defer w.hints.mu.Unlock()
	delete(w.hints.watchers, w)
}

func (h *hints) publish(key store.QueueKey) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for w := range h.watchers {
		w.mu.Lock()
		w.queues[key] = struct{}{}
		w.mu.Unlock()
		select {
		case w.c <- struct{}{}:
		default:
		}
	}
}

// ends wakes those who wait for the end of an instance.
type ends struct {
	mu      sync.Mutex
	waiting map[machine.ID]map[chan struct{}]struct{}
}

// wait returns a channel that is closed when the instance has ended, and a
// function that gives up waiting.
func (e *ends) wait(id machine.ID) (<-chan struct{}, func()) {
	c := make(chan struct{})
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.waiting == nil {
		e.waiting = make(map[machine.ID]map[chan struct{}]struct{})
	}
	if e.waiting[id] == nil {
		e.waiting[id] = make(map[chan struct{}]struct{})
	}
	e.waiting[id][c] = struct{}{}
	return c, func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		if delete(e.waiting[id], c); len(e.waiting[id]) == 0 {
			delete(e.waiting, id)
		}
	}
}

func (e *ends) notify(id machine.ID) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for c := range e.waiting[id] {
		close(c)
	}
	delete(e.waiting, id)
}

// ids are the instances that somebody waits for.
func (e *ends) ids() []machine.ID {
	e.mu.Lock()
	defer e.mu.Unlock()
	ids := make([]machine.ID, 0, len(e.waiting))
	for id := range e.waiting {
		ids = append(ids, id)
	}
	return ids
}
