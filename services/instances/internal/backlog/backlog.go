// Package backlog watches what waits in the queues of a shard: how much, and since when (OPS-10). Of the processes that
// serve a shard the one tells that sweeps it.
//
// It asks the database only about queues in which the sweep has just found something, so an idle shard sees no statement
// of it, and then every Every, about at most MaxQueues queues and MaxTokens tokens of each.
package backlog

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/wiggle-run/wiggle/services/instances/internal/store"
)

const (
	// Every is the pause between looks.
	Every = 15 * time.Second
	// MaxQueues is how many queues of a shard are told of, so that no metrics store is filled by their names.
	MaxQueues = 100
	// MaxTokens is up to how many tokens of a queue are counted.
	MaxTokens = 10_000
)

// Store is what a watch asks.
type Store interface {
	Backlog(ctx context.Context, queues []store.QueueKey, limit int) ([]store.QueueBacklog, error)
}

// Watch watches one shard. It is safe for concurrent use.
type Watch struct {
	shard int
	store Store

	mu     sync.Mutex
	looked time.Time // by the clock of the shard
	queues map[store.QueueKey]store.QueueBacklog
}

// New makes the watch of a shard.
func New(shard int, s Store) *Watch {
	return &Watch{shard: shard, store: s, queues: map[store.QueueKey]store.QueueBacklog{}}
}

// Look follows a look of the shard's sweep.
func (w *Watch) Look(ctx context.Context, t store.Tick) error {
	if !t.Holder {
		w.forget()
		return nil
	}
	if !w.due(t.Now, len(t.Ready) > 0) {
		return nil
	}
	found, err := w.store.Backlog(ctx, t.Ready[:min(len(t.Ready), MaxQueues)], MaxTokens)
	if err != nil {
		return fmt.Errorf("look at the backlog: %w", err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.empty()
	for _, q := range found {
		if _, known := w.queues[q.QueueKey]; known || len(w.queues) < MaxQueues {
			w.queues[q.QueueKey] = q
		}
	}
	return nil
}

// forget drops what is another process's to tell.
func (w *Watch) forget() {
	w.mu.Lock()
	defer w.mu.Unlock()
	clear(w.queues)
	w.looked = time.Time{}
}

// due tells whether the database is to be asked. Where nothing is ready it need not be.
func (w *Watch) due(now time.Time, ready bool) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !ready {
		w.empty()
		return false
	}
	if now.Sub(w.looked) < Every {
		return false
	}
	w.looked = now
	return true
}

// empty has every queue that is known hold nothing. The mutex is held.
func (w *Watch) empty() {
	for key := range w.queues {
		w.queues[key] = store.QueueBacklog{QueueKey: key}
	}
}

// Observe makes the figures of the watches of a process.
func Observe(m metric.Meter, watches []*Watch) error {
	tokens, err1 := m.Int64ObservableGauge("wiggle.queue.backlog", metric.WithUnit("{task}"),
		metric.WithDescription("Tasks that wait for a worker, by queue; counted up to 10000."))
	oldest, err2 := m.Float64ObservableGauge("wiggle.queue.oldest_age", metric.WithUnit("s"),
		metric.WithDescription("For how long the oldest of those that were counted has been waiting."))
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	_, err := m.RegisterCallback(func(_ context.Context, o metric.Observer) error {
		for _, w := range watches {
			w.mu.Lock()
			for key, q := range w.queues {
				of := metric.WithAttributes(attribute.Int("shard", w.shard),
					attribute.String("namespace", key.Namespace), attribute.String("queue", key.Queue))
				o.ObserveInt64(tokens, int64(q.Tokens), of)
				o.ObserveFloat64(oldest, q.Oldest.Seconds(), of)
			}
			w.mu.Unlock()
		}
		return nil
	}, tokens, oldest)
	return err
}
