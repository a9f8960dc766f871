package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/wiggle-run/wiggle/internal/bench/cluster"
	"github.com/wiggle-run/wiggle/internal/bench/pgmeter"
	"github.com/wiggle-run/wiggle/internal/bench/steps"
	"github.com/wiggle-run/wiggle/internal/pgtest"
	"github.com/wiggle-run/wiggle/pkg/lifecycle"
	"github.com/wiggle-run/wiggle/services/auth"
	"github.com/wiggle-run/wiggle/services/instances"
	"github.com/wiggle-run/wiggle/services/router"
)

var update = flag.Bool("update", false, "write golden files")

// asCommand makes the test binary be the processes of the cluster, with the race detector if it has it.
const asCommand = "BENCH_TEST_AS_COMMAND"

func TestMain(m *testing.M) {
	if os.Getenv(asCommand) == "" {
		pgtest.Main(m, goleak.IgnoreAnyFunction("net/http.(*persistConn).readLoop"), goleak.IgnoreAnyFunction("net/http.(*persistConn).writeLoop"))
	}
	if err := command(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func command(args []string) error {
	ctx, stop := lifecycle.WithSignals(context.Background())
	defer stop()
	switch strings.Join(args[:min(2, len(args))], " ") {
	case "serve instances":
		return instances.Main(ctx, os.Environ())
	case "serve router":
		return router.Main(ctx, os.Environ())
	case "serve auth":
		return auth.Main(ctx, os.Environ())
	}
	opts := steps.WorkerOptions{Logger: slog.New(slog.NewTextHandler(os.Stderr, nil))}
	flags := flag.NewFlagSet(steps.CommandWorker, flag.ContinueOnError)
	flags.StringVar(&opts.Server, "server", "", "")
	flags.StringVar(&opts.Profiles, "pprof", "", "")
	flags.IntVar(&opts.Sessions, "sessions", 0, "")
	flags.IntVar(&opts.Concurrency, "concurrency", 0, "")
	return errors.Join(flags.Parse(args[1:]), steps.RunWorker(ctx, opts, os.Stdin, os.Stdout))
}

// options are those of a tiny run.
func options(t *testing.T, scenario string) Options {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return Options{
		Scenario: scenario, Throwaway: true, Duration: time.Second, Warmup: 300 * time.Millisecond, Concurrency: 50,
		Command: []string{self}, Environ: append(os.Environ(), asCommand+"=1"), Progress: testWriter{t},
	}
}

type testWriter struct{ t *testing.T }

func (w testWriter) Write(p []byte) (int, error) {
	w.t.Log(strings.TrimSpace(string(p)))
	return len(p), nil
}

// TestScenarios runs every scenario but the limit on one cluster, at a size at which its figures say nothing.
func TestScenarios(t *testing.T) { //nolint:tparallel // its scenarios share a cluster, one at a time (PRF-4)
	t.Parallel()
	base := options(t, "chain")
	base.Shards, base.With = 2, []string{cluster.WithAuth} // so every call of every scenario shows who makes it
	if _, err := base.complete(); err != nil {
		t.Fatal(err)
	}
	c, err := cluster.Open(t.Context(), base.cluster())
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := c.Close(context.Background()); err != nil {
			t.Error(err)
		}
		if _, err := os.Stat(c.Dir); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s is left", c.Dir)
		}
	}()
	if err := c.StartServices(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		scenario string
		change   func(o *Options)
		check    func(t *testing.T, r *Result)
	}{
		{"chain", func(o *Options) {
			o.InFlight, o.Duration, o.Warmup = []int{5, 10}, 1500*time.Millisecond, 500*time.Millisecond
		}, func(t *testing.T, r *Result) {
			if len(r.Runs) != 2 || r.StepsPerSecond < r.Runs[0].StepsPerSecond || r.StepsPerSecond < r.Runs[1].StepsPerSecond {
				t.Errorf("the best of two points is not reported: %v of %+v", r.StepsPerSecond, r.Runs)
			}
			if r.InstancesPerSecond*8-r.StepsPerSecond > 1 || r.P50 <= 0 || r.P99 < r.P50 {
				t.Errorf("figures do not fit together: %+v", r.Run)
			}
			if *r.CommitsPerStep <= 0 || *r.WALBytesPerStep <= 0 || r.Tables["tokens"].Updated <= 0 {
				t.Errorf("no costs: %+v", r.Run)
			}
		}},
		{"chain", func(o *Options) { o.Mode, o.InFlight, o.Duration = ModeBatched, []int{10}, 2*time.Second }, func(t *testing.T, r *Result) {
			// WRK-14: a token is leased as it is made or claimed once, and hardly written for each of its eight steps, of which
			// the history has every one. Counters come late, so they are held against each other and not against the steps.
			history, tokens := r.Tables["history"].Inserted, r.Tables["tokens"]
			if tokens.Inserted <= 0 || tokens.Updated > history/2 || history < 4*r.Tables["instances"].Inserted {
				t.Errorf("steps are not reported together: %+v", r.Tables)
			}
		}},
		{"one", func(o *Options) { o.InFlight, o.Repeat = []int{10}, 2 }, func(t *testing.T, r *Result) {
			if len(r.Runs) != 1 || len(r.Settings.Spread) != 1 {
				t.Errorf("%+v", r)
			}
		}},
		{"light", func(o *Options) { o.Rate, o.Duration = 20, 500*time.Millisecond }, func(t *testing.T, r *Result) {
			if r.Details["client_p50_ms"] <= 0 || r.Details["ready_to_running_p50_ms"] <= 0 || r.Completed < 7 || r.Completed > 13 {
				t.Errorf("%+v", r.Run)
			}
		}},
		{"fanout", func(o *Options) { o.Width = 20 }, nil},
		{"chain400", func(o *Options) { o.Steps = 10 }, func(t *testing.T, r *Result) {
			if r.Details["step_p50_ms"] <= 0 {
				t.Errorf("%+v", r.Details)
			}
		}},
		{"timers", func(o *Options) { o.Count, o.Duration = 50, 1500*time.Millisecond }, func(t *testing.T, r *Result) {
			if r.Completed != 50 || r.Details["start_per_second"] <= 0 {
				t.Errorf("%+v", r.Run)
			}
		}},
		{"idle", func(o *Options) { o.Count, o.Workers = 4, 2 }, func(t *testing.T, r *Result) {
			if r.Completed != 0 || r.Details["workers"] != 4 {
				t.Errorf("%+v", r.Run)
			}
		}},
		{"backlog", func(o *Options) { o.Count, o.HoldHorizon, o.HoldTime = 300, true, 100*time.Millisecond }, func(t *testing.T, r *Result) {
			if r.Details["empty_p50_ms"] <= 0 || r.P50 <= 0 || r.Details["claim_p99_ms_empty"] <= 0 ||
				r.Details["claim_p99_ms_backlog"] != r.P99 || r.Details["ratio"] <= 0 {
				t.Errorf("%+v", r.Run)
			}
		}},
		{"overload", func(o *Options) { o.InFlight, o.Duration, o.Times = []int{50}, time.Second, 3 }, func(t *testing.T, r *Result) {
			d := r.Details
			if d["accepted"] <= 0 || d["offered_per_second"] < d["accepted_per_second"] || d["refused_untyped"] != 0 ||
				d["peak_steps_per_second"] <= 0 || d["completed_ratio_to_peak"] <= 0 || d["memory_most_instances_mib"] <= 0 {
				t.Errorf("%+v", r.Run)
			}
		}},
		{"soak", func(o *Options) { o.InFlight, o.Duration, o.Load = []int{20}, 2*time.Second, 0.5 }, func(t *testing.T, r *Result) {
			if len(r.Minutes) != soakPoints || len(r.Looks) != soakPoints+1 || r.Looks[0].Tables["tokens"].IndexBytes <= 0 ||
				r.Looks[0].Memory["router"] <= 0 || r.Details["last_to_first_ratio"] <= 0 || r.P99 <= 0 {
				t.Errorf("%+v", r.Run)
			}
		}},
		{"payload", func(o *Options) { o.PayloadBytes, o.InFlight, o.Steps = []int{1 << 10, 64 << 10}, []int{4}, 2 }, func(t *testing.T, r *Result) {
			if len(r.Runs) != 2 || r.Runs[1].PayloadBytes != 64<<10 {
				t.Errorf("%+v", r.Runs)
			}
		}},
	} {
		t.Run(test.scenario, func(t *testing.T) {
			opts := options(t, test.scenario)
			if test.change != nil {
				test.change(&opts)
			}
			result := onCluster(t, c, opts)
			if !result.Well() || test.scenario != "idle" && result.Completed == 0 {
				t.Errorf("not well: %+v", result)
			}
			if test.check != nil {
				test.check(t, result)
			}
		})
	}
}

