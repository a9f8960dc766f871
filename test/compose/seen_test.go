//go:build compose

package compose

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/wiggle-run/wiggle/internal/demo"
	"github.com/wiggle-run/wiggle/pkg/telemetry"
	wiggle "github.com/wiggle-run/wiggle/sdk/go"
)

const (
	// outside is the name of the test's own process in traces: caller and workers.
	outside   = "wiggle-outside"
	traceTime = time.Minute
	flushTime = 10 * time.Second
	// queryTime is how long Prometheus may take to have something for a panel; it fetches every five seconds.
	queryTime = time.Minute
)

// telemetry traces what the test does, to the stack's collector.
func (s *stack) telemetry() *telemetry.Telemetry {
	s.t.Helper()
	s.t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", otlpURL)
	s.t.Setenv("OTEL_METRICS_EXPORTER", "none")
	tel, stop, err := telemetry.Setup(s.t.Context(), telemetry.Config{Service: outside})
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), flushTime)
		defer cancel()
		_ = stop(ctx) // the collector may be gone already
	})
	return tel
}

// jaegerTrace is a trace in the answer of Jaeger's API.
type jaegerTrace struct {
	Spans []struct {
		OperationName string
		ProcessID     string
	}
	Processes map[string]struct{ ServiceName string }
}

// services that took part in it.
func (j jaegerTrace) services() []string {
	found := map[string]bool{}
	for _, span := range j.Spans {
		found[j.Processes[span.ProcessID].ServiceName] = true
	}
	var list []string
	for name := range found {
		list = append(list, name)
	}
	slices.Sort(list)
	return list
}

// checkTrace starts one order in a trace, works it off, and finds caller, workers and every service that had to do with it in that one
// trace (OPS-10).
func (s *stack) checkTrace(client *wiggle.Client, tracers trace.TracerProvider) {
	s.t.Helper()
	ctx, stop := context.WithCancel(s.t.Context())
	shop := &demo.Shop{}
	worker := shop.Worker(client, wiggle.WorkerOptions{Name: "traced", Concurrency: concurrency, Grace: workerGrace})
	worked := make(chan error, 1)
	go func() { worked <- worker.Run(ctx) }()
	id := s.traceOrder(client, tracers)
	stop()
	if err := <-worked; err != nil {
		s.t.Error(err)
	}
	want := []string{outside, "wiggle-instances", "wiggle-leader", "wiggle-router", "wiggle-search"}
	var found jaegerTrace
	s.until(traceTime, func(ctx context.Context) error {
		var answer struct{ Data []jaegerTrace }
		if err := getJSON(ctx, jaegerURL+"/api/traces/"+id, &answer); err != nil {
			return err
		}
		if len(answer.Data) != 1 {
			return fmt.Errorf("Jaeger has %d traces %s", len(answer.Data), id)
		}
		found = answer.Data[0]
		for _, name := range want {
			if !slices.Contains(found.services(), name) {
				return fmt.Errorf("trace %s has no span of %s, only of %q", id, name, found.services())
			}
		}
		return nil
	})
	s.say("the trace of one order has %d spans of %s", len(found.Spans), strings.Join(found.services(), ", "))
}

// traceOrder starts an order within a span, waits until it is completed, and returns the trace's id.
func (s *stack) traceOrder(client *wiggle.Client, tracers trace.TracerProvider) string {
	s.t.Helper()
	ctx, span := tracers.Tracer("test/compose").Start(s.t.Context(), "order")
	defer span.End()
	run, err := client.Start(ctx, demo.Workflow, demo.NewOrders(1, 1)[0])
	if err != nil {
		s.t.Fatal(err)
	}
	instance, err := client.Wait(ctx, run.ID)
	if err != nil || instance.State != wiggle.Completed {
		s.t.Fatalf("the traced order is %+v, %v", instance, err)
	}
	return span.SpanContext().TraceID().String()
}

// dashboard is as much of one as the test reads.
type dashboard struct {
	Title  string
	Panels []struct {
		Title   string
		Targets []struct{ Expr string }
	}
}

