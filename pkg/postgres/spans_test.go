package postgres_test

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"go.opentelemetry.io/otel/attribute"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/wiggle-run/wiggle/internal/pgtest"
)

// Statements have spans below the one that is recording, and none else; parameters are in none.
func TestSpans(t *testing.T) { // OPS-10
	t.Parallel()
	pool := pgtest.NewPool(t)
	spans := tracetest.NewSpanRecorder()
	recording := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans)).Tracer("test")
	dropping := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans), sdktrace.WithSampler(sdktrace.NeverSample())).Tracer("test")
	statements := func(ctx context.Context) {
		if _, err := pool.Exec(ctx, "-- name: Nothing :exec\nselect $1::text", "secret"); err != nil {
			t.Error(err)
		}
		batch := &pgx.Batch{}
		batch.Queue("select 1")
		batch.Queue("select 2")
		if err := pool.SendBatch(ctx, batch).Close(); err != nil {
			t.Error(err)
		}
		if _, err := pool.Exec(ctx, "select nothing from nowhere"); err == nil {
			t.Error("no error")
		}
	}
	ctx, unsampled := dropping.Start(t.Context(), "caller")
	statements(ctx)
	unsampled.End()
	statements(t.Context())
	if n := len(spans.Started()); n > 0 {
		t.Fatalf("%d spans of what is not sampled", n)
	}
	ctx, caller := recording.Start(t.Context(), "caller")
	statements(ctx)
	caller.End()
	var got []string
	for _, s := range spans.Ended() {
		if s.Name() == "caller" {
			continue
		}
		operation, _, _ := strings.Cut(s.Name(), " ")
		got = append(got, operation+" "+s.Status().Code.String())
		if s.Parent().SpanID() != caller.SpanContext().SpanID() {
			t.Errorf("%s is below %s", s.Name(), s.Parent().SpanID())
		}
		if slices.ContainsFunc(s.Attributes(), func(a attribute.KeyValue) bool { return strings.Contains(a.Value.String(), "secret") }) {
			t.Errorf("%s has a parameter: %v", s.Name(), s.Attributes())
		}
	}
	if want := []string{"SELECT Unset", "BATCH Unset", "SELECT Error"}; !slices.Equal(got, want) {
		t.Errorf("spans %v, want %v", got, want)
	}
}
