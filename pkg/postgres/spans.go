package postgres

import (
	"context"
	"strings"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
)

// spans makes a span of each statement and batch whose caller's span is recording, by that span's own
// provider (OPS-10). Else it costs a look into the context.
type spans struct{ member, database string }

const (
	spansScope = "github.com/wiggle-run/wiggle/pkg/postgres"
	// maxQueryText bounds the text of a statement in a span. Parameters are in none.
	maxQueryText = 2048
	// maxOperation bounds where the first word of a statement is looked for.
	maxOperation = 64
)

// spanKey marks contexts that have a span of this tracer.
type spanKey struct{}

// start begins a span below the caller's, which is recording.
func (s spans) start(ctx context.Context, operation string, more ...attribute.KeyValue) context.Context {
	caller := trace.SpanFromContext(ctx)
	attributes := append([]attribute.KeyValue{
		attribute.String("db.system.name", "postgresql"), attribute.String("db.namespace", s.database),
		attribute.String("db.operation.name", operation), attribute.String("wiggle.member", s.member),
	}, more...)
	ctx, span := caller.TracerProvider().Tracer(spansScope).Start(ctx, operation+" "+s.member, //nolint:spancheck // end ends it
		trace.WithSpanKind(trace.SpanKindClient), trace.WithAttributes(attributes...))
	return context.WithValue(ctx, spanKey{}, span) //nolint:spancheck // as said
}

// end ends the span that start began.
func (s spans) end(ctx context.Context, err error) {
	span, ok := ctx.Value(spanKey{}).(trace.Span)
	if !ok {
		return
	}
	if err != nil {
		span.SetAttributes(attribute.String("error.type", Classify(err).String()))
		span.SetStatus(codes.Error, Reason(err))
	}
	span.End()
}

func (s spans) query(ctx context.Context, sql string) context.Context {
	if !trace.SpanFromContext(ctx).IsRecording() {
		return ctx
	}
	return s.start(ctx, operationOf(sql), attribute.String("db.query.text", queryText(sql)))
}

func (s spans) batch(ctx context.Context, b *pgx.Batch) context.Context {
	if !trace.SpanFromContext(ctx).IsRecording() {
		return ctx
	}
	texts := make([]string, len(b.QueuedQueries))
	for i, q := range b.QueuedQueries {
		texts[i] = q.SQL
	}
	return s.start(ctx, "BATCH", attribute.Int("db.operation.batch.size", len(texts)),
		attribute.String("db.query.text", queryText(strings.Join(texts, "; "))))
}

func (s spans) copy(ctx context.Context, table pgx.Identifier) context.Context {
	if !trace.SpanFromContext(ctx).IsRecording() {
		return ctx
	}
	return s.start(ctx, "COPY", attribute.String("db.collection.name", table.Sanitize()))
}

// operationOf is the first word of a statement, behind the comment in which sqlc names it.
func operationOf(sql string) string {
	for strings.HasPrefix(sql, "--") {
		_, sql, _ = strings.Cut(sql, "\n")
	}
	words := strings.FieldsFunc(sql[:min(len(sql), maxOperation)], func(r rune) bool { return strings.ContainsRune(" \n\t(", r) })
	if len(words) == 0 {
		return ""
	}
	return strings.ToUpper(words[0])
}

func queryText(sql string) string {
	if len(sql) <= maxQueryText {
		return sql
	}
	end := maxQueryText
	for end > 0 && !utf8.RuneStart(sql[end]) {
		end--
	}
	return sql[:end]
}
