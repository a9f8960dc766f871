// Package telemetry sets up what a process tells about itself: logs, traces and metrics (OPS-10).
//
// [Setup] is called once in a process and everything it makes is handed down: nothing is registered globally, so that
// tests and many services can live in one process. Exporting is configured by OpenTelemetry's own environment variables
// (OTEL_EXPORTER_OTLP_ENDPOINT, _PROTOCOL, _HEADERS, OTEL_TRACES_SAMPLER, OTEL_RESOURCE_ATTRIBUTES, OTEL_SDK_DISABLED and
// so on). Without an endpoint no span is made, and trace context that comes in is still passed on; metrics are always
// there for Prometheus, under their names by the semantic conventions.
package telemetry
