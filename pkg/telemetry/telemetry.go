package telemetry

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	"go.opentelemetry.io/otel/trace"
)

// Config says what a process tells, and how its logs look.
type Config struct {
	// Service is the service's name, such as "wiggle-router". Required.
	Service string
	// Version is the release. Empty: not told.
	Version string
	// Instance names the process among those of its service. Empty: a random name.
	Instance string
	// LogFormat is "json" or "text". Empty: json.
	LogFormat string
	// LogLevel is the least level that is logged. Pass a *slog.LevelVar to change it while the process runs. Nil: info.
	LogLevel slog.Leveler
	// LogOutput is where logs go. Nil: standard error.
	LogOutput io.Writer
}

// Telemetry is what the parts of a process are given. All of it is safe for concurrent use.
type Telemetry struct {
	// Logger writes logs; with the context of a traced call it adds trace_id and span_id.
	Logger *slog.Logger
	// TracerProvider makes spans. It makes none, at next to no cost, if no endpoint is configured.
	TracerProvider trace.TracerProvider
	// MeterProvider makes instruments.
	MeterProvider metric.MeterProvider
	// Propagator carries trace context and baggage in headers, as W3C has them.
	Propagator propagation.TextMapPropagator
	// Metrics answers Prometheus.
	Metrics http.Handler
}

// Setup makes the telemetry of a process. The returned function exports what is left and stops, within its context. An
// endpoint that does not answer is no error: exporting is tried again, and failures are logged.
func Setup(ctx context.Context, cfg Config) (*Telemetry, func(context.Context) error, error) {
	if cfg.Service == "" {
		return nil, nil, errors.New("telemetry: the service has no name")
	}
	logger, err := newLogger(cfg)
	if err != nil {
		return nil, nil, err
	}
	res, err := newResource(ctx, cfg)
	if err != nil {
		return nil, nil, err
	}
	tracers, stopTracers, err := newTracers(ctx, res, logger)
	if err != nil {
		return nil, nil, err
	}
	meters, handler, stopMeters, err := newMeters(ctx, res, logger)
	if err != nil {
		return nil, nil, errors.Join(err, stopTracers(ctx))
	}
	t := &Telemetry{
		Logger: logger, TracerProvider: tracers, MeterProvider: meters, Metrics: handler,
		Propagator: propagation.NewCompositeTextMapPropagator(propagation.TraceContext{}, propagation.Baggage{}),
	}
	stop := func(ctx context.Context) error { return errors.Join(stopTracers(ctx), stopMeters(ctx)) }
	return t, stop, nil
}

// newResource describes the process. OTEL_RESOURCE_ATTRIBUTES and OTEL_SERVICE_NAME have the last word.
func newResource(ctx context.Context, cfg Config) (*resource.Resource, error) {
	instance := cfg.Instance
	if instance == "" {
		instance = rand.Text()
	}
	attributes := []attribute.KeyValue{
		attribute.String("service.name", cfg.Service), attribute.String("service.namespace", "wiggle"),
		attribute.String("service.instance.id", instance),
	}
	if cfg.Version != "" {
		attributes = append(attributes, attribute.String("service.version", cfg.Version))
	}
	res, err := resource.New(ctx, resource.WithTelemetrySDK(), resource.WithHost(),
		resource.WithAttributes(attributes...), resource.WithFromEnv())
	if err != nil {
		return nil, fmt.Errorf("telemetry: describe the process: %w", err)
	}
	return res, nil
}

func newLogger(cfg Config) (*slog.Logger, error) {
	out := cfg.LogOutput
	if out == nil {
		out = os.Stderr
	}
	options := &slog.HandlerOptions{Level: cfg.LogLevel}
	switch cfg.LogFormat {
	case "", "json":
		return slog.New(traced{slog.NewJSONHandler(out, options)}), nil
	case "text":
		return slog.New(traced{slog.NewTextHandler(out, options)}), nil
	}
	return nil, fmt.Errorf("telemetry: log format %q is neither json nor text", cfg.LogFormat)
}

// traced adds the ids of the span in the context to each record.
type traced struct{ slog.Handler }

func (t traced) Handle(ctx context.Context, record slog.Record) error {
	if span := trace.SpanContextFromContext(ctx); span.IsValid() {
		record.AddAttrs(slog.String("trace_id", span.TraceID().String()), slog.String("span_id", span.SpanID().String()))
	}
	if err := t.Handler.Handle(ctx, record); err != nil {
		return fmt.Errorf("log: %w", err)
	}
	return nil
}

func (t traced) WithAttrs(attrs []slog.Attr) slog.Handler { return traced{t.Handler.WithAttrs(attrs)} }

func (t traced) WithGroup(name string) slog.Handler { return traced{t.Handler.WithGroup(name)} }
