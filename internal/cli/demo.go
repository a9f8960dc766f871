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
	"github.com/wiggle-run/wiggle/internal/cli/shell"
	"github.com/wiggle-run/wiggle/internal/cli/timeline"
	"github.com/wiggle-run/wiggle/internal/demo"
	"github.com/wiggle-run/wiggle/pkg/topology"
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
	Indexed        int            `json:"indexed"`
	IndexDelayP99  float64        `json:"index_delay_p99_ms"`
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
	bar := p.shell().NewBar()
	result, err := demo.Run(ctx, s.Client, s.Shop, demo.Options{
		Count: f.demo, Seed: f.seed, Indexed: true, Progress: func(now demo.Progress) { showOrders(bar, now) },
	})
	bar.Close()
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
		return &shell.Failure{
			Exit: shell.ExitNotWell, Kind: "demo_incomplete",
			Message: fmt.Sprintf("%d of %d orders were not completed", f.demo-result.Completed, f.demo),
		}
	}
	return nil
}

// showOrders shows how far the orders are.
func showOrders(bar *shell.Bar, now demo.Progress) {
	rate := float64(now.Steps) / max(now.Elapsed.Seconds(), 1e-9)
	bar.Tell(shell.Progress{Done: now.Ended, Started: now.Started, Total: now.Total, Elapsed: now.Elapsed},
		fmt.Sprintf("%d of %d orders, %.0f steps/s", now.Ended, now.Total, rate))
}

func toDemoJSON(s *dev.Stack, r demo.Result) demoJSON {
	document := demoJSON{
		Started: r.Started, Completed: r.Completed, Failed: r.Failed, Seconds: round(r.Elapsed.Seconds(), 3),
		Steps: r.Steps, StepsPerSecond: round(r.StepsPerSecond(), 1), Retries: r.Retries, P50: millis(r.P50), P99: millis(r.P99),
		Indexed: r.Indexed, IndexDelayP99: millis(r.IndexDelayP99),
		ByShard: map[string]int{}, Workflow: demo.Workflow, Version: r.Version, Example: r.Example, Problems: r.Problems,
		Server: s.URL, DataDir: s.DataDir,
	}
	for _, d := range s.Databases {
		if !d.Roles.Has(topology.RoleInstances) {
			continue // no order is there
		}
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
	t := shell.NewTable(p.Out)
	t.Row("completed", fmt.Sprintf("%d of %d", r.Completed, count))
	t.Row("time", fmt.Sprintf("%.2f s", r.Elapsed.Seconds()))
	t.Row("steps", fmt.Sprintf("%d (%d of them retries), %.0f per second", r.Steps, r.Retries, r.StepsPerSecond()))
	t.Row("start to end", fmt.Sprintf("p50 %s, p99 %s", timeline.Duration(r.P50), timeline.Duration(r.P99)))
	t.Row("in the index", fmt.Sprintf("%d, p99 %s after its event", r.Indexed, timeline.Duration(r.IndexDelayP99)))
	var split []string
	for _, shard := range slices.Sorted(maps.Keys(r.ByShard)) {
		share := 100 * float64(r.ByShard[shard]) / float64(max(r.Started, 1))
		split = append(split, fmt.Sprintf("%d: %d (%.1f %%)", shard, r.ByShard[shard], share))
	}
	t.Row("by shard", strings.Join(split, ", "))
	t.Flush()
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
