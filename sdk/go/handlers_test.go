package wiggle_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	wiggle "github.com/wiggle-run/wiggle/sdk/go"
)

type line struct {
	Price int64 `json:"price"`
}

type carrier string

func TestHandlerKinds(t *testing.T) {
	inBothWays(t, func(t *testing.T, f *fake) {
		w := newWorker(t, f, wiggle.WorkerOptions{})
		wiggle.HandleTask(w, "task", func(_ context.Context, in order) (order, error) {
			in.ID++
			return in, nil
		})
		wiggle.HandleTask(w, "loose", func(_ context.Context, in map[string]any) (map[string]any, error) { return in, nil })
		wiggle.HandleTask(w, "raw", func(_ context.Context, in wiggle.Payload) (wiggle.Payload, error) {
			return wiggle.Payload{ContentType: "image/png", Data: append(in.Data, '!')}, nil
		})
		wiggle.HandleEffect(w, "effect", func(context.Context, order) error { return nil })
		wiggle.HandleGate(w, "gate", func(_ context.Context, in order) (bool, error) { return in.ID > 1, nil })
		wiggle.HandleChoose(w, "choose", func(context.Context, order) (carrier, error) { return "post", nil })
		wiggle.HandleCombine(w, "merge", func(_ context.Context, before order, b wiggle.Branches) (string, error) {
			pay, ok1, err1 := wiggle.BranchResult[line](b, "payment")
			_, ok2, err2 := wiggle.BranchResult[line](b, "shipping")
			_, _, err3 := wiggle.BranchResult[line](b, "parcel")
			return fmt.Sprintln(before.ID, pay.Price, ok1, err1, ok2, err2, err3, b.Names()), nil
		})
		wiggle.HandleCombineList(w, "sum", func(_ context.Context, before order, lines []wiggle.Elem[line]) (string, error) {
			return fmt.Sprintln(before.ID, lines, wiggle.Values(lines)), nil
		})
		wiggle.HandleCombineMap(w, "sum-map", func(_ context.Context, before order, lines map[string]wiggle.Elem[line]) (string, error) {
			return fmt.Sprintln(before.ID, lines["a"].Value.Price, lines["b"].Arrived), nil
		})
		stop := start(t, w)

		results := []*wigglev1.BranchResult{
			{Element: &wigglev1.Element{Index: 0, Key: "payment"}, Result: data(`{"price":9007199254740993}`)},
			{Element: &wigglev1.Element{Index: 1, Key: "shipping"}},
		}
		list := []*wigglev1.BranchResult{
			{Element: &wigglev1.Element{Index: 0}, Result: data(`{"price":7}`)}, {Element: &wigglev1.Element{Index: 1}},
		}
		byKey := []*wigglev1.BranchResult{
			{Element: &wigglev1.Element{Index: 0, Key: "a"}, Result: data(`{"price":7}`)}, {Element: &wigglev1.Element{Index: 1, Key: "b"}},
		}
		in := data(`{"id":9007199254740993}`)
		combine := wigglev1.TaskKind_TASK_KIND_COMBINE
		f.push(
			&wigglev1.Task{Id: "1", Step: "task", Context: in},
			&wigglev1.Task{Id: "2", Step: "loose", Context: in},
			&wigglev1.Task{Id: "3", Step: "raw", Context: &wigglev1.Payload{ContentType: "image/png", Data: []byte("x")}},
			&wigglev1.Task{Id: "4", Step: "effect", Context: in, Kind: wigglev1.TaskKind_TASK_KIND_EFFECT},
			&wigglev1.Task{Id: "5", Step: "gate", Context: in, Kind: wigglev1.TaskKind_TASK_KIND_GATE},
			&wigglev1.Task{Id: "6", Step: "choose", Context: in, Kind: wigglev1.TaskKind_TASK_KIND_CHOOSE},
			&wigglev1.Task{Id: "7", Step: "merge", Context: in, Kind: combine, ByName: true, Results: results},
			&wigglev1.Task{Id: "8", Step: "sum", Context: in, Kind: combine, Results: list},
			&wigglev1.Task{Id: "9", Step: "sum-map", Context: in, Kind: combine, Results: byKey},
			&wigglev1.Task{Id: "a", Step: "task"}, // no context at all
			&wigglev1.Task{Id: "b", Step: "sum-map", Context: in, Kind: combine, Results: list},
		)
		stop()
		got := map[string]string{}
		for _, r := range f.reports {
			switch o := r.GetOutcome().(type) {
			case *wigglev1.StepReport_Result:
				got[r.GetTaskId()] = o.Result.GetContentType() + string(o.Result.GetData())
			default:
				got[r.GetTaskId()] = strings.TrimSpace(fmt.Sprintf("%T %v %v", o, r.GetGate(), r.GetChoice()))
			}
			if r.GetStartedAt() == nil || r.GetFinishedAt() == nil || r.GetLease() == "" {
				t.Errorf("report %v", r)
			}
		}
		want := map[string]string{
			"1": `{"id":9007199254740994}`,
			"2": `{"id":9007199254740993}`,
			"3": "image/pngx!",
			"4": "*wigglev1.StepReport_Unchanged false",
			"5": "*wigglev1.StepReport_Gate true",
			"6": "*wigglev1.StepReport_Choice false post",
			"7": `"9007199254740993 9007199254740993 true <nil> false <nil> no branch \"parcel\", there are: payment, shipping [payment shipping]\n"`,
			"8": `"9007199254740993 [{0  {7} true} {1  {0} false}] [{7}]\n"`,
			"9": `"9007199254740993 7 false\n"`,
			"a": `{"id":1}`,
		}
		for id, w := range want {
			if got[id] != w {
				t.Errorf("task %s: got %s, want %s", id, got[id], w)
			}
		}
		if len(f.fails) != 1 || f.fails[0].GetTaskId() != "b" || !f.fails[0].GetNonRetryable() || !strings.Contains(f.fails[0].GetFailure().GetMessage(), "HandleCombineList") {
			t.Errorf("failures %v", f.fails)
		}
	})
}

