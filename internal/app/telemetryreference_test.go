package app_test

import (
	"context"
	"encoding/json"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/otel/attribute"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/wiggle-run/wiggle/internal/pgtest"
	"github.com/wiggle-run/wiggle/pkg/topology"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	"github.com/wiggle-run/wiggle/proto/gen/wiggle/v1/wigglev1connect"
	wiggle "github.com/wiggle-run/wiggle/sdk/go"
)

// rows are the rows of the reference's tables whose header begins with a word, cell by cell.
func rows(t *testing.T, header string) [][]string {
	t.Helper()
	text, err := os.ReadFile("../../docs/reference-telemetry.md")
	if err != nil {
		t.Fatal(err)
	}
	var list [][]string
	within := false
	for line := range strings.Lines(string(text)) {
		switch {
		case strings.HasPrefix(line, "| "+header+" |"):
			within = true
		case !strings.HasPrefix(line, "|"):
			within = false
		case within && strings.HasPrefix(line, "| `"):
			cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
			for i := range cells {
				cells[i] = strings.TrimSpace(cells[i])
			}
			list = append(list, cells)
		}
	}
	if len(list) == 0 {
		t.Fatalf("the reference has no table of %ss", header)
	}
	return list
}

// withReplica is the environment of a shard with a replica, which is none, and never read from.
func withReplica(t *testing.T, database string) string {
	t.Helper()
	text, err := json.Marshal(topology.Document{
		Generations: []topology.DocumentGeneration{{ID: 1, ActiveFrom: time.Unix(0, 0), Weights: map[int]float64{0: 1}}},
		Shards: []topology.DocumentShard{{
			ID: 0, State: topology.StateActive,
			Roles:    topology.Roles{topology.RoleInstances, topology.RoleHome, topology.RoleAuth, topology.RoleSearch},
			Primary:  &topology.DocumentMember{URL: topology.NewCredential(database)},
			Replicas: []topology.DocumentMember{{URL: topology.NewCredential(pgtest.NewDatabase(t))}},
		}},
	})
	if err != nil {
		t.Fatal(err)
	}
	return "WIGGLE_STORAGE_TOPOLOGY=" + string(text)
}

// TestTelemetryReference holds docs/reference-telemetry.md against what the services tell.
func TestTelemetryReference(t *testing.T) { // OPS-10
	t.Parallel()
	c := startTraced(t, sdktrace.AlwaysSample(), withReplica(t, pgtest.NewDatabase(t)))
	c.serveOrders(t)
	c.run(t, t.Context())
	if _, err := c.client.StartMany(t.Context(), []wiggle.Start{{Workflow: "order", Input: 1}}); err != nil {
		t.Fatal(err)
	}
	c.holdTasks(t)
	if _, _, err := c.client.PutSchedule(t.Context(), wiggle.Schedule{ID: "often", Every: time.Second, Workflow: "order", Input: 1}); err != nil {
		t.Fatal(err)
	}
	spans := rows(t, "span")
	patterns := make([]*regexp.Regexp, len(spans))
	for i, row := range spans {
		name := regexp.QuoteMeta(strings.Trim(row[0], "`"))
		patterns[i] = regexp.MustCompile("^" + regexp.MustCompile(`\\\{[a-z]+\\\}`).ReplaceAllString(name, `[^/]+`) + "$")
	}
	seen := c.await(t, trace.TraceID{}, func(list []sdktrace.ReadOnlySpan) bool {
		for _, p := range patterns {
			if !slices.ContainsFunc(list, func(s sdktrace.ReadOnlySpan) bool { return p.MatchString(s.Name()) }) {
				return false
			}
		}
		return true
	})
	for _, s := range seen {
		at := slices.IndexFunc(patterns, func(p *regexp.Regexp) bool { return p.MatchString(s.Name()) })
		if at < 0 {
			t.Errorf("span %q is not in the reference", s.Name())
		} else if !strings.Contains(spans[at][1], s.SpanKind().String()) {
			t.Errorf("span %q is of kind %s, the reference says %s", s.Name(), s.SpanKind(), spans[at][1])
		}
	}
	c.checkMetrics(t)
}

