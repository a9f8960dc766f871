package firing

import (
	"context"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/wiggle-run/wiggle/services/leader/internal/schedulestore"
)

// metrics are the figures of firing.
type metrics struct {
	dueTimes metric.Int64Counter
	late     metric.Float64Histogram
}

func newMetrics(m metric.Meter) (metrics, error) {
	dueTimes, err := m.Int64Counter("wiggle.schedules.due_times", metric.WithUnit("{time}"),
		metric.WithDescription("Due times of schedules, by what became of them: fired, skipped, missed, failed (tried again)."))
	if err != nil {
		return metrics{}, err
	}
	late, err := m.Float64Histogram("wiggle.schedules.late", metric.WithUnit("s"),
		metric.WithDescription("How long after its time a due time was taken up to be fired."),
		metric.WithExplicitBucketBoundaries(0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300))
	if err != nil {
		return metrics{}, err
	}
	return metrics{dueTimes: dueTimes, late: late}, nil
}

// count counts what was recorded of due times.
func (m metrics) count(ctx context.Context, now time.Time, outcomes []schedulestore.Outcome) {
	var fired, skipped, missed, failed int64
	for _, o := range outcomes {
		skipped, missed = skipped+o.Skipped, missed+o.Missed
		switch {
		case !o.Fired.IsZero():
			fired++
			m.late.Record(ctx, now.Sub(o.Fired).Seconds())
		case o.Problem != "":
			failed++
		}
	}
	for became, n := range map[string]int64{"fired": fired, "skipped": skipped, "missed": missed, "failed": failed} {
		if n > 0 {
			m.dueTimes.Add(ctx, n, metric.WithAttributes(attribute.String("became", became)))
		}
	}
}
