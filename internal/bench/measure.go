package bench

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/wiggle-run/wiggle/internal/bench/cluster"
	"github.com/wiggle-run/wiggle/internal/bench/pgmeter"
)

// sample is what everything has used up to a moment.
type sample struct {
	at  time.Time
	cpu map[string]float64
	db  pgmeter.Counters
}

// sample reads the databases first: that takes a moment, and time counts from when CPU is read.
func (b *bench) sample(ctx context.Context) (sample, error) {
	db, err := b.Databases.Counters(ctx)
	if err != nil {
		return sample{}, err
	}
	return sample{at: time.Now(), cpu: b.CPU(), db: db}, nil
}

// pause waits, and less if ctx ends or a process does.
func (b *bench) pause(ctx context.Context, d time.Duration) error {
	const lookEvery = 200 * time.Millisecond
	end := time.NewTimer(d)
	defer end.Stop()
	look := time.NewTicker(lookEvery)
	defer look.Stop()
	for {
		select {
		case <-end.C:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-look.C:
			if err := b.Ended(); err != nil {
				return err
			}
		}
	}
}

// workload is a workflow as a load starts it.
type workload struct {
	workflow string
	input    any
	// steps that an instance has.
	steps int64
}

// window keeps so many instances in flight, and measures for a while after a warm-up.
func (b *bench) window(ctx context.Context, w workload, inFlight int) (Run, error) {
	g := newGenerator(b, w)
	stop := make(chan struct{})
	stopped := make(chan error, 1)
	stopFollowing := func() (int64, error) { return 0, nil }
	if b.opts.LoggedEvents > 0 {
		stopFollowing = b.followEvents(ctx)
	}
	go func() { stopped <- g.keep(ctx, inFlight, stop) }()
	before, after, err := b.samplesAround(ctx)
	close(stop)
	events, followErr := stopFollowing()
	if err = firstError(<-stopped, err, followErr); err != nil {
		return Run{}, err
	}
	if err := g.drain(ctx); err != nil {
		return Run{}, err
	}
	a, err := b.account(ctx, g)
	if err != nil {
		return Run{}, err
	}
	run := a.run()
	run.InFlight = inFlight
	latencies := a.within(before.at.Add(b.skew), after.at.Add(b.skew))
	run.setRate(int64(len(latencies)), int64(len(latencies))*w.steps, after.at.Sub(before.at))
	run.setLatency(latencies)
	run.setCosts(before, after)
	run.detailQuantiles("ready_to_dispatched", a.toDispatched)
	run.detailQuantiles("ready_to_running", a.toRunning)
	if b.opts.LoggedEvents > 0 {
		run.detail("events_followed", float64(events))
	}
	if slices.Contains(b.opts.With, cluster.WithSearch) {
		behind, err := b.awaitIndex(ctx, w.workflow, a.first, int64(len(a.completed)))
		if err != nil {
			return Run{}, err
		}
		run.detail("index_behind_seconds", behind.Seconds())
	}
	if len(latencies) == 0 {
		run.Errors++
		run.problem("no instance ended within the window: measure for longer, or with fewer in flight")
	}
	return run, nil
}

func (b *bench) samplesAround(ctx context.Context) (before, after sample, err error) {
	if err = b.pause(ctx, b.opts.Warmup); err != nil {
		return before, after, err
	}
	if before, err = b.sample(ctx); err != nil {
		return before, after, err
	}
	if err = b.pause(ctx, b.opts.Duration); err != nil {
		return before, after, err
	}
	after, err = b.sample(ctx)
	return before, after, err
}

// whole keeps so few instances in flight that edges would matter: it measures from the first start to the last end.
func (b *bench) whole(ctx context.Context, w workload, inFlight int) (Run, error) {
	var run Run
	for _, phase := range []time.Duration{b.opts.Warmup, b.opts.Duration} {
		if phase == 0 {
			continue
		}
		var err error
		if run, err = b.wholePhase(ctx, w, inFlight, phase); err != nil {
			return Run{}, err
		}
	}
	return run, nil
}

func (b *bench) wholePhase(ctx context.Context, w workload, inFlight int, d time.Duration) (Run, error) {
	before, err := b.sample(ctx)
	if err != nil {
		return Run{}, err
	}
	g := newGenerator(b, w)
	stop := make(chan struct{})
	stopped := make(chan error, 1)
	go func() { stopped <- g.keep(ctx, inFlight, stop) }()
	err = b.pause(ctx, d)
	close(stop)
	if err = firstError(<-stopped, err); err != nil {
		return Run{}, err
	}
	if err := g.drain(ctx); err != nil {
		return Run{}, err
	}
	after, err := b.sample(ctx)
	if err != nil {
		return Run{}, err
	}
	a, err := b.account(ctx, g)
	if err != nil {
		return Run{}, err
	}
	run := a.run()
	run.InFlight = inFlight
	latencies := a.latencies()
	run.setRate(int64(len(latencies)), int64(len(latencies))*w.steps, a.last.Sub(a.first))
	run.setLatency(latencies)
	run.setCosts(before, after)
	run.detailQuantiles("step", a.gaps)
	return run, nil
}

// firstError is the first of the errors: the second came of the first.
func firstError(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// stalled is the error of work that does not end.
func stalled(missing, total int64, d time.Duration) error {
	return fmt.Errorf("%d of %d instances do not end: none has for %v", missing, total, d)
}
