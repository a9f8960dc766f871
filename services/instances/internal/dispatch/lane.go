package dispatch

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/wiggle-run/wiggle/pkg/postgres"
	"github.com/wiggle-run/wiggle/services/instances/internal/machine"
	"github.com/wiggle-run/wiggle/services/instances/internal/store"
)

// op is one item of a call on its way through a lane.
type op struct {
	// instance chooses the lane.
	instance machine.ID
	// start tells that it makes an instance; bytes is what it holds while it waits.
	start bool
	bytes int
	// keys is what apply needs in the world.
	keys store.Keys
	// apply puts the item's changes into the world, or returns why it does not.
	// It may run more than once; the last run counts.
	apply func(ctx context.Context, w *store.World) error

	// guarded is set while the operation may go the guarded way.
	guarded *guarded

	// at is when it came, caller the span of the call that it came with, where that
	// matters, and span its own, if it is sampled.
	at     time.Time
	caller trace.SpanContext
	span   *opSpan

	err  error
	call *call
}

// call is the operations that one caller waits for.
type call struct {
	left   atomic.Int64
	finish func() // runs when all are answered; it must not block
}

func (c *call) done() {
	if c.left.Add(-1) == 0 {
		c.finish()
	}
}

// lane commits one batch after the other.
type lane struct {
	shard  *Shard
	commit func(ctx context.Context, batch []*op)
	wake   chan struct{}
	// startsIn is the lane in which starts wait that what this one does makes work for:
	// itself, or for reports that go the guarded way the one beside it.
	startsIn *lane

	mu      sync.Mutex
	queue   queue
	stopped error
	ended   int64 // instances of the shard, as of the last batch
}

func newLane(s *Shard, commit func(ctx context.Context, batch []*op)) *lane {
	l := &lane{shard: s, commit: commit, wake: make(chan struct{}, 1)}
	l.startsIn = l
	return l
}

