package dispatch

import (
	"context"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
)

// Metrics are the figures of all shards of a process (OPS-10).
type Metrics struct {
	batches metric.Int64Histogram
	tasks   metric.Int64Counter
}

// NewMetrics makes the instruments.
func NewMetrics(m metric.Meter) (*Metrics, error) {
	batches, err := m.Int64Histogram("wiggle.batch.size", metric.WithUnit("{operation}"),
		metric.WithDescription("Operations that shared one transaction."),
		metric.WithExplicitBucketBoundaries(1, 2, 4, 8, 16, 32, 64, 128, 256))
	if err != nil {
		return nil, err
	}
	tasks, err := m.Int64Counter("wiggle.tasks.dispatched", metric.WithUnit("{task}"),
		metric.WithDescription("Tasks leased to workers."))
	if err != nil {
		return nil, err
	}
	return &Metrics{batches: batches, tasks: tasks}, nil
}

func shardLabel(shard int) metric.MeasurementOption {
	return metric.WithAttributes(attribute.Int("shard", shard))
}

// batch records a batch by the way it went: guarded or locked.
func (m *Metrics) batch(ctx context.Context, shard, size int, way string) {
	if size > 0 {
		m.batches.Record(ctx, int64(size), metric.WithAttributes(attribute.Int("shard", shard), attribute.String("way", way)))
	}
}

func (m *Metrics) claimed(ctx context.Context, shard, n int) {
	m.tasks.Add(ctx, int64(n), shardLabel(shard))
}
