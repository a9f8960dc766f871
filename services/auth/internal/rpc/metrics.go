package rpc

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
)

// Outcomes of sign-ins and authentications.
const (
	outcomeOK      = "ok"
	outcomeRefused = "refused"
	outcomeLimited = "limited"
	outcomeFailed  = "failed"
)

// Metrics are the figures of the service (OPS-10).
type Metrics struct {
	signIns, authentications metric.Int64Counter
	hashes                   metric.Float64Histogram
	revision                 atomic.Int64
}

// NewMetrics makes the figures.
func NewMetrics(m metric.Meter) (*Metrics, error) {
	f := &Metrics{}
	var err error
	if f.signIns, err = m.Int64Counter("wiggle.auth.sign_ins", metric.WithUnit("{try}"),
		metric.WithDescription("Tries to sign in, by outcome: ok, refused, limited or failed.")); err != nil {
		return nil, fmt.Errorf("make metrics: %w", err)
	}
	if f.authentications, err = m.Int64Counter("wiggle.auth.authentications", metric.WithUnit("{credential}"),
		metric.WithDescription("Credentials that routers asked about, by outcome: ok, refused or failed.")); err != nil {
		return nil, fmt.Errorf("make metrics: %w", err)
	}
	if f.hashes, err = m.Float64Histogram("wiggle.auth.hash.duration", metric.WithUnit("s"),
		metric.WithDescription("Time to compute a password's hash, without the wait for a turn."),
		metric.WithExplicitBucketBoundaries(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5)); err != nil {
		return nil, fmt.Errorf("make metrics: %w", err)
	}
	_, err = m.Int64ObservableGauge("wiggle.auth.revision",
		metric.WithDescription("Revision of the last change that this process has seen."),
		metric.WithInt64Callback(func(_ context.Context, o metric.Int64Observer) error {
			o.Observe(f.revision.Load())
			return nil
		}))
	if err != nil {
		return nil, fmt.Errorf("make metrics: %w", err)
	}
	return f, nil
}

// Hashed counts a password's hash.
func (m *Metrics) Hashed(took time.Duration) { m.hashes.Record(context.Background(), took.Seconds()) }

func (m *Metrics) signedIn(ctx context.Context, outcome string) {
	m.signIns.Add(ctx, 1, metric.WithAttributes(attribute.String("outcome", outcome)))
}

func (m *Metrics) authenticated(ctx context.Context, outcome string) {
	m.authentications.Add(ctx, 1, metric.WithAttributes(attribute.String("outcome", outcome)))
}

// saw notes a revision. They rise.
func (m *Metrics) saw(revision int64) {
	for {
		last := m.revision.Load()
		if revision <= last || m.revision.CompareAndSwap(last, revision) {
			return
		}
	}
}
