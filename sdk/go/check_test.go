package wiggle_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/embedded"
	"go.opentelemetry.io/otel/trace/noop"

	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	wiggle "github.com/wiggle-run/wiggle/sdk/go"
)

func anyTask(context.Context, any) (any, error)  { return nil, nil }
func anyEffect(context.Context, any) error       { return nil }
func anyGate(context.Context, any) (bool, error) { return true, nil }

func anyList(context.Context, any, []wiggle.Elem[any]) (any, error) { return nil, nil }

// serveAll registers the handlers of the order flow.
func serveAll(h wiggle.Handlers) {
	for _, step := range []string{"validate", "authorise", "capture", "reserve", "label", "notify"} {
		wiggle.HandleTask(h, step, anyTask)
	}
	wiggle.HandleGate(h, "in-stock", anyGate)
	wiggle.HandleCombine(h, "merge", func(context.Context, any, wiggle.Branches) (any, error) { return nil, nil })
}

// TestCheck starts workers whose handlers do or do not fit, and reads what they are
// told.
func TestCheck(t *testing.T) {
	tests := map[string]struct {
		opts  wiggle.WorkerOptions
		serve func(*wiggle.Worker)
		want  []string // problems; none: it starts
		logs  []string
	}{
		"all":        {serve: func(w *wiggle.Worker) { serveAll(w.Workflow("order-fulfilment")) }},
		"all shared": {serve: func(w *wiggle.Worker) { serveAll(w); w.Workflow("order-fulfilment") }},
		"all, no workflow named": {
			serve: func(w *wiggle.Worker) { serveAll(w) },
			logs:  []string{"takes tasks of a workflow that it has no handler for", "workflow=other"},
		},
		"missing and wrong": {
			serve: func(w *wiggle.Worker) {
				h := w.Workflow("order-fulfilment")
				wiggle.HandleTask(h, "in-stock", anyTask)
				wiggle.HandleEffect(h, "notify", anyEffect)
				wiggle.HandleCombineList(h, "merge", anyList)
				for _, step := range []string{"validate", "capture", "reserve", "label"} {
					wiggle.HandleTask(h, step, anyTask)
				}
			},
			want: []string{
				`no handler for step "authorise", a task: add wiggle.HandleTask(..., "authorise", ...)`,
				`step "in-stock" is a gate, but its handler "in-stock" is for a task: register it with wiggle.HandleGate`,
				`step "merge" is a combine of a fork, but its handler "merge" is for a combine of a for_each: register it with wiggle.HandleCombine`,
				`step "notify" is a task, but its handler "notify" is for an effect: register it with wiggle.HandleTask`,
			},
		},
		"some, no workflow named": {
			serve: func(w *wiggle.Worker) { wiggle.HandleTask(w, "first", anyTask) },
			want:  []string{`workflow "other": no handler for step "second", an effect: add wiggle.HandleEffect`},
			logs:  []string{"workflow=order-fulfilment"},
		},
		"another queue": {
			opts:  wiggle.WorkerOptions{Queues: []string{"special"}},
			serve: func(w *wiggle.Worker) { wiggle.HandleGate(w.Workflow("other"), "third", anyGate) },
		},
		"not registered": {
			serve: func(w *wiggle.Worker) { wiggle.HandleTask(w.Workflow("none", 7), "x", anyTask) },
			want:  []string{`workflow "none" version 7 is not registered`},
		},
		"unused": {
			serve: func(w *wiggle.Worker) {
				serveAll(w.Workflow("order-fulfilment"))
				wiggle.HandleTask(w, "valdiate", anyTask)
			},
			logs: []string{"no step on the worker's queues asks for a handler", "handler=valdiate"},
		},
		"skipped": {
			opts:  wiggle.WorkerOptions{SkipCheck: true},
			serve: func(w *wiggle.Worker) { w.Workflow("none") },
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFake()
				other := wiggle.Define("other", func(f *wiggle.Flow) {
					f.Task("first")
					f.Effect("second")
					f.Gate("third", wiggle.Queue("special"))
				})
				f.defs["order-fulfilment"], f.defs["other"] = orderFulfilment().Proto(), other.Proto()
				log := &syncBuffer{}
				tt.opts.Logger = slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelWarn}))
				w := wiggle.NewWorker(f.client(t), tt.opts)
				tt.serve(w)
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				err := w.Run(ctx)
				synctest.Wait()
				var wrong *wiggle.HandlersError
				if len(tt.want) == 0 {
					if err != nil || f.asked() == 0 {
						t.Errorf("it did not start: %v", err)
					}
				} else if !errors.As(err, &wrong) || len(wrong.Problems) != len(tt.want) || f.asked() != 0 {
					t.Fatalf("%d polls; got %v", f.asked(), err)
				}
				for i, want := range tt.want {
					if !strings.Contains(wrong.Problems[i], want) {
						t.Errorf("got %s, want %s", wrong.Problems[i], want)
					}
				}
				for _, want := range tt.logs {
					if !strings.Contains(log.String(), want) {
						t.Errorf("%q is not logged:\n%s", want, log)
					}
				}
				if len(tt.logs) == 0 && log.String() != "" {
					t.Errorf("logged:\n%s", log)
				}
			})
		})
	}
}

