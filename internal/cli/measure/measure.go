// Package measure is the command `wiggle bench`, and those of the processes that it starts.
package measure

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/wiggle-run/wiggle/internal/bench"
	"github.com/wiggle-run/wiggle/internal/bench/cluster"
	"github.com/wiggle-run/wiggle/internal/bench/steps"
	"github.com/wiggle-run/wiggle/internal/cli/shell"
)

// program is the shell with what these commands print by.
type program struct{ *shell.Shell }

func (p *program) printf(format string, args ...any) { _, _ = fmt.Fprintf(p.Out(), format, args...) }

// benchFlags are those of `wiggle bench`.
type benchFlags struct {
	bench.Options

	seconds, limitSeconds, warmup, hold float64
	postgres                            []string
	record                              string
}

// New makes the command.
func New(sh *shell.Shell) *cobra.Command {
	p := &program{sh}
	var f benchFlags
	var names, about strings.Builder
	for i, s := range bench.Scenarios() {
		if i > 0 {
			names.WriteByte('|')
		}
		names.WriteString(s.Name)
		fmt.Fprintf(&about, "  %-9s %s\n", s.Name, s.About)
	}
	cmd := &cobra.Command{
		Use:   "bench " + names.String(),
		Short: "Measure throughput, latency and cost, against what PostgreSQL can do",
		Long: `Measure throughput, latency and cost.

` + about.String() + `
Without --server a cluster of separate processes is started for it, and removed afterwards: PostgreSQL
with fsync on, instances, router and worker; the load comes from this process. Just before, the limit
is measured on the same PostgreSQL server, so that every figure comes with its ratio. Only completed
work is counted, and everything that was started must complete, or the exit code is 5.
docs/performance.md says how figures are taken.`,
		Example: `  wiggle bench chain --steps 8 --seconds 20 -o json
  wiggle bench chain --in-flight 100,500,2000 --repeat 3
  wiggle bench light --rate 10 --no-limit
  wiggle bench overload --times 20 --seconds 120
  wiggle bench backlog --count 1000000 --horizon --hold 300
  wiggle bench soak --load 0.8 --seconds 1800 --record
  wiggle bench one --shards 4 --profile cpu --profile-dir /tmp/profiles
  wiggle bench chain --server http://10.0.0.5:8420 --database-url postgres://db/wiggle`,
		Args: shell.Args(1, 1, "SCENARIO"),
		RunE: func(cmd *cobra.Command, args []string) error { return p.bench(cmd, args[0], f) },
	}
	f.declare(cmd)
	for _, s := range bench.Scenarios() {
		cmd.ValidArgs = append(cmd.ValidArgs, s.Name)
	}
	return cmd
}

func (f *benchFlags) declare(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.IntVar(&f.Steps, "steps", 0, "steps of a chain (default 8)")
	flags.Float64Var(&f.seconds, "seconds", 0, "length of the measured window (default 20; 120 for overload, 1800 for soak)")
	flags.Float64Var(&f.warmup, "warmup", 0, "seconds of load before it (default 3)")
	flags.IntVar(&f.Repeat, "repeat", 0, "measure so often and report the median (default 1)")
	flags.IntSliceVar(&f.InFlight, "in-flight", nil,
		"instances in flight; of several the best is reported (default 100,500,2000 for chain and one, 1000 for overload and soak)")
	flags.IntSliceVar(&f.PayloadBytes, "payload-bytes", nil, "size of a context; several are tried one after the other (default 200)")
	flags.Float64Var(&f.Rate, "rate", 0,
		"start so many instances a second, whatever becomes of them (default 10 for light, else a closed loop)")
	flags.IntVar(&f.Width, "width", 0, "branches of a fan-out (default 1000)")
	flags.IntVar(&f.Count, "count", 0, "how many timers (default 10000), ready tokens (100000) or idle workers (200)")
	flags.Float64Var(&f.Times, "times", 0, "overload: how many times the sustainable starts are offered (default 20)")
	flags.Float64Var(&f.Load, "load", 0, "soak: part of the peak, which is measured just before (default 0.8)")
	flags.StringVar(&f.Mode, "mode", bench.ModeDurable,
		"durable: every step is committed before its successor is seen; batched: workers report the steps of a chain together")
	flags.BoolVar(&f.HoldHorizon, "horizon", false,
		"backlog: hold a transaction open on each shard before and during the claims")
	flags.Float64Var(&f.hold, "hold", 0, "backlog: seconds that it is held before the claims (default 300)")
	flags.StringSliceVar(&f.DatabaseURLs, "database-url", nil, "databases behind --server, for the limit and PostgreSQL's counters")
	flags.IntVar(&f.Shards, "shards", 0, "databases of a cluster of our own (default 1)")
	flags.IntVar(&f.Instances, "instances", 0, "instances processes of a cluster of our own (default 1)")
	flags.IntVar(&f.Workers, "workers", 0, "worker processes (default 1)")
	flags.IntVar(&f.LoggedEvents, "logged-events", 0,
		"fill each shard's event log with so many entries first, half of them beyond their retention, and follow it meanwhile")
	flags.StringSliceVar(&f.With, "with", nil,
		"also run leader, search, auth, of a cluster of our own; leader relays events only with search, which has NATS beside it;"+
			" with auth callers are checked")
	flags.Float64Var(&f.TraceRatio, "trace", 0,
		"part of traces that services sample and export, 0.01 for one in a hundred (default none)")
	flags.IntVar(&f.Concurrency, "concurrency", 0, "handlers at a time in each worker (default 1000)")
	flags.StringVar(&f.DataDir, "data-dir", "", "`directory` for data and logs, which then stay (default one in /var/tmp, removed)")
	flags.StringArrayVar(&f.postgres, "postgres", nil, "`name=value` of a setting of PostgreSQL, of a cluster of our own")
	flags.BoolVar(&f.NoLimit, "no-limit", false, "do not measure the limit")
	flags.Float64Var(&f.limitSeconds, "limit-seconds", 0, "length of each of the limit's three rounds (default 10)")
	flags.StringVar(&f.Profile, "profile", "", "take a profile of every process: "+strings.Join(bench.ProfileKinds(), ", "))
	flags.StringVar(&f.ProfileDir, "profile-dir", "profiles", "`directory` for profiles")
	flags.StringVar(&f.record, "record", "",
		"append the result, a line of JSON, to SCENARIO.jsonl, or SCENARIO-batched.jsonl, in this `directory`")
	flags.Lookup("record").NoOptDefVal = filepath.Join("docs", "benchmarks")
}

