package wiggle_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/timestamppb"

	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	wiggle "github.com/wiggle-run/wiggle/sdk/go"
)

// emittedBy is what a report tells of events.
func emittedBy(events []*wigglev1.EmittedEvent) string {
	var out []string
	for _, e := range events {
		out = append(out, fmt.Sprintf("%s %s", e.GetType(), e.GetPayload().GetData()))
	}
	return strings.Join(out, ", ")
}

// TestEmit checks that what a handler emits goes with its report, in order, and is dropped when it fails (EVT-1).
func TestEmit(t *testing.T) {
	inBothWays(t, func(t *testing.T, f *fake) {
		w := newWorker(t, f, wiggle.WorkerOptions{})
		wiggle.HandleTask(w, "emits", func(ctx context.Context, in int) (int, error) {
			for _, err := range []error{
				wiggle.Emit(ctx, "order.priced", map[string]any{"total": in, "a": "<b>"}),
				wiggle.Emit(ctx, "order.seen", nil),
				wiggle.Emit(ctx, "raw", wiggle.Payload{Data: []byte(` {"n":1}`)}),
			} {
				if err != nil {
					return 0, err
				}
			}
			return in, nil
		})
		wiggle.HandleEffect(w, "fails", func(ctx context.Context, _ any) error {
			return errors.Join(wiggle.Emit(ctx, "lost", nil), errors.New("no"))
		})
		wiggle.HandleEffect(w, "panics", func(ctx context.Context, _ any) error {
			panic(wiggle.Emit(ctx, "lost", nil))
		})
		stop := start(t, w)
		f.push(
			&wigglev1.Task{Id: "1", Step: "emits", Context: data(`7`)},
			&wigglev1.Task{Id: "2", Step: "fails", Kind: wigglev1.TaskKind_TASK_KIND_EFFECT},
			&wigglev1.Task{Id: "3", Step: "panics", Kind: wigglev1.TaskKind_TASK_KIND_EFFECT},
		)
		synctest.Wait()
		stop()
		if len(f.reports) != 1 || len(f.fails) != 2 {
			t.Fatalf("%d reports and %d failures", len(f.reports), len(f.fails))
		}
		if got, want := emittedBy(f.reports[0].GetEvents()), `order.priced {"a":"<b>","total":7}, order.seen , raw  {"n":1}`; got != want {
			t.Errorf("emitted %q, want %q", got, want)
		}
	})
}

// TestEmitRefuses checks what cannot be emitted.
func TestEmitRefuses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		w := newWorker(t, f, wiggle.WorkerOptions{})
		errs := map[string]error{}
		wiggle.HandleEffect(w, "emits", func(ctx context.Context, _ any) error {
			for name, payload := range map[string]any{
				"list": []int{1}, "text": "x", "number": 1, "null": (*struct{})(nil), "chan": map[string]any{"c": make(chan int)},
				"bytes": wiggle.Payload{ContentType: "image/png", Data: []byte("{}")},
			} {
				errs[name] = wiggle.Emit(ctx, "x", payload)
			}
			for _, kind := range []string{"", "wf.started", "wf.", ".x", "a b", "größe", strings.Repeat("x", 129)} {
				errs["type "+kind] = wiggle.Emit(ctx, kind, nil)
			}
			for i := range 101 {
				err := wiggle.Emit(ctx, "fine", nil)
				if i < 100 && err != nil {
					errs["fine"] = errors.New("refused")
				}
				if i == 100 {
					errs["too many"] = err
				}
			}
			return nil
		})
		stop := start(t, w)
		f.push(&wigglev1.Task{Id: "1", Step: "emits", Kind: wigglev1.TaskKind_TASK_KIND_EFFECT})
		synctest.Wait()
		stop()
		if len(errs) != 6+7+1 {
			t.Errorf("%d answers: %v", len(errs), slices.Sorted(maps.Keys(errs)))
		}
		for name, err := range errs {
			if err == nil {
				t.Errorf("%s is taken", name)
			}
		}
		if len(f.reports) != 1 || len(f.reports[0].GetEvents()) != 100 {
			t.Errorf("reports are %v", f.reports)
		}
		if err := wiggle.Emit(t.Context(), "x", nil); err != nil {
			t.Errorf("outside of a handler: %v", err)
		}
	})
}

