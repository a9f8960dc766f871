package dispatch

import (
	"context"
	"errors"
	"sync"

	"github.com/wiggle-run/wiggle/pkg/postgres"
	"github.com/wiggle-run/wiggle/services/instances/internal/machine"
	"github.com/wiggle-run/wiggle/services/instances/internal/store"
)

// op is one item of a call on its way through a lane.
type op struct {
	// instance chooses the lane.
	instance machine.ID
	// keys is what apply needs in the world.
	keys store.Keys
	// apply puts the item's changes into the world, or returns why it does not.
	// It may run more than once; the last run counts.
	apply func(ctx context.Context, w *store.World) error

	err  error
	done *sync.WaitGroup
}

// ErrOverloaded: the lane's queue is full.
var ErrOverloaded = errors.New("too much is waiting for the shard")

// lane commits one batch after the other.
type lane struct {
	shard *Shard
	wake  chan struct{}

	mu      sync.Mutex
	queue   []*op
	stopped error
}

func newLane(s *Shard) *lane { return &lane{shard: s, wake: make(chan struct{}, 1)} }

// push queues operations. What it does not take is answered with an error.
func (l *lane) push(ops []*op) {
	l.mu.Lock()
	room := l.shard.cfg.QueueLength - len(l.queue)
	reason := l.stopped
	if reason != nil {
		room = 0
	} else if reason = ErrOverloaded; room > len(ops) {
		room = len(ops)
	}
	room = max(room, 0)
	l.queue = append(l.queue, ops[:room]...)
	l.mu.Unlock()
	for _, o := range ops[room:] {
		o.err = reason
		o.done.Done()
	}
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// take removes the next batch from the queue.
func (l *lane) take() []*op {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := min(len(l.queue), l.shard.cfg.BatchSize)
	batch := l.queue[:n:n]
	if l.queue = l.queue[n:]; len(l.queue) == 0 {
		l.queue = nil // let go of what is done
	}
	return batch
}

// run commits batches until ctx is done. What is queued then is answered with
// ctx's error: nothing of it was applied.
func (l *lane) run(ctx context.Context) {
	for {
		batch := l.take()
		if len(batch) > 0 {
			l.commit(ctx, batch)
			continue
		}
		select {
		case <-l.wake:
		case <-ctx.Done():
			l.stop(ctx.Err())
			return
		}
	}
}

func (l *lane) stop(reason error) {
	l.mu.Lock()
	rest := l.queue
	l.queue, l.stopped = nil, reason
	l.mu.Unlock()
	answer(rest, reason)
}

func answer(ops []*op, err error) {
	for _, o := range ops {
		if o.err == nil {
			o.err = err
		}
		o.done.Done()
	}
}

// commit runs a batch as one transaction and answers its items.
func (l *lane) commit(ctx context.Context, batch []*op) {
	err := l.shard.update(ctx, batch)
	if err != nil && len(batch) > 1 && postgres.Classify(err) == postgres.Permanent {
		// The database refused something in it: find out which.
		for _, o := range batch {
			o.err = nil
			answer([]*op{o}, l.shard.update(ctx, []*op{o}))
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
	var world *store.World
	err := s.store.Update(ctx, gather(batch), func(w *store.World) error {
		world = w
		for _, o := range batch {
			o.err = o.apply(ctx, w)
		}
		return nil
	})
	if err != nil {
		s.noteFailure(err)
		if postgres.Classify(err) == postgres.Unknown {
			// It may be committed, and then nobody was told of what it made ready.
			s.lease(s.Now())
		}
		return err
	}
	s.metrics.batch(ctx, s.id, len(batch))
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
	var done sync.WaitGroup
	done.Add(len(ops))
	byLane := make([][]*op, len(s.lanes))
	for _, o := range ops {
		o.done = &done
		i := int(o.instance[15]) % len(s.lanes)
		byLane[i] = append(byLane[i], o)
	}
	for i, ops := range byLane {
		if len(ops) > 0 {
			s.lanes[i].push(ops)
		}
	}
	done.Wait()
}
