package sweep

import (
	"container/heap"
	"time"

	"github.com/wiggle-run/wiggle/services/instances/internal/machine"
	"github.com/wiggle-run/wiggle/services/instances/internal/store"
)

// timers are the times that a process remembers, soonest first. A token has one
// timer at a time; a new one takes the place of the old.
type timers struct {
	queue refHeap
	due   map[machine.ID]time.Time
}

func (t *timers) len() int { return len(t.due) }

// push remembers a timer and tells whether it is the soonest.
func (t *timers) push(ref store.TokenRef) bool {
	if t.due == nil {
		t.due = make(map[machine.ID]time.Time)
	}
	if known, ok := t.due[ref.Token]; ok && known.Equal(ref.DueAt) {
		return false
	}
	t.due[ref.Token] = ref.DueAt
	heap.Push(&t.queue, ref)
	return t.queue[0].Token == ref.Token
}

// first is the soonest time.
func (t *timers) first() (time.Time, bool) {
	if len(t.queue) == 0 {
		return time.Time{}, false
	}
	return t.queue[0].DueAt, true
}

// pop takes up to limit timers that are due.
func (t *timers) pop(now time.Time, limit int) []store.TokenRef {
	var refs []store.TokenRef
	for len(refs) < limit && len(t.queue) > 0 && !t.queue[0].DueAt.After(now) {
		ref := heap.Pop(&t.queue).(store.TokenRef) //nolint:forcetypeassert // the heap holds nothing else
		if known, ok := t.due[ref.Token]; ok && known.Equal(ref.DueAt) {
			delete(t.due, ref.Token)
			refs = append(refs, ref)
		}
	}
	return refs
}

// refHeap orders references by time.
type refHeap []store.TokenRef

func (h refHeap) Len() int           { return len(h) }
func (h refHeap) Less(i, j int) bool { return h[i].DueAt.Before(h[j].DueAt) }
func (h refHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *refHeap) Push(x any)        { *h = append(*h, x.(store.TokenRef)) } //nolint:forcetypeassert // as pop
func (h *refHeap) Pop() any {
	old := *h
	last := old[len(old)-1]
	*h = old[:len(old)-1]
	return last
}