// checkDashboards holds that every query of every dashboard returns data from Prometheus.
func (s *stack) checkDashboards() {
	s.t.Helper()
	files, err := filepath.Glob(folder + "/grafana/dashboards/*.json")
	if err != nil || len(files) == 0 {
		s.t.Fatalf("there are no dashboards: %v", err)
	}
	queries := 0
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			s.t.Fatal(err)
		}
		var d dashboard
		if err := json.Unmarshal(text, &d); err != nil {
			s.t.Fatalf("%s: %v", file, err)
		}
		for _, panel := range d.Panels {
			for _, target := range panel.Targets {
				queries++
				s.until(queryTime, func(ctx context.Context) error {
					if err := s.query(ctx, target.Expr); err != nil {
						return fmt.Errorf("dashboard %s, panel %s: %w", d.Title, panel.Title, err)
					}
					return nil
				})
			}
		}
	}
	s.say("%d queries of %d dashboards return data", queries, len(files))
}

// query asks Prometheus for what a panel would show of the time since the test began.
func (s *stack) query(ctx context.Context, expr string) error {
	expr = strings.NewReplacer("$__rate_interval", "1m", "$shard", ".*").Replace(expr)
	now := time.Now()
	values := url.Values{
		"query": {expr}, "step": {"5"},
		"start": {strconv.FormatInt(s.began.Unix(), 10)}, "end": {strconv.FormatInt(now.Unix(), 10)},
	}
	var answer struct {
		Data struct {
			Result []struct{ Values [][]any }
		}
	}
	if err := getJSON(ctx, prometheusURL+"/api/v1/query_range?"+values.Encode(), &answer); err != nil {
		return err
	}
	for _, series := range answer.Data.Result {
		for _, value := range series.Values {
			if len(value) == 2 && value[1] != "NaN" {
				return nil
			}
		}
	}
	return fmt.Errorf("%s returns nothing", expr)
}

// findGrafana tells whether Grafana's image is here or can be pulled; where it cannot, the test goes without it and says so.
func (s *stack) findGrafana() bool {
	image := s.image("grafana")
	if _, err := s.run(s.t.Context(), "docker", "image", "inspect", image); err == nil {
		return true
	}
	_, err := s.run(s.t.Context(), "docker", "pull", image)
	if err != nil {
		s.say("!!! NOT TESTED: Grafana. Its image %s cannot be had: %v", image, err)
	}
	return err == nil
}

// checkGrafana holds that Grafana has the data sources and dashboards of the stack's folder.
func (s *stack) checkGrafana() {
	s.t.Helper()
	if !s.grafana {
		s.say("!!! NOT TESTED: that Grafana loads its data sources and dashboards; their queries were, against Prometheus")
		return
	}
	files, err := filepath.Glob(folder + "/grafana/dashboards/*.json")
	if err != nil {
		s.t.Fatal(err)
	}
	secret, err := s.secret("WIGGLE_GRAFANA_PASSWORD")
	if err != nil {
		s.t.Fatal(err)
	}
	base := strings.Replace(grafanaURL, "http://", "http://admin:"+url.QueryEscape(secret)+"@", 1)
	s.until(traceTime, func(ctx context.Context) error {
		var sources, dashboards []struct{ Name, Title string }
		if err := getJSON(ctx, base+"/api/datasources", &sources); err != nil {
			return err
		}
		if err := getJSON(ctx, base+"/api/search?type=dash-db", &dashboards); err != nil {
			return err
		}
		if len(sources) != 2 || len(dashboards) != len(files) {
			return fmt.Errorf("Grafana has the data sources %v and the dashboards %v", sources, dashboards)
		}
		return nil
	})
	s.say("Grafana has its data sources and %d dashboards", len(files))
}

// secret reads one from the file that ./stack made.
func (s *stack) secret(name string) (string, error) {
	text, err := os.ReadFile(folder + "/.env")
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(strings.TrimSpace(line), name+"="); ok {
			return value, nil
		}
	}
	return "", fmt.Errorf("deploy/compose/.env has no %s: %w", name, err)
}
