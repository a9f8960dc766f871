package wiggle

import (
	"context"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
)

const tracerName = "github.com/wiggle-run/wiggle/sdk/go"

// runTraced runs the handler of a task in a span that continues the trace of the
// caller that started the instance.
func (w *Worker) runTraced(ctx context.Context, t *wigglev1.Task) (*wigglev1.StepReport, error) {
	if len(t.GetTraceContext()) > 0 {
		ctx = propagation.TraceContext{}.Extract(ctx, propagation.MapCarrier(t.GetTraceContext()))
	}
	ctx, span := w.tracer.Start(ctx, "step "+t.GetStep(), trace.WithSpanKind(trace.SpanKindConsumer))
	if span.IsRecording() { // most programs trace few steps or none
		span.SetAttributes(
			attribute.String("wiggle.namespace", t.GetNamespace()),
			attribute.String("wiggle.workflow", t.GetWorkflow()),
			attribute.Int("wiggle.version", int(t.GetVersion())),
			attribute.String("wiggle.instance.id", t.GetInstanceId()),
			attribute.String("wiggle.task.id", t.GetId()),
			attribute.String("wiggle.node", t.GetNode()),
			attribute.String("wiggle.step", t.GetStep()),
			attribute.Int("wiggle.attempt", int(t.GetAttempt())),
			attribute.String("wiggle.queue", t.GetQueue()),
			attribute.String("wiggle.worker", w.opts.Name),
		)
	}
	defer span.End()
	rep, err := w.runHandler(ctx, t)
	if err != nil {
		span.RecordError(err)
		span.SetAttributes(attribute.String("error.type", typeOf(err)))
		span.SetStatus(codes.Error, cut(err.Error(), 1024))
	}
	return rep, err
}