// push queues operations. What it does not take is answered with an error.
func (l *lane) push(ops []*op) {
	l.mu.Lock()
	rest, reason := ops, l.stopped
	if reason == nil {
		rest, reason = l.queue.push(ops, &l.shard.cfg)
	}
	l.mu.Unlock()
	for _, o := range rest {
		o.err = reason
		o.end()
		o.call.done()
	}
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// take removes the next batch from the queue. If there is none though some wait, it
// tells for how long.
func (l *lane) take() ([]*op, time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.queue.take(time.Now(), &l.shard.cfg)
}

// settle notes what a batch took.
func (l *lane) settle(batch []*op, took time.Duration) {
	starts := 0
	for _, o := range batch {
		if o.start {
			starts++
		}
	}
	ended := l.shard.ended.Load()
	to := l.startsIn
	to.mu.Lock()
	defer to.mu.Unlock()
	to.queue.pace.settle(time.Now(), took, starts, len(batch)-starts, int(ended-to.ended)/len(l.shard.lanes), l.shard.cfg.BatchSize)
	to.ended = ended
}

// run commits batches until ctx is done. What is queued then is answered with
// ctx's error: nothing of it was applied.
func (l *lane) run(ctx context.Context) {
	for {
		batch, wait := l.take()
		if len(batch) > 0 {
			began := time.Now()
			l.commit(ctx, batch)
			l.settle(batch, time.Since(began))
			continue
		}
		var again <-chan time.Time // nil: nothing waits
		if wait > 0 {
			again = time.After(wait)
		}
		select {
		case <-l.wake:
		case <-again:
		case <-ctx.Done():
			l.stop(ctx.Err())
			return
		}
	}
}

func (l *lane) stop(reason error) {
	l.mu.Lock()
	rest := l.queue.all()
	l.stopped = reason
	l.mu.Unlock()
	answer(rest, reason)
}

func answer(ops []*op, err error) {
	for _, o := range ops {
		if o.err == nil {
			o.err = err
		}
		o.end()
		o.call.done()
	}
}

// commit runs a batch as one transaction and answers its items.
func (s *Shard) commit(ctx context.Context, batch []*op) {
	err := s.update(ctx, batch)
	if err != nil && len(batch) > 1 && postgres.Classify(err) == postgres.Permanent {
		// The database refused something in it: find out which.
		for _, o := range batch {
			o.err = nil
			answer([]*op{o}, s.update(ctx, []*op{o}))
		}
		return
	}
	if err != nil {
		for _, o := range batch {
			o.err = nil // what apply said does not count: nothing was written
		}
	}
	answer(batch, err)
}

// update applies a batch and, once it is committed, tells who waits for it.
func (s *Shard) update(ctx context.Context, batch []*op) error {
	// A batch is not given up when the process is asked to stop: its callers wait
	// for a true answer. Its time is bounded all the same.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.cfg.CommitTimeout)
	defer cancel()
	ctx, tx := s.open(ctx, batch)
	var world *store.World
	var given gifts
	err := s.store.Update(ctx, gather(batch), func(w *store.World) error {
		world = w
		given.takeBack() // of a run that was not committed
		for _, o := range batch {
			o.err = o.apply(ctx, w)
		}
		s.offer(w, &given)
		return nil
	})
	s.closed(&tx, batch, wayLocked, err)
	if err != nil {
		given.takeBack()
		s.noteFailure(err)
		if postgres.Classify(err) == postgres.Unknown {
			// It may be committed, and then nobody was told of what it made ready.
			s.lease(s.Now())
		}
		return err
	}
	s.metrics.batch(ctx, wayLocked, len(batch), time.Since(tx.began))
	given.deliver(s)
	s.announce(world)
	return nil
}

// gather joins the keys of a batch, each once.
func gather(batch []*op) store.Keys {
	if len(batch) == 1 {
		return batch[0].keys
	}
	var all store.Keys
	instances, tokens, latest := set[machine.ID]{}, set[machine.ID]{}, set[store.WorkflowKey]{}
	for _, o := range batch {
		all.Instances = instances.add(all.Instances, o.keys.Instances)
		all.Tokens = tokens.add(all.Tokens, o.keys.Tokens)
		all.Latest = latest.add(all.Latest, o.keys.Latest)
		all.Leases = append(all.Leases, o.keys.Leases...)
	}
	return all
}

// set tells what a list holds already.
type set[K comparable] map[K]struct{}

func (s set[K]) add(list, more []K) []K {
	for _, k := range more {
		if _, ok := s[k]; !ok {
			s[k] = struct{}{}
			list = append(list, k)
		}
	}
	return list
}

// do runs operations through their lanes and waits for all of them. It returns
// when every one has been answered, whatever becomes of the caller: an answer
// that nobody reads is harmless, a change half made is not.
func (s *Shard) do(ops []*op) {
	done := make(chan struct{})
	s.submit(ops, func() { close(done) })
	<-done
}

// submit puts operations into their lanes. finish is called when every one has been
// answered, by whoever answers the last: it must not block.
func (s *Shard) submit(ops []*op, finish func()) {
	if len(ops) == 0 {
		finish()
		return
	}
	c := &call{finish: finish}
	c.left.Store(int64(len(ops)))
	now := time.Now()
	var locked, known []*op
	for _, o := range ops {
		o.call, o.at = c, now
		if o.guarded != nil {
			known = append(known, o)
		} else {
			locked = append(locked, o)
		}
	}
	s.enqueue(s.fast, known)
	s.enqueue(s.lanes, locked)
}

// enqueue puts operations into lanes by their instances.
func (s *Shard) enqueue(lanes []*lane, ops []*op) {
	if len(ops) == 0 {
		return
	}
	byLane := make([][]*op, len(lanes))
	for _, o := range ops {
		i := int(o.instance[15]) % len(lanes)
		byLane[i] = append(byLane[i], o)
	}
	for i, ops := range byLane {
		if len(ops) > 0 {
			lanes[i].push(ops)
		}
	}
}
