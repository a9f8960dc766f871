package tracecontext_test

import (
	"maps"
	"testing"

	"go.opentelemetry.io/otel/trace"

	"github.com/wiggle-run/wiggle/pkg/tracecontext"
)

func TestThereAndBack(t *testing.T) { // OPS-10
	t.Parallel()
	state, err := trace.ParseTraceState("vendor=1")
	if err != nil {
		t.Fatal(err)
	}
	sc := trace.NewSpanContext(trace.SpanContextConfig{
		TraceID: trace.TraceID{1}, SpanID: trace.SpanID{2}, TraceFlags: trace.FlagsSampled, TraceState: state, Remote: true,
	})
	const want = "00-01000000000000000000000000000000-0200000000000000-01"
	if got := tracecontext.Format(sc); got != want {
		t.Errorf("got %q", got)
	}
	if got := tracecontext.Parse(want); got.SpanID() != sc.SpanID() || got.TraceID() != sc.TraceID() || !got.IsSampled() {
		t.Errorf("got %v", got)
	}
	carried := tracecontext.ToMap(sc)
	if !maps.Equal(carried, map[string]string{"traceparent": want, "tracestate": "vendor=1"}) {
		t.Errorf("carried as %v", carried)
	}
	if got := tracecontext.FromMap(carried); !got.Equal(sc) {
		t.Errorf("got %v back", got)
	}
}

func TestNothingOfTheUnsampled(t *testing.T) { // OPS-10; not parallel, as it counts allocations
	sc := trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{1}, SpanID: trace.SpanID{2}})
	if tracecontext.Format(sc) != "" || tracecontext.ToMap(sc) != nil {
		t.Error("what is not sampled is carried")
	}
	for _, text := range []string{
		"", "00-11", "00-01000000000000000000000000000000-0200000000000000-00",
		"00-00000000000000000000000000000000-0200000000000000-01",
	} {
		if tracecontext.Parse(text).IsValid() {
			t.Errorf("%q is taken", text)
		}
	}
	allocs := testing.AllocsPerRun(100, func() {
		if tracecontext.Format(sc) != "" || tracecontext.ToMap(sc) != nil || tracecontext.Parse("").IsValid() ||
			tracecontext.FromMap(nil).IsValid() {
			t.Error("what is not sampled is carried")
		}
	})
	if allocs != 0 {
		t.Errorf("%v allocations for what is not sampled", allocs)
	}
}
