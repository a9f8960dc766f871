package poll

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/wiggle-run/wiggle/pkg/wake"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	"github.com/wiggle-run/wiggle/services/router/internal/pause"
)

// maxHinted bounds the hints that are kept for queues that nobody polls. They only decide where the next poll looks
// first.
const maxHinted = 1 << 14

// blindEvery is how often a look at all shards goes by the cursor alone.
const blindEvery = 8

// key names a queue.
type key struct{ namespace, queue string }

// class is the set of waiting polls that could take the same tasks. It exists while there are any.
type class struct {
	id   string
	keys []key

	// Guarded by the poller's mutex.
	polls int
	due   map[int]bool // shards that one of its polls should try; true if there was a hint
	empty time.Time    // when the last look at all shards that found nothing began
}

func keysOf(namespace string, queues []string) []key {
	keys := make([]key, len(queues))
	for i, q := range queues {
		keys[i] = key{namespace, q}
	}
	return keys
}

// classID spells out what decides which tasks a poll can take.
func classID(req *wigglev1.PollTasksRequest) string {
	queues := slices.Clone(req.GetQueues())
	slices.Sort(queues)
	parts := make([]string, 0, 1+len(queues)+len(req.GetWorkflows()))
	parts = append(parts, req.GetNamespace())
	for _, q := range slices.Compact(queues) {
		parts = append(parts, "q"+q)
	}
	bindings := make([]string, 0, len(req.GetWorkflows()))
	for _, w := range req.GetWorkflows() {
		bindings = append(bindings, fmt.Sprintf("w%d %s", w.GetVersion(), w.GetWorkflow()))
	}
	slices.Sort(bindings)
	parts = append(parts, slices.Compact(bindings)...)
	return strings.Join(parts, "\x00")
}

// join makes a poll part of its class. It is subscribed from then on.
func (p *Poller) join(req *wigglev1.PollTasksRequest) (*class, *wake.Waiter[key]) {
	id := classID(req)
	p.mu.Lock()
	defer p.mu.Unlock()
	c := p.classes[id]
	if c == nil {
		c = &class{id: id, keys: keysOf(req.GetNamespace(), req.GetQueues()), due: make(map[int]bool)}
		p.classes[id] = c
		for _, k := range c.keys {
			if p.byKey[k] == nil {
				p.byKey[k] = make(map[*class]struct{})
			}
			p.byKey[k][c] = struct{}{}
		}
	}
	c.polls++
	return c, p.hub.Subscribe(id, c.keys...)
}

// leave takes a poll out of its class. What is due is left to the others.
func (p *Poller) leave(c *class, w *wake.Waiter[key]) {
	w.Close()
	p.mu.Lock()
	c.polls--
	last, due := c.polls == 0, len(c.due) > 0
	if last {
		delete(p.classes, c.id)
		for _, k := range c.keys {
			delete(p.byKey[k], c)
			if len(p.byKey[k]) == 0 {
				delete(p.byKey, k)
			}
			for shard, hinted := range c.due {
				if hinted {
					p.remember(k, shard)
				}
			}
		}
	}
	p.mu.Unlock()
	if due && !last {
		p.hub.NotifyGroup(c.id)
	}
}

// remember keeps a hint for the next poll of the queue. The mutex is held.
func (p *Poller) remember(k key, shard int) {
	shards := p.hinted[k]
	if shards == nil {
		if len(p.hinted) >= maxHinted {
			return
		}
		shards = make(map[int]struct{})
		p.hinted[k] = shards
	}
	shards[shard] = struct{}{}
}

// nextDue takes one shard that the class should try.
func (p *Poller) nextDue(c *class) (int, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for shard := range c.due {
		delete(c.due, shard)
		return shard, true
	}
	return 0, false
}

// wakeClass has one poll of the class try the shards. That there may be something is not kept for when no poll waits:
// polls would go back to where the last one found something, and pass over the other shards.
func (p *Poller) wakeClass(c *class, shards ...int) {
	p.mu.Lock()
	now := p.classes[c.id] // c may be over, and its like come again
	for _, shard := range shards {
		if now != nil && !now.due[shard] {
			now.due[shard] = false
		}
	}
	p.mu.Unlock()
	p.hub.NotifyGroup(c.id)
}

// trying takes note that a poll of the class claims on the shard now: what is hinted from here on is news.
func (p *Poller) trying(c *class, shard int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(c.due, shard)
	for _, k := range c.keys {
		if shards := p.hinted[k]; shards != nil {
			if delete(shards, shard); len(shards) == 0 {
				delete(p.hinted, k)
			}
		}
	}
}

// Hint says that a queue of a shard has tasks. It does not block.
func (p *Poller) Hint(shard int, namespace, queue string) {
	k := key{orDefault(namespace), orDefault(queue)}
	p.mu.Lock()
	for c := range p.byKey[k] {
		c.due[shard] = true
	}
	if len(p.byKey[k]) == 0 {
		p.remember(k, shard)
	}
	p.mu.Unlock()
	p.hub.Notify(k)
}

// Ready says that a shard can be used from now on, or that hints of it may have been missed. It does not block.
func (p *Poller) Ready(shard int) {
	p.mu.Lock()
	classes := make([]*class, 0, len(p.classes))
	for _, c := range p.classes {
		classes = append(classes, c)
	}
	p.mu.Unlock()
	for _, c := range classes {
		p.wakeClass(c, shard)
	}
}

// recheckTargets are the classes that have a poll waiting; hints without a poll are forgotten on the way.
func (p *Poller) recheckTargets() []*class {
	groups := p.hub.Groups()
	p.mu.Lock()
	defer p.mu.Unlock()
	clear(p.hinted)
	targets := make([]*class, 0, len(groups))
	for _, id := range groups {
		if c := p.classes[id]; c != nil {
			targets = append(targets, c)
		}
	}
	return targets
}

// sweepOrder is the shards for a poll that joins the class: all of them from the cursor on, those with hints first and
// those that were slow a moment ago last. Now and then it looks at no hint, so that a shard whose hints do not reach us
// gets its turn beside busy ones. It is false if the class knows that there is nothing.
func (p *Poller) sweepOrder(c *class, now time.Time, force bool) ([]int, bool) {
	all := p.shards()
	if len(all) == 0 {
		return nil, true
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if !force && !c.empty.IsZero() && now.Sub(c.empty) < p.cfg.Recheck {
		return nil, false
	}
	p.cursor++
	start := int(p.cursor % uint64(len(all))) //nolint:gosec // less than len
	hinted := make(map[int]bool)
	if p.cursor%blindEvery == 0 {
		start = pause.Pick(len(all))
	} else {
		maps.Copy(hinted, c.due)
		for _, k := range c.keys {
			for shard := range p.hinted[k] {
				hinted[shard] = true
			}
		}
	}
	order := append(slices.Clone(all[start:]), all[:start]...)
	rank := func(shard int) int {
		if hinted[shard] {
			return 0
		}
		if p.slow[shard].After(now) {
			return 2
		}
		return 1
	}
	slices.SortStableFunc(order, func(a, b int) int { return rank(a) - rank(b) })
	return order, true
}

func (p *Poller) sweptEmpty(c *class, began time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	c.empty = began
}

func (p *Poller) markSlow(shard int, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.slow[shard] = now.Add(slowFor)
}

func orDefault(s string) string {
	if s == "" {
		return "default"
	}
	return s
}
