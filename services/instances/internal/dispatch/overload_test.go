package dispatch_test

import (
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/wiggle-run/wiggle/services/instances/internal/dispatch"
	"github.com/wiggle-run/wiggle/services/instances/internal/machine"
	"github.com/wiggle-run/wiggle/services/instances/internal/store"
)

// inOneLane makes starts of one lane.
func inOneLane(n, bytes int) []dispatch.StartItem {
	items := make([]dispatch.StartItem, n)
	for i := range items {
		items[i] = newStart()
		items[i].Event.ID[15] = 0
		items[i].Event.Input.Data = make([]byte, bytes)
	}
	return items
}

// refusals counts starts that were refused as they must be.
func refusals(t *testing.T, results []dispatch.Started) (refused int) {
	t.Helper()
	for _, s := range results {
		overload, ok := errors.AsType[*dispatch.OverloadError](s.Err)
		switch {
		case s.Err == nil:
		case !ok || !overload.Start || overload.RetryAfter <= 0 || !errors.Is(s.Err, dispatch.ErrOverloaded):
			t.Fatalf("a start failed: %v", s.Err)
		default:
			refused++
		}
	}
	return refused
}

// TestStartsAreBounded: what does not fit is refused, by number and by bytes, and nothing of it is applied (WRK-15).
func TestStartsAreBounded(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name                string
		starts, bytes, most int
	}{
		{"number", 8000, 0, 5000},
		{"bytes", 100, 1 << 20, 16},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				release := make(chan struct{})
				b := newBench(t, func(store.Keys) error { <-release; return nil })
				first := newStart()
				first.Event.ID[15] = 0
				var calls sync.WaitGroup
				calls.Go(func() { b.Start([]dispatch.StartItem{first}) })
				synctest.Wait() // the lane is busy
				var results []dispatch.Started
				calls.Go(func() { results = b.Start(inOneLane(test.starts, test.bytes)) })
				synctest.Wait()
				close(release)
				calls.Wait()
				if refused := refusals(t, results); refused != test.starts-test.most {
					t.Errorf("%d of %d were refused, want all but %d", refused, test.starts, test.most)
				}
			})
		})
	}
}

// TestReportsAreBounded: there is far more room for what belongs to work under way, and what does not fit is told apart.
func TestReportsAreBounded(t *testing.T) {
	t.Parallel()
	cfg := dispatch.DefaultConfig()
	cfg.QueueLength, cfg.QueueBytes = 100, 1000
	for name, test := range map[string]struct{ events, bytes, most int }{"number": {120, 1, 100}, "bytes": {120, 50, 20}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				release := make(chan struct{})
				b := newBenchWith(t, cfg, func(store.Keys) error { <-release; return nil })
				var calls sync.WaitGroup
				calls.Go(func() { b.Start(inOneLane(1, 0)) })
				synctest.Wait()
				report := dispatch.Report(store.Lease{Fence: 1}, machine.Report{Result: machine.Payload{Data: make([]byte, test.bytes)}})
				var outcomes []dispatch.Outcome
				calls.Go(func() { outcomes = b.Apply(slices.Repeat([]dispatch.Event{report}, test.events)) })
				synctest.Wait()
				close(release)
				calls.Wait()
				refused := 0
				for _, o := range outcomes {
					if overload, ok := errors.AsType[*dispatch.OverloadError](o.Err); ok {
						refused++
						if overload.Start || overload.RetryAfter <= 0 {
							t.Fatalf("%+v", overload)
						}
					} else if !errors.Is(o.Err, machine.ErrLeaseLost) {
						t.Fatal(o.Err)
					}
				}
				if refused != test.events-test.most {
					t.Errorf("%d of %d were refused, want all but %d", refused, test.events, test.most)
				}
			})
		})
	}
}

