package dispatch

import (
	"context"
	"slices"
	"time"

	"github.com/oklog/ulid/v2"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/wiggle-run/wiggle/pkg/shardid"
	"github.com/wiggle-run/wiggle/pkg/tracecontext"
	"github.com/wiggle-run/wiggle/services/instances/internal/machine"
)

// Spans (OPS-10, docs/telemetry.md). Each operation on an instance that is sampled has
// one, in the trace of the instance. The transaction that serves it serves others too: it
// has a span below the first of them that is sampled, with links to the rest. What is
// not sampled meets a few nil checks.

// spanNames are the names of operations' spans by what settles a lease.
var spanNames = [...]string{ //nolint:gochecknoglobals // a table
	machine.NotSettled: "timer.wake", machine.ByReport: "task.report", machine.ByFailure: "task.fail",
	machine.ByExpiry: "task.expire", machine.ByRelease: "task.release",
}

const (
	startSpan  = "instance.start"
	cancelSpan = "instance.cancel"
	commitSpan = "shard.commit"
)

// opSpan is the span of an operation.
type opSpan struct {
	trace.Span

	ctx         context.Context //nolint:containedctx // it travels with the operation through its lane
	traceparent string
}

// begin begins the span of an operation that came at a time; nil if its parent is not sampled, or nothing is
// recorded here. It is linked to what else belongs to it.
func (s *Shard) begin(name string, parent trace.SpanContext, at time.Time, linked ...trace.SpanContext) *opSpan {
	if !parent.IsSampled() {
		return nil
	}
	ctx := trace.ContextWithSpanContext(context.Background(), parent)
	options := []trace.SpanStartOption{
		trace.WithTimestamp(at), trace.WithAttributes(attribute.Int("wiggle.shard", s.id)),
	}
	for _, sc := range linked {
		if sc.IsSampled() {
			options = append(options, trace.WithLinks(trace.Link{SpanContext: sc}))
		}
	}
	ctx, span := s.tracer.Start(ctx, name, options...)
	if !span.IsRecording() {
		return nil
	}
	return &opSpan{Span: span, ctx: ctx, traceparent: tracecontext.Format(span.SpanContext())}
}

// beginStart begins the span of a start: below the call that it came with, if that is of its trace, else below what
// the start itself names, with a link to the call.
func (s *Shard) beginStart(item *StartItem) *opSpan {
	if len(item.Event.Trace) == 0 {
		return nil
	}
	own := tracecontext.FromMap(item.Event.Trace)
	if item.Caller.IsSampled() && item.Caller.TraceID() == own.TraceID() {
		return s.begin(startSpan, item.Caller, time.Now())
	}
	return s.begin(startSpan, own, time.Now(), item.Caller)
}

// traced says of an operation's span whose instance it is about, and has what changes
// point to it. Where there is none yet and the instance is sampled it begins now, as of
// when the operation came.
func (s *Shard) traced(o *op, name string, in *machine.Instance, token *machine.Token, c *machine.Changes) {
	if o.span == nil && len(in.Trace) == 0 && !o.caller.IsSampled() {
		return
	}
	if o.span == nil {
		parent, linked := tracecontext.FromMap(in.Trace), o.caller
		switch {
		case !parent.IsValid():
			parent, linked = o.caller, trace.SpanContext{}
		case linked.TraceID() == parent.TraceID():
			parent, linked = o.caller, trace.SpanContext{}
		}
		o.span = s.begin(name, parent, o.at, linked)
	}
	if o.span == nil { // nothing is recorded here; others go on with the trace
		c.TracedBy(in.Trace[tracecontext.Traceparent])
		return
	}
	o.span.SetAttributes(
		attribute.String("wiggle.namespace", in.Namespace), attribute.String("wiggle.workflow", in.Workflow),
		attribute.Int("wiggle.version", int(in.Version)),
		attribute.String("wiggle.instance.id", shardid.NewInstance(s.id, ulid.ULID(in.ID)).String()),
	)
	if token != nil {
		o.span.SetAttributes(attribute.String("wiggle.node", token.Node), attribute.Int("wiggle.attempt", int(token.Attempt)))
	}
	c.TracedBy(o.span.traceparent)
}

// end ends the span of an operation that is answered.
func (o *op) end() {
	if o.span == nil {
		return
	}
	if o.err != nil {
		o.span.SetStatus(codes.Error, o.err.Error())
	}
	o.span.End()
}

// transaction is the span of a batch's transaction.
type transaction struct {
	began time.Time
	span  trace.Span // nil until an operation of the batch is known to be sampled
}

// open begins the span of a batch's transaction, if an operation in it is known to be sampled. ctx is then the span's,
// for what the database is asked.
func (s *Shard) open(ctx context.Context, batch []*op) (context.Context, transaction) {
	tx := transaction{began: time.Now()}
	first := slices.IndexFunc(batch, func(o *op) bool { return o.span != nil })
	if first < 0 {
		return ctx, tx
	}
	tx.span = s.beginCommit(batch[first], tx.began)
	return trace.ContextWithSpan(ctx, tx.span), tx
}

// beginCommit begins the span of a transaction below that of an operation. [Shard.closed] ends it.
func (s *Shard) beginCommit(below *op, at time.Time) trace.Span {
	_, span := s.tracer.Start(below.span.ctx, commitSpan, //nolint:spancheck // ended with the transaction
		trace.WithTimestamp(at), trace.WithAttributes(attribute.Int("wiggle.shard", s.id)))
	return span //nolint:spancheck // as said
}

// closed ends it, and tells it and the operations' spans of each other.
func (s *Shard) closed(tx *transaction, batch []*op, way string, err error) {
	took := time.Since(tx.began)
	first := true
	for _, o := range batch {
		if o.span == nil {
			continue
		}
		if tx.span == nil { // the database told that it is sampled
			tx.span = s.beginCommit(o, tx.began)
		}
		if !first {
			tx.span.AddLink(trace.Link{SpanContext: o.span.SpanContext()})
			o.span.AddLink(trace.Link{SpanContext: tx.span.SpanContext()})
		}
		first = false
		o.span.SetAttributes(attribute.Int("wiggle.batch.size", len(batch)), attribute.Float64("wiggle.commit.duration", took.Seconds()))
	}
	if tx.span == nil {
		return
	}
	tx.span.SetAttributes(attribute.Int("wiggle.batch.size", len(batch)), attribute.String("wiggle.batch.way", way))
	if err != nil {
		tx.span.SetStatus(codes.Error, err.Error())
	}
	tx.span.End()
}
