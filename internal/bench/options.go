package bench

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/wiggle-run/wiggle/internal/bench/cluster"
	"github.com/wiggle-run/wiggle/internal/bench/pgmeter"
	"github.com/wiggle-run/wiggle/internal/bench/steps"
)

// ModeDurable commits every step before its successor is seen.
const ModeDurable = "durable"

// ModeBatched has workers run the steps of a chain by themselves and report them together (WRK-14). What it measures is
// another promise, so its figures stand apart from durable ones.
const ModeBatched = "batched"

// Options say what to measure, and where. Fields that are zero have the default of the scenario.
type Options struct {
	// Scenario is one of [Scenarios].
	Scenario string
	// Mode is how steps are made durable: ModeDurable or ModeBatched.
	Mode string
	// Steps of a chain.
	Steps int
	// Width of a fan-out.
	Width int
	// Duration of the measured window, after a Warmup.
	Duration, Warmup time.Duration
	// Repeat is how often each point is measured; the median is reported.
	Repeat int
	// InFlight are the numbers of instances in flight to try; the best is reported.
	InFlight []int
	// PayloadBytes are the sizes of a context to try.
	PayloadBytes []int
	// Rate makes an open loop of so many starts a second. 0: a closed loop.
	Rate float64
	// Times is how many times the sustainable starts an overload offers; Load is what part of the peak a soak is at.
	Times, Load float64
	// Count of the scenario's own: timers, ready tokens, idle workers.
	Count int

	// Server is the URL of a router to measure. Empty: a cluster of our own.
	Server string
	// DatabaseURLs of the shards behind Server, for counters and the limit.
	DatabaseURLs []string
	// Shards, Instances and Workers are how many databases, instances processes and worker processes our own cluster has.
	Shards, Instances, Workers int
	// With are services that run beside those that work needs: [cluster.WithLeader], [cluster.WithSearch], [cluster.WithAuth].
	With []string
	// TraceRatio is the part of traces that is sampled and exported. 0: no tracing.
	TraceRatio float64
	// LoggedEvents fills each shard's event log with so many entries first, and has a consumer follow it.
	LoggedEvents int
	// Concurrency of each worker.
	Concurrency int
	// DataDir keeps PostgreSQL's data and the logs. Empty: a directory that is removed.
	DataDir string
	// Postgres are settings of our own PostgreSQL.
	Postgres map[string]string
	// Throwaway does not flush. For tests: such figures say nothing.
	Throwaway bool

	// NoLimit leaves the limit out; LimitDuration is how long each of its three rounds takes.
	NoLimit       bool
	LimitDuration time.Duration
	// HoldHorizon holds a transaction open on every shard while the backlog is claimed, and for HoldTime before.
	HoldHorizon bool
	HoldTime    time.Duration

	// Profile is cpu, allocs, heap, mutex or block: profiles of every process go to ProfileDir.
	Profile, ProfileDir string

	// Command runs this program: its path, and arguments that precede those of a command line.
	Command []string
	// Environ is what processes are started with.
	Environ []string
	// Progress gets a line for each thing that is begun or measured.
	Progress io.Writer
}

// ProfileKinds are what Options.Profile may be.
func ProfileKinds() []string { return []string{"cpu", "allocs", "heap", "mutex", "block"} }

const (
	defaultSteps        = 8
	defaultDuration     = 20 * time.Second
	defaultWarmup       = 3 * time.Second
	defaultLimit        = 10 * time.Second
	defaultPayloadBytes = 200
	defaultConcurrency  = 1000
	defaultTimes        = 20
	defaultLoad         = 0.8
	defaultHold         = 5 * time.Minute
	maxTimes            = 1000
	maxCount            = 100_000_000
	maxShards           = 64
	maxProcesses        = 64
)

// OptionError names an option that is not right, as the command line has it.
type OptionError struct{ Message string }

// Error says what would be right.
func (e *OptionError) Error() string { return e.Message }

func wrongOption(format string, args ...any) error { return &OptionError{fmt.Sprintf(format, args...)} }

// complete checks the options and fills in the defaults.
func (o *Options) complete() (*scenario, error) {
	s := findScenario(o.Scenario)
	if s == nil {
		var names []string
		for _, known := range Scenarios() {
			names = append(names, known.Name)
		}
		return nil, wrongOption("there is no scenario %q; there are %s", o.Scenario, strings.Join(names, ", "))
	}
	setDefault(&o.Mode, ModeDurable)
	if s.defaults != nil {
		s.defaults(o)
	}
	setDefault(&o.Steps, defaultSteps)
	setDefault(&o.Width, 1000)
	setDefault(&o.Duration, defaultDuration)
	setDefault(&o.Warmup, min(defaultWarmup, o.Duration/2))
	setDefault(&o.LimitDuration, defaultLimit)
	setDefault(&o.Count, 1)
	setDefault(&o.Times, defaultTimes)
	setDefault(&o.Load, defaultLoad)
	setDefault(&o.HoldTime, defaultHold)
	for _, one := range []*int{&o.Repeat, &o.Shards, &o.Instances, &o.Workers} {
		setDefault(one, 1)
	}
	setDefault(&o.Concurrency, defaultConcurrency)
	if len(o.InFlight) == 0 || o.Rate > 0 {
		o.InFlight = []int{1} // stands for one point
	}
	if len(o.PayloadBytes) == 0 {
		o.PayloadBytes = []int{defaultPayloadBytes}
	}
	if o.Progress == nil {
		o.Progress = io.Discard
	}
	if o.Mode == ModeBatched && !s.batches {
		return nil, wrongOption("--mode batched: %s runs no chain of steps; use chain, one, light, chain400 or payload", s.Name)
	}
	return s, o.check()
}

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

