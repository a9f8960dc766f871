package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/wiggle-run/wiggle/internal/bench/cluster"
	"github.com/wiggle-run/wiggle/internal/bench/pgmeter"
	"github.com/wiggle-run/wiggle/internal/bench/procfs"
	"github.com/wiggle-run/wiggle/internal/bench/steps"
	wiggle "github.com/wiggle-run/wiggle/sdk/go"
)

// Do measures a scenario. Its error is that of a bench that could not be brought to its end; that work did not complete is
// in the result, see [Result.Well].
func Do(ctx context.Context, opts Options) (_ *Result, err error) {
	s, err := opts.complete()
	if err != nil {
		return nil, err
	}
	result := &Result{
		Scenario: opts.Scenario, Mode: opts.Mode, Date: time.Now().UTC().Truncate(time.Second), Machine: procfs.ThisMachine(),
		Commit: commitOf(), Settings: opts.settings(),
	}
	c, err := cluster.Open(ctx, opts.cluster())
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, c.Close(ctx)) }()
	if err := result.describe(ctx, c); err != nil {
		return nil, err
	}
	if err := opts.measureLimit(ctx, c, result, s); err != nil || s.run == nil {
		return result, err
	}
	if err := c.StartServices(ctx); err != nil {
		return nil, err
	}
	b, err := newBench(ctx, c, &opts)
	if err != nil {
		return nil, err
	}
	defer b.client.Close()
	if err := b.prepare(ctx, s); err != nil {
		return nil, err
	}
	if err := b.sweep(ctx, s, result); err != nil {
		return nil, err
	}
	if result.TracedBytes, err = c.Traced(); err != nil {
		return nil, err
	}
	return result, nil
}

// tuning are the variables that change how fast services are.
var tuning = []string{
	"WIGGLE_INSTANCES_BATCH", "WIGGLE_INSTANCES_LANES", "WIGGLE_ROUTER_CONNECTIONS", "WIGGLE_LIMIT_HISTORY_BYTES",
	"GOGC", "GOMEMLIMIT", "GOMAXPROCS", "GODEBUG",
}

// settings are what the options say of the conditions.
func (o *Options) settings() Settings {
	s := Settings{
		Server: o.Server, Workers: o.Workers, Concurrency: o.Concurrency, Steps: o.Steps,
		Warmup: o.Warmup.Seconds(), Repeat: o.Repeat, Postgres: o.Postgres, Environment: map[string]string{},
	}
	if o.Server == "" {
		s.Shards, s.Instances, s.With, s.TraceRatio = o.Shards, o.Instances, o.With, o.TraceRatio
	} else {
		s.Shards = len(o.DatabaseURLs) // 0: unknown
	}
	if o.Scenario == scenarioFanout {
		s.Width = o.Width
	}
	if o.Count > 1 {
		s.Count = o.Count
	}
	for _, kv := range o.Environ {
		if name, value, _ := strings.Cut(kv, "="); slices.Contains(tuning, name) {
			s.Environment[name] = value
		}
	}
	return s
}

// describe fills in what PostgreSQL says of itself.
func (r *Result) describe(ctx context.Context, c *cluster.Cluster) error {
	facts, err := c.Databases.Facts(ctx)
	r.Machine.Postgres = facts.Version
	r.Settings.FSync, r.Settings.SynchronousCommit, r.Settings.SharedBuffers = facts.FSync, facts.SynchronousCommit, facts.SharedBuffers
	return err
}

// measureLimit measures the limit where it can be, and where it is asked for.
func (o *Options) measureLimit(ctx context.Context, c *cluster.Cluster, r *Result, s *scenario) error {
	if c.AdminURL == "" {
		if s.run == nil {
			return wrongOption("the limit is PostgreSQL's: name it with --database-url")
		}
		return nil
	}
	if o.NoLimit || s.noLimit {
		return nil
	}
	o.progressf("limit: %d rounds of %v", pgmeter.LimitRounds, o.LimitDuration)
	limit, err := pgmeter.MeasureLimit(ctx, c.AdminURL, o.limit())
	if err != nil {
		return err
	}
	o.progressf("limit: %.0f steps/s", limit.Median)
	r.Limit, r.Settings.LimitRounds = &limit.Median, limit.Rounds
	if s.run == nil {
		r.setRate(0, int64(limit.Median*o.LimitDuration.Seconds()), o.LimitDuration)
		one := 1.0
		r.Ratio = &one
	}
	return nil
}

func (o *Options) progressf(format string, args ...any) {
	_, _ = fmt.Fprintf(o.Progress, format+"\n", args...)
}

// bench is a scenario under way.
type bench struct {
	*cluster.Cluster

	opts   *Options
	client *wiggle.Client
	// skew is by how much the databases' clock is ahead of ours.
	skew time.Duration
}

func newBench(ctx context.Context, c *cluster.Cluster, opts *Options) (*bench, error) {
	client, err := c.Dial(wiggle.WithLogger(slog.New(slog.DiscardHandler)))
	if err != nil {
		return nil, err
	}
	b := &bench{Cluster: c, opts: opts, client: client}
	if opts.Server == "" {
		return b, nil // one machine, one clock
	}
	if err := b.readClock(ctx); err != nil {
		client.Close()
		return nil, err
	}
	return b, nil
}

