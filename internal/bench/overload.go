package bench

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/wiggle-run/wiggle/internal/bench/offer"
	wiggle "github.com/wiggle-run/wiggle/sdk/go"
)

// peakTime is how long the peak is measured at most.
const peakTime = 20 * time.Second

// peak measures what a closed loop does now, on the cluster as it is.
func (b *bench) peak(ctx context.Context, w workload, inFlight int) (Run, error) {
	o := *b.opts
	o.Duration = min(o.Duration, peakTime)
	beside := *b
	beside.opts = &o
	run, err := beside.window(ctx, w, inFlight)
	if err != nil {
		return Run{}, fmt.Errorf("measure the peak: %w", err)
	}
	b.opts.progressf("peak: %.0f steps/s, %.1f instances/s", run.StepsPerSecond, run.InstancesPerSecond)
	if run.InstancesPerSecond == 0 {
		return Run{}, fmt.Errorf("measure the peak: no instance ended in %v", o.Duration)
	}
	return run, nil
}

// runOverload offers many times the starts that are sustainable, and then waits until all that was accepted has ended.
func runOverload(ctx context.Context, b *bench, p point) (Run, error) {
	load := b.chainLoad(p)
	peak, err := b.peak(ctx, load, p.inFlight)
	if err != nil {
		return Run{}, err
	}
	input, ok := load.input.(wiggle.Payload)
	if !ok {
		return Run{}, fmt.Errorf("a flood of %s: its input is no payload", load.workflow)
	}
	f, err := offer.NewFlood(b.client, load.workflow, input.Data)
	if err != nil {
		return Run{}, err
	}
	run := Run{InFlight: p.inFlight}
	since := time.Now().Add(b.skew - clockSlack)
	before, after, err := b.flood(ctx, f, b.opts.Times*peak.InstancesPerSecond, &run)
	if err != nil {
		return Run{}, err
	}
	left, err := b.awaitEnds(ctx, load.workflow, since)
	if err != nil {
		return Run{}, err
	}
	run.detail("backlog_at_end", float64(left))
	run.detail("drain_seconds", round(time.Since(after.at).Seconds(), 2))
	took := after.at.Sub(before.at)
	seen := newEnds(before.at.Add(b.skew), took, 1)
	if err := b.readEnds(ctx, load.workflow, since, seen); err != nil {
		return Run{}, err
	}
	latencies := seen.parts[0]
	run.setRate(int64(len(latencies)), int64(len(latencies))*load.steps, took)
	run.setLatency(latencies)
	run.setCosts(before, after)
	run.detailPeak(&peak)
	run.detail("offered_to_sustainable", round(float64(f.Offered)/took.Seconds()/peak.InstancesPerSecond, 2))
	run.detailOffer(&f.Counts, took)
	seen.check(&run, f.Accepted)
	return run, nil
}

// flood offers so many starts a second, and looks at what that takes of memory.
func (b *bench) flood(ctx context.Context, f *offer.Flood, rate float64, run *Run) (before, after sample, err error) {
	memory := b.WatchMemory(ctx)
	defer memory.Stop()
	if before, err = b.sample(ctx); err != nil {
		return before, after, err
	}
	offered := make(chan error, 1)
	go func() { offered <- f.Run(ctx, rate, b.opts.Duration) }()
	err = b.pause(ctx, b.opts.Duration/4)
	run.detailMemory("quarter", memory.Look())
	if err = firstError(<-offered, err); err != nil {
		return before, after, err
	}
	run.detailMemory("end", memory.Look())
	if after, err = b.sample(ctx); err != nil {
		return before, after, err
	}
	run.detailMemory("most", memory.End())
	return before, after, nil
}

// detailPeak compares with the peak. Where others use the machine too, what a step costs tells more than how many there were.
func (r *Run) detailPeak(peak *Run) {
	r.detail("peak_steps_per_second", peak.StepsPerSecond)
	r.detail("completed_ratio_to_peak", round(r.StepsPerSecond/peak.StepsPerSecond, 3))
	for name, us := range peak.CPUPerStep {
		r.detail("peak_cpu_us_per_step_"+name, us)
	}
	if was := sumOf(peak.CPUPerStep); was > 0 {
		r.detail("cpu_per_step_to_peak", round(sumOf(r.CPUPerStep)/was, 3))
	}
}

func sumOf(values map[string]float64) float64 {
	sum := 0.0
	for _, v := range values {
		sum += v
	}
	return sum
}

// awaitEnds counts until no instance of a workflow runs, and tells how many did at first.
func (b *bench) awaitEnds(ctx context.Context, workflow string, since time.Time) (first int64, err error) {
	filter := wiggle.Filter{Workflow: workflow, States: []wiggle.State{wiggle.Running}, CreatedFrom: since}
	last, changed := int64(-1), time.Now()
	for {
		counts, err := b.client.Count(ctx, filter)
		if err != nil {
			return first, err
		}
		if last < 0 {
			first = counts.Total
		}
		switch {
		case counts.Total == 0:
			return first, nil
		case counts.Total != last:
			last, changed = counts.Total, time.Now()
		case time.Since(changed) > stallTime:
			return first, stalled(counts.Total, first, stallTime)
		}
		if err := b.pause(ctx, timerCountEvery); err != nil {
			return first, err
		}
	}
}

// detailOffer adds what became of what was offered for so long.
func (r *Run) detailOffer(f *offer.Counts, d time.Duration) {
	perSecond := func(n int64) float64 { return round(float64(n)/d.Seconds(), 1) }
	r.detail("offered_per_second", perSecond(f.Offered))
	r.detail("accepted_per_second", perSecond(f.Accepted))
	r.detail("accepted", float64(f.Accepted))
	for _, code := range slices.Sorted(maps.Keys(f.Refused)) {
		r.detail("refused_"+code+"_per_second", perSecond(f.Refused[code]))
	}
	r.detail("refused_untyped", float64(f.Untyped))
	r.detailQuantiles("retry_after", f.Pauses)
	r.Errors += f.Untyped
	for _, text := range f.Failures {
		r.problem(text)
	}
}
