package wiggle_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	wiggle "github.com/wiggle-run/wiggle/sdk/go"
)

func TestStopWaits(t *testing.T) {
	inBothWays(t, func(t *testing.T, f *fake) {
		w := newWorker(t, f, wiggle.WorkerOptions{Grace: time.Minute})
		wiggle.HandleEffect(w, "work", func(ctx context.Context, _ any) error {
			select {
			case <-time.After(40 * time.Second):
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		})
		stop := start(t, w)
		f.push(&wigglev1.Task{Id: "1", Step: "work", Kind: wigglev1.TaskKind_TASK_KIND_EFFECT})
		synctest.Wait()
		go func() {
			time.Sleep(time.Second)
			f.push(&wigglev1.Task{Id: "2", Step: "work", Kind: wigglev1.TaskKind_TASK_KIND_EFFECT})
		}()
		took := stop()
		if took != 40*time.Second || len(f.reports) != 1 || len(f.released) != 0 || len(f.queue) != 1 || len(f.beats) == 0 {
			t.Errorf("took %s, reports %v, released %v, %d beats", took, f.reports, f.released, len(f.beats))
		}
	})
}

func TestStopReleases(t *testing.T) {
	inBothWays(t, func(t *testing.T, f *fake) {
		w := newWorker(t, f, wiggle.WorkerOptions{Grace: 5 * time.Second})
		hung := make(chan struct{})
		wiggle.HandleEffect(w, "work", func(ctx context.Context, how string) error {
			if how == "hang" {
				<-hung
				return nil
			}
			<-ctx.Done()
			if cause := context.Cause(ctx); !errors.Is(cause, wiggle.ErrWorkerStopped) {
				t.Errorf("cause %v", cause)
			}
			if how == "save" {
				return nil
			}
			return ctx.Err()
		})
		stop := start(t, w)
		for _, how := range []string{"heed", "save", "hang"} {
			f.push(&wigglev1.Task{Id: how, Step: "work", Kind: wigglev1.TaskKind_TASK_KIND_EFFECT, Context: data(`"` + how + `"`)})
		}
		took := stop()
		if took < 5*time.Second || took > 8*time.Second {
			t.Errorf("took %s", took)
		}
		if len(f.reports) != 1 || f.reports[0].GetTaskId() != "save" || len(f.fails) != 0 {
			t.Errorf("reports %v, failures %v", f.reports, f.fails)
		}
		released := map[string]bool{}
		for _, r := range f.released {
			released[r.GetTaskId()] = r.GetLease() != ""
		}
		if len(released) != 2 || !released["heed"] || !released["hang"] {
			t.Errorf("released %v", f.released)
		}
		close(hung)
		synctest.Wait()
		if len(f.reports) != 1 {
			t.Error("a released task was reported")
		}
	})
}

func TestServerDown(t *testing.T) {
	inBothWays(t, func(t *testing.T, f *fake) {
		log := &syncBuffer{}
		w := newWorker(t, f, wiggle.WorkerOptions{Grace: time.Second, Logger: slog.New(slog.NewTextHandler(log, nil))})
		wiggle.HandleEffect(w, "work", func(context.Context, any) error { return nil })
		f.fail(errDown)
		stop := start(t, w)
		f.pass(time.Minute)
		f.fail(nil)
		f.push(&wigglev1.Task{Id: "1", Step: "work", Kind: wigglev1.TaskKind_TASK_KIND_EFFECT})
		f.pass(time.Minute)
		if len(f.reports) != 1 {
			t.Errorf("reports %v", f.reports)
		}
		for msg, want := range map[string]int{"calls fail": 1, "calls are answered again": 1, "level=WARN": 1} {
			if n := strings.Count(log.String(), msg); n != want {
				t.Errorf("%q is logged %d times:\n%s", msg, n, log)
			}
		}
		f.beforeBatch = func(ctx context.Context, _ *wigglev1.ReportStepsRequest) error {
			f.fail(errDown)
			<-ctx.Done() // a connection that hangs
			return ctx.Err()
		}
		f.push(&wigglev1.Task{Id: "2", Step: "work", Kind: wigglev1.TaskKind_TASK_KIND_EFFECT})
		if took := stop(); took > 5*time.Second {
			t.Errorf("took %s", took)
		}
	})
}
