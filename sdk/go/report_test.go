package wiggle_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	wiggle "github.com/wiggle-run/wiggle/sdk/go"
)

func TestReportsCoalesce(t *testing.T) {
	inBothWays(t, func(t *testing.T, f *fake) {
		f.beforeBatch = func(context.Context, *wigglev1.ReportStepsRequest) error { time.Sleep(time.Second); return nil }
		w := newWorker(t, f, wiggle.WorkerOptions{Concurrency: 20})
		wiggle.HandleEffect(w, "work", func(_ context.Context, i int) error {
			time.Sleep(time.Duration(i) * 100 * time.Microsecond)
			return nil
		})
		stop := start(t, w)
		for i := range 10 {
			f.push(&wigglev1.Task{Id: fmt.Sprint(i), Step: "work", Kind: wigglev1.TaskKind_TASK_KIND_EFFECT, Context: data(fmt.Sprint(i + 1))})
		}
		stop()
		want := "[1 9]"
		if !f.unary { // two may be under way, what then comes within a millisecond gathers
			want = "[1 1 8]"
		}
		var got []int
		for _, b := range f.batches {
			got = append(got, len(b.GetReports()))
		}
		if fmt.Sprint(got) != want {
			t.Errorf("batches of %v, want %s", got, want)
		}
	})
}

func TestReportsFitAMessage(t *testing.T) {
	inBothWays(t, func(t *testing.T, f *fake) {
		f.beforeBatch = func(_ context.Context, req *wigglev1.ReportStepsRequest) error {
			if n := proto.Size(req); n > 4<<20 {
				t.Errorf("a message of %d bytes", n)
			}
			time.Sleep(time.Second)
			return nil
		}
		w := newWorker(t, f, wiggle.WorkerOptions{})
		wiggle.HandleTask(w, "work", func(context.Context, any) (string, error) { return strings.Repeat("x", 2<<20-2), nil })
		stop := start(t, w)
		for i := range 4 {
			f.push(&wigglev1.Task{Id: fmt.Sprint(i), Step: "work"})
		}
		stop()
		if len(f.reports) != 4 || len(f.batches) != 4 {
			t.Errorf("%d reports in %d calls", len(f.reports), len(f.batches))
		}
	})
}

func TestReportIsRepeated(t *testing.T) {
	inBothWays(t, func(t *testing.T, f *fake) {
		calls := 0
		f.onReport = func(r *wigglev1.StepReport) *wigglev1.Fault {
			if calls++; calls < 8 && r.GetTaskId() == "1" {
				return &wigglev1.Fault{Code: int32(connect.CodeUnavailable), Kind: &wigglev1.Fault_ShardUnavailable{}, RetryAfter: durationpb.New(6 * time.Second)}
			}
			return nil
		}
		w := newWorker(t, f, wiggle.WorkerOptions{})
		wiggle.HandleEffect(w, "work", func(context.Context, any) error { return nil })
		stop := start(t, w)
		f.push(&wigglev1.Task{Id: "1", Step: "work", Kind: wigglev1.TaskKind_TASK_KIND_EFFECT})
		f.pass(time.Second)
		f.push(&wigglev1.Task{Id: "2", Step: "work", Kind: wigglev1.TaskKind_TASK_KIND_EFFECT})
		f.pass(time.Second)
		if len(f.reports) != 1 || f.reports[0].GetTaskId() != "2" {
			t.Errorf("a shard that is away holds others back: %v", f.reports)
		}
		f.pass(time.Minute)
		if len(f.reports) != 2 {
			t.Fatalf("reports %v", f.reports)
		}
		kept := len(f.beats)
		if kept < 3 || kept > 6 {
			t.Errorf("%d beats in about 40 s of a 30 s lease", kept)
		}
		f.pass(time.Minute)
		if len(f.beats) != kept {
			t.Error("the lease was kept after the task was settled")
		}
		stop()
	})
}

func TestReportRefused(t *testing.T) {
	inBothWays(t, func(t *testing.T, f *fake) {
		f.beforeBatch = func(_ context.Context, req *wigglev1.ReportStepsRequest) error {
			for _, r := range req.GetReports() {
				if string(r.GetResult().GetData()) == `"too big"` {
					return faultErr(&wigglev1.Fault{Code: int32(connect.CodeResourceExhausted), Message: "payload over 2 MiB"})
				}
			}
			return nil
		}
		f.onReport = func(r *wigglev1.StepReport) *wigglev1.Fault {
			switch string(r.GetResult().GetData()) {
			case `"odd"`:
				return &wigglev1.Fault{Code: int32(connect.CodeInvalidArgument), Message: "odd"}
			case `"broken"`:
				return &wigglev1.Fault{Code: int32(connect.CodeInternal), Message: "internal"}
			}
			return nil
		}
		w := newWorker(t, f, wiggle.WorkerOptions{})
		gate := make(chan struct{})
		wiggle.HandleTask(w, "work", func(_ context.Context, in string) (string, error) { <-gate; return in, nil })
		stop := start(t, w)
		for i, v := range []string{"a", "too big", "b", "odd", "broken"} {
			f.push(&wigglev1.Task{Id: fmt.Sprint(i), Step: "work", Context: data(`"` + v + `"`)})
		}
		synctest.Wait()
		close(gate)
		f.pass(10 * time.Second)
		if len(f.reports) != 2 || len(f.fails) != 2 {
			t.Errorf("reports %v, failures %v", f.reports, f.fails)
		}
		for _, r := range f.fails {
			if r.GetFailure().GetType() != "wiggle.ReportRefused" || r.GetNonRetryable() {
				t.Errorf("failure %v", r)
			}
		}
		f.pass(10 * time.Minute)
		if last := f.beatsAt[len(f.beatsAt)-1]; time.Since(last) < 8*time.Minute {
			t.Error("the lease of a report that breaks the server is kept for ever")
		}
		stop()
	})
}
