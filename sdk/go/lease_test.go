package wiggle_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	wiggle "github.com/wiggle-run/wiggle/sdk/go"
)

func TestLeaseIsKept(t *testing.T) {
	inBothWays(t, func(t *testing.T, f *fake) {
		w := newWorker(t, f, wiggle.WorkerOptions{Lease: 9 * time.Second})
		wiggle.HandleEffect(w, "work", func(ctx context.Context, _ any) error {
			select {
			case <-time.After(time.Minute):
			case <-ctx.Done():
				t.Error("interrupted:", context.Cause(ctx))
			}
			return nil
		})
		stop := start(t, w)
		f.push(&wigglev1.Task{Id: "1", Step: "work", Kind: wigglev1.TaskKind_TASK_KIND_EFFECT})
		f.pass(25 * time.Second)
		f.fail(errDown) // for less than what is left of a lease
		f.pass(5 * time.Second)
		f.fail(nil)
		f.pass(40 * time.Second)
		if len(f.reports) != 1 {
			t.Errorf("reports %v, failures %v", f.reports, f.fails)
		}
		if n := len(f.beats); n < 15 || n > 25 || f.beats[0].GetExtend().AsDuration() != 9*time.Second {
			t.Errorf("%d beats, the first %v", n, f.beats[0])
		}
		if d := f.beatsAt[1].Sub(f.beatsAt[0]); d != 3*time.Second {
			t.Errorf("beats are %s apart", d)
		}
		stop()
	})
}

func TestBeatsGoTogether(t *testing.T) {
	inBothWays(t, func(t *testing.T, f *fake) {
		w := newWorker(t, f, wiggle.WorkerOptions{Concurrency: 50})
		wiggle.HandleEffect(w, "work", func(context.Context, any) error { time.Sleep(15 * time.Second); return nil })
		stop := start(t, w)
		for i := range 50 {
			f.push(&wigglev1.Task{Id: fmt.Sprint(i), Step: "work", Kind: wigglev1.TaskKind_TASK_KIND_EFFECT})
			time.Sleep(20 * time.Millisecond)
		}
		f.pass(20 * time.Second)
		stop()
		calls := map[time.Time]int{}
		for _, at := range f.beatsAt {
			calls[at]++
		}
		if len(f.beats) != 50 || len(calls) > 2 {
			t.Errorf("%d beats in %d calls", len(f.beats), len(calls))
		}
	})
}

func TestLeaseLost(t *testing.T) {
	for name, fault := range map[string]*wigglev1.Fault{
		"lost":  leaseLost(),
		"ended": {Code: int32(connect.CodeFailedPrecondition), Message: "it is cancelled", Kind: &wigglev1.Fault_WrongState{WrongState: &wigglev1.WrongState{State: "CANCELLED"}}},
		"gone":  {Code: int32(connect.CodeNotFound), Message: "no such instance"},
	} {
		t.Run(name, func(t *testing.T) {
			inBothWays(t, func(t *testing.T, f *fake) {
				f.onBeat = func(*wigglev1.Beat) *wigglev1.Fault { return fault }
				w := newWorker(t, f, wiggle.WorkerOptions{})
				var cause error
				wiggle.HandleEffect(w, "work", func(ctx context.Context, _ any) error {
					<-ctx.Done()
					cause = context.Cause(ctx)
					if err := wiggle.Heartbeat(ctx, 1); !errors.Is(err, wiggle.ErrLeaseLost) {
						t.Errorf("Heartbeat: %v", err)
					}
					return ctx.Err()
				})
				stop := start(t, w)
				f.push(&wigglev1.Task{Id: "1", Step: "work", Kind: wigglev1.TaskKind_TASK_KIND_EFFECT})
				f.pass(time.Minute)
				if !errors.Is(cause, wiggle.ErrLeaseLost) || !strings.Contains(cause.Error(), fault.GetMessage()) {
					t.Errorf("cause %v", cause)
				}
				if took := stop(); took > 0 || len(f.reports)+len(f.fails)+len(f.released) > 0 || len(f.beats) != 1 {
					t.Errorf("stop took %s; reports %v, failures %v, released %v, %d beats", took, f.reports, f.fails, f.released, len(f.beats))
				}
			})
		})
	}
}

func TestLeaseRunsOut(t *testing.T) {
	inBothWays(t, func(t *testing.T, f *fake) {
		w := newWorker(t, f, wiggle.WorkerOptions{})
		var after time.Duration
		wiggle.HandleEffect(w, "work", func(ctx context.Context, _ any) error {
			begin := time.Now()
			<-ctx.Done()
			after = time.Since(begin)
			if cause := context.Cause(ctx); !errors.Is(cause, wiggle.ErrLeaseLost) {
				t.Errorf("cause %v", cause)
			}
			return ctx.Err()
		})
		stop := start(t, w)
		f.push(&wigglev1.Task{Id: "1", Step: "work", Kind: wigglev1.TaskKind_TASK_KIND_EFFECT})
		f.pass(2 * time.Second) // the server knows that it came
		f.fail(errDown)
		f.pass(time.Minute)
		f.fail(nil)
		if after < 30*time.Second || after > 33*time.Second {
			t.Errorf("given up after %s", after)
		}
		f.pass(time.Minute)
		if len(f.beats)+len(f.fails) != 0 {
			t.Errorf("beats %v, failures %v", f.beats, f.fails)
		}
		stop()
	})
}

func TestProgress(t *testing.T) {
	inBothWays(t, func(t *testing.T, f *fake) {
		w := newWorker(t, f, wiggle.WorkerOptions{})
		wiggle.HandleEffect(w, "work", func(ctx context.Context, _ any) error {
			if n, ok, err := wiggle.Progress[int](ctx); n != 41 || !ok || err != nil {
				t.Errorf("progress %d, %v, %v", n, ok, err)
			}
			for i := range 1000 {
				if err := wiggle.Heartbeat(ctx, i); err != nil {
					t.Error(err)
				}
				time.Sleep(time.Millisecond)
			}
			if err := wiggle.Heartbeat(ctx, func() {}); err == nil {
				t.Error("progress that is no JSON gave no error")
			}
			time.Sleep(2 * time.Second)
			return nil
		})
		stop := start(t, w)
		f.push(&wigglev1.Task{Id: "1", Step: "work", Kind: wigglev1.TaskKind_TASK_KIND_EFFECT, Progress: data("41")})
		f.pass(500 * time.Microsecond)
		if len(f.beats) != 1 || string(f.beats[0].GetProgress().GetData()) != "0" {
			t.Errorf("beats %v", f.beats)
		}
		f.pass(5 * time.Second)
		stop()
		last := f.beats[len(f.beats)-1]
		if len(f.beats) > 3 || string(last.GetProgress().GetData()) != "999" {
			t.Errorf("%d beats, the last %v", len(f.beats), last)
		}
	})
}
