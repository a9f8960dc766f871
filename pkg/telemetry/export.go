package telemetry

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"go.opentelemetry.io/otel/exporters/otlp/otlpmetric/otlpmetricgrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlpmetric/otlpmetrichttp"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	otelprometheus "go.opentelemetry.io/otel/exporters/prometheus"
	"go.opentelemetry.io/otel/metric"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"
	"golang.org/x/net/http/httpguts"
)

const (
	signalTraces  = "TRACES"
	signalMetrics = "METRICS"

	protocolHTTP = "http/protobuf"
	protocolGRPC = "grpc"
)

// secondsBuckets are the bounds of histograms in seconds; OpenTelemetry's own default is made for milliseconds.
func secondsBuckets() []float64 {
	return []float64{
		0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800, 7200,
	}
}

// exported returns the protocol over which a signal is exported, empty if it is not.
func exported(signal string) (string, error) {
	if strings.EqualFold(os.Getenv("OTEL_SDK_DISABLED"), "true") ||
		strings.EqualFold(os.Getenv("OTEL_"+signal+"_EXPORTER"), "none") {
		return "", nil
	}
	if firstSet("OTEL_EXPORTER_OTLP_"+signal+"_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT") == "" {
		return "", nil
	}
	if err := checkExporter(signal); err != nil {
		return "", err
	}
	switch protocol := firstSet("OTEL_EXPORTER_OTLP_"+signal+"_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"); protocol {
	case "", protocolHTTP:
		return protocolHTTP, nil
	case protocolGRPC:
		return protocolGRPC, nil
	default:
		return "", fmt.Errorf("telemetry: OTEL_EXPORTER_OTLP_PROTOCOL is %q; use %s or %s", protocol, protocolHTTP,
			protocolGRPC)
	}
}

// checkExporter refuses addresses and headers that the SDK cannot read. It would go on without them, and write them on standard
// error, with the passwords and tokens that they hold.
func checkExporter(signal string) error {
	for _, name := range []string{"OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_" + signal + "_ENDPOINT"} {
		if _, err := url.Parse(os.Getenv(name)); err != nil {
			return fmt.Errorf("telemetry: %s is not a URL", name)
		}
	}
	for _, name := range []string{"OTEL_EXPORTER_OTLP_HEADERS", "OTEL_EXPORTER_OTLP_" + signal + "_HEADERS"} {
		headers := os.Getenv(name)
		if headers == "" {
			continue
		}
		for header := range strings.SplitSeq(headers, ",") {
			key, value, found := strings.Cut(header, "=")
			if _, err := url.PathUnescape(value); err != nil || !found || !httpguts.ValidHeaderFieldName(strings.TrimSpace(key)) {
				return fmt.Errorf("telemetry: %s is not a list such as name=value,name=value with the values escaped as in a URL", name)
			}
		}
	}
	return nil
}

func firstSet(names ...string) string {
	for _, name := range names {
		if value := os.Getenv(name); value != "" {
			return value
		}
	}
	return ""
}

// newTracers exports spans in batches. The SDK itself reads OTEL_TRACES_SAMPLER, OTEL_BSP_* and the span limits.
func newTracers(
	ctx context.Context, res *resource.Resource, logger *slog.Logger,
) (trace.TracerProvider, func(context.Context) error, error) {
	protocol, err := exported(signalTraces)
	if err != nil {
		return nil, nil, err
	}
	var exporter sdktrace.SpanExporter
	switch protocol {
	case "":
		return noop.NewTracerProvider(), func(context.Context) error { return nil }, nil
	case protocolGRPC:
		exporter, err = otlptracegrpc.New(ctx)
	default:
		exporter, err = otlptracehttp.New(ctx)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("telemetry: export traces: %w", err)
	}
	provider := sdktrace.NewTracerProvider(sdktrace.WithResource(res),
		sdktrace.WithBatcher(loggedSpans{exporter, logger}))
	return provider, provider.Shutdown, nil
}

// newMeters offers metrics to Prometheus on a registry of its own, and exports them if an endpoint is set.
func newMeters(
	ctx context.Context, res *resource.Resource, logger *slog.Logger,
) (metric.MeterProvider, http.Handler, func(context.Context) error, error) {
	registry := prometheus.NewRegistry()
	err := errors.Join(registry.Register(collectors.NewGoCollector()),
		registry.Register(collectors.NewProcessCollector(collectors.ProcessCollectorOpts{})))
	if err != nil {
		return nil, nil, nil, fmt.Errorf("telemetry: collect the process's metrics: %w", err)
	}
	scraped, err := otelprometheus.New(otelprometheus.WithRegisterer(registry), otelprometheus.WithoutScopeInfo())
	if err != nil {
		return nil, nil, nil, fmt.Errorf("telemetry: offer metrics to Prometheus: %w", err)
	}
	options := []sdkmetric.Option{
		sdkmetric.WithResource(res), sdkmetric.WithReader(scraped),
		sdkmetric.WithView(sdkmetric.NewView(
			sdkmetric.Instrument{Kind: sdkmetric.InstrumentKindHistogram, Unit: "s"},
			sdkmetric.Stream{Aggregation: sdkmetric.AggregationExplicitBucketHistogram{Boundaries: secondsBuckets()}},
		)),
	}
	exporter, err := newMetricExporter(ctx)
	if err != nil {
		return nil, nil, nil, err
	}
	if exporter != nil {
		options = append(options, sdkmetric.WithReader(sdkmetric.NewPeriodicReader(loggedMetrics{exporter, logger})))
	}
	provider := sdkmetric.NewMeterProvider(options...)
	handler := promhttp.HandlerFor(registry, promhttp.HandlerOpts{Registry: registry, EnableOpenMetrics: true})
	return provider, handler, provider.Shutdown, nil
}

// newMetricExporter returns nil if metrics are not exported.
func newMetricExporter(ctx context.Context) (sdkmetric.Exporter, error) {
	protocol, err := exported(signalMetrics)
	if err != nil {
		return nil, err
	}
	var exporter sdkmetric.Exporter
	switch protocol {
	case "":
		return nil, nil //nolint:nilnil // no exporter is what off means
	case protocolGRPC:
		exporter, err = otlpmetricgrpc.New(ctx)
	default:
		exporter, err = otlpmetrichttp.New(ctx)
	}
	if err != nil {
		return nil, fmt.Errorf("telemetry: export metrics: %w", err)
	}
	return exporter, nil
}

// loggedSpans logs failed exports here; the SDK would hand them to a handler that is global.
type loggedSpans struct {
	sdktrace.SpanExporter

	logger *slog.Logger
}

func (l loggedSpans) ExportSpans(ctx context.Context, spans []sdktrace.ReadOnlySpan) error {
	if err := l.SpanExporter.ExportSpans(ctx, spans); err != nil {
		l.logger.WarnContext(ctx, "spans were not exported", "spans", len(spans), "error", err)
	}
	return nil
}

// loggedMetrics does for metrics what loggedSpans does for spans.
type loggedMetrics struct {
	sdkmetric.Exporter

	logger *slog.Logger
}

func (l loggedMetrics) Export(ctx context.Context, metrics *metricdata.ResourceMetrics) error {
	if err := l.Exporter.Export(ctx, metrics); err != nil {
		l.logger.WarnContext(ctx, "metrics were not exported", "error", err)
	}
	return nil
}
