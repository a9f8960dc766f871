package bench

import (
	"context"
	"fmt"
	"time"

	"github.com/wiggle-run/wiggle/internal/bench/cluster"
	"github.com/wiggle-run/wiggle/internal/bench/steps"
	wiggle "github.com/wiggle-run/wiggle/sdk/go"
)

const (
	// timerCountEvery is how often timers that are due are counted: no worker tells of their end.
	timerCountEvery = 250 * time.Millisecond
	napRate         = 10
)

// runTimers starts timers that are all due at the same instant, and then some at light load. A timer is an instance that
// sleeps and ends, so its end tells when it fired.
func runTimers(ctx context.Context, b *bench, p point) (Run, error) {
	light, err := b.lightTimers(ctx)
	if err != nil {
		return Run{}, err
	}
	due := time.Now().Add(b.opts.Warmup + b.opts.Duration).Truncate(time.Millisecond)
	g := newGenerator(b, workload{workflow: steps.TimerName, input: steps.TimerContext(due.Add(b.skew), p.payloadBytes)})
	if err := g.startAll(ctx, b.opts.Count); err != nil {
		return Run{}, err
	}
	if left := time.Until(due); left < 0 {
		return Run{}, fmt.Errorf("starting %d timers took %v longer than until they were due: use more --seconds", b.opts.Count, -left)
	}
	started := time.Now()
	if err := sleepUntil(ctx, due.Add(-timerCountEvery)); err != nil {
		return Run{}, err
	}
	before, err := b.sample(ctx)
	if err != nil {
		return Run{}, err
	}
	if err := b.awaitTimers(ctx, g); err != nil {
		return Run{}, err
	}
	after, err := b.sample(ctx)
	if err != nil {
		return Run{}, err
	}
	a, err := b.list(ctx, g)
	if err != nil {
		return Run{}, err
	}
	return timersRun(a, light, due.Add(b.skew), started.Add(b.skew), before, after), nil
}

// timersRun counts a timer that fired as a step. Latency is lateness.
func timersRun(a, light *account, due, started time.Time, before, after sample) Run {
	a.errors += light.errors
	a.problems = append(a.problems, light.problems...)
	run := a.run()
	late := make([]time.Duration, 0, len(a.completed))
	for _, e := range a.completed {
		late = append(late, e.end.Sub(due))
	}
	for _, l := range late {
		if l < 0 {
			run.Errors++
			run.problem(fmt.Sprintf("a timer fired %v early", -l))
		}
	}
	n := int64(len(late))
	run.setRate(n, n, a.last.Sub(due))
	run.setLatency(late)
	run.setCosts(before, after)
	if took := started.Sub(a.first).Seconds(); took > 0 {
		run.detail("start_per_second", round(float64(n)/took, 1))
		run.detail("drain_to_start_ratio", round(run.StepsPerSecond*took/float64(n), 3))
	}
	naps := make([]time.Duration, 0, len(light.completed))
	for _, e := range light.completed {
		naps = append(naps, e.end.Sub(e.start)-steps.NapTime)
	}
	run.detailQuantiles("light_lateness", naps)
	return run
}

// lightTimers starts a few short ones a second.
func (b *bench) lightTimers(ctx context.Context) (*account, error) {
	if _, err := b.client.Register(ctx, steps.Nap()); err != nil {
		return nil, err
	}
	g := newGenerator(b, workload{workflow: steps.NapName, input: steps.Payload(steps.MinPayloadBytes)})
	const longest = 10 * time.Second
	if _, err := g.atRate(ctx, napRate, 0, min(b.opts.Duration, longest)); err != nil {
		return nil, err
	}
	return b.list(ctx, g)
}

// awaitTimers counts until none runs.
func (b *bench) awaitTimers(ctx context.Context, g *generator) error {
	filter := wiggle.Filter{Workflow: g.load.workflow, States: []wiggle.State{wiggle.Running}, CreatedFrom: g.since}
	last, since := int64(-1), time.Now()
	for {
		counts, err := b.client.Count(ctx, filter)
		switch {
		case err != nil:
			return err
		case counts.Total == 0:
			return nil
		case counts.Total != last:
			last, since = counts.Total, time.Now()
		case time.Since(since) > stallTime:
			return stalled(counts.Total, int64(b.opts.Count), stallTime)
		}
		if err := b.pause(ctx, timerCountEvery); err != nil {
			return err
		}
	}
}

// reportTime is how long PostgreSQL's sessions keep their counters to themselves.
const reportTime = 1200 * time.Millisecond

// runIdle lets workers have nothing to do.
func runIdle(ctx context.Context, b *bench, _ point) (Run, error) {
	calls, known := b.Databases.StatementCalls(ctx)
	called := time.Now()
	// Until what that took is counted too, and not within the window.
	if err := b.pause(ctx, max(b.opts.Warmup, reportTime)); err != nil {
		return Run{}, err
	}
	before, err := b.sample(ctx)
	if err != nil {
		return Run{}, err
	}
	if err := b.pause(ctx, b.opts.Duration); err != nil {
		return Run{}, err
	}
	after, err := b.sample(ctx)
	if err != nil {
		return Run{}, err
	}
	var run Run
	took := after.at.Sub(before.at)
	run.setRate(0, 0, took)
	run.setCosts(before, after)
	total := 0.0
	for name, seconds := range run.CPUSeconds {
		if name != cluster.ProcessBench {
			total += seconds
		}
	}
	run.detail("workers", float64(b.opts.Count))
	run.detail("cpu_percent_of_core", round(100*total/took.Seconds(), 2))
	if n := len(b.Databases); n > 0 {
		perShard := func(count int64, d time.Duration) float64 { return round(float64(count)/d.Seconds()/float64(n), 2) }
		run.detail("commits_per_second_and_shard", perShard(after.db.Commits-before.db.Commits, took))
		if now, ok := b.Databases.StatementCalls(ctx); ok && known {
			run.detail("statements_per_second_and_shard", perShard(now-calls, time.Since(called)))
		}
	}
	return run, nil
}
