package wiggle

import (
	"context"
	"log/slog"
	"net/http"

	"connectrpc.com/connect"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
)

const tracerName = "github.com/wiggle-run/wiggle/sdk/go"

const headerTraceparent = "traceparent"

// startSpan begins the span of a call that starts instances: the caller's trace goes
// on, or one begins, as the provider's sampler says.
func (c *Client) startSpan(ctx context.Context, name string) (context.Context, trace.Span) {
	return c.tracer.Start(ctx, name, trace.WithSpanKind(trace.SpanKindClient)) //nolint:spancheck // endSpan ends it
}

// endSpan ends the span of a call.
func endSpan(span trace.Span, err error) {
	if err != nil {
		span.RecordError(err)
		span.SetStatus(codes.Error, cut(err.Error(), 1024))
	}
	span.End()
}

// carried is the trace context of ctx as an instance keeps it; nil if it is not
// sampled: nothing is stored for what nobody records.
func carried(ctx context.Context) map[string]string {
	if !trace.SpanContextFromContext(ctx).IsSampled() {
		return nil
	}
	carrier := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(ctx, carrier)
	return carrier
}

// carryTrace sends the trace context of a call along in its headers, sampled or not:
// that it is not is a decision, too, which the server heeds.
type carryTrace struct{}

func (carryTrace) inject(ctx context.Context, header http.Header) {
	if trace.SpanContextFromContext(ctx).IsValid() {
		propagation.TraceContext{}.Inject(ctx, propagation.HeaderCarrier(header))
	}
}

func (c carryTrace) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
		c.inject(ctx, req.Header())
		return next(ctx, req)
	}
}

func (c carryTrace) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return func(ctx context.Context, spec connect.Spec) connect.StreamingClientConn {
		conn := next(ctx, spec)
		c.inject(ctx, conn.RequestHeader())
		return conn
	}
}

func (carryTrace) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return next
}

// runTraced runs the handler of a task in a span that continues the trace of the
// caller that started the instance, if that is sampled.
func (w *Worker) runTraced(ctx context.Context, t *wigglev1.Task) (*wigglev1.StepReport, error) {
	if len(t.GetTraceContext()) == 0 {
		return w.runHandler(ctx, t)
	}
	ctx, span := w.stepSpan(ctx, t)
	defer span.End()
	rep, err := w.runHandler(ctx, t)
	if err != nil {
		span.RecordError(err)
		span.SetAttributes(attribute.String("error.type", typeOf(err)))
		span.SetStatus(codes.Error, cut(err.Error(), 1024))
	}
	return rep, err
}

// stepSpan begins the span of a step: a child of the instance's start, with a link to
// what made the step ready, which may be hours ago.
func (w *Worker) stepSpan(ctx context.Context, t *wigglev1.Task) (context.Context, trace.Span) {
	ctx = propagation.TraceContext{}.Extract(ctx, propagation.MapCarrier(t.GetTraceContext()))
	options := []trace.SpanStartOption{trace.WithSpanKind(trace.SpanKindConsumer)}
	if sc := parseTraceparent(t.GetCausedBy()); sc.IsValid() {
		options = append(options, trace.WithLinks(trace.Link{SpanContext: sc}))
	}
	ctx, span := w.tracer.Start(ctx, "step "+t.GetStep(), options...)
	if !span.IsRecording() {
		return ctx, span
	}
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
	if h := heldFrom(ctx); h != nil {
		h.traceparent = carried(ctx)[headerTraceparent]
	}
	return ctx, span
}

func parseTraceparent(text string) trace.SpanContext {
	if text == "" {
		return trace.SpanContext{}
	}
	carrier := propagation.MapCarrier{headerTraceparent: text}
	return trace.SpanContextFromContext(propagation.TraceContext{}.Extract(context.Background(), carrier))
}

// traceAttrs are what a log has of a task's trace.
func traceAttrs(t *wigglev1.Task) []slog.Attr {
	if sc := parseTraceparent(t.GetTraceContext()[headerTraceparent]); sc.IsValid() {
		return []slog.Attr{slog.String("trace_id", sc.TraceID().String())}
	}
	return nil
}
