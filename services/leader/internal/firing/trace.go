package firing

import (
	"context"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/wiggle-run/wiggle/pkg/tracecontext"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
)

// begin begins a trace for what a due time starts (OPS-10): many are started by one call, and each has its own.
func (l *Loop) begin(t *turn, start *wigglev1.StartInstanceRequest) {
	if l.Tracer == nil {
		return
	}
	_, span := l.Tracer.Start(context.Background(), "schedule.fire", trace.WithNewRoot(), trace.WithSpanKind(trace.SpanKindProducer))
	if !span.IsRecording() {
		return
	}
	span.SetAttributes(
		attribute.String("wiggle.namespace", start.GetNamespace()), attribute.String("wiggle.workflow", start.GetWorkflow()),
		attribute.String("wiggle.schedule.id", t.row.Schedule.GetId()),
		attribute.String("wiggle.schedule.due", t.due.UTC().Format(time.RFC3339)),
	)
	t.span = span
	start.TraceContext = tracecontext.ToMap(span.SpanContext())
}

// endSpans ends the spans of a call's firings.
func endSpans(group []*turn) {
	for _, t := range group {
		if t.span == nil {
			continue
		}
		if t.problem != "" {
			t.span.SetStatus(codes.Error, t.problem)
		} else {
			t.span.SetAttributes(attribute.String("wiggle.instance.id", t.instance))
		}
		t.span.End()
	}
}
