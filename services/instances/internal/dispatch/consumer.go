package dispatch

import (
	"bytes"
	"cmp"
	"context"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/wiggle-run/wiggle/services/instances/internal/machine"
	"github.com/wiggle-run/wiggle/services/instances/internal/store"
)

// Consumer is a worker that takes tasks as they come, up to its credits: a parked
// poll that lasts. What a batch makes ready is leased to a consumer within the
// batch's own transaction (WRK-11). What is ready in the rows already it claims.
type Consumer struct {
	shard   *Shard
	claim   store.Claim
	deliver func([]store.Claimed)
	crew    *crew
	wake    chan struct{}
	stop    context.CancelFunc

	mu      sync.Mutex
	credits int
	closed  bool
}

// crew is the consumers that could all take the same tasks: one of them is woken for
// what becomes ready.
type crew struct {
	group string
	keys  []store.QueueKey
	claim store.Claim // what all of them serve

	// Guarded by the crews' mutex.
	members []*Consumer
	turn    int
	// backlog says that there may be tasks in the rows; noted counts when that was
	// learnt, so that a claim that began earlier does not take it back.
	backlog bool
	noted   uint64
}

// crews are the crews of a shard by the queues that they serve.
type crews struct {
	any     atomic.Int32 // consumers
	mu      sync.Mutex
	byGroup map[string]*crew
	byQueue map[store.QueueKey][]*crew
}

// Consume registers a consumer of what the claim names; its Max does not count, since
// a consumer begins without credits. deliver gets the tasks that are leased to it, each
// of which uses up a credit. It is called from other goroutines, also at the same
// time, and must not block. Close the consumer.
func (s *Shard) Consume(claim store.Claim, deliver func([]store.Claimed)) *Consumer {
	ctx, stop := context.WithCancel(context.Background())
	c := &Consumer{shard: s, claim: claim, deliver: deliver, wake: make(chan struct{}, 1), stop: stop}
	s.crews.join(c)
	go c.run(ctx)
	return c
}

func (cs *crews) join(c *Consumer) {
	id := group(c.claim)
	cs.mu.Lock()
	defer cs.mu.Unlock()
	if cs.byGroup == nil {
		cs.byGroup, cs.byQueue = map[string]*crew{}, map[store.QueueKey][]*crew{}
	}
	w := cs.byGroup[id]
	if w == nil {
		// Nobody knows what is in the rows.
		w = &crew{group: id, keys: queueKeys(c.claim), claim: c.claim, backlog: true}
		cs.byGroup[id] = w
		for _, key := range w.keys {
			cs.byQueue[key] = append(cs.byQueue[key], w)
		}
	}
	w.members = append(w.members, c)
	c.crew = w
	cs.any.Add(1)
}

func (cs *crews) leave(c *Consumer) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	w := c.crew
	w.members = slices.DeleteFunc(w.members, func(m *Consumer) bool { return m == c })
	cs.any.Add(-1)
	if len(w.members) > 0 {
		if w.backlog {
			w.wakeOne()
		}
		return
	}
	delete(cs.byGroup, w.group)
	for _, key := range w.keys {
		cs.byQueue[key] = slices.DeleteFunc(cs.byQueue[key], func(o *crew) bool { return o == w })
		if len(cs.byQueue[key]) == 0 {
			delete(cs.byQueue, key)
		}
	}
}

// ready takes note that a queue has tasks in the rows, and wakes one consumer with
// room of each crew that serves it. It tells whether there was one.
func (cs *crews) ready(key store.QueueKey) bool {
	if cs.any.Load() == 0 {
		return false
	}
	cs.mu.Lock()
	defer cs.mu.Unlock()
	woken := false
	for _, w := range cs.byQueue[key] {
		w.backlog = true
		w.noted++
		woken = w.wakeOne() || woken
	}
	return woken
}

// wakeOne wakes a member with room. The crews' mutex is held.
func (w *crew) wakeOne() bool {
	for range w.members {
		w.turn = (w.turn + 1) % len(w.members)
		if c := w.members[w.turn]; c.Credits() > 0 {
			c.poke()
			return true
		}
	}
	return false
}

// pick finds a consumer for a token and takes a credit of it. Where there are tasks
// in the rows already there is none: those go first.
func (cs *crews) pick(in *machine.Instance, t *machine.Token) *Consumer {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	for _, w := range cs.byQueue[store.QueueKey{Namespace: in.Namespace, Queue: t.Queue}] {
		if w.backlog || !serves(&w.claim, in, t) {
			continue
		}
		for range w.members {
			w.turn = (w.turn + 1) % len(w.members)
			if c := w.members[w.turn]; c.take(1) == 1 {
				return c
			}
		}
	}
	return nil
}

// seen tells whether there may be tasks in the rows, and when that was noted.
func (cs *crews) seen(w *crew) (backlog bool, noted uint64) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	return w.backlog, w.noted
}

// emptied takes note that the rows had nothing more for a crew.
func (cs *crews) emptied(w *crew, noted uint64) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	if w.noted == noted {
		w.backlog = false
	}
}

// Credits is how many tasks the consumer has room for.
func (c *Consumer) Credits() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.credits
}

// take uses up to n credits and tells how many.
func (c *Consumer) take(n int) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return 0
	}
	n = min(n, c.credits)
	c.credits -= n
	return n
}

// Grant adds credits.
func (c *Consumer) Grant(n int) {
	if n <= 0 {
		return
	}
	c.mu.Lock()
	c.credits += n
	c.mu.Unlock()
	if backlog, _ := c.shard.crews.seen(c.crew); backlog {
		c.poke()
	}
}

