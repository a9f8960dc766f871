package relay

import (
	"context"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/wiggle-run/wiggle/pkg/bus"
	"github.com/wiggle-run/wiggle/pkg/tracecontext"
)

// publishSpan names the span of an event that is published, as the semantic conventions of messaging have it: operation
// and destination.
const publishSpan = "send " + bus.SubjectRoot

// published is the span of one event of a page.
type published struct {
	at   int // in the page
	span trace.Span
}

// pageSpans are the spans of those events of a page whose trace is sampled (OPS-10).
type pageSpans []published

// begin begins the spans, each below the span that wrote its event, and has the events travel with theirs.
func (t *turn) begin(ctx context.Context, events []bus.Event) pageSpans {
	if t.Tracer == nil {
		return nil
	}
	var spans pageSpans
	for i := range events {
		e := &events[i]
		if e.Trace == "" { // most
			continue
		}
		_, span := t.Tracer.Start(trace.ContextWithSpanContext(ctx, tracecontext.Parse(e.Trace)), publishSpan,
			trace.WithSpanKind(trace.SpanKindProducer), trace.WithAttributes(
				attribute.String("messaging.system", "nats"), attribute.String("messaging.operation.name", "publish"),
				attribute.String("messaging.operation.type", "send"), attribute.String("messaging.destination.name", bus.SubjectRoot),
				attribute.String("messaging.message.id", e.ID()), attribute.Int("messaging.batch.message_count", len(events)),
				attribute.Int("wiggle.shard", e.Shard), attribute.Int64("wiggle.event.seq", e.Seq),
				attribute.String("wiggle.event.type", e.Type), attribute.String("wiggle.instance.id", e.Instance),
				attribute.String("wiggle.namespace", e.Namespace), attribute.String("wiggle.workflow", e.Workflow),
			))
		if own := tracecontext.Format(span.SpanContext()); own != "" {
			e.Trace = own
		}
		spans = append(spans, published{at: i, span: span})
	}
	return spans
}

// end ends the spans. Those of events that are not stored say why; these come again.
func (p pageSpans) end(stored int, err error) {
	for _, of := range p {
		if of.at >= stored && err != nil {
			of.span.SetStatus(codes.Error, err.Error())
		}
		of.span.End()
	}
}
