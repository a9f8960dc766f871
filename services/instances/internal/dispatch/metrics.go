package dispatch

import (
	"context"
	"errors"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/wiggle-run/wiggle/services/instances/internal/machine"
	"github.com/wiggle-run/wiggle/services/instances/internal/store"
)

// Metrics are the figures of all shards of a process (OPS-10).
type Metrics struct {
	batches        metric.Int64Histogram
	commits        metric.Float64Histogram
	tasks          metric.Int64Counter
	started, ended metric.Int64Counter
	settled        metric.Int64Counter
	late           metric.Float64Histogram
	cache          metric.Int64Counter
}

// The ways that a batch may go.
const (
	wayGuarded = "guarded"
	wayLocked  = "locked"
)

// NewMetrics makes the instruments.
func NewMetrics(m metric.Meter) (*Metrics, error) {
	var errs [8]error
	out := &Metrics{}
	out.batches, errs[0] = m.Int64Histogram("wiggle.batch.size", metric.WithUnit("{operation}"),
		metric.WithDescription("Operations that shared one transaction."),
		metric.WithExplicitBucketBoundaries(1, 2, 4, 8, 16, 32, 64, 128, 256))
	out.commits, errs[1] = m.Float64Histogram("wiggle.commit.duration", metric.WithUnit("s"),
		metric.WithDescription("How long a batch's transaction took, its repetitions included."),
		metric.WithExplicitBucketBoundaries(0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20))
	out.tasks, errs[2] = m.Int64Counter("wiggle.tasks.dispatched", metric.WithUnit("{task}"),
		metric.WithDescription("Tasks leased to workers."))
	out.started, errs[3] = m.Int64Counter("wiggle.instances.started", metric.WithUnit("{instance}"),
		metric.WithDescription("Instances that were started; a start that is repeated counts once."))
	out.ended, errs[4] = m.Int64Counter("wiggle.instances.ended", metric.WithUnit("{instance}"),
		metric.WithDescription("Instances that ended, by how."))
	out.settled, errs[5] = m.Int64Counter("wiggle.steps.settled", metric.WithUnit("{step}"),
		metric.WithDescription("Attempts of steps by what ended their lease; expired are leases that ran out."))
	out.late, errs[6] = m.Float64Histogram("wiggle.timers.late", metric.WithUnit("s"),
		metric.WithDescription("How long after its time a timer was dealt with, by the clock of the shard."),
		metric.WithExplicitBucketBoundaries(0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 60))
	out.cache, errs[7] = m.Int64Counter("wiggle.cache.lookups", metric.WithUnit("{lookup}"),
		metric.WithDescription("What was looked for in a cache, by cache and whether it was there."))
	return out, errors.Join(errs[:]...)
}

// shardMetrics are the figures of one shard. The sets of labels are made once.
type shardMetrics struct {
	*Metrics

	shard           metric.MeasurementOption
	guarded, locked metric.MeasurementOption
	settledBy       [machine.ByRelease + 1]metric.MeasurementOption
	endedAs         [machine.Cancelled + 1]metric.MeasurementOption
	definitions     lookups
	heldTokens      lookups
}

// lookups are the labels of a cache.
type lookups struct{ hit, miss metric.MeasurementOption }

func (m *Metrics) of(shard int) *shardMetrics {
	with := func(more ...attribute.KeyValue) metric.MeasurementOption {
		return metric.WithAttributeSet(attribute.NewSet(append(more, attribute.Int("shard", shard))...))
	}
	cache := func(name string) lookups {
		of := attribute.String("cache", name)
		return lookups{hit: with(of, attribute.String("result", "hit")), miss: with(of, attribute.String("result", "miss"))}
	}
	s := &shardMetrics{
		Metrics: m, shard: with(), guarded: with(attribute.String("way", wayGuarded)), locked: with(attribute.String("way", wayLocked)),
		definitions: cache("definitions"), heldTokens: cache("held_tokens"),
	}
	for by, outcome := range map[machine.SettledBy]string{
		machine.ByReport: "completed", machine.ByFailure: "failed", machine.ByExpiry: "expired", machine.ByRelease: "released",
	} {
		s.settledBy[by] = with(attribute.String("outcome", outcome))
	}
	for state, name := range map[machine.InstanceState]string{
		machine.Completed: "completed", machine.Failed: "failed", machine.Cancelled: "cancelled",
	} {
		s.endedAs[state] = with(attribute.String("state", name))
	}
	return s
}

// batch records a batch that was committed, by the way it went.
func (m *shardMetrics) batch(ctx context.Context, way string, size int, took time.Duration) {
	if size == 0 {
		return
	}
	of := m.locked
	if way == wayGuarded {
		of = m.guarded
	}
	m.batches.Record(ctx, int64(size), of)
	m.commits.Record(ctx, took.Seconds(), of)
}

func (m *shardMetrics) claimed(ctx context.Context, n int) { m.tasks.Add(ctx, int64(n), m.shard) }

// starts counts the starts of a call that made an instance.
func (m *shardMetrics) starts(results []Started) {
	n := int64(0)
	for i := range results {
		if results[i].Created && results[i].Err == nil {
			n++
		}
	}
	if n > 0 {
		m.started.Add(context.Background(), n, m.shard)
	}
}

// steps counts what ended the leases of a call's events.
func (m *shardMetrics) steps(events []Event, outcomes []Outcome) {
	var n [machine.ByRelease + 1]int64
	for i, o := range outcomes {
		if o.Err == nil && !o.Changes.Duplicate {
			n[events[i].By] += 1 + events[i].Following
		}
	}
	for by, count := range n {
		if of := m.settledBy[by]; of != nil && count > 0 {
			m.settled.Add(context.Background(), count, of)
		}
	}
}

// ends counts the instances that a batch has ended.
func (m *shardMetrics) ends(w *store.World) {
	for id := range w.Writes().Ended {
		if of := m.endedAs[w.Instance(id).State]; of != nil {
			m.ended.Add(context.Background(), 1, of)
		}
	}
}

// looked counts lookups of a cache.
func (m *shardMetrics) looked(l *lookups, hits, misses int) {
	if hits > 0 {
		m.cache.Add(context.Background(), int64(hits), l.hit)
	}
	if misses > 0 {
		m.cache.Add(context.Background(), int64(misses), l.miss)
	}
}

// TimerLate takes note of how late a timer was dealt with.
func (s *Shard) TimerLate(by time.Duration) {
	s.metrics.late.Record(context.Background(), max(by, 0).Seconds(), s.metrics.shard)
}
