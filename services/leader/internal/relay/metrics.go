package relay

import (
	"context"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
)

// Observe makes the figures of the relays of a process (OPS-10). A process that does not lead has no lags to tell.
func Observe(m metric.Meter, hub *Hub, relays []*Relay) error {
	relayed, err := m.Int64ObservableCounter("wiggle.relay.events", metric.WithUnit("{event}"),
		metric.WithDescription("Events that NATS has confirmed, those that it knew included."))
	if err != nil {
		return err
	}
	behind, err := m.Int64ObservableGauge("wiggle.relay.behind", metric.WithUnit("{event}"),
		metric.WithDescription("Numbers of the event log that NATS does not have yet; a few of them may have no event."))
	if err != nil {
		return err
	}
	delay, err := m.Float64ObservableGauge("wiggle.relay.delay", metric.WithUnit("s"),
		metric.WithDescription("For how long NATS has not had all of the event log."))
	if err != nil {
		return err
	}
	connected, err := m.Int64ObservableGauge("wiggle.relay.connected",
		metric.WithDescription("1 if NATS is connected, 0 if it is not."))
	if err != nil {
		return err
	}
	_, err = m.RegisterCallback(func(_ context.Context, o metric.Observer) error {
		leading := false
		for _, r := range relays {
			shard := metric.WithAttributes(attribute.Int("shard", r.shard))
			o.ObserveInt64(relayed, r.relayed.Load(), shard)
			if !r.working.Load() {
				continue
			}
			leading = true
			numbers, since := r.lag()
			o.ObserveInt64(behind, numbers, shard)
			o.ObserveFloat64(delay, since.Seconds(), shard)
		}
		if leading {
			up := int64(0)
			if hub.Connected() {
				up = 1
			}
			o.ObserveInt64(connected, up)
		}
		return nil
	}, relayed, behind, delay, connected)
	return err
}

// lag is by how many numbers and for how long the relay is behind.
func (r *Relay) lag() (numbers int64, since time.Duration) {
	last, _ := r.pulse.Last()
	numbers = max(0, last-r.passed.Load())
	if numbers > 0 {
		since = time.Since(time.Unix(0, r.current.Load()))
	}
	return numbers, since
}
