package lifecycle

import (
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var errBroken = errors.New("broken")

func untilDone(ctx context.Context) error {
	<-ctx.Done()
	return ctx.Err()
}

func TestGroupFirstErrorStopsAll(t *testing.T) {
	t.Parallel()
	g := NewGroup(t.Context())
	g.Go("patient", untilDone)
	g.Go("broken", func(context.Context) error { return errBroken })
	err := g.Wait()
	if !errors.Is(err, errBroken) || err.Error() != "broken: broken" {
		t.Errorf("got %v", err)
	}
	if !errors.Is(context.Cause(g.Context()), errBroken) {
		t.Errorf("cause %v", context.Cause(g.Context()))
	}
	if left := g.Running(); len(left) != 0 {
		t.Errorf("running: %v", left)
	}
}

func TestGroupStopIsNoError(t *testing.T) {
	t.Parallel()
	g := NewGroup(t.Context())
	g.Go("b", untilDone)
	g.Go("a", untilDone)
	if got := g.Running(); !slices.Equal(got, []string{"a", "b"}) {
		t.Errorf("running: %v", got)
	}
	if err := g.Close(); err != nil {
		t.Error(err)
	}
}

func TestGroupPanicBecomesError(t *testing.T) {
	t.Parallel()
	g := NewGroup(t.Context())
	g.Go("fragile", func(context.Context) error { panic(errBroken) })
	err := g.Wait()
	p, ok := errors.AsType[*PanicError](err)
	if !ok || !errors.Is(err, errBroken) || !strings.Contains(string(p.Stack), "lifecycle_test.go") {
		t.Errorf("got %v", err)
	}
}

func TestRunStopsInReverseOrder(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		var events []string
		component := func(name string) Component {
			return Component{
				Name:  name,
				Start: func(context.Context) error { events = append(events, "start "+name); return nil },
				Run: func(ctx context.Context) error {
					<-ctx.Done()
					time.Sleep(time.Second) // fake time: drains
					events = append(events, "stopped "+name)
					return nil
				},
			}
		}
		time.AfterFunc(time.Minute, stop)
		if err := Run(ctx, 10*time.Second, component("a"), component("b"), component("c")); err != nil {
			t.Error(err)
		}
		want := []string{"start a", "start b", "start c", "stopped c", "stopped b", "stopped a"}
		if !slices.Equal(events, want) {
			t.Errorf("got %v", events)
		}
	})
}

func TestRunFailureStopsTheRest(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		err := Run(t.Context(), 0,
			Component{Name: "steady", Run: untilDone},
			Component{Name: "broken", Run: func(context.Context) error { return errBroken }})
		if !errors.Is(err, errBroken) || err.Error() != "broken: broken" {
			t.Errorf("got %q", err)
		}
		err = Run(t.Context(), 0, Component{Name: "early", Run: func(context.Context) error { return nil }})
		if err == nil || !strings.Contains(err.Error(), "early: returned") {
			t.Errorf("got %v", err)
		}
		started := false
		err = Run(t.Context(), 0,
			Component{Name: "unready", Start: func(context.Context) error { return errBroken }},
			Component{Name: "after", Start: func(context.Context) error { started = true; return nil }})
		if !errors.Is(err, errBroken) || started {
			t.Errorf("got %v, started %v", err, started)
		}
	})
}

func TestRunGracePeriod(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		release := make(chan struct{})
		var drained time.Duration
		var cause error
		slow := Component{Name: "slow", Run: func(ctx context.Context) error {
			<-ctx.Done()
			began := time.Now()
			drain := DrainContext(ctx)
			<-drain.Done()
			drained, cause = time.Since(began), context.Cause(drain)
			return nil
		}}
		stuck := Component{Name: "stuck", Run: func(context.Context) error { <-release; return nil }}
		stop()
		began := time.Now()
		err := Run(ctx, 5*time.Second, stuck, slow)
		// ctx ended before anything was started.
		if err != nil || time.Since(began) != 0 {
			t.Errorf("got %v", err)
		}
		ctx, stop = context.WithCancel(t.Context())
		time.AfterFunc(time.Second, stop)
		began = time.Now()
		err = Run(ctx, 5*time.Second, stuck, slow)
		if err == nil || err.Error() != "did not stop in time: stuck" {
			t.Errorf("got %v", err)
		}
		if drained != 5*time.Second || !errors.Is(cause, ErrGrace) {
			t.Errorf("drained for %v, cause %v", drained, cause)
		}
		if took := time.Since(began); took != 1*time.Second+5*time.Second+hardStopTime {
			t.Errorf("took %v", took)
		}
		close(release)
	})
}

