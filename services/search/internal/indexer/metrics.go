package indexer

import (
	"context"
	"errors"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
)

// Metrics are the figures of an indexer (OPS-10).
type Metrics struct {
	delay                     metric.Float64Histogram
	indexed, retried, skipped metric.Int64Counter
}

// NewMetrics makes the instruments.
func NewMetrics(m metric.Meter) (*Metrics, error) {
	delay, err1 := m.Float64Histogram("wiggle.search.delay", metric.WithUnit("s"),
		metric.WithDescription("From an event to its instance's document being committed."),
		metric.WithExplicitBucketBoundaries(0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1, 2, 5, 10, 30, 60, 300))
	indexed, err2 := m.Int64Counter("wiggle.search.indexed", metric.WithUnit("{event}"),
		metric.WithDescription("Events whose instance is in the index as it was then, or later."))
	retried, err3 := m.Int64Counter("wiggle.search.retried", metric.WithUnit("{event}"),
		metric.WithDescription("Events that are to be delivered again, as something did not answer."))
	skipped, err4 := m.Int64Counter("wiggle.search.skipped", metric.WithUnit("{event}"),
		metric.WithDescription("Events that were given up: their instance's document cannot be made or written."))
	return &Metrics{delay, indexed, retried, skipped}, errors.Join(err1, err2, err3, err4)
}

func (m *Metrics) done(ctx context.Context, shard int, delay time.Duration) {
	of := m.of(shard)
	m.delay.Record(ctx, max(delay, 0).Seconds(), of)
	m.indexed.Add(ctx, 1, of)
}

// of is the label of the shard whose event it is.
func (*Metrics) of(shard int) metric.MeasurementOption {
	return metric.WithAttributes(attribute.Int("shard", shard))
}