// onCluster runs a scenario on a cluster that is shared.
func onCluster(t *testing.T, c *cluster.Cluster, opts Options) *Result {
	t.Helper()
	s, err := opts.complete()
	if err != nil {
		t.Fatal(err)
	}
	defer c.StopWorkers(context.Background())
	b, err := newBench(t.Context(), c, &opts)
	if err != nil {
		t.Fatal(err)
	}
	defer b.client.Close()
	result := &Result{Scenario: opts.Scenario, Settings: opts.settings()}
	if err := b.prepare(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	if err := b.sweep(t.Context(), s, result); err != nil {
		t.Fatal(err)
	}
	return result
}

// TestDo runs the limit and one scenario as a command would, traced and with profiles.
func TestDo(t *testing.T) { // PRF-6, PRF-7
	t.Parallel()
	opts := options(t, "one")
	opts.InFlight, opts.LimitDuration, opts.Profile, opts.ProfileDir = []int{5}, 200*time.Millisecond, "cpu", t.TempDir()
	opts.TraceRatio, opts.Duration = 1, 2*time.Second
	result, err := Do(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	if !result.Well() || *result.Limit <= 0 || *result.Ratio <= 0 || len(result.Settings.LimitRounds) != pgmeter.LimitRounds {
		t.Errorf("%+v", result)
	}
	for _, process := range []string{"bench", "postgres", "instances", "router", "worker"} {
		if _, ok := result.CPUSeconds[process]; !ok {
			t.Errorf("no CPU seconds of %s: %v", process, result.CPUSeconds)
		}
	}
	if result.TracedBytes <= 0 || result.Settings.TraceRatio != 1 {
		t.Errorf("%d bytes of spans, ratio %v", result.TracedBytes, result.Settings.TraceRatio)
	}
	if result.Machine.Postgres == "" || result.Settings.FSync != "off" {
		t.Errorf("%+v %+v", result.Machine, result.Settings)
	}
	profiles, err := os.ReadDir(opts.ProfileDir)
	if err != nil || len(profiles) != 3 {
		t.Errorf("profiles of three processes were asked for: %v, %v", profiles, err)
	}
	checkGolden(t, result)
}

// checkGolden compares which fields a result has with the golden file: they are an interface.
func checkGolden(t *testing.T, r *Result) {
	t.Helper()
	text, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	var document any
	if err := json.Unmarshal(text, &document); err != nil {
		t.Fatal(err)
	}
	var fields []string
	listFields(document, "", &fields)
	slices.Sort(fields)
	got := []byte(strings.Join(slices.Compact(fields), "\n") + "\n")
	const path = "testdata/result.golden"
	if *update {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("the fields of the result have changed (%v): is that meant? -update\n%s", err, got)
	}
}

// listFields lists the paths of a document with their types. What is below the free maps depends on the run.
func listFields(v any, path string, into *[]string) {
	switch v := v.(type) {
	case map[string]any:
		for name, value := range v {
			below := path + "." + name
			switch name {
			case "details", "rows_per_step_by_table", "environment", "runs":
				*into = append(*into, below)
			default:
				listFields(value, below, into)
			}
		}
	case []any:
		for _, value := range v {
			listFields(value, path+"[]", into)
		}
	default:
		*into = append(*into, fmt.Sprintf("%s %T", path, v))
	}
}

func TestRefusals(t *testing.T) {
	t.Parallel()
	for want, change := range map[string]func(o *Options){
		`there is no scenario "chian"; there are limit, chain,`: func(o *Options) { o.Scenario = "chian" },
		"--mode batched: fanout runs no chain":                  func(o *Options) { o.Scenario, o.Mode = "fanout", ModeBatched },
		`--mode "fast": use durable or batched`:                 func(o *Options) { o.Mode = "fast" },
		"--in-flight 0":                                         func(o *Options) { o.InFlight = []int{100, 0} },
		"--payload-bytes 7":                                     func(o *Options) { o.PayloadBytes = []int{7} },
		"--rate -1":                                             func(o *Options) { o.Rate = -1 },
		"--times 0.5: use 1":                                    func(o *Options) { o.Times = 0.5 },
		"--load 1.5: use a":                                     func(o *Options) { o.Load = 1.5 },
		"--hold -1":                                             func(o *Options) { o.HoldTime = -time.Second },
		"--profile \"time\"":                                    func(o *Options) { o.Profile = "time" },
		"--database-url goes":                                   func(o *Options) { o.DatabaseURLs = []string{"postgres://x/y"} },
		"--profile reaches":                                     func(o *Options) { o.Profile, o.Server = "cpu", "http://127.0.0.1:1" },
		"--trace 2: use a part":                                 func(o *Options) { o.TraceRatio = 2 },
		"--trace is for a":                                      func(o *Options) { o.TraceRatio, o.Server = 0.01, "http://127.0.0.1:1" },
		"--seconds, --warmup":                                   func(o *Options) { o.Duration = -1 },
		"--steps 100000: use 1":                                 func(o *Options) { o.Steps = 100_000 },
	} {
		opts := options(t, "chain")
		change(&opts)
		_, err := Do(t.Context(), opts)
		if wrong, ok := errors.AsType[*OptionError](err); !ok || !strings.HasPrefix(wrong.Message, want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}