// holdTasks has a task handed back, one whose lease runs out, and an instance cancelled.
func (c *traced) holdTasks(t *testing.T) {
	t.Helper()
	held := wiggle.Define("held", func(f *wiggle.Flow) { f.Task("hold", wiggle.Queue("held"), wiggle.Retry(10, time.Millisecond)) })
	if _, err := c.client.Register(t.Context(), held); err != nil {
		t.Fatal(err)
	}
	run, err := c.client.Start(t.Context(), "held", nil)
	if err != nil {
		t.Fatal(err)
	}
	worker := wigglev1connect.NewWorkerServiceClient(c.client.Generated())
	poll := func() *wigglev1.Task {
		res, err := worker.PollTasks(t.Context(), &wigglev1.PollTasksRequest{
			Worker: "holder", Queues: []string{"held"}, Wait: durationpb.New(30 * time.Second), Lease: durationpb.New(time.Second),
		})
		if err != nil || len(res.GetTasks()) != 1 {
			t.Fatalf("polled %v, %v", res, err)
		}
		return res.GetTasks()[0]
	}
	task := poll()
	if _, err := worker.ReleaseTasks(t.Context(), &wigglev1.ReleaseTasksRequest{
		Worker: "holder", Tasks: []*wigglev1.TaskLease{{TaskId: task.GetId(), Lease: task.GetLease()}},
	}); err != nil {
		t.Fatal(err)
	}
	if first, second := poll().GetAttempt(), poll().GetAttempt(); first != 1 || second != 2 { // its lease has run out in between
		t.Fatalf("attempts %d and %d", first, second)
	}
	if err := run.Cancel(t.Context(), "enough"); err != nil {
		t.Fatal(err)
	}
}

// kinds are how the reference calls the kinds of instruments.
func kindOf(k sdkmetric.InstrumentKind) string {
	switch k {
	case sdkmetric.InstrumentKindCounter, sdkmetric.InstrumentKindObservableCounter:
		return "counter"
	case sdkmetric.InstrumentKindUpDownCounter, sdkmetric.InstrumentKindObservableUpDownCounter:
		return "up-down counter"
	case sdkmetric.InstrumentKindHistogram:
		return "histogram"
	default:
		return "gauge"
	}
}

func (c *traced) checkMetrics(t *testing.T) {
	t.Helper()
	reference := map[string][]string{}
	for _, row := range rows(t, "metric") {
		reference[strings.Trim(row[0], "`")] = row
	}
	made := map[string]sdkmetric.Instrument{}
	c.made.Range(func(name, instrument any) bool {
		made[name.(string)] = instrument.(sdkmetric.Instrument) //nolint:forcetypeassert // what was put there
		return true
	})
	for _, name := range slices.Sorted(maps.Keys(made)) {
		row, i := reference[name], made[name]
		switch {
		case row == nil:
			t.Errorf("metric %s is not in the reference", name)
		case row[1] != kindOf(i.Kind) || strings.Trim(row[2], "`") != i.Unit:
			t.Errorf("metric %s is a %s in %q, the reference says %s in %s", name, kindOf(i.Kind), i.Unit, row[1], row[2])
		}
	}
	for _, name := range slices.Sorted(maps.Keys(reference)) {
		if _, ok := made[name]; !ok {
			t.Errorf("the reference has %s, which nobody makes", name)
		}
	}
	var data metricdata.ResourceMetrics
	if err := c.reader.Collect(context.WithoutCancel(t.Context()), &data); err != nil {
		t.Fatal(err)
	}
	for _, scope := range data.ScopeMetrics {
		for _, m := range scope.Metrics {
			row := reference[m.Name]
			if row == nil || row[3] == "rpc.*" {
				continue
			}
			for _, got := range labelsOf(m.Data) {
				want := strings.Split(row[3], ", ")
				if slices.Sort(want); strings.Join(want, ", ") != got {
					t.Errorf("metric %s has the labels %q, the reference says %q", m.Name, got, row[3])
				}
			}
		}
	}
}

// labelsOf are the names of the labels of each series.
func labelsOf(data metricdata.Aggregation) []string {
	switch d := data.(type) {
	case metricdata.Sum[int64]:
		return names(d.DataPoints)
	case metricdata.Gauge[int64]:
		return names(d.DataPoints)
	case metricdata.Gauge[float64]:
		return names(d.DataPoints)
	case metricdata.Histogram[int64]:
		return histogramNames(d.DataPoints)
	case metricdata.Histogram[float64]:
		return histogramNames(d.DataPoints)
	}
	return nil
}

func names[N int64 | float64](points []metricdata.DataPoint[N]) []string {
	list := make([]string, len(points))
	for i, p := range points {
		list[i] = keys(p.Attributes.ToSlice())
	}
	return list
}

func histogramNames[N int64 | float64](points []metricdata.HistogramDataPoint[N]) []string {
	list := make([]string, len(points))
	for i, p := range points {
		list[i] = keys(p.Attributes.ToSlice())
	}
	return list
}

func keys(attributes []attribute.KeyValue) string {
	list := make([]string, len(attributes))
	for i, a := range attributes {
		list[i] = string(a.Key)
	}
	slices.Sort(list)
	return strings.Join(list, ", ")
}
