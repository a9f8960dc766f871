package firing

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/wiggle-run/wiggle/pkg/lifecycle"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	"github.com/wiggle-run/wiggle/services/leader/internal/election"
	"github.com/wiggle-run/wiggle/services/leader/internal/schedule"
	"github.com/wiggle-run/wiggle/services/leader/internal/schedulestore"
)

// What bounds a pass.
const (
	// batchRows and batchBytes are how much is due at a time, and so how much is in memory.
	batchRows  = 500
	batchBytes = 8 << 20
	// startBytes is how many bytes of payload one call of many starts carries, unless one start alone has more.
	startBytes = 3 << 20
	// asking is how many instances are asked after at a time. Each may have a context of a payload's limit.
	asking = 8
	// callTimeout bounds each call to the router.
	callTimeout = 15 * time.Second
)

const (
	// lookEvery is how often the loop looks for schedules that were put elsewhere, and how often it asks after the instance
	// that a queued due time waits for.
	lookEvery = 2 * time.Second
	// failPause is the pause after a pass that failed. It doubles up to lastFailPause.
	failPause     = 250 * time.Millisecond
	lastFailPause = 5 * time.Second
	// brokenPause is how long a schedule rests whose times cannot be made any more.
	brokenPause = 5 * time.Minute
)

// Store is what the loop needs of a store of schedules.
type Store interface {
	Take(ctx context.Context, term int64) error
	Due(ctx context.Context, limit, bytes int) (schedulestore.Batch, error)
	Record(ctx context.Context, term int64, outcomes []schedulestore.Outcome) error
}

// Router is what the loop needs of the routers.
type Router interface {
	StartInstances(ctx context.Context, req *wigglev1.StartInstancesRequest) (*wigglev1.StartInstancesResponse, error)
	GetInstance(ctx context.Context, req *wigglev1.GetInstanceRequest) (*wigglev1.GetInstanceResponse, error)
	CancelInstance(ctx context.Context, req *wigglev1.CancelInstanceRequest) (*wigglev1.CancelInstanceResponse, error)
}

// Loop fires schedules. Make it with New.
type Loop struct {
	store  Store
	router Router
	zones  *schedule.Zones
	wake   *lifecycle.Waker
	log    *slog.Logger
	meters metrics
	failed bool // the last pass

	// Tracer makes the span with which the trace of what a schedule starts begins. Nil: none. It is set before Run.
	Tracer trace.Tracer
}

// New makes a loop. Zones may be shared with others.
func New(store Store, router Router, zones *schedule.Zones, log *slog.Logger, meter metric.Meter) (*Loop, error) {
	meters, err := newMetrics(meter)
	if err != nil {
		return nil, err
	}
	return &Loop{store: store, router: router, zones: zones, wake: lifecycle.NewWaker(), log: log, meters: meters}, nil
}

// Wake makes the loop look at once: a schedule was put in this process.
func (l *Loop) Wake() { l.wake.Wake() }

// Run fires schedules under a leader's term until ctx is done. It ends before with an *election.FencedError if another leader
// has taken over.
func (l *Loop) Run(ctx context.Context, term int64) error {
	taken, pause := false, failPause
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
		case <-l.wake.C():
		}
		wait, err := l.run(ctx, term, &taken)
		switch {
		case ctx.Err() != nil:
			return nil
		case fenced(err):
			return err
		case err != nil:
			wait, pause = pause, min(2*pause, lastFailPause)
		default:
			pause = failPause
		}
		l.report(ctx, err)
		timer.Reset(wait)
	}
}

// run makes passes until nothing is due, and says how long to wait then.
func (l *Loop) run(ctx context.Context, term int64, taken *bool) (time.Duration, error) {
	if !*taken {
		if err := guarded(ctx, func(ctx context.Context) error { return l.store.Take(ctx, term) }); err != nil {
			return 0, err
		}
		*taken = true
	}
	for {
		more, wait, err := l.Pass(ctx, term)
		if err != nil {
			*taken = false
			return 0, err
		}
		if !more {
			return wait, nil
		}
	}
}

// report logs when firing begins to fail and when it works again.
func (l *Loop) report(ctx context.Context, err error) {
	switch {
	case err != nil && !l.failed:
		l.log.WarnContext(ctx, "schedules cannot be fired; trying again", slog.Any("error", err))
	case err == nil && l.failed:
		l.log.InfoContext(ctx, "schedules are fired again")
	}
	l.failed = err != nil
}

// Pass deals with one batch of what is due, under a term that was taken. It reports whether there was any, and if not how
// long to wait.
func (l *Loop) Pass(ctx context.Context, term int64) (more bool, wait time.Duration, err error) {
	batch, err := l.store.Due(ctx, batchRows, batchBytes)
	if err != nil {
		return false, 0, err
	}
	if len(batch.Rows) == 0 {
		wait = lookEvery
		if !batch.Wake.IsZero() {
			wait = min(max(batch.Wake.Sub(batch.Now), time.Millisecond), lookEvery)
		}
		return false, wait, nil
	}
	turns := make([]*turn, len(batch.Rows))
	for i, row := range batch.Rows {
		turns[i] = l.newTurn(row, batch.Now)
	}
	l.ask(ctx, turns)
	failure := l.start(ctx, turns)
	outcomes := make([]schedulestore.Outcome, len(turns))
	for i, t := range turns {
		outcomes[i] = t.outcome(batch.Now)
	}
	// What was started and is not recorded is found to be there when it is started again.
	if err := guarded(ctx, func(ctx context.Context) error { return l.store.Record(ctx, term, outcomes) }); err != nil {
		return false, 0, err
	}
	l.meters.count(ctx, batch.Now, outcomes)
	if failure != nil {
		return false, 0, fmt.Errorf("start instances: %w", failure)
	}
	return true, 0, nil
}

// guarded makes a write while the process leads.
func guarded(ctx context.Context, write func(ctx context.Context) error) error {
	ctx, cancel, err := election.Guard(ctx)
	if err != nil {
		return err
	}
	defer cancel()
	return write(ctx)
}

// fenced tells whether a write met a later term.
func fenced(err error) bool {
	_, ok := errors.AsType[*election.FencedError](err)
	return ok
}
