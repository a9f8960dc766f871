package bench

import (
	"context"
	"slices"
	"time"

	"github.com/wiggle-run/wiggle/internal/bench/steps"
	wiggle "github.com/wiggle-run/wiggle/sdk/go"
)

const (
	scenarioIdle    = "idle"
	scenarioFanout  = "fanout"
	scenarioBacklog = "backlog"
	scenarioSoak    = "soak"
)

// Scenario is something that can be measured.
type Scenario struct {
	// Name of it, and what it does in a line.
	Name, About string
}

// scenario is how it is done.
type scenario struct {
	Scenario

	// defaults fills in what is not given and differs from other scenarios.
	defaults func(o *Options)
	// flow is the workflow to register; nil: run does so itself.
	flow func(o *Options) *wiggle.Definition
	// sessions is how many workers each worker process has; nil: run starts workers, if it needs any.
	sessions func(o *Options) int
	// run measures a point. nil: there is nothing but the limit.
	run func(ctx context.Context, b *bench, p point) (Run, error)
	// batches says that it can be run in batched mode.
	batches bool
	// noLimit leaves the limit out, noRatio only the ratio: where steps per second say nothing of throughput.
	noLimit, noRatio bool
	// peaks tells that the peak is measured before its own window.
	peaks bool
}

// Scenarios lists what can be measured.
func Scenarios() []Scenario {
	var list []Scenario
	for _, s := range scenarios() {
		list = append(list, s.Scenario)
	}
	return list
}

func findScenario(name string) *scenario {
	all := scenarios()
	if i := slices.IndexFunc(all, func(s scenario) bool { return s.Name == name }); i >= 0 {
		return &all[i]
	}
	return nil
}

func one(*Options) int { return 1 }

func chainOf(o *Options) *wiggle.Definition {
	if o.Mode == ModeBatched {
		return steps.BatchedChain(o.Steps)
	}
	return steps.Chain(o.Steps)
}

func scenarios() []scenario {
	return []scenario{
		{Scenario: Scenario{"limit", "what PostgreSQL itself does: a hundred steps as plain rows in one statement (PRF-6)"}},
		{
			Scenario: Scenario{"chain", "chains of --steps no-op steps, --in-flight at a time"},
			defaults: defaultInFlight(100, 500, 2000), flow: chainOf, sessions: one, run: runChain, batches: true,
		},
		{
			Scenario: Scenario{"one", "a single step: how many instances start and end"},
			defaults: func(o *Options) {
				setDefault(&o.Steps, 1)
				defaultInFlight(100, 500, 2000)(o)
			},
			flow: chainOf, sessions: one, run: runChain, batches: true,
		},
		{
			Scenario: Scenario{"light", "chains at an easy --rate, each at its time: latency"},
			defaults: func(o *Options) { setDefault(&o.Rate, 10) },
			flow:     chainOf, sessions: one, run: runChain, batches: true, noLimit: true,
		},
		{
			Scenario: Scenario{scenarioFanout, "one for_each of --width branches at a time"},
			defaults: defaultInFlight(1), flow: func(*Options) *wiggle.Definition { return steps.Fanout() }, sessions: one, run: runFanout,
		},
		{
			Scenario: Scenario{"chain400", "one instance of 400 steps at a time: what a step takes"},
			defaults: func(o *Options) {
				setDefault(&o.Steps, 400)
				defaultInFlight(1)(o)
			},
			flow: chainOf, sessions: one, batches: true, noRatio: true, noLimit: true,
			run: func(ctx context.Context, b *bench, p point) (Run, error) {
				return b.whole(ctx, b.chainLoad(p), p.inFlight)
			},
		},
		{
			Scenario: Scenario{"timers", "--count timers due at the same instant, and some at light load: lateness"},
			defaults: func(o *Options) { setDefault(&o.Count, 10_000) },
			flow:     func(*Options) *wiggle.Definition { return steps.Timer() }, run: runTimers, noLimit: true, noRatio: true,
		},
		{
			Scenario: Scenario{scenarioIdle, "--count workers that have nothing to do: statements and CPU"},
			defaults: func(o *Options) {
				setDefault(&o.Count, 200)
				setDefault(&o.Concurrency, 16)
			},
			sessions: func(o *Options) int { return (o.Count + o.Workers - 1) / o.Workers }, run: runIdle, noLimit: true, noRatio: true,
		},
		{
			Scenario: Scenario{scenarioBacklog, "claims with --count tokens ready against claims with few, then all are run"},
			defaults: func(o *Options) { setDefault(&o.Count, 100_000) },
			flow:     func(*Options) *wiggle.Definition { return steps.Chain(1) }, run: runBacklog, noLimit: true, noRatio: true,
		},
		{
			Scenario: Scenario{"payload", "chains with contexts of --payload-bytes, 1 KiB to 1 MiB"},
			defaults: func(o *Options) {
				defaultInFlight(16)(o)
				if len(o.PayloadBytes) == 0 {
					o.PayloadBytes = []int{1 << 10, 16 << 10, 256 << 10, 1 << 20}
				}
			},
			flow: chainOf, sessions: one, run: runChain, batches: true,
		},
		{
			Scenario: Scenario{"overload", "--times the starts that are sustainable: what completes, what is refused, memory"},
			defaults: func(o *Options) {
				setDefault(&o.Duration, 2*time.Minute)
				defaultInFlight(1000)(o)
			},
			flow: chainOf, sessions: one, run: runOverload, noLimit: true, noRatio: true, peaks: true,
		},
		{
			Scenario: Scenario{scenarioSoak, "chains at --load of the peak for half an hour: throughput, latency, sizes, memory"},
			defaults: func(o *Options) {
				setDefault(&o.Duration, 30*time.Minute)
				defaultInFlight(1000)(o)
			},
			flow: chainOf, sessions: one, run: runSoak, noLimit: true, noRatio: true, peaks: true,
		},
	}
}

