package bench

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/wiggle-run/wiggle/internal/bench/cluster"
	"github.com/wiggle-run/wiggle/internal/bench/offer"
	"github.com/wiggle-run/wiggle/internal/bench/pgmeter"
)

const (
	// soakPoints is how often a soak looks at sizes and memory.
	soakPoints = 10
	// soakEvery is over how long a soak takes its percentiles, and soakEdge how much of it is compared, the first and the
	// last: or a quarter, if it is short.
	soakEvery = time.Minute
	soakEdge  = 5 * time.Minute
)

// Minute is a part of a long run.
type Minute struct {
	// Second is when it begins.
	Second             float64 `json:"second"`
	InstancesPerSecond float64 `json:"instances_per_second"`
	P50                float64 `json:"p50_ms"`
	P99                float64 `json:"p99_ms"`
}

// Look is how large everything was at a moment of a long run.
type Look struct {
	Second float64 `json:"second"`
	// Memory of each process, in MiB.
	Memory map[string]float64 `json:"memory_mib"`
	// Tables of all shards.
	Tables map[string]pgmeter.Size `json:"tables"`
}

// runSoak starts instances at a part of the peak, for long.
func runSoak(ctx context.Context, b *bench, p point) (Run, error) {
	load := b.chainLoad(p)
	peak, err := b.peak(ctx, load, p.inFlight)
	if err != nil {
		return Run{}, err
	}
	rate := b.opts.Load * peak.InstancesPerSecond
	b.opts.progressf("soak: %.1f instances a second for %v", rate, b.opts.Duration)
	s := offer.NewSteady(b.client, load.workflow, load.input)
	since := time.Now().Add(b.skew - clockSlack)
	memory := b.WatchMemory(ctx)
	defer memory.Stop()
	before, err := b.sample(ctx)
	if err != nil {
		return Run{}, err
	}
	started := make(chan error, 1)
	go func() { started <- s.Run(ctx, rate, b.opts.Duration) }()
	looks, err := b.looks(ctx, memory, before.at)
	if err = firstError(<-started, err); err != nil {
		return Run{}, err
	}
	after, err := b.sample(ctx)
	if err != nil {
		return Run{}, err
	}
	if _, err := b.awaitEnds(ctx, load.workflow, since); err != nil {
		return Run{}, err
	}
	last, err := b.look(ctx, memory, before.at)
	if err != nil {
		return Run{}, err
	}
	most := memory.End()
	part := soakPart(b.opts.Duration)
	seen := newEnds(before.at.Add(b.skew), part, int(b.opts.Duration/part))
	if err := b.readEnds(ctx, load.workflow, since, seen); err != nil {
		return Run{}, err
	}
	run := soakRun(seen, load.steps, b.opts.Duration)
	looks = append(looks, last)
	run.InFlight, run.Looks = p.inFlight, looks
	run.setCosts(before, after)
	run.detailPeak(&peak)
	run.detail("started_per_second", round(float64(s.Accepted)/b.opts.Duration.Seconds(), 1))
	run.detail("intended_per_second", round(rate, 1))
	run.detailMemory("most", most)
	run.Errors += s.Failed
	for _, text := range s.Failures {
		run.problem(text)
	}
	seen.check(&run, s.Accepted)
	return run, nil
}

// soakPart is over how long percentiles are taken: a minute, or less in a run that has not ten of them.
func soakPart(d time.Duration) time.Duration {
	return max(min(soakEvery, d/soakPoints), 100*time.Millisecond)
}

// soakRun sums up what ended in time.
func soakRun(seen *ends, steps int64, d time.Duration) Run {
	var run Run
	var all []time.Duration
	for i, latencies := range seen.parts {
		q := quantilesOf(latencies)
		run.Minutes = append(run.Minutes, Minute{
			Second:             round((time.Duration(i) * seen.every).Seconds(), 1),
			InstancesPerSecond: round(float64(len(latencies))/seen.every.Seconds(), 1),
			P50:                millis(q.p50), P99: millis(q.p99),
		})
		all = append(all, latencies...)
	}
	run.setRate(int64(len(all)), int64(len(all))*steps, d)
	run.setLatency(all)
	edge := max(int(min(soakEdge, d/4)/seen.every), 1)
	first, last := meanRate(run.Minutes[:edge]), meanRate(run.Minutes[len(run.Minutes)-edge:])
	run.detail("first_steps_per_second", round(first*float64(steps), 1))
	run.detail("last_steps_per_second", round(last*float64(steps), 1))
	if first > 0 {
		run.detail("last_to_first_ratio", round(last/first, 4))
	}
	return run
}

func meanRate(minutes []Minute) float64 {
	sum := 0.0
	for _, m := range minutes {
		sum += m.InstancesPerSecond
	}
	return sum / float64(len(minutes))
}

// looks are those at the beginning and after each tenth of the time but the last.
func (b *bench) looks(ctx context.Context, memory *cluster.MemoryWatch, began time.Time) ([]Look, error) {
	var all []Look
	for i := range soakPoints {
		at := began.Add(time.Duration(i) * b.opts.Duration / soakPoints)
		if err := b.pause(ctx, max(time.Until(at), 0)); err != nil {
			return nil, err
		}
		one, err := b.look(ctx, memory, began)
		if err != nil {
			return nil, err
		}
		all = append(all, one)
		b.opts.progressf("%s", one.line())
	}
	return all, nil
}

func (b *bench) look(ctx context.Context, memory *cluster.MemoryWatch, began time.Time) (Look, error) {
	sizes, err := b.Databases.Sizes(ctx)
	if err != nil {
		return Look{}, err
	}
	one := Look{Second: round(time.Since(began).Seconds(), 1), Memory: map[string]float64{}, Tables: sizes}
	for name, bytes := range memory.Look() {
		one.Memory[name] = mebibytes(bytes)
	}
	return one, nil
}

// line is a look in short.
func (l *Look) line() string {
	text := fmt.Sprintf("after %.0f s:", l.Second)
	for _, name := range slices.Sorted(maps.Keys(l.Memory)) {
		text += fmt.Sprintf(" %s %.0f MiB,", name, l.Memory[name])
	}
	t := l.Tables["tokens"]
	return text + fmt.Sprintf(" tokens %.1f MiB and %.1f of indexes, %d dead", mebibytes(t.Bytes), mebibytes(t.IndexBytes), t.Dead)
}