type declinedError struct{}

func (declinedError) Error() string { return "declined" }

func TestFailures(t *testing.T) {
	inBothWays(t, func(t *testing.T, f *fake) {
		w := newWorker(t, f, wiggle.WorkerOptions{})
		plain := errors.New("boom")
		for name, fn := range map[string]func() error{
			"plain":    func() error { return fmt.Errorf("wrapped: %w", plain) },
			"typed":    func() error { return fmt.Errorf("pay: %w", declinedError{}) },
			"joined":   func() error { return errors.Join(declinedError{}, plain) },
			"named":    func() error { return wiggle.ErrorType("card-declined", wiggle.NonRetryable(declinedError{})) },
			"later":    func() error { return fmt.Errorf("x: %w", wiggle.RetryAfter(declinedError{}, time.Minute)) },
			"panic":    func() error { panic("oh no") },
			"panicerr": func() error { panic(wiggle.NonRetryable(plain)) },
			"exit":     func() error { runtime.Goexit(); return nil },
			"long":     func() error { return errors.New(strings.Repeat("é\xff", 60_000)) },
		} {
			wiggle.HandleTask(w, name, func(context.Context, any) (any, error) { return nil, fn() })
		}
		wiggle.HandleTask(w, "decode", func(_ context.Context, in order) (order, error) { return in, nil })
		wiggle.HandleTask(w, "encode", func(context.Context, any) (any, error) { return func() {}, nil })
		wiggle.HandleGate(w, "kind", func(context.Context, any) (bool, error) { return true, nil })
		stop := start(t, w)
		for _, step := range []string{"plain", "typed", "joined", "named", "later", "panic", "panicerr", "exit", "long", "decode", "encode", "kind", "none"} {
			f.push(&wigglev1.Task{Id: step, Step: step, Context: data(`[1]`)})
		}
		f.push(&wigglev1.Task{Id: "png", Step: "decode", Context: &wigglev1.Payload{ContentType: "image/png"}})
		stop()

		got := map[string]*wigglev1.FailTaskRequest{}
		for _, r := range f.fails {
			got[r.GetTaskId()] = r
		}
		for id, want := range map[string]struct {
			typ, message string
			final        bool
			delay        time.Duration
		}{
			"plain":    {"error", "wrapped: boom", false, 0},
			"typed":    {"wiggle_test.declinedError", "pay: declined", false, 0},
			"joined":   {"wiggle_test.declinedError", "declined\nboom", false, 0},
			"named":    {"card-declined", "declined", true, 0},
			"later":    {"wiggle_test.declinedError", "x: declined", false, time.Minute},
			"panic":    {"wiggle.Panic", "panic: oh no", false, 0},
			"panicerr": {"wiggle.Panic", "panic: boom", true, 0},
			"exit":     {"error", "the handler ended its goroutine (runtime.Goexit)", false, 0},
			"long":     {"error", "", false, 0},
			"decode":   {"wiggle.Payload", "the context: decode JSON: json: cannot unmarshal array into Go value of type wiggle_test.order", false, 0},
			"encode":   {"wiggle.Payload", "the result: encode func() as JSON: json: unsupported type: func()", false, 0},
			"kind":     {"wiggle.WrongKind", `step "kind" is a task, but handler "kind" is for a gate: register it with HandleTask`, false, 0},
			"none":     {"wiggle.NoHandler", `worker w1 has no handler "none" for workflow "flow"`, false, 0},
			"png":      {"wiggle.Payload", "the context: decode into *wiggle_test.order: the value is image/png, not JSON: take it as a wiggle.Payload", false, 0},
		} {
			r := got[id]
			if r == nil {
				t.Errorf("%s: no failure", id)
				continue
			}
			if r.GetFailure().GetType() != want.typ || want.message != "" && r.GetFailure().GetMessage() != want.message ||
				r.GetNonRetryable() != want.final || r.GetRetryDelay().AsDuration() != want.delay || r.GetWorker() != "w1" {
				t.Errorf("%s: %v", id, r)
			}
		}
		if s := got["panic"].GetFailure().GetStack(); !strings.Contains(s, "handlers_test.go") {
			t.Errorf("stack %q", s)
		}
		if n := len(got["long"].GetFailure().GetMessage()); n == 0 || n > 65536 {
			t.Errorf("message of %d bytes", n)
		}
	})
}

