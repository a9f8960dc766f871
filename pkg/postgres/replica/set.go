package replica

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/metric/noop"

	"github.com/wiggle-run/wiggle/pkg/clock"
	"github.com/wiggle-run/wiggle/pkg/lifecycle"
	"github.com/wiggle-run/wiggle/pkg/postgres"
	"github.com/wiggle-run/wiggle/pkg/topology"
)

var (
	// ErrNone says that no replica will do and the primary may not be asked (REP-3).
	ErrNone = errors.New("no replica is healthy and within its lag, and the primary is not to be read in their place")
	// ErrNotHere is what a read returns (or wraps) when the replica does not have what was asked for. The primary is asked
	// then, whatever the fallback (REP-7).
	ErrNotHere = errors.New("the replica does not have it")
)

// Config says which replicas there are and how they are reached.
type Config struct {
	// Shard is the shard with its replicas; of its primary the fallback counts.
	Shard topology.Shard
	// Primary is the pool of the shard's primary. It is not used where there are no replicas.
	Primary *postgres.Pool
	// Member makes the configuration of a replica's pool of so many connections. ReadOnly, OnConnect and Tracer are set by
	// this package.
	Member func(m topology.Member, conns int) postgres.MemberConfig
	// ClusterID is the id of the cluster that replicas must belong to; "" while it is not known.
	ClusterID func() string
	// Zone is where this process runs. Replicas of the same zone are preferred. Empty: all are the same.
	Zone string
	// Interval is the pause between two probes, and between two of the leader's beats. 0: [Interval].
	Interval time.Duration
	// Clock is this process's. Nil: the machine's.
	Clock clock.Clock
	// ProbeTracer, if set, sees the statements of probes.
	ProbeTracer pgx.QueryTracer
	// Logger gets changes of state. Nil: nothing is logged.
	Logger *slog.Logger
	// Meter makes the metrics (REP-6). Nil: none.
	Meter metric.Meter
}

// Set is the replicas of one shard, for one process. It is safe for concurrent use.
type Set struct {
	cfg      Config
	shard    int
	fallback topology.Fallback
	primary  *primary
	members  []*member
	turn     atomic.Uint64
	metrics  *metrics
}

