package scopes

import (
	"container/list"
	"sync"

	"github.com/wiggle-run/wiggle/services/router/internal/subject"
)

// cache remembers what ids are about, as many as it has room for: those that were asked for last.
type cache struct {
	room int

	mu     sync.Mutex
	byID   map[string]*list.Element
	recent *list.List // of entry; the front was asked for last
}

type entry struct {
	id string
	of subject.Subject
}

func newCache(room int) *cache {
	return &cache{room: room, byID: make(map[string]*list.Element), recent: list.New()}
}

func (c *cache) get(id string) (subject.Subject, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	at, ok := c.byID[id]
	if !ok {
		return subject.Subject{}, false
	}
	c.recent.MoveToFront(at)
	return at.Value.(entry).of, true //nolint:forcetypeassert // as said
}

func (c *cache) put(id string, of subject.Subject) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, ok := c.byID[id]; ok {
		return // it does not change
	}
	c.byID[id] = c.recent.PushFront(entry{id, of})
	if c.recent.Len() > c.room {
		oldest := c.recent.Back()
		delete(c.byID, c.recent.Remove(oldest).(entry).id) //nolint:forcetypeassert // as said
	}
}