// TestEmitInABatch checks that each step's events go with it (WRK-14), and those of a step that fails nowhere.
func TestEmitInABatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		failed := false
		emits := func(name string) func(context.Context) error {
			return func(ctx context.Context) error {
				if err := wiggle.Emit(ctx, "step", map[string]string{"name": name}); err != nil {
					return err
				}
				if name == "c" && !failed {
					failed = true
					return errors.New("no")
				}
				return nil
			}
		}
		f, w := batched(t, wiggle.WorkerOptions{}, "abc", letters("abc"), map[string]func(context.Context) error{
			"a": emits("a"), "b": emits("b"), "c": emits("c"),
		})
		stop := start(t, w)
		f.push(first("a"))
		synctest.Wait()
		stop()
		if len(f.reports) != 1 || len(f.reports[0].GetFollowedBy()) != 1 {
			t.Fatalf("reports are %v", f.reports)
		}
		r := f.reports[0]
		got := emittedBy(r.GetEvents()) + "; " + emittedBy(r.GetFollowedBy()[0].GetEvents())
		if want := `step {"name":"a"}; step {"name":"b"}`; got != want {
			t.Errorf("emitted %q, want %q", got, want)
		}
	})
}

// TestEvents checks that the iterator goes on behind what it was given, tells once which shards are missing, and ends with
// an error or its context.
func TestEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		c := f.client(t, wiggle.WithNamespace("shop"))
		event := func(seq int64) *wigglev1.Event {
			return &wigglev1.Event{
				Cursor: fmt.Sprint(seq), Shard: 1, Seq: seq, InstanceId: "wfi.s1.x", Namespace: "shop", Workflow: "order", Version: 2,
				Type: "order.paid", Node: "pay", Time: timestamppb.New(time.Unix(seq, 0)), Revision: 3, Payload: data(`{"n":1}`),
			}
		}
		missing := []*wigglev1.ShardOutcome{{Shard: 0}, {Shard: 1, Fault: &wigglev1.Fault{Code: int32(connect.CodeUnavailable), Message: "away"}}}
		answers := []*wigglev1.PollEventsResponse{
			{Events: []*wigglev1.Event{event(1), event(2)}, Cursor: "b"},
			{Cursor: "c", Shards: missing},
			{Events: []*wigglev1.Event{event(3)}, Cursor: "d", Shards: missing},
			{Events: []*wigglev1.Event{event(4)}, Cursor: "e"},
		}
		var asked []*wigglev1.PollEventsRequest
		f.onPollEvents = func(ctx context.Context, req *wigglev1.PollEventsRequest) (*wigglev1.PollEventsResponse, error) {
			n := 0
			f.locked(func() {
				asked = append(asked, req)
				n = len(asked)
			})
			if n <= len(answers) {
				return answers[n-1], nil
			}
			<-ctx.Done()
			return nil, ctx.Err()
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var got []string
		opts := wiggle.EventOptions{
			Start: wiggle.FromEarliest, After: "a", Workflows: []string{"order"}, Types: []string{"order.*"}, AllowPartial: true,
		}
		for e, err := range c.Events(ctx, "billing", opts) {
			var partial *wiggle.PartialError
			switch {
			case errors.As(err, &partial):
				got = append(got, fmt.Sprintf("missing %d", partial.Missing[0].Shard))
			case err != nil:
				t.Errorf("got %v", err)
			default:
				var n struct{ N int }
				if err := e.Decode(&n); err != nil || n.N != 1 || string(e.Payload().Data) != `{"n":1}` || e.Revision != 3 || e.Node != "pay" ||
					e.Version != 2 || e.InstanceID != "wfi.s1.x" || e.Time.Unix() != e.Seq || e.Cursor != fmt.Sprint(e.Seq) {
					t.Errorf("event %+v, %v", e, err)
				}
				if got = append(got, e.Cursor); e.Seq == 4 {
					go func() { time.Sleep(time.Second); cancel() }()
				}
			}
		}
		synctest.Wait()
		if text := strings.Join(got, " "); text != "1 2 missing 1 3 4" {
			t.Errorf("got %s", text)
		}
		var after []string
		for _, req := range asked {
			after = append(after, req.GetAfter())
		}
		if text := strings.Join(after, " "); text != "a b c d e" {
			t.Errorf("asked behind %s", text)
		}
		req := asked[0]
		if req.GetConsumer() != "billing" || req.GetFilter().GetNamespace() != "shop" || req.GetStart() != wigglev1.EventStart_EVENT_START_EARLIEST ||
			req.GetMissingShards() != wigglev1.MissingShards_MISSING_SHARDS_PARTIAL || req.GetFilter().GetTypes()[0] != "order.*" {
			t.Errorf("asked %v", req)
		}

		f.onPollEvents = func(context.Context, *wigglev1.PollEventsRequest) (*wigglev1.PollEventsResponse, error) {
			return nil, connect.NewError(connect.CodeInvalidArgument, errors.New("no"))
		}
		n := 0
		for e, err := range c.Events(t.Context(), "", wiggle.EventOptions{}) {
			n++
			if e != nil || !errors.Is(err, wiggle.ErrInvalid) {
				t.Errorf("got %v, %v", e, err)
			}
		}
		if n != 1 {
			t.Errorf("it came %d times", n)
		}
	})
}