// readClock learns the databases' clock from an instance that is there for nothing else.
func (b *bench) readClock(ctx context.Context) error {
	if _, err := b.client.Register(ctx, steps.Nap()); err != nil {
		return err
	}
	before := time.Now()
	run, err := b.client.Start(ctx, steps.NapName, steps.Payload(steps.MinPayloadBytes))
	if err != nil {
		return err
	}
	middle := before.Add(time.Since(before) / 2)
	inst, err := run.Wait(ctx)
	if err != nil {
		return err
	}
	b.skew = inst.CreatedAt.Sub(middle)
	return nil
}

// firstTime is how long the first instance may take.
const firstTime = time.Minute

// prepare registers the workflow, starts workers and runs one instance, so that nothing that is wrong shows only later.
func (b *bench) prepare(ctx context.Context, s *scenario) error {
	if s.flow != nil {
		if _, err := b.client.Register(ctx, s.flow(b.opts)); err != nil {
			return err
		}
	}
	if s.sessions == nil {
		return nil
	}
	if err := b.StartWorkers(ctx, b.opts.workers(s.sessions(b.opts))); err != nil {
		return err
	}
	if _, err := b.client.Register(ctx, steps.Chain(1)); err != nil {
		return err
	}
	run, err := b.client.Start(ctx, steps.ChainName(1), steps.Payload(defaultPayloadBytes))
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, firstTime, errors.New("the first instance does not end: does a worker run?"))
	defer cancel()
	inst, err := run.Wait(ctx)
	if err != nil {
		return errors.Join(err, context.Cause(ctx))
	}
	if inst.State != wiggle.Completed {
		return &wiggle.InstanceError{Instance: inst}
	}
	return nil
}

// sweep measures every point, and reports the best.
func (b *bench) sweep(ctx context.Context, s *scenario, result *Result) error {
	for _, size := range b.opts.PayloadBytes {
		for _, inFlight := range b.opts.InFlight {
			run, err := b.repeat(ctx, s, point{inFlight: inFlight, payloadBytes: size}, result)
			if err != nil {
				return err
			}
			result.Runs = append(result.Runs, run)
			result.Problems = append(result.Problems, run.problems...)
		}
	}
	result.Run = slices.MaxFunc(result.Runs, func(x, y Run) int { return cmp.Compare(x.StepsPerSecond, y.StepsPerSecond) })
	if result.Limit != nil && *result.Limit > 0 && !s.noRatio {
		ratio := round(result.StepsPerSecond / *result.Limit, 4)
		result.Ratio = &ratio
	}
	return nil
}

// point is one load.
type point struct{ inFlight, payloadBytes int }

// repeat measures a point as often as asked and returns the median by steps per second. Errors of all are kept.
func (b *bench) repeat(ctx context.Context, s *scenario, p point, result *Result) (Run, error) {
	var runs []Run
	for i := range b.opts.Repeat {
		finish, err := b.profile(ctx, s, fmt.Sprintf("%s-%d-%d", s.Name, p.inFlight, i+1))
		if err != nil {
			return Run{}, err
		}
		run, err := s.run(ctx, b, p)
		if err = errors.Join(err, finish()); err != nil {
			return Run{}, errors.Join(err, b.Ended())
		}
		run.PayloadBytes, run.Rate = p.payloadBytes, b.opts.Rate
		b.opts.progressf("%s", run.line(s.Name))
		runs = append(runs, run)
	}
	if len(runs) == 1 {
		return runs[0], nil
	}
	failed, problems := int64(0), []string(nil)
	for _, r := range runs {
		failed, problems = max(failed, r.Errors), append(problems, r.problems...)
	}
	slices.SortFunc(runs, func(x, y Run) int { return cmp.Compare(x.StepsPerSecond, y.StepsPerSecond) })
	middle := percentile(runs, 50)
	if middle.StepsPerSecond > 0 {
		if result.Settings.Spread == nil {
			result.Settings.Spread = map[string]float64{}
		}
		result.Settings.Spread[fmt.Sprintf("%d/%d", p.inFlight, p.payloadBytes)] = round(
			(runs[len(runs)-1].StepsPerSecond-runs[0].StepsPerSecond)/middle.StepsPerSecond, 3)
	}
	middle.Errors, middle.problems = failed, problems[:min(len(problems), maxProblems)]
	return middle, nil
}

// line is a run in short.
func (r *Run) line(scenario string) string {
	load := fmt.Sprintf("in flight %d", r.InFlight)
	if r.Rate > 0 {
		load = fmt.Sprintf("%v a second", r.Rate)
	}
	text := fmt.Sprintf("%s: %s, %d bytes: %.0f steps/s, %.0f instances/s, p50 %.2f ms, p99 %.2f ms, %d completed, %d errors",
		scenario, load, r.PayloadBytes, r.StepsPerSecond, r.InstancesPerSecond, r.P50, r.P99, r.Completed, r.Errors)
	var costs []string
	for _, name := range slices.Sorted(maps.Keys(r.CPUPerStep)) {
		costs = append(costs, fmt.Sprintf("%s %.0f", name, r.CPUPerStep[name]))
	}
	if len(costs) > 0 {
		text += "; CPU us/step: " + strings.Join(costs, ", ")
	}
	return text
}
