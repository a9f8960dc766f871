package bench

import (
	"slices"
	"testing"
	"time"

	wiggle "github.com/wiggle-run/wiggle/sdk/go"
)

func TestEnds(t *testing.T) {
	t.Parallel()
	began := time.Unix(1000, 0)
	e := newEnds(began, time.Minute, 2)
	ended := func(after time.Duration) *wiggle.Instance {
		return &wiggle.Instance{State: wiggle.Completed, EndedAt: began.Add(after)}
	}
	e.add(ended(-time.Second), began.Add(-2*time.Second))
	e.add(ended(time.Second), began)
	e.add(ended(61*time.Second), began.Add(time.Minute))
	e.add(ended(62*time.Second), began.Add(time.Minute))
	e.add(ended(2*time.Minute), began)
	e.add(&wiggle.Instance{ID: "x", State: wiggle.Failed}, began)
	if !slices.Equal(e.parts[0], []time.Duration{time.Second}) || !slices.Equal(e.parts[1], []time.Duration{time.Second, 2 * time.Second}) {
		t.Errorf("%v", e.parts)
	}
	var run Run
	e.check(&run, 8)
	if run.Errors != 3 || len(run.problems) != 2 { // one failed, two are not listed
		t.Errorf("%d errors: %q", run.Errors, run.problems)
	}
}

// TestSoakRun: the first and the last part are compared, and each has its percentiles.
func TestSoakRun(t *testing.T) {
	t.Parallel()
	e := newEnds(time.Unix(1000, 0), time.Minute, 20)
	for i := range e.parts {
		n := 600
		if i >= 15 {
			n = 540
		}
		for k := range n {
			e.parts[i] = append(e.parts[i], time.Duration(k+1)*time.Millisecond)
		}
	}
	run := soakRun(e, 8, 20*time.Minute)
	if run.Details["first_steps_per_second"] != 80 || run.Details["last_steps_per_second"] != 72 || run.Details["last_to_first_ratio"] != 0.9 {
		t.Errorf("%v", run.Details)
	}
	if m := run.Minutes[3]; m.Second != 180 || m.InstancesPerSecond != 10 || m.P50 != 300 || m.P99 != 594 {
		t.Errorf("%+v", m)
	}
	if run.Completed != 15*600+5*540 || run.StepsPerSecond != 78 {
		t.Errorf("%d completed, %v steps/s", run.Completed, run.StepsPerSecond)
	}
	for d, want := range map[time.Duration]time.Duration{30 * time.Minute: time.Minute, 5 * time.Minute: 30 * time.Second, time.Second: 100 * time.Millisecond} {
		if got := soakPart(d); got != want {
			t.Errorf("a soak of %v is told by %v, want %v", d, got, want)
		}
	}
}