// TestCheckWaitsForTheServer starts a worker before its server.
func TestCheckWaitsForTheServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.defs["order-fulfilment"] = orderFulfilment().Proto()
		f.fail(errDown)
		w := wiggle.NewWorker(f.client(t), wiggle.WorkerOptions{})
		serveAll(w.Workflow("order-fulfilment"))
		stop := start(t, w)
		f.pass(10 * time.Minute)
		if f.asked() != 0 {
			t.Error("it polls unchecked")
		}
		f.fail(nil)
		f.pass(time.Minute)
		if f.asked() == 0 {
			t.Error("it does not start")
		}
		stop()

		// One that is stopped before its server came ends at once.
		f.fail(errDown)
		w = wiggle.NewWorker(f.client(t), wiggle.WorkerOptions{})
		stop = start(t, w)
		f.pass(time.Second)
		if took := stop(); took > 0 {
			t.Errorf("took %s", took)
		}
	})
}

// TestTracing checks that a step's span continues the trace of the instance's
// starter and is there for the handler.
func TestTracing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		spans := &spanLog{}
		w := newWorker(t, f, wiggle.WorkerOptions{TracerProvider: spans})
		wiggle.HandleEffect(w, "work", func(context.Context, any) error { return errors.New("boom") })
		stop := start(t, w)
		f.push(&wigglev1.Task{
			Id: "1", Step: "work", Kind: wigglev1.TaskKind_TASK_KIND_EFFECT,
			TraceContext: map[string]string{"traceparent": "00-01000000000000000000000000000000-0200000000000000-01"},
		})
		stop()
		if len(spans.names) != 1 || spans.names[0] != "step work" || spans.parents[0].TraceID() != (trace.TraceID{1}) || !spans.parents[0].IsRemote() {
			t.Errorf("spans %v of %v", spans.names, spans.parents)
		}
	})
}

// spanLog notes which spans are begun.
type spanLog struct {
	embedded.TracerProvider
	names   []string
	parents []trace.SpanContext
}

func (l *spanLog) Tracer(string, ...trace.TracerOption) trace.Tracer { return spanLogTracer{log: l} }

type spanLogTracer struct {
	embedded.Tracer
	log *spanLog
}

func (l spanLogTracer) Start(ctx context.Context, name string, _ ...trace.SpanStartOption) (context.Context, trace.Span) {
	l.log.names = append(l.log.names, name)
	l.log.parents = append(l.log.parents, trace.SpanContextFromContext(ctx))
	return ctx, noop.Span{}
}

// TestUntraced checks that a step whose start was not sampled has no span, and that the
// report of one that was carries its step's (OPS-10).
func TestUntraced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		spans := &spanLog{}
		w := newWorker(t, f, wiggle.WorkerOptions{TracerProvider: spans})
		wiggle.HandleEffect(w, "work", func(context.Context, any) error { return nil })
		stop := start(t, w)
		f.push(&wigglev1.Task{Id: "1", Step: "work", Activity: "work", Kind: wigglev1.TaskKind_TASK_KIND_EFFECT})
		stop()
		if len(spans.names) > 0 {
			t.Errorf("spans %v of a step that is not sampled", spans.names)
		}
	})
}
