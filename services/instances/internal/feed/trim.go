package feed

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/wiggle-run/wiggle/pkg/lifecycle"
	"github.com/wiggle-run/wiggle/services/instances/internal/store"
)

const (
	// trimEvery is the pause between looks at the front of the log.
	trimEvery = time.Minute
	// trimBatch is how many entries one statement deletes at most: a few milliseconds' work.
	trimBatch = 1000
	// trimTimeout bounds one statement.
	trimTimeout = 10 * time.Second
)

// Trimmer deletes what nobody needs any more from the front of a shard's log (EVT-6). Of the processes that serve the shard
// the one does it that sweeps.
type Trimmer struct {
	log   store.Events
	sweep func() bool
	trim  store.TrimEvents
	warn  *slog.Logger
	size  atomic.Pointer[store.EventsSize] // nil: another process looks after the log
}

// NewTrimmer makes the trimmer of a shard. sweep tells whether this process sweeps it.
func NewTrimmer(log store.Events, sweep func() bool, retention, hardCap time.Duration, warn *slog.Logger) *Trimmer {
	return &Trimmer{
		log: log, sweep: sweep, warn: warn, trim: store.TrimEvents{Retention: retention, HardCap: hardCap, Limit: trimBatch},
	}
}

// Run trims until ctx is done.
func (t *Trimmer) Run(ctx context.Context) error {
	return lifecycle.Loop{
		Interval: trimEvery, Timeout: trimTimeout, RunOnce: t.RunOnce,
		OnError: func(err error) { t.warn.Warn("the event log is not trimmed; it will be tried again", "error", err) },
	}.Run(ctx)
}

// RunOnce trims one batch; [lifecycle.ErrMore] if there may be more.
func (t *Trimmer) RunOnce(ctx context.Context) error {
	if !t.sweep() {
		t.size.Store(nil)
		return nil
	}
	done, err := t.log.TrimEvents(ctx, t.trim)
	if err != nil {
		return err
	}
	t.trim.After = done.UpTo
	if done.More {
		return lifecycle.ErrMore
	}
	size, err := t.log.EventsSize(ctx)
	if err != nil {
		return err
	}
	t.size.Store(&size)
	return nil
}
