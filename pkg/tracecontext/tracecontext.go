// Package tracecontext is a span's place in its trace as it is stored and carried: as W3C traceparent and tracestate. Only
// what is sampled has any, so that sampling one trace of a hundred costs a hundredth (OPS-10).
package tracecontext

import (
	"context"

	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
)

// The keys of a carrier, which are names of headers too.
const (
	Traceparent = "traceparent"
	Tracestate  = "tracestate"
)

// Format is the traceparent of a span context; empty if it is not sampled.
func Format(sc trace.SpanContext) string {
	if !sc.IsSampled() || !sc.IsValid() {
		return ""
	}
	return "00-" + sc.TraceID().String() + "-" + sc.SpanID().String() + "-01"
}

// Parse reads a traceparent. What is none, or is not sampled, gives the zero span context.
func Parse(traceparent string) trace.SpanContext {
	if traceparent == "" {
		return trace.SpanContext{}
	}
	return FromMap(map[string]string{Traceparent: traceparent})
}

// ToMap is a span context as a carrier has it; nil if it is not sampled.
func ToMap(sc trace.SpanContext) map[string]string {
	parent := Format(sc)
	if parent == "" {
		return nil
	}
	m := map[string]string{Traceparent: parent}
	if state := sc.TraceState().String(); state != "" {
		m[Tracestate] = state
	}
	return m
}

// FromMap reads a carrier. What is none, or is not sampled, gives the zero span context.
func FromMap(m map[string]string) trace.SpanContext {
	if m[Traceparent] == "" {
		return trace.SpanContext{}
	}
	sc := trace.SpanContextFromContext(propagation.TraceContext{}.Extract(context.Background(), propagation.MapCarrier(m)))
	if !sc.IsSampled() {
		return trace.SpanContext{}
	}
	return sc
}