// TestReportsGoFirst: what belongs to work under way overtakes starts that wait.
func TestReportsGoFirst(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const perBatch = 10 * time.Millisecond
		b := newBench(t, func(store.Keys) error { <-time.After(perBatch); return nil })
		b.Start(inOneLane(1, 0))
		claimed, err := b.Claim(t.Context(), claimUpTo(1), time.Second)
		if err != nil || len(claimed) != 1 {
			t.Fatal(claimed, err)
		}
		var calls sync.WaitGroup
		calls.Go(func() { b.Start(inOneLane(1, 0)) })
		synctest.Wait() // the lane is busy
		calls.Go(func() { b.Start(inOneLane(1000, 0)) })
		synctest.Wait()
		began := time.Now()
		if o := b.Apply([]dispatch.Event{dispatch.Report(dispatch.Lease(claimed[0].Token), result(`1`))})[0]; o.Err != nil {
			t.Error(o.Err)
		}
		if took := time.Since(began); took > 2*perBatch { // what is under way, and its own batch
			t.Errorf("the report was answered after %v", took)
		}
		calls.Wait()
	})
}

// TestOverload offers many times the starts that a slow store does: every report is answered soon, what waits is bounded,
// and of what is offered each start is either made or refused with a time to come back (WRK-15).
func TestOverload(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const perBatch, perItem = 20 * time.Millisecond, 200 * time.Microsecond
		b := newBench(t, func(k store.Keys) error {
			<-time.After(perBatch + time.Duration(len(k.Instances))*perItem)
			return nil
		})
		end := time.Now().Add(2500 * time.Millisecond)
		var calls sync.WaitGroup
		var mu sync.Mutex
		var started, refused int
		for range 32 {
			calls.Go(func() {
				for time.Now().Before(end) {
					items := make([]dispatch.StartItem, 250)
					for i := range items {
						items[i] = newStart()
					}
					no := refusals(t, b.Start(items))
					mu.Lock()
					started, refused = started+len(items)-no, refused+no
					mu.Unlock()
					<-time.After(50 * time.Millisecond) // not as long as it was told
				}
			})
		}
		var reports int
		var slowest time.Duration
		for range 8 {
			calls.Go(func() {
				for time.Now().Before(end) {
					claimed, err := b.Claim(t.Context(), claimUpTo(100), time.Second)
					if err != nil {
						t.Error(err)
						return
					}
					began := time.Now()
					events := make([]dispatch.Event, len(claimed))
					for i, c := range claimed {
						events[i] = dispatch.Report(dispatch.Lease(c.Token), result(`1`))
					}
					for _, o := range b.Apply(events) {
						if o.Err != nil {
							t.Error(o.Err)
						}
					}
					mu.Lock()
					reports, slowest = reports+len(events), max(slowest, time.Since(began))
					mu.Unlock()
				}
			})
		}
		calls.Wait()
		if refused < 5*started {
			t.Errorf("%d were started and %d refused: that is no overload", started, refused)
		}
		if slowest > 500*time.Millisecond {
			t.Errorf("a report took %v", slowest)
		}
		// An instance has two: where there are fewer than one for each, starts go on at the cost of what was accepted.
		if reports < started {
			t.Errorf("%d starts beside %d reports", started, reports)
		}
	})
}

// TestPollsAreBounded: a poll too many is told to come back (WRK-15).
func TestPollsAreBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg := dispatch.DefaultConfig()
		cfg.Polls = 2
		b := newBenchWith(t, cfg, nil)
		var calls sync.WaitGroup
		for range cfg.Polls {
			calls.Go(func() {
				if _, err := b.Claim(t.Context(), claimUpTo(1), time.Minute); err != nil {
					t.Error(err)
				}
			})
		}
		synctest.Wait()
		_, err := b.Claim(t.Context(), claimUpTo(1), time.Minute)
		if overload, ok := errors.AsType[*dispatch.OverloadError](err); !ok || overload.RetryAfter < 500*time.Millisecond {
			t.Errorf("one poll too many: %v", err)
		}
		calls.Wait()
		if _, err := b.Claim(t.Context(), claimUpTo(1), time.Second); err != nil {
			t.Errorf("once there is room: %v", err)
		}
	})
}