func defaultInFlight(n ...int) func(o *Options) {
	return func(o *Options) {
		if len(o.InFlight) == 0 {
			o.InFlight = n
		}
	}
}

func (b *bench) chainLoad(p point) workload {
	return workload{workflow: chainOf(b.opts).Name(), input: steps.Payload(p.payloadBytes), steps: int64(b.opts.Steps)}
}

// runChain is a closed loop, or with a rate an open one.
func runChain(ctx context.Context, b *bench, p point) (Run, error) {
	if b.opts.Rate > 0 {
		return b.open(ctx, b.chainLoad(p))
	}
	return b.window(ctx, b.chainLoad(p), p.inFlight)
}

func runFanout(ctx context.Context, b *bench, p point) (Run, error) {
	if _, err := b.client.Register(ctx, steps.Fanout()); err != nil {
		return Run{}, err
	}
	load := workload{workflow: steps.FanoutName, input: steps.Elements(b.opts.Width, p.payloadBytes), steps: int64(b.opts.Width) + 1}
	return b.whole(ctx, load, p.inFlight)
}

// maxHistories bounds how many histories are read after an open loop: all of a light load.
const maxHistories = 500

// open starts instances at a rate, after a warm-up.
func (b *bench) open(ctx context.Context, w workload) (Run, error) {
	g := newGenerator(b, w)
	began := time.Now()
	var seen []time.Duration
	done := make(chan error, 1)
	go func() {
		var err error
		seen, err = g.atRate(ctx, b.opts.Rate, b.opts.Warmup, b.opts.Duration)
		done <- err
	}()
	before, after, err := b.samplesAround(ctx)
	if err = firstError(<-done, err); err != nil {
		return Run{}, err
	}
	if err := g.drain(ctx); err != nil {
		return Run{}, err
	}
	a, err := b.list(ctx, g)
	if err != nil {
		return Run{}, err
	}
	// Warm-up is over for what was started after it, as is the client's view.
	a.completed = slices.DeleteFunc(a.completed, func(e ended) bool {
		return e.start.Before(began.Add(b.opts.Warmup + b.skew))
	})
	if err := b.readHistories(ctx, g, a, maxHistories); err != nil {
		return Run{}, err
	}
	run := a.run()
	latencies := a.latencies()
	run.setRate(int64(len(latencies)), int64(len(latencies))*w.steps, after.at.Sub(before.at))
	run.setLatency(latencies)
	run.setCosts(before, after)
	run.detailQuantiles("client", seen)
	run.detailQuantiles("ready_to_dispatched", a.toDispatched)
	run.detailQuantiles("ready_to_running", a.toRunning)
	run.detailQuantiles("step", a.gaps)
	return run, nil
}
