// Package wake parks callers that wait for work and wakes as few of them as will do.
//
// A [Hub] knows waiters by the keys they wait for (a queue, say) and by group. A group is a set of waiters that
// could all do the same work, so that waking one of them is enough: [Hub.Notify] wakes one waiter of each group that
// waits for the key, the one that has waited longest. A thousand parked polls of one fleet therefore cost one try
// per notification, not a thousand.
//
// What it guarantees:
//
//   - A wake-up is not lost. A notification that comes after [Hub.Subscribe] or [Waiter.Rearm] returned reaches an
//     armed waiter of each group that has one. A waiter that is closed before it acted on its wake-up passes it on
//     to the next of its group.
//   - Wake-ups coalesce. A waiter is woken once until it is armed again; a notification that finds no armed waiter
//     is forgotten, because whoever arms next tries after that.
//   - Nothing grows but with the number of waiters, and nothing runs in the background.
//
// The order that makes this hold is the waiter's: arm, then try, then wait.
//
//	Subscribe ---> armed ---Notify---> woken ---Rearm---> armed (and try again)
//	                 |                   |
//	               Close               Close: the next of the group is woken
//
// A waiter that took all it had room for should notify its keys once more, as there may be work left for the next.
package wake

import (
	"container/list"
	"context"
	"sync"
)

// Hub is where waiters are parked. Its zero value is ready for use; it must not be copied. All methods may be called
// at the same time.
type Hub[K comparable] struct {
	mu      sync.Mutex
	waiters map[*Waiter[K]]struct{}
	byKey   map[K]map[string]*list.List
	byGroup map[string]*list.List
}

// Waiter is one parked caller. It belongs to one goroutine; only its channel may be shared.
type Waiter[K comparable] struct {
	hub   *Hub[K]
	group string
	keys  []K
	wake  chan struct{}

	// Guarded by the hub's mutex.
	state   state
	cause   K    // what woke it,
	byKey   bool // if it was a key
	inKey   []*list.Element
	inGroup *list.Element
}

type state int

const (
	armed state = iota
	woken
	closed
)

// Subscribe parks a waiter of a group for some keys (none: only [Hub.NotifyGroup] and [Hub.NotifyAll] reach it). It
// is armed when Subscribe returns: try after that, not before. Close it.
func (h *Hub[K]) Subscribe(group string, keys ...K) *Waiter[K] {
	w := &Waiter[K]{hub: h, group: group, keys: distinct(keys), wake: make(chan struct{}, 1), state: armed}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.waiters == nil {
		h.waiters = make(map[*Waiter[K]]struct{})
		h.byKey = make(map[K]map[string]*list.List)
		h.byGroup = make(map[string]*list.List)
	}
	h.waiters[w] = struct{}{}
	h.attach(w)
	return w
}

// Notify wakes one waiter of each group that waits for the key, and tells how many that were.
func (h *Hub[K]) Notify(key K) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	n := 0
	for _, l := range h.byKey[key] {
		h.signal(front[K](l), key, true)
		n++
	}
	return n
}

// NotifyGroup wakes one waiter of the group, whatever it waits for, and tells whether there was one.
func (h *Hub[K]) NotifyGroup(group string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	l, ok := h.byGroup[group]
	if ok {
		var none K
		h.signal(front[K](l), none, false)
	}
	return ok
}

// NotifyAll wakes every waiter, for example to send all callers home, and tells how many were armed.
func (h *Hub[K]) NotifyAll() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	n := 0
	for w := range h.waiters {
		if w.state == armed {
			var none K
			h.signal(w, none, false)
			n++
		}
	}
	return n
}

// Groups lists the groups that have an armed waiter, in no order.
func (h *Hub[K]) Groups() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	groups := make([]string, 0, len(h.byGroup))
	for g := range h.byGroup {
		groups = append(groups, g)
	}
	return groups
}

// Waits tells whether an armed waiter waits for the key.
func (h *Hub[K]) Waits(key K) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.byKey[key]) > 0
}

