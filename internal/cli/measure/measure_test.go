package measure

import (
	"bytes"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/wiggle-run/wiggle/internal/bench"
	"github.com/wiggle-run/wiggle/internal/cli/shell"
)

// benchResult is one that has everything.
func benchResult() *bench.Result {
	some := func(v float64) *float64 { return &v }
	first := bench.Run{
		InFlight: 100, PayloadBytes: 200, StepsPerSecond: 14_000, InstancesPerSecond: 1750, P50: 40.1, P95: 60, P99: 90.5,
		Completed: 35_000, Seconds: 20, CPUSeconds: map[string]float64{"router": 7.5, "postgres": 12}, CPUPerStep: map[string]float64{"router": 27},
		CommitsPerStep: some(0.02), WALBytesPerStep: some(410), RowVersionsPerStep: some(1.4), HotRatio: some(0.987),
		Details: map[string]float64{"ready_to_running_p50_ms": 0.7},
	}
	second := first
	second.InFlight, second.StepsPerSecond, second.Errors = 500, 13_000, 1
	return &bench.Result{
		Scenario: "chain", Mode: "durable", Run: first, Limit: some(112_000), Ratio: some(0.125), Runs: []bench.Run{first, second},
		Date: time.Date(2026, 10, 2, 12, 0, 0, 0, time.UTC), Commit: "0123456789ab+",
		Machine:  bench.Machine{CPU: "A CPU", Cores: 2, MemoryBytes: 8 << 30, Kernel: "6.1", Go: "go1.26", Postgres: "15.1"},
		Settings: bench.Settings{FSync: "on", SynchronousCommit: "on", SharedBuffers: "512MB", Shards: 1, Instances: 1, Workers: 1},
		Problems: []string{"wfi.s0.x is FAILED: no failure"},
	}
}

func TestBenchTable(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	p := &program{&shell.Shell{Out: func() io.Writer { return &out }}}
	p.printBench(benchResult())
	want, err := os.ReadFile("testdata/bench.txt")
	if err != nil || out.String() != string(want) {
		t.Errorf("%v: got\n%s\nwant\n%s", err, out.String(), want)
	}
}

func TestBenchRecord(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "benchmarks")
	for range 2 {
		if err := record(dir, benchResult()); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(filepath.Join(dir, "chain.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	var back bench.Result
	batched := benchResult()
	batched.Mode = bench.ModeBatched
	if err := record(dir, batched); err != nil {
		t.Fatal(err)
	}
	if apart, err := os.ReadFile(filepath.Join(dir, "chain-batched.jsonl")); err != nil || !strings.Contains(string(apart), `"mode":"batched"`) {
		t.Errorf("a batched result: %v, %s", err, apart)
	}
	if len(lines) != 2 || json.Unmarshal([]byte(lines[1]), &back) != nil || back.StepsPerSecond != 14_000 || *back.Ratio != 0.125 || back.Well() {
		t.Errorf("%d lines: %s", len(lines), text)
	}
}
