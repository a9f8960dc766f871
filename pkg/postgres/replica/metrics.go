package replica

import (
	"context"
	"errors"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
)

// metrics are a set's figures (REP-6).
type metrics struct {
	shard attribute.KeyValue
	reads metric.Int64Counter
	fails metric.Int64Counter
	gone  metric.Registration // nil without replicas
}

func newMetrics(s *Set) (*metrics, error) {
	m := &metrics{shard: attribute.Int("shard", s.shard)}
	var err error
	m.reads, err = s.cfg.Meter.Int64Counter("wiggle.reads", metric.WithUnit("{read}"),
		metric.WithDescription("Reads by shard and by who answered: primary, replica 0 and so on."))
	if err != nil || len(s.members) == 0 {
		return m, err
	}
	m.fails, err = s.cfg.Meter.Int64Counter("wiggle.replica.failed_reads", metric.WithUnit("{read}"),
		metric.WithDescription("Reads that a replica did not answer and that went to another server, or none."))
	if err != nil {
		return m, err
	}
	lag, err1 := s.cfg.Meter.Float64ObservableGauge("wiggle.replica.lag", metric.WithUnit("s"),
		metric.WithDescription("Age of the newest heartbeat of a replica when it was probed last."))
	skew, err2 := s.cfg.Meter.Float64ObservableGauge("wiggle.replica.clock_skew", metric.WithUnit("s"),
		metric.WithDescription("By how much the time of a replica's heartbeat does not fit when it was seen; 0 is well."))
	state, err3 := s.cfg.Meter.Int64ObservableGauge("wiggle.replica.state",
		metric.WithDescription("1 for the state that a replica is in, 0 for the others."))
	if err := errors.Join(err1, err2, err3); err != nil {
		return m, err
	}
	m.gone, err = s.cfg.Meter.RegisterCallback(func(_ context.Context, o metric.Observer) error {
		for _, r := range s.Status() {
			of := attribute.Int("replica", r.Index)
			if r.LagKnown {
				o.ObserveFloat64(lag, r.Lag.Seconds(), metric.WithAttributes(m.shard, of))
			}
			o.ObserveFloat64(skew, r.Skew.Seconds(), metric.WithAttributes(m.shard, of))
			for each := Untried; each <= Refused; each++ {
				value := int64(0)
				if each == r.State {
					value = 1
				}
				o.ObserveInt64(state, value, metric.WithAttributes(m.shard, of, attribute.String("state", each.String())))
			}
		}
		return nil
	}, lag, skew, state)
	return m, err
}

func (m *metrics) answered(ctx context.Context, from Source) { m.reads.Add(ctx, 1, m.of(from)) }

func (m *metrics) failed(ctx context.Context, from Source) { m.fails.Add(ctx, 1, m.of(from)) }

func (m *metrics) of(from Source) metric.MeasurementOption {
	return metric.WithAttributes(m.shard, attribute.String("source", from.String()))
}

func (m *metrics) close() {
	if m.gone != nil {
		_ = m.gone.Unregister() // the provider is gone
	}
}
