package cli

import (
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/wiggle-run/wiggle/internal/app/dev"
	"github.com/wiggle-run/wiggle/internal/cli/timeline"
	"github.com/wiggle-run/wiggle/internal/demo"
)

// demoJSON is what `wiggle dev --demo N -o json` prints.
type demoJSON struct {
	Started        int            `json:"started"`
	Completed      int            `json:"completed"`
	Failed         int            `json:"failed"`
	Seconds        float64        `json:"seconds"`
	Steps          int64          `json:"steps"`
	StepsPerSecond float64        `json:"steps_per_second"`
	Retries        int64          `json:"retries"`
	P50            float64        `json:"p50_ms"`
	P99            float64        `json:"p99_ms"`
	ByShard        map[string]int `json:"by_shard"`
	Workflow       string         `json:"workflow"`
	Version        int            `json:"version"`
	Example        string         `json:"example,omitempty"`
	Problems       []string       `json:"problems,omitempty"`
	Server         string         `json:"server"`
	DataDir        string         `json:"data_dir"`
}

// demo runs the orders and shows how it went.
func (p *Program) demo(ctx context.Context, s *dev.Stack, f devFlags) error {
	if !p.json() {
		p.printWhere(s)
		p.printf("\n")
	}
	progress := newProgress(p)
	result, err := demo.Run(ctx, s.Client, s.Shop, demo.Options{Count: f.demo, Seed: f.seed, Progress: progress.show})
	progress.done()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if p.json() {
		if err := p.printJSON(toDemoJSON(s, result)); err != nil {
			return err
		}
	} else {
		p.printDemo(ctx, s, f.demo, result)
	}
	if err != nil {
		return err
	}
	if result.Completed != f.demo {
		return &failure{
			exit: exitNotWell, kind: "demo_incomplete",
			message: fmt.Sprintf("%d of %d orders were not completed", f.demo-result.Completed, f.demo),
		}
	}
	return nil
}

func toDemoJSON(s *dev.Stack, r demo.Result) demoJSON {
	document := demoJSON{
		Started: r.Started, Completed: r.Completed, Failed: r.Failed, Seconds: round(r.Elapsed.Seconds(), 3),
		Steps: r.Steps, StepsPerSecond: round(r.StepsPerSecond(), 1), Retries: r.Retries, P50: millis(r.P50), P99: millis(r.P99),
		ByShard: map[string]int{}, Workflow: demo.Workflow, Version: r.Version, Example: r.Example, Problems: r.Problems,
		Server: s.URL, DataDir: s.DataDir,
	}
	for _, d := range s.Databases {
		document.ByShard[strconv.Itoa(d.Shard)] = r.ByShard[d.Shard]
	}
	return document
}

func millis(d time.Duration) float64 { return round(float64(d)/float64(time.Millisecond), 1) }

// round leaves so many decimals: more would only look exact.
func round(value float64, decimals int) float64 {
	factor := math.Pow10(decimals)
	return math.Round(value*factor) / factor
}

func (p *Program) printDemo(ctx context.Context, s *dev.Stack, count int, r demo.Result) {
	t := newTable(p.Out)
	t.row("completed", fmt.Sprintf("%d of %d", r.Completed, count))
	t.row("time", fmt.Sprintf("%.2f s", r.Elapsed.Seconds()))
	t.row("steps", fmt.Sprintf("%d (%d of them retries), %.0f per second", r.Steps, r.Retries, r.StepsPerSecond()))
	t.row("start to end", fmt.Sprintf("p50 %s, p99 %s", timeline.Duration(r.P50), timeline.Duration(r.P99)))
	var split []string
	for _, shard := range slices.Sorted(maps.Keys(r.ByShard)) {
		share := 100 * float64(r.ByShard[shard]) / float64(max(r.Started, 1))
		split = append(split, fmt.Sprintf("%d: %d (%.1f %%)", shard, r.ByShard[shard], share))
	}
	t.row("by shard", strings.Join(split, ", "))
	t.flush()
	for _, problem := range r.Problems {
		p.printf("problem: %s\n", problem)
	}
	if r.Example == "" {
		return
	}
	inst, err := s.Client.Get(ctx, r.Example)
	if err == nil {
		history, herr := readHistory(ctx, s.Client, r.Example)
		if err = herr; err == nil {
			p.printf("\none of them: %s, %s in %s\n\n", inst.ID, inst.State, p.took(inst))
			err = p.drawTimeline(inst, history)
		}
	}
	if err != nil {
		_, _ = fmt.Fprintf(p.Err, "the trace of %s is not shown: %v\n", r.Example, err)
	}
}