// Revoke takes back up to n credits that are not used and tells how many.
func (c *Consumer) Revoke(n int) int { return c.take(n) }

// Look has the consumer look into the rows: another process may have made tasks ready.
func (c *Consumer) Look() {
	cs := &c.shard.crews
	cs.mu.Lock()
	c.crew.backlog = true
	c.crew.noted++
	cs.mu.Unlock()
	c.poke()
}

// Close ends the consumer and tells how many credits were left. What is being claimed
// for it is handed back.
func (c *Consumer) Close() int {
	c.mu.Lock()
	left, closed := c.credits, c.closed
	c.credits, c.closed = 0, true
	c.mu.Unlock()
	if closed {
		return 0
	}
	c.stop()
	c.shard.crews.leave(c)
	return left
}

func (c *Consumer) poke() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// run claims what is in the rows, whenever there may be something and there is room.
func (c *Consumer) run(ctx context.Context) {
	for {
		select {
		case <-c.wake:
		case <-ctx.Done():
			return
		}
		for c.claimOnce(ctx) {
		}
	}
}

// claimOnce claims once and tells whether to go on. After an error the sweeper's next
// tick wakes the crew again.
func (c *Consumer) claimOnce(ctx context.Context) bool {
	backlog, noted := c.shard.crews.seen(c.crew)
	if !backlog {
		return false
	}
	asked := c.take(maxClaim)
	if asked == 0 {
		return false
	}
	claim := c.claim
	claim.Max = asked
	claimed, all, err := c.shard.claimFor(ctx, claim)
	c.giveBack(asked - len(claimed))
	c.hand(claimed)
	if err != nil {
		c.shard.log.Warn("a worker's claim failed and will be repeated", "shard", c.shard.id, "worker", claim.Worker, "error", err)
		return false
	}
	if all {
		c.shard.crews.emptied(c.crew, noted)
	}
	return ctx.Err() == nil
}

// maxClaim bounds one claim of a consumer.
const maxClaim = 1000

func (c *Consumer) giveBack(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.closed {
		c.credits += n
	}
}

// hand delivers tasks, or hands them back where the consumer is closed.
func (c *Consumer) hand(tasks []store.Claimed) {
	if len(tasks) == 0 {
		return
	}
	c.mu.Lock()
	closed := c.closed
	c.mu.Unlock()
	if closed {
		go c.shard.HandBack(tasks) // it waits for a lane, which may be what calls
		return
	}
	c.deliver(tasks)
}

// gift is a task that a batch leases to a consumer.
type gift struct {
	to   *Consumer
	task store.Claimed
}

// gifts are the tasks that a batch leases to consumers: delivered once it is
// committed, taken back if it is not.
type gifts []gift

func (gs *gifts) takeBack() {
	for _, g := range *gs {
		g.to.giveBack(1)
	}
	*gs = nil
}

// without takes those of some tokens back.
func (gs *gifts) without(tokens set[machine.ID]) {
	*gs = slices.DeleteFunc(*gs, func(g gift) bool {
		_, drop := tokens[g.task.Token.ID]
		if drop {
			g.to.giveBack(1)
		}
		return drop
	})
}

func (gs *gifts) deliver(s *Shard) {
	if len(*gs) == 0 {
		return
	}
	byConsumer := make(map[*Consumer][]store.Claimed, 1)
	for _, g := range *gs {
		byConsumer[g.to] = append(byConsumer[g.to], g.task)
	}
	for c, tasks := range byConsumer {
		s.metrics.claimed(context.Background(), len(tasks))
		s.lease(soonest(tasks))
		s.hold(tasks)
		c.hand(tasks)
	}
}

// offer leases what a batch has made ready to consumers with room: the token is
// written once, as leased. A combine, whose branches' results have to be read, waits
// for a claim, as does a branch whose parent the batch does not have in hand.
func (s *Shard) offer(w *store.World, gs *gifts) {
	if s.crews.any.Load() == 0 {
		return
	}
	var ready []*machine.Token
	writes := w.Writes()
	for _, tokens := range []map[machine.ID]*machine.Token{writes.NewTokens, writes.Tokens} {
		for _, t := range tokens {
			if t.State == machine.Ready && t.DueAt.IsZero() && t.Width == 0 {
				ready = append(ready, t)
			}
		}
	}
	slices.SortFunc(ready, claimOrder)
	budgets := map[*Consumer]int{}
	for _, t := range ready {
		st := w.State(t.Instance, t.ID)
		if !t.Parent.IsZero() && st.Parent == nil {
			continue
		}
		c := s.crews.pick(st.Instance, t)
		if c == nil {
			continue
		}
		size := len(t.View.Data) + len(t.Progress.Data)
		if used, ok := budgets[c]; ok && used+size > store.DefaultClaimBytes {
			c.giveBack(1)
			continue
		}
		budgets[c] += size
		leased, err := machine.Claim(w.Now, t, c.claim.Worker, c.claim.Lease)
		if err != nil {
			c.giveBack(1)
			continue
		}
		w.Put(&machine.Changes{Updated: []*machine.Token{leased}}, t.Instance)
		*gs = append(*gs, gift{to: c, task: leasedIn(leased, st)})
	}
}

// claimOrder is the order in which tokens are claimed (WRK-7), and branches within it.
func claimOrder(a, b *machine.Token) int {
	return cmp.Or(
		cmp.Compare(b.Priority, a.Priority), bytes.Compare(a.Instance[:], b.Instance[:]),
		cmp.Compare(a.Index, b.Index), bytes.Compare(a.ID[:], b.ID[:]),
	)
}