func (p *program) bench(cmd *cobra.Command, name string, f benchFlags) error {
	if err := p.benchOptions(cmd, name, &f); err != nil {
		return err
	}
	result, err := bench.Do(cmd.Context(), f.Options)
	if wrong, ok := errors.AsType[*bench.OptionError](err); ok {
		return shell.Usage(cmd, wrong)
	}
	if err != nil {
		return err
	}
	if p.JSON() {
		err = p.PrintJSON(result)
	} else {
		p.printBench(result)
	}
	if err == nil && f.record != "" && result.Well() {
		err = record(f.record, result)
	}
	if err == nil && !result.Well() {
		err = &shell.Failure{Exit: shell.ExitNotWell, Kind: "bench_incomplete", Message: benchFault(result)}
	}
	return err
}

// benchOptions fills in what is not a flag as it is.
func (p *program) benchOptions(cmd *cobra.Command, name string, f *benchFlags) error {
	f.Scenario, f.Environ, f.Progress = name, p.Environ(), p.Err()
	f.Server, _ = cmd.Flags().GetString("server") // without its default: then a cluster of our own
	f.Duration, f.LimitDuration, f.Warmup = seconds(f.seconds), seconds(f.limitSeconds), seconds(f.warmup)
	f.HoldTime = seconds(f.hold)
	f.Postgres = map[string]string{}
	for _, setting := range f.postgres {
		key, value, ok := strings.Cut(setting, "=")
		if !ok {
			return shell.Usage(cmd, fmt.Errorf("--postgres %q: want name=value", setting))
		}
		f.Postgres[key] = value
	}
	self, err := os.Executable()
	f.Command = []string{self}
	return err
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

func benchFault(r *bench.Result) string {
	if len(r.Problems) > 0 {
		return fmt.Sprintf("%d errors; the first: %s", r.Errors, r.Problems[0])
	}
	return fmt.Sprintf("%d errors", r.Errors)
}

// record appends a result to the records of its scenario. Those of batched mode are apart.
func record(dir string, r *bench.Result) error {
	line, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("record: %w", err)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil { //nolint:gosec // to be read
		return err
	}
	name := r.Scenario
	if r.Mode != bench.ModeDurable {
		name += "-" + r.Mode
	}
	path := filepath.Join(dir, name+".jsonl")
	file, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644) //nolint:gosec // to be read
	if err != nil {
		return err
	}
	_, err = file.Write(append(line, '\n'))
	return errors.Join(err, file.Close())
}

func (p *program) printBench(r *bench.Result) {
	t := p.Table()
	t.Row("scenario", r.Scenario+", "+r.Mode)
	if r.Limit != nil {
		t.Row("limit", number(*r.Limit)+" steps/s")
	}
	if r.Scenario != "limit" {
		printRun(t, r)
	}
	m, s := r.Machine, r.Settings
	t.Row("machine", fmt.Sprintf("%s, %d cores, %.1f GiB, kernel %s, PostgreSQL %s, %s, load before %.1f",
		m.CPU, m.Cores, float64(m.MemoryBytes)/(1<<30), m.Kernel, m.Postgres, m.Go, m.Load))
	t.Row("settings", fmt.Sprintf("fsync %s, synchronous_commit %s, shared_buffers %s",
		orUnknown(s.FSync), orUnknown(s.SynchronousCommit), orUnknown(s.SharedBuffers)))
	if s.Server != "" {
		t.Row("cluster", fmt.Sprintf("%s, %d worker processes here", s.Server, s.Workers))
	} else {
		t.Row("cluster", fmt.Sprintf("%d shards, %d instances processes, 1 router, %d worker processes", s.Shards, s.Instances, s.Workers))
	}
	t.Row("commit", r.Commit+" "+r.Date.Format(time.RFC3339))
	t.Flush()
	p.printRuns(r)
	for _, problem := range r.Problems {
		p.printf("problem: %s\n", problem)
	}
}

