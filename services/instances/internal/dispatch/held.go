package dispatch

import (
	"sync"

	"github.com/wiggle-run/wiggle/services/instances/internal/machine"
	"github.com/wiggle-run/wiggle/services/instances/internal/store"
)

// heldTokens are the tokens that this process leased, as they were then (WRK-18). They
// are a cache: what is written from them is guarded, so that one that is not true any
// more costs a look at the rows and nothing else. They are bounded by what they weigh,
// and the oldest go first.
type heldTokens struct {
	limit int // bytes

	mu      sync.Mutex
	byToken map[machine.ID]store.Claimed
	order   []store.Lease // as they came; some are gone
	weight  int
}

const (
	// heldOverhead is about what a held token weighs beside its payloads.
	heldOverhead = 1 << 10
	// heldShare is the largest share of the limit that one token may have.
	heldShare = 64
)

func weightOf(c *store.Claimed) int {
	n := heldOverhead + len(c.Token.View.Data)
	if c.Parent != nil {
		n += len(c.Parent.View.Data)
	}
	return n
}

// put keeps what was leased. A branch is kept only with its parent, and a combine not
// at all: its report takes more than the token.
func (h *heldTokens) put(tasks []store.Claimed) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.byToken == nil {
		h.byToken = make(map[machine.ID]store.Claimed)
	}
	for _, c := range tasks {
		t, w := c.Token, weightOf(&c)
		if w > h.limit/heldShare || t.Width > 0 || (!t.Parent.IsZero() && c.Parent == nil) {
			continue
		}
		h.drop(t.ID)
		h.byToken[t.ID] = c
		h.order = append(h.order, Lease(t))
		h.weight += w
	}
	h.trim()
}

// trim drops the oldest while there is too much, and forgets those that are gone
// anyway.
func (h *heldTokens) trim() {
	for h.weight > h.limit && len(h.order) > 0 {
		l := h.order[0]
		h.order = h.order[1:]
		if c, ok := h.byToken[l.Token]; ok && c.Token.Fence == l.Fence {
			h.drop(l.Token)
		}
	}
	if len(h.order) > 2*len(h.byToken)+heldOverhead {
		kept := make([]store.Lease, 0, len(h.byToken))
		for _, l := range h.order {
			if c, ok := h.byToken[l.Token]; ok && c.Token.Fence == l.Fence {
				kept = append(kept, l)
			}
		}
		h.order = kept
	}
}

func (h *heldTokens) drop(token machine.ID) {
	if c, ok := h.byToken[token]; ok {
		h.weight -= weightOf(&c)
		delete(h.byToken, token)
	}
}

// has tells whether the token of a lease is held.
func (h *heldTokens) has(l store.Lease) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	c, ok := h.byToken[l.Token]
	return ok && c.Token.Fence == l.Fence && c.Token.Instance == l.Instance
}

// take removes the token of a lease and returns it; false if it is not held under that
// lease.
func (h *heldTokens) take(l store.Lease) (store.Claimed, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	c, ok := h.byToken[l.Token]
	if !ok || c.Token.Fence != l.Fence || c.Token.Instance != l.Instance {
		return store.Claimed{}, false
	}
	h.drop(l.Token)
	return c, true
}