// Len tells how many waiters there are, armed or woken.
func (h *Hub[K]) Len() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.waiters)
}

// C carries one value when the waiter is woken. After receiving it, call Rearm before trying.
func (w *Waiter[K]) C() <-chan struct{} { return w.wake }

// Wait blocks until the waiter is woken, and then arms it again and answers nil, or until ctx is done, and then
// answers its error.
func (w *Waiter[K]) Wait(ctx context.Context) error {
	select {
	case <-w.wake:
		w.Rearm()
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Rearm takes the wake-up as acted upon and makes the waiter the last of its group. Try after it returns, not before:
// what is notified while trying then wakes it again.
func (w *Waiter[K]) Rearm() {
	w.hub.mu.Lock()
	defer w.hub.mu.Unlock()
	if w.state != woken {
		return
	}
	select { // C was not read, if the caller looked at something else
	case <-w.wake:
	default:
	}
	w.state = armed
	w.hub.attach(w)
}

// Close takes the waiter out. A wake-up that it was given and did not act upon (no Rearm) goes to the next of its
// group. Closing again does nothing.
func (w *Waiter[K]) Close() {
	h := w.hub
	h.mu.Lock()
	defer h.mu.Unlock()
	before := w.state
	if before == closed {
		return
	}
	w.state = closed
	delete(h.waiters, w)
	if before == woken {
		h.passOn(w)
		return
	}
	h.detach(w)
}

func (h *Hub[K]) passOn(w *Waiter[K]) {
	l := h.byGroup[w.group]
	if w.byKey {
		l = h.byKey[w.cause][w.group]
	}
	if l != nil {
		h.signal(front[K](l), w.cause, w.byKey)
	}
}

func (h *Hub[K]) signal(w *Waiter[K], cause K, byKey bool) {
	h.detach(w)
	w.state, w.cause, w.byKey = woken, cause, byKey
	w.wake <- struct{}{} // has room: it is empty while the waiter is armed
}

func (h *Hub[K]) attach(w *Waiter[K]) {
	for _, k := range w.keys {
		groups := h.byKey[k]
		if groups == nil {
			groups = make(map[string]*list.List)
			h.byKey[k] = groups
		}
		w.inKey = append(w.inKey, push(groups, w.group, w))
	}
	w.inGroup = push(h.byGroup, w.group, w)
}

// detach takes a waiter out of every list, and lists out of the maps when they are empty, so that neither keeps what
// nobody waits for.
func (h *Hub[K]) detach(w *Waiter[K]) {
	for i, k := range w.keys {
		remove(h.byKey[k], w.group, w.inKey[i])
		if len(h.byKey[k]) == 0 {
			delete(h.byKey, k)
		}
	}
	w.inKey = w.inKey[:0]
	remove(h.byGroup, w.group, w.inGroup)
	w.inGroup = nil
}

func push(groups map[string]*list.List, group string, value any) *list.Element {
	l := groups[group]
	if l == nil {
		l = list.New()
		groups[group] = l
	}
	return l.PushBack(value)
}

func remove(groups map[string]*list.List, group string, e *list.Element) {
	l := groups[group]
	l.Remove(e)
	if l.Len() == 0 {
		delete(groups, group)
	}
}

// front is the waiter that has waited longest. The list is not empty, as empty ones are deleted.
func front[K comparable](l *list.List) *Waiter[K] {
	w, ok := l.Front().Value.(*Waiter[K])
	if !ok {
		panic("wake: a list holds something that is no waiter")
	}
	return w
}

// distinct copies the keys without repetitions: a waiter stands once in each list.
func distinct[K comparable](keys []K) []K {
	seen := make(map[K]struct{}, len(keys))
	out := make([]K, 0, len(keys))
	for _, k := range keys {
		if _, ok := seen[k]; ok {
			continue
		}
		seen[k] = struct{}{}
		out = append(out, k)
	}
	return out
}