func TestTaskInfo(t *testing.T) {
	inBothWays(t, func(t *testing.T, f *fake) {
		w := newWorker(t, f, wiggle.WorkerOptions{})
		ran := false
		wiggle.HandleEffect(w, "act", func(ctx context.Context, _ any) error {
			ran = true
			info := wiggle.TaskFrom(ctx)
			if info.ID != "1" || info.InstanceID != "wfi.s0.x" || info.Step != "work" || info.Activity != "act" || info.Attempt != 3 || info.Element.Index != 2 || info.Element.Key != "k" || info.DispatchedAt.IsZero() {
				t.Errorf("%+v", info)
			}
			base, err := wiggle.BaseContext[order](ctx)
			if base.ID != 5 || err != nil {
				t.Errorf("base %v, %v", base, err)
			}
			if _, ok, err := wiggle.Progress[int](ctx); ok || err != nil {
				t.Errorf("progress %v, %v", ok, err)
			}
			if d, ok := ctx.Deadline(); !ok || time.Until(d) != time.Minute {
				t.Errorf("deadline in %s", time.Until(d))
			}
			return nil
		})
		stop := start(t, w)
		f.push(&wigglev1.Task{
			Id: "1", Step: "work", Activity: "act", Kind: wigglev1.TaskKind_TASK_KIND_EFFECT, Attempt: 3,
			Element: &wigglev1.Element{Index: 2, Key: "k"}, BaseContext: data(`{"id":5}`),
			Deadline: timestamppb.New(time.Now().Add(time.Hour + time.Minute)),
		})
		stop()
		if !ran {
			t.Error("the handler did not run")
		}
		if info := wiggle.TaskFrom(t.Context()); info.ID != "" {
			t.Errorf("%+v", info)
		}
		if err := wiggle.Heartbeat(t.Context(), 1); err != nil {
			t.Error(err)
		}
	})
}