// New makes the set. It connects to nothing, so it succeeds while replicas are down (REP-2); errors are those of the
// configuration. A shard without replicas has a set too, whose reads all go to the primary.
func New(cfg Config) (*Set, error) {
	if cfg.Clock == nil {
		cfg.Clock = clock.Real{}
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.Meter == nil {
		cfg.Meter = noop.Meter{}
	}
	if cfg.Interval == 0 {
		cfg.Interval = Interval
	}
	if cfg.ClusterID == nil {
		cfg.ClusterID = func() string { return "" }
	}
	s := &Set{
		cfg: cfg, shard: cfg.Shard.ID, fallback: cfg.Shard.Primary.Fallback,
		primary: &primary{pool: cfg.Primary, clock: cfg.Clock},
	}
	for _, r := range cfg.Shard.Replicas {
		m, err := newMember(context.Background(), s, r)
		if err != nil {
			s.Close()
			return nil, fmt.Errorf("replicas of shard %d: %w", s.shard, err)
		}
		s.members = append(s.members, m)
	}
	var err error
	if s.metrics, err = newMetrics(s); err != nil {
		s.Close()
		return nil, fmt.Errorf("replicas of shard %d: %w", s.shard, err)
	}
	return s, nil
}

// Close closes the pools.
func (s *Set) Close() {
	if s.metrics != nil {
		s.metrics.close()
	}
	for _, m := range s.members {
		m.close()
	}
}

// Pools are the pools that reads of the replicas go through, in the order of the topology.
func (s *Set) Pools() []*postgres.Pool {
	pools := make([]*postgres.Pool, len(s.members))
	for i, m := range s.members {
		pools[i] = m.reads
	}
	return pools
}

// Run probes until ctx is done. Without replicas it only waits.
func (s *Set) Run(ctx context.Context) error {
	if len(s.members) == 0 {
		<-ctx.Done()
		return nil
	}
	g := lifecycle.NewGroup(ctx)
	look := lifecycle.Loop{Interval: s.cfg.Interval, Immediate: true, Timeout: probeTimeout, RunOnce: s.lookAtPrimary}
	g.Go("primary", look.Run)
	for _, m := range s.members {
		g.Go("replica "+strconv.Itoa(m.index), m.loop().Run)
	}
	return g.Wait()
}

// lookAtPrimary asks the primary once for all replicas.
func (s *Set) lookAtPrimary(ctx context.Context) error {
	changed, err := s.primary.look(ctx)
	if changed {
		for _, m := range s.members {
			m.forget()
		}
	}
	return err
}

// Need is what a read asks of a replica beyond its bound.
type Need struct {
	// NotBefore is a time by the primary's clock. Only a replica that has all that was committed before it will do, else the
	// primary is asked, whatever the fallback. Zero: no such need.
	NotBefore time.Time
}

// Source is where a read was answered.
type Source struct {
	replica int // from 1; 0 is the primary
	// Lag is the most by which the replica lagged behind its primary. 0 for the primary.
	Lag time.Duration
}

// Primary tells whether it is the primary.
func (s Source) Primary() bool { return s.replica == 0 }

// Replica is the replica's place in the topology, from 0; -1 for the primary.
func (s Source) Replica() int { return s.replica - 1 }

// String returns "primary", or "replica 0" and so on.
func (s Source) String() string {
	if s.Primary() {
		return "primary"
	}
	return "replica " + strconv.Itoa(s.Replica())
}

// Read has a read answered that tolerates staleness: by a replica that serves and is fresh enough, those of this process's
// zone first and in turn; by the next if one fails; and where none is left by the primary, or not at all if the
// fallback says so ([ErrNone]). It tells who answered. read runs once for each that is tried.
//
// A replica gets half of the time that is left of ctx. Its errors are not the caller's as long as there is somebody else
// to ask. One that cannot be reached, or whose connection breaks, is out of use at once (REP-2).
func (s *Set) Read(ctx context.Context, need Need, read func(ctx context.Context, from Source) error) (Source, error) {
	candidates, unmet := s.candidates(need)
	last := ErrNone
	for _, c := range candidates {
		from := Source{replica: c.index + 1, Lag: c.lag}
		err := c.try(ctx, from, read)
		switch {
		case err == nil:
			s.metrics.answered(ctx, from)
			return from, nil
		case ctx.Err() != nil:
			return from, err
		case errors.Is(err, ErrNotHere):
			return s.ReadPrimary(ctx, read)
		}
		s.metrics.failed(ctx, from)
		last = fmt.Errorf("%w: %s: %w", ErrNone, from, err)
	}
	if s.fallback == topology.FallbackFail && len(s.members) > 0 && !unmet {
		return Source{}, last
	}
	return s.ReadPrimary(ctx, read)
}

// ReadPrimary has a read answered by the primary.
func (s *Set) ReadPrimary(ctx context.Context, read func(ctx context.Context, from Source) error) (Source, error) {
	s.metrics.answered(ctx, Source{})
	return Source{}, read(ctx, Source{})
}

// candidate is a replica that a read may go to.
type candidate struct {
	*member

	lag time.Duration
}

// candidates are the replicas that will do, in the order in which to try them. unmet tells that there are others that serve,
// which are only not as fresh as this read needs.
func (s *Set) candidates(need Need) (list []candidate, unmet bool) {
	if len(s.members) == 0 {
		return nil, false
	}
	now, turn := s.cfg.Clock.Now(), s.turn.Add(1)
	var near, far []candidate
	for _, m := range s.members {
		lag, ok := m.lag(now, need)
		switch {
		case !ok:
			_, serves := m.lag(now, Need{})
			unmet = unmet || serves
		case s.cfg.Zone == "" || m.zone == s.cfg.Zone:
			near = append(near, candidate{m, lag})
		default:
			far = append(far, candidate{m, lag})
		}
	}
	return append(rotated(near, turn), rotated(far, turn)...), unmet
}

// rotated begins with each in turn.
func rotated(list []candidate, turn uint64) []candidate {
	if len(list) < 2 {
		return list
	}
	first := int(turn % uint64(len(list))) //nolint:gosec // less than the length
	return slices.Concat(list[first:], list[:first])
}

// Status is a replica as this process sees it.
type Status struct {
	// Index is its place in the topology, Zone where it runs.
	Index int
	Zone  string
	// State is what is believed of it, Reason why it is not serving, in words that name no host.
	State  State
	Reason string
	// Lag is by how much it lagged when it was probed last; LagKnown is false if that could not be told.
	Lag      time.Duration
	LagKnown bool
	// Skew is by how much the time of its last beat does not fit what was seen of it; 0 if it fits (REP-1).
	Skew time.Duration
	// Replayed is the position in the log up to which it has replayed, as PostgreSQL writes it.
	Replayed string
	// ProbedAt is when it was probed last, by this process's clock. Zero: never.
	ProbedAt time.Time
	// Reads is how many reads it has answered for this process.
	Reads int64
}

// Status tells how the replicas are, in the order of the topology. It asks nobody.
func (s *Set) Status() []Status {
	now := s.cfg.Clock.Now()
	list := make([]Status, len(s.members))
	for i, m := range s.members {
		v := m.now.Load()
		list[i] = Status{
			Index: m.index, Zone: m.zone, State: v.state, Reason: v.reason, Lag: v.age.lag, LagKnown: v.age.known, Skew: v.age.skew,
			Replayed: v.replayed, ProbedAt: v.probedAt, Reads: m.served.Load(),
		}
		if _, ok := m.lag(now, Need{}); v.state == Serving && !ok {
			list[i].State, list[i].Reason = Lagging, "its probes do not come back"
		}
	}
	return list
}