func printRun(t *shell.Table, r *bench.Result) {
	if r.InFlight > 0 {
		t.Row("in flight", strconv.Itoa(r.InFlight))
	}
	t.Row("context", fmt.Sprintf("%d bytes", r.PayloadBytes))
	rate := number(r.StepsPerSecond) + " steps/s, " + number(r.InstancesPerSecond) + " instances/s"
	if r.Ratio != nil && *r.Ratio > 0 {
		rate += fmt.Sprintf("; 1/%.1f of the limit", 1 / *r.Ratio)
	}
	t.Row("rate", rate)
	if r.P50 > 0 {
		t.Row("latency", fmt.Sprintf("p50 %.2f ms, p95 %.2f ms, p99 %.2f ms", r.P50, r.P95, r.P99))
	}
	t.Row("completed", fmt.Sprintf("%d in %.2f s, %d errors", r.Completed, r.Seconds, r.Errors))
	for _, name := range slices.Sorted(maps.Keys(r.CPUSeconds)) {
		text := fmt.Sprintf("%.2f s", r.CPUSeconds[name])
		if per, ok := r.CPUPerStep[name]; ok {
			text += fmt.Sprintf(", %.0f us a step", per)
		}
		t.Row("CPU of "+name, text)
	}
	if r.CommitsPerStep != nil {
		t.Row("a step costs", fmt.Sprintf("%.3f commits, %.0f bytes of WAL, %.2f row versions",
			*r.CommitsPerStep, *r.WALBytesPerStep, *r.RowVersionsPerStep))
	}
	if r.HotRatio != nil {
		t.Row("updates", fmt.Sprintf("%.1f %% HOT", 100**r.HotRatio))
	}
	for _, name := range slices.Sorted(maps.Keys(r.Details)) {
		t.Row(strings.ReplaceAll(name, "_", " "), strconv.FormatFloat(r.Details[name], 'f', -1, 64))
	}
}

func (p *program) printRuns(r *bench.Result) {
	if len(r.Runs) < 2 {
		return
	}
	p.printf("\n")
	t := p.Table("IN FLIGHT", "BYTES", "STEPS/S", "INSTANCES/S", "P50 MS", "P99 MS", "ERRORS")
	for _, run := range r.Runs {
		t.Row(strconv.Itoa(run.InFlight), strconv.Itoa(run.PayloadBytes), number(run.StepsPerSecond), number(run.InstancesPerSecond),
			fmt.Sprintf("%.2f", run.P50), fmt.Sprintf("%.2f", run.P99), strconv.FormatInt(run.Errors, 10))
	}
	t.Flush()
}

func orUnknown(text string) string {
	if text == "" {
		return "unknown"
	}
	return text
}

func number(v float64) string { return strconv.FormatFloat(v, 'f', 0, 64) }

// NewWorker is a process of the bench, not a command for people.
func NewWorker(sh *shell.Shell) *cobra.Command {
	var opts steps.WorkerOptions
	cmd := &cobra.Command{
		Use: steps.CommandWorker, Short: "Run the steps of wiggle bench", Hidden: true, Args: shell.Args(0, 0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			opts.Server = sh.Server()
			opts.Logger = slog.New(slog.NewTextHandler(sh.Err(), &slog.HandlerOptions{Level: slog.LevelWarn}))
			return steps.RunWorker(cmd.Context(), opts, cmd.InOrStdin(), sh.Out())
		},
	}
	cmd.Flags().IntVar(&opts.Sessions, "sessions", 1, "how many workers")
	cmd.Flags().IntVar(&opts.Concurrency, "concurrency", 1, "handlers at a time in each")
	cmd.Flags().StringVar(&opts.Profiles, "pprof", "", "address for profiles")
	return cmd
}

// NewNATS is another.
func NewNATS() *cobra.Command {
	var dir string
	var port int
	cmd := &cobra.Command{
		Use: cluster.CommandNATS, Short: "Run NATS for wiggle bench", Hidden: true, Args: shell.Args(0, 0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error { return cluster.RunNATS(cmd.Context(), dir, port) },
	}
	cmd.Flags().StringVar(&dir, "dir", "", "where the stream is kept")
	cmd.Flags().IntVar(&port, "port", 0, "port on 127.0.0.1")
	return cmd
}
