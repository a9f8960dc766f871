package telemetry_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"
	"go.uber.org/goleak"

	"github.com/wiggle-run/wiggle/pkg/telemetry"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// The tests set environment variables, so they do not run in parallel.

func setup(t *testing.T, cfg telemetry.Config) (*telemetry.Telemetry, func(context.Context) error) {
	t.Helper()
	tel, stop, err := telemetry.Setup(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	return tel, stop
}

func TestOffCostsNothingAndPassesOnTraces(t *testing.T) {
	before := otel.GetTracerProvider()
	tel, stop := setup(t, telemetry.Config{Service: "wiggle-router"})
	_, span := tel.TracerProvider.Tracer("x").Start(t.Context(), "y")
	if span.IsRecording() || span.SpanContext().IsValid() {
		t.Error("a span was made")
	}
	remote := trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{1}, SpanID: trace.SpanID{2}, Remote: true})
	ctx, _ := tel.TracerProvider.Tracer("x").Start(trace.ContextWithRemoteSpanContext(t.Context(), remote), "y")
	if trace.SpanContextFromContext(ctx).TraceID() != remote.TraceID() {
		t.Error("the caller's trace is lost")
	}
	if otel.GetTracerProvider() != before {
		t.Error("a provider was registered globally")
	}
	if err := stop(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestLogsCarryTraceIDs(t *testing.T) {
	for format, want := range map[string]string{"json": `"trace_id":"01`, "text": "trace_id=01"} {
		var out bytes.Buffer
		tel, stop := setup(t, telemetry.Config{
			Service: "wiggle-router", LogFormat: format, LogOutput: &out, LogLevel: slog.LevelWarn,
		})
		span := trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{1}, SpanID: trace.SpanID{2}})
		logger := tel.Logger.With("shard", 3)
		logger.InfoContext(t.Context(), "quiet")
		logger.WarnContext(trace.ContextWithSpanContext(t.Context(), span), "loud")
		if text := out.String(); !strings.Contains(text, want) || !strings.Contains(text, "shard") || strings.Contains(text, "quiet") {
			t.Errorf("%s: %s", format, text)
		}
		out.Reset()
		logger.WarnContext(t.Context(), "loud")
		if strings.Contains(out.String(), "trace_id") || format == "json" && !json.Valid(out.Bytes()) {
			t.Errorf("%s: %s", format, out.String())
		}
		if err := stop(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

func TestPrometheus(t *testing.T) {
	tel, stop := setup(t, telemetry.Config{Service: "wiggle-router", Version: "1.2.3", Instance: "r0"})
	started, err := tel.MeterProvider.Meter("wiggle").Int64Counter("wiggle.instances.started")
	if err != nil {
		t.Fatal(err)
	}
	started.Add(t.Context(), 3)
	commit, err := tel.MeterProvider.Meter("wiggle").Float64Histogram("wiggle.commit.duration", metric.WithUnit("s"))
	if err != nil {
		t.Fatal(err)
	}
	commit.Record(t.Context(), 0.002)
	answer := httptest.NewRecorder()
	tel.Metrics.ServeHTTP(answer, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics", nil))
	for _, want := range []string{
		"wiggle_instances_started_total 3", `wiggle_commit_duration_seconds_bucket{le="0.0025"} 1`, "go_goroutines",
		`service_version="1.2.3"`, `service_instance_id="r0"`,
	} {
		if !strings.Contains(answer.Body.String(), want) {
			t.Errorf("%q is not in\n%s", want, answer.Body.String())
		}
	}
	if err := stop(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestExport(t *testing.T) {
	var mu sync.Mutex
	paths := map[string]int{}
	collector := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		mu.Lock()
		defer mu.Unlock()
		paths[r.URL.Path]++
	}))
	defer collector.Close()
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.URL)
	tel, stop := setup(t, telemetry.Config{Service: "wiggle-router"})
	_, span := tel.TracerProvider.Tracer("x").Start(t.Context(), "y")
	if !span.IsRecording() {
		t.Error("no span was made")
	}
	span.End()
	if err := stop(t.Context()); err != nil {
		t.Error(err)
	}
	mu.Lock()
	defer mu.Unlock()
	if paths["/v1/traces"] != 1 || paths["/v1/metrics"] != 1 {
		t.Errorf("the collector got %v", paths)
	}
}

func TestSamplingByEnvironment(t *testing.T) {
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
	t.Setenv("OTEL_METRICS_EXPORTER", "none")
	t.Setenv("OTEL_TRACES_SAMPLER", "always_off")
	tel, stop := setup(t, telemetry.Config{Service: "wiggle-router"})
	if _, span := tel.TracerProvider.Tracer("x").Start(t.Context(), "y"); span.IsRecording() {
		t.Error("the sampler is not heeded")
	}
	if err := stop(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestFailedExportsAreLogged(t *testing.T) {
	collector := httptest.NewServer(http.NotFoundHandler())
	defer collector.Close()
	t.Setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", collector.URL)
	var out bytes.Buffer
	tel, stop := setup(t, telemetry.Config{Service: "wiggle-router", LogOutput: &out})
	_, span := tel.TracerProvider.Tracer("x").Start(t.Context(), "y")
	span.End()
	if err := stop(t.Context()); err != nil {
		t.Error(err)
	}
	if !strings.Contains(out.String(), "spans were not exported") {
		t.Errorf("log: %s", &out)
	}
}

func TestGRPC(t *testing.T) {
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
	t.Setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
	t.Setenv("OTEL_METRICS_EXPORTER", "none") // a last export would wait for somebody to listen
	tel, stop := setup(t, telemetry.Config{Service: "wiggle-router"})
	if _, off := tel.TracerProvider.(noop.TracerProvider); off {
		t.Error("traces are off")
	}
	if err := stop(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestBadSettings(t *testing.T) {
	for _, cfg := range []telemetry.Config{{}, {Service: "x", LogFormat: "xml"}} {
		if _, _, err := telemetry.Setup(t.Context(), cfg); err == nil {
			t.Errorf("%+v: no error", cfg)
		}
	}
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
	t.Setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json")
	if _, _, err := telemetry.Setup(t.Context(), telemetry.Config{Service: "x"}); err == nil {
		t.Error("no error for an unknown protocol")
	}
}

// What the SDK would write on standard error stops the start instead, and is not repeated: addresses and headers hold secrets.
func TestBadExportersAreNotRepeated(t *testing.T) {
	const secret = "s3cr3t-t0ken"
	for _, c := range []struct{ name, value string }{
		{"OTEL_EXPORTER_OTLP_ENDPOINT", "http://u:" + secret + "@h:port"},
		{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://u:" + secret + "%zz@h"},
		{"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "http://u:" + secret + "%zz@h"},
		{"OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%zz" + secret},
		{"OTEL_EXPORTER_OTLP_HEADERS", secret},
		{"OTEL_EXPORTER_OTLP_TRACES_HEADERS", "a=b," + secret + " x=y"},
		{"OTEL_EXPORTER_OTLP_METRICS_HEADERS", "a=b,c=%" + secret},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
			t.Setenv(c.name, c.value)
			_, _, err := telemetry.Setup(t.Context(), telemetry.Config{Service: "x"})
			if err == nil || !strings.Contains(err.Error(), c.name) || strings.Contains(err.Error(), secret) {
				t.Errorf("%s: %v", c.value, err)
			}
		})
	}
}
