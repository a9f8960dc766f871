package indexer

import (
	"context"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/wiggle-run/wiggle/pkg/bus"
	"github.com/wiggle-run/wiggle/pkg/tracecontext"
)

// processSpan names the span of an instance that is indexed, as the semantic conventions of messaging have it: operation
// and destination.
const processSpan = "process " + bus.SubjectRoot

// begin begins the spans of those items of a batch that are sampled (OPS-10): below the span that published the first of
// their events, with links to the others. What the batch reads and writes serves all of its items; it is told below the
// first of the spans, which has links to the rest.
func (x *Indexer) begin(ctx context.Context, items []*item) context.Context {
	if x.Tracer == nil {
		return ctx
	}
	var first trace.Span
	for _, it := range items {
		below, span := it.begin(ctx, x.Tracer)
		switch {
		case span == nil:
			continue
		case first == nil:
			first, ctx = span, below
		default:
			first.AddLink(trace.Link{SpanContext: span.SpanContext()})
			span.AddLink(trace.Link{SpanContext: first.SpanContext()})
		}
		span.SetAttributes(attribute.Int("messaging.batch.message_count", len(items)))
	}
	return ctx
}

// begin begins the span of an item; nil if none of its events is sampled.
func (it *item) begin(ctx context.Context, tracer trace.Tracer) (context.Context, trace.Span) {
	it.span = nil // of an earlier attempt
	var parent trace.SpanContext
	var links []trace.Link
	for _, e := range it.events {
		if e.Trace == "" {
			continue
		}
		switch sc := tracecontext.Parse(e.Trace); {
		case !sc.IsValid():
		case !parent.IsValid():
			parent = sc
		default:
			links = append(links, trace.Link{SpanContext: sc})
		}
	}
	if !parent.IsValid() {
		return ctx, nil
	}
	last := it.events[len(it.events)-1]
	ctx, span := tracer.Start(trace.ContextWithRemoteSpanContext(ctx, parent), processSpan,
		trace.WithSpanKind(trace.SpanKindConsumer), trace.WithLinks(links...), trace.WithAttributes(
			attribute.String("messaging.system", "nats"), attribute.String("messaging.operation.name", "process"),
			attribute.String("messaging.operation.type", "process"), attribute.String("messaging.destination.name", bus.SubjectRoot),
			attribute.String("messaging.consumer.group.name", Group), attribute.Int("wiggle.shard", last.Shard),
			attribute.String("wiggle.instance.id", last.Instance), attribute.String("wiggle.namespace", last.Namespace),
			attribute.String("wiggle.workflow", last.Workflow), attribute.Int("wiggle.events", len(it.events)),
		))
	if !span.IsRecording() {
		return ctx, nil
	}
	it.span = span
	return ctx, span
}

// failed notes why an item is not indexed.
func (it *item) failed(err error) {
	if it.span != nil {
		it.span.SetStatus(codes.Error, err.Error())
	}
}

// endSpans ends the spans of a batch.
func endSpans(items []*item, err error) {
	for _, it := range items {
		if it.span == nil {
			continue
		}
		if err != nil {
			it.failed(err)
		}
		it.span.End()
	}
}
