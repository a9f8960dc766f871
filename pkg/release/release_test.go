package release_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/wiggle-run/wiggle/pkg/release"
)

// OPS-4: services that differ by one release work together.
func TestCompatible(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		a, b string
		want bool
	}{
		{"v1.4.0", "v1.4.9", true},
		{"v1.4.0", "v1.5.3", true},
		{"v1.4.0", "v1.6.0", false},
		{"v0.9.0", "v0.10.0", true},
		{"v0.9.0", "v0.11.0", false},
		{"v1.9.0", "v2.0.0", false},
		{"v1.4.0-rc.1", "v1.5.0", true},
		{"v1.4.0-rc.1", "v1.6.0", false},
		{"(devel)", "v1.4.0", true},
		{"", "v1.4.0", true},
		{"test", "v1.4.0", true},
		{"v0.0.0-20260102030405-0123456789ab", "v1.4.0", true},
		{"v1.2.4-0.20260102030405-0123456789ab", "v1.9.0", true},
		{"v1.2.4-rc.1.0.20260102030405-0123456789ab", "v1.9.0", true},
		{"v1.2.4+dirty", "v1.9.0", true},
		{"v1.4", "v1.9.0", true},
		{"v99999999999999999999.0.0", "v1.9.0", true},
	} {
		if got := release.Compatible(c.a, c.b); got != c.want {
			t.Errorf("%s and %s: %t", c.a, c.b, got)
		}
		if got := release.Compatible(c.b, c.a); got != c.want {
			t.Errorf("%s and %s: %t", c.b, c.a, got)
		}
	}
}

func TestReleases(t *testing.T) {
	t.Parallel()
	var logs bytes.Buffer
	reader := metric.NewManualReader()
	now := time.Unix(1e9, 0)
	releases, err := release.NewPeers("v1.4.0", slog.New(slog.NewTextHandler(&logs, nil)),
		metric.NewMeterProvider(metric.WithReader(reader)).Meter("test"), func() time.Time { return now })
	if err != nil {
		t.Fatal(err)
	}
	expect := func(gauge int64, warnings ...string) {
		t.Helper()
		got := releases.Warnings()
		if len(got) != len(warnings) {
			t.Fatalf("warnings: %q", got)
		}
		for i, w := range warnings {
			if !strings.Contains(got[i], w) {
				t.Errorf("warning %q, want %q", got[i], w)
			}
		}
		var all metricdata.ResourceMetrics
		if err := reader.Collect(context.Background(), &all); err != nil {
			t.Fatal(err)
		}
		if data, ok := all.ScopeMetrics[0].Metrics[0].Data.(metricdata.Gauge[int64]); !ok || data.DataPoints[0].Value != gauge {
			t.Errorf("metric: %+v, want %d", all.ScopeMetrics[0].Metrics[0].Data, gauge)
		}
	}
	releases.Seen("a:1", "v1.5.0")
	expect(0)
	for range 3 {
		releases.Seen("a:1", "v1.6.0")
		releases.Seen("b:1", "v1.6.0")
		releases.Seen("c:1", "v1.2.0")
	}
	expect(3, "v1.2.0 (1 of them)", "v1.6.0 (2 of them)")
	if n := strings.Count(logs.String(), "own_release=v1.4.0"); n != 3 {
		t.Errorf("three peers were logged %d times", n)
	}
	releases.Seen("a:1", "v1.4.1")
	expect(2, "v1.2.0", "v1.6.0")
	now = now.Add(2 * time.Minute)
	releases.Seen("c:1", "v1.2.0")
	expect(1, "v1.2.0")
	for i := range 3000 {
		releases.Seen(fmt.Sprint("peer-", i), "v1.4.0")
	}
	expect(0) // forgotten, until it is seen again
	releases.Seen("c:1", "v1.2.0")
	expect(1, "v1.2.0")
	var nobody *release.Peers
	nobody.Seen("a:1", "v9.0.0")
	if w := nobody.Warnings(); w != nil {
		t.Errorf("a record that is none warns by %q", w)
	}
}