func (o *Options) check() error {
	switch {
	case o.Mode != ModeDurable && o.Mode != ModeBatched:
		return wrongOption("--mode %q: use durable or batched", o.Mode)
	case o.Duration < 0 || o.Warmup < 0 || o.LimitDuration < 0:
		return wrongOption("--seconds, --warmup and --limit-seconds: use positive numbers")
	case o.HoldTime < 0:
		return wrongOption("--hold %v: use a positive number of seconds", o.HoldTime.Seconds())
	case o.Times < 1 || o.Times > maxTimes:
		return wrongOption("--times %v: use 1 to %d", o.Times, maxTimes)
	case o.Load <= 0 || o.Load > 1:
		return wrongOption("--load %v: use a part of the peak, up to 1", o.Load)
	case o.Rate < 0:
		return wrongOption("--rate %v: use a positive number, or 0 for a closed loop", o.Rate)
	case o.Profile != "" && !slices.Contains(ProfileKinds(), o.Profile):
		return wrongOption("--profile %q: use %s", o.Profile, strings.Join(ProfileKinds(), ", "))
	case o.Server == "" && len(o.DatabaseURLs) > 0:
		return wrongOption("--database-url goes with --server: a cluster of our own has its own databases")
	case o.Server != "" && len(o.With) > 0:
		return wrongOption("--with adds services to a cluster of our own, not to that behind --server")
	case o.TraceRatio < 0 || o.TraceRatio > 1:
		return wrongOption("--trace %v: use a part, from 0 to 1", o.TraceRatio)
	case o.Server != "" && o.TraceRatio > 0:
		return wrongOption("--trace is for a cluster of our own: set OTEL_TRACES_SAMPLER_ARG of that behind --server")
	case o.LoggedEvents < 0 || o.LoggedEvents > maxCount:
		return wrongOption("--logged-events %d: use 0 to %d", o.LoggedEvents, maxCount)
	case o.Server != "" && o.LoggedEvents > 0:
		return wrongOption("--logged-events fills the logs of a cluster of our own, not of that behind --server")
	case o.Server != "" && o.Profile != "":
		return wrongOption("--profile reaches only the processes of a cluster of our own, not those behind --server")
	}
	for _, service := range o.With {
		if !slices.Contains([]string{cluster.WithLeader, cluster.WithSearch, cluster.WithAuth}, service) {
			return wrongOption("--with %q: use %s, %s, %s", service, cluster.WithLeader, cluster.WithSearch, cluster.WithAuth)
		}
	}
	for _, limit := range []struct {
		flag         string
		values       []int
		least, bound int
	}{
		{"--steps", []int{o.Steps}, 1, 10_000},
		{"--width", []int{o.Width}, 1, 10_000},
		{"--repeat", []int{o.Repeat}, 1, 1000},
		{"--count", []int{o.Count}, 1, maxCount},
		{"--in-flight", o.InFlight, 1, 1_000_000},
		{"--payload-bytes", o.PayloadBytes, steps.MinPayloadBytes, 16 << 20},
		{"--shards", []int{o.Shards}, 1, maxShards},
		{"--instances", []int{o.Instances}, 1, maxProcesses},
		{"--workers", []int{o.Workers}, 1, maxProcesses},
		{"--concurrency", []int{o.Concurrency}, 1, 1000},
	} {
		for _, v := range limit.values {
			if v < limit.least || v > limit.bound {
				return wrongOption("%s %d: use %d to %d", limit.flag, v, limit.least, limit.bound)
			}
		}
	}
	return nil
}

// cluster is what to bring up.
func (o *Options) cluster() cluster.Config {
	return cluster.Config{
		Server: o.Server, DatabaseURLs: o.DatabaseURLs, Shards: o.Shards, Instances: o.Instances, With: o.With,
		TraceRatio: o.TraceRatio, LoggedEvents: o.LoggedEvents, DataDir: o.DataDir,
		Postgres: o.Postgres, Throwaway: o.Throwaway, StatStatements: o.Scenario == scenarioIdle, Profiles: o.Profile != "",
		Command: o.Command, Environ: o.Environ, Progress: o.Progress,
	}
}

// workers are the worker processes, each with so many sessions.
func (o *Options) workers(sessions int) cluster.Workers {
	return cluster.Workers{Processes: o.Workers, Sessions: sessions, Concurrency: o.Concurrency}
}

// limit is PRF-6 but in tests, which have less time.
func (o *Options) limit() pgmeter.LimitConfig {
	cfg := pgmeter.LimitConfig{
		Rows: pgmeter.LimitRows, Rounds: pgmeter.LimitRounds, Duration: o.LimitDuration, Warmup: min(defaultWarmup, o.LimitDuration/2),
	}
	if o.Throwaway {
		cfg.Rows /= 10
	}
	return cfg
}