func TestSecondSignalExits(t *testing.T) {
	t.Parallel()
	signals := make(chan os.Signal)
	exited := make(chan int, 1)
	ctx, stop := watchSignals(t.Context(), signals, func(code int) { exited <- code })
	defer stop()
	signals <- syscall.SIGTERM
	<-ctx.Done()
	if cause, ok := errors.AsType[*SignalError](context.Cause(ctx)); !ok || cause.Signal != syscall.SIGTERM {
		t.Errorf("cause %v", context.Cause(ctx))
	}
	signals <- syscall.SIGINT
	if code := <-exited; code != 130 {
		t.Errorf("code %d", code)
	}
}

func TestWithSignalsStops(t *testing.T) {
	t.Parallel()
	ctx, stop := WithSignals(t.Context())
	stop()
	if !errors.Is(context.Cause(ctx), ErrStopped) {
		t.Errorf("cause %v", context.Cause(ctx))
	}
}

// runLoop runs a loop in fake time for d and returns when its runs were, from the beginning.
func runLoop(t *testing.T, d time.Duration, loop Loop, each func(run int) error) (at []time.Duration) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	defer cancel()
	began := time.Now()
	loop.RunOnce = func(context.Context) error {
		at = append(at, time.Since(began))
		return each(len(at))
	}
	if err := loop.Run(ctx); err != nil {
		t.Error(err)
	}
	return at
}

func TestLoopJitter(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		at := runLoop(t, 100*time.Second, Loop{Interval: time.Second}, func(int) error { return nil })
		if len(at) < 85 || len(at) > 115 {
			t.Errorf("%d runs in 100 intervals", len(at))
		}
		if at[0] > time.Second {
			t.Errorf("first run after %v", at[0])
		}
		distinct := map[time.Duration]bool{}
		for i := range at[1:] {
			gap := at[i+1] - at[i]
			distinct[gap] = true
			if gap < 900*time.Millisecond || gap > 1100*time.Millisecond {
				t.Errorf("gap %v", gap)
			}
		}
		if len(distinct) < 50 {
			t.Errorf("only %d distinct gaps", len(distinct))
		}
	})
}

func TestLoopErrorsBackOffAndAreReported(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var reported []error
		loop := Loop{Interval: time.Second, Immediate: true, OnError: func(err error) { reported = append(reported, err) }}
		at := runLoop(t, time.Minute, loop, func(run int) error {
			switch {
			case run == 2:
				panic("at the second")
			case run <= 6:
				return errBroken
			}
			return nil
		})
		if len(reported) != 6 {
			t.Fatalf("reported %d", len(reported))
		}
		if p, ok := errors.AsType[*PanicError](reported[1]); !ok || p.Value != "at the second" {
			t.Errorf("got %v", reported[1])
		}
		for i, want := range []time.Duration{2, 4, 8, 8, 8, 8, 1} {
			if gap := at[i+1] - at[i]; gap < want*900*time.Millisecond || gap > want*1100*time.Millisecond {
				t.Errorf("gap %d is %v, want about %d s", i, gap, want)
			}
		}
	})
}

func TestLoopMoreRunsAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		at := runLoop(t, time.Second, Loop{Interval: time.Hour, Immediate: true}, func(run int) error {
			if run < 200 {
				return ErrMore
			}
			return nil
		})
		if len(at) != 200 || at[199] != 3*againPause {
			t.Errorf("%d runs, the last after %v", len(at), at[len(at)-1])
		}
	})
}

func TestLoopWakes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		waker := NewWaker()
		time.AfterFunc(time.Minute, func() { waker.Wake(); waker.Wake(); waker.Wake() })
		at := runLoop(t, 2*time.Minute, Loop{Interval: time.Hour, Immediate: true, Waker: waker}, func(int) error { return nil })
		// The first wake-up is taken at once; of those that come while it runs, one is kept.
		if !slices.Equal(at, []time.Duration{0, time.Minute, time.Minute}) {
			t.Errorf("ran at %v", at)
		}
		(*Waker)(nil).Wake()
	})
}

func TestLoopBoundsARun(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var cut atomic.Int32
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		loop := Loop{Interval: time.Hour, Immediate: true, Timeout: time.Second, RunOnce: untilDone, OnError: func(err error) {
			if errors.Is(err, context.DeadlineExceeded) {
				cut.Add(1)
			}
		}}
		if err := loop.Run(ctx); err != nil || cut.Load() != 1 {
			t.Errorf("cut %d, %v", cut.Load(), err)
		}
	})
}
