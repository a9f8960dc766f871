package feed

import (
	"context"
	"errors"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
)

// Observe makes the figures of the event logs that a process's trimmers look after, by shard (OPS-10). They are as old as
// the last trim.
func Observe(m metric.Meter, trimmers map[int]*Trimmer) error {
	entries, err1 := m.Int64ObservableGauge("wiggle.events.entries", metric.WithUnit("{event}"),
		metric.WithDescription("Numbers that the event log spans; a few of them may have no event."))
	oldest, err2 := m.Float64ObservableGauge("wiggle.events.oldest_age", metric.WithUnit("s"),
		metric.WithDescription("Age of the first event that is kept."))
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	_, err := m.RegisterCallback(func(_ context.Context, o metric.Observer) error {
		for shard, t := range trimmers {
			if size := t.size.Load(); size != nil {
				of := metric.WithAttributes(attribute.Int("shard", shard))
				o.ObserveInt64(entries, size.Entries, of)
				o.ObserveFloat64(oldest, size.Oldest.Seconds(), of)
			}
		}
		return nil
	}, entries, oldest)
	return err
}
