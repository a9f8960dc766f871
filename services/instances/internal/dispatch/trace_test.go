package dispatch

import (
	"context"
	"slices"
	"testing"
	"time"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/wiggle-run/wiggle/pkg/tracecontext"
	"github.com/wiggle-run/wiggle/services/instances/internal/machine"
)

// spansOf is a shard that makes spans, as far as these tests need one, and where they go.
func spansOf() (*Shard, *tracetest.SpanRecorder) {
	spans := tracetest.NewSpanRecorder()
	tracer := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans)).Tracer("test")
	return &Shard{id: 3, tracer: tracer}, spans
}

func sampled(n byte) trace.SpanContext {
	return trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{n}, SpanID: trace.SpanID{n}, TraceFlags: trace.FlagsSampled})
}

// What is not sampled costs no allocation on its way through a lane. Not parallel, as it counts them.
func TestUnsampledCostsNothing(t *testing.T) { // OPS-10
	s, spans := spansOf()
	in, token, changes := &machine.Instance{}, &machine.Token{}, &machine.Changes{Updated: []*machine.Token{{}}}
	batch := []*op{{}, {}, {}}
	item := &StartItem{}
	ctx := t.Context()
	allocs := testing.AllocsPerRun(100, func() {
		if s.beginStart(item) != nil {
			t.Error("a span of what is not sampled")
		}
		_, tx := s.open(ctx, batch)
		for _, o := range batch {
			s.traced(o, startSpan, in, token, changes)
		}
		s.closed(&tx, batch, wayLocked, nil)
		for _, o := range batch {
			o.end()
		}
	})
	if allocs != 0 || len(spans.Started()) > 0 || changes.Trace != "" {
		t.Errorf("%v allocations, %d spans", allocs, len(spans.Started()))
	}
}

// A batch that serves two traces is told in the first of them, and both know of the other.
func TestBatchOfTwoTraces(t *testing.T) { // OPS-10
	t.Parallel()
	s, spans := spansOf()
	first := &op{at: time.Now(), span: s.begin(spanNames[machine.ByReport], sampled(1), time.Now())}
	second, other := &op{at: time.Now()}, &op{}
	batch := []*op{other, first, second}
	ctx, tx := s.open(t.Context(), batch)
	if trace.SpanContextFromContext(ctx).TraceID() != sampled(1).TraceID() {
		t.Error("the database does not see the first trace")
	}
	changes := &machine.Changes{Created: []*machine.Token{{}}, Updated: []*machine.Token{{}}}
	in := &machine.Instance{Trace: tracecontext.ToMap(sampled(2))}
	s.traced(second, spanNames[machine.NotSettled], in, nil, changes)
	s.closed(&tx, batch, wayLocked, nil)
	for _, o := range batch {
		o.end()
	}
	ended := spans.Ended()
	names := make([]string, len(ended))
	for i, span := range ended {
		names[i] = span.Name()
	}
	if !slices.Equal(names, []string{"shard.commit", "task.report", "timer.wake"}) {
		t.Fatalf("spans %v", names)
	}
	commit, wake := ended[0], ended[2]
	if len(commit.Links()) != 1 || commit.Links()[0].SpanContext.SpanID() != wake.SpanContext().SpanID() {
		t.Errorf("the commit is linked to %v", commit.Links())
	}
	if len(wake.Links()) != 1 || wake.Links()[0].SpanContext.SpanID() != commit.SpanContext().SpanID() {
		t.Errorf("the other operation is linked to %v", wake.Links())
	}
	if want := tracecontext.Format(wake.SpanContext()); changes.Trace != want || changes.Created[0].Trace != want || changes.Updated[0].Trace != want {
		t.Errorf("changes point to %q, want %q", changes.Trace, want)
	}
}

// Where nothing is recorded, others go on with the trace.
func TestNotRecordedHere(t *testing.T) { // OPS-10
	t.Parallel()
	s := &Shard{tracer: sdktrace.NewTracerProvider(sdktrace.WithSampler(sdktrace.NeverSample())).Tracer("test")}
	o, in, changes := &op{}, &machine.Instance{Trace: tracecontext.ToMap(sampled(1))}, &machine.Changes{}
	s.traced(o, cancelSpan, in, nil, changes)
	if o.span != nil || changes.Trace != tracecontext.Format(sampled(1)) {
		t.Errorf("span %v, trace %q", o.span, changes.Trace)
	}
}

// A cancel is told in the instance's trace and linked to who asked for it; where the instance has none, in the asker's.
func TestCancelOfAnotherTrace(t *testing.T) { // OPS-10
	t.Parallel()
	for _, c := range []struct {
		name       string
		instance   map[string]string
		want, link trace.TraceID
	}{
		{"both", tracecontext.ToMap(sampled(1)), trace.TraceID{1}, trace.TraceID{2}},
		{"the asker's alone", nil, trace.TraceID{2}, trace.TraceID{}},
		{"one trace", tracecontext.ToMap(sampled(2)), trace.TraceID{2}, trace.TraceID{}},
	} {
		s, spans := spansOf()
		o := &op{caller: sampled(2), at: time.Now()}
		s.traced(o, cancelSpan, &machine.Instance{Trace: c.instance}, nil, &machine.Changes{})
		o.err = context.Canceled
		o.end()
		span := spans.Ended()[0]
		var link trace.TraceID
		for _, l := range span.Links() {
			link = l.SpanContext.TraceID()
		}
		if span.SpanContext().TraceID() != c.want || link != c.link || span.Status().Description == "" {
			t.Errorf("%s: trace %s, linked to %s", c.name, span.SpanContext().TraceID(), link)
		}
	}
}
