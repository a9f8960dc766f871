package instances

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/wiggle-run/wiggle/pkg/clock"
	"github.com/wiggle-run/wiggle/pkg/postgres/replica"
	"github.com/wiggle-run/wiggle/pkg/topology"
	"github.com/wiggle-run/wiggle/services/instances/internal/dispatch"
	"github.com/wiggle-run/wiggle/services/instances/internal/reads"
	"github.com/wiggle-run/wiggle/services/instances/internal/store"
	"github.com/wiggle-run/wiggle/services/instances/internal/store/memstore"
	"github.com/wiggle-run/wiggle/services/instances/internal/sweep"
)

// memory is a shard that lives in this process and dies with it.
type memory struct{}

func (memory) open(context.Context) error { return nil }
func (memory) usable() (bool, string)     { return true, "" }

// NewInMemory makes an instances process whose shards live in memory, for the test
// server: the same engine, dispatch and services over another store. The lowest of
// cfg.Shards is home; cfg.Topology is not used. c is the only clock there is.
func NewInMemory(cfg Config, c clock.Clock) (*Service, error) {
	if len(cfg.Shards) == 0 {
		cfg.Shards = []int{0}
	}
	homeID := slices.Min(cfg.Shards)
	s, err := newService(cfg, homeID)
	if err != nil {
		return nil, err
	}
	metrics, err := dispatch.NewMetrics(cfg.meter())
	if err != nil {
		return nil, fmt.Errorf("instances: %w", err)
	}
	stores := make(map[int]*memstore.Store, len(cfg.Shards))
	for _, id := range cfg.Shards {
		stores[id] = memstore.New(c.Now)
	}
	for _, id := range cfg.Shards {
		var home store.Definitions
		if id != homeID {
			home = stores[homeID]
		}
		none, err := replica.New(replica.Config{Shard: topology.Shard{ID: id}, Clock: c, Meter: cfg.meter()})
		if err != nil {
			return nil, fmt.Errorf("instances: %w", err)
		}
		s.add(id, memory{}, stores[id], reads.New(none, stores[id], nil), home, c, metrics)
	}
	return s, nil
}

// Pending tells whether a task is ready or leased, or a timer due, on any shard,
// and when the next timer is; zero if there is none. It is for the test server,
// which moves the clock when nothing is.
func (s *Service) Pending(ctx context.Context) (busy bool, next time.Time, err error) {
	for _, v := range s.order {
		t, err := v.shard.Store().Tick(ctx, s.process, sweep.Term, true)
		if err != nil {
			return false, time.Time{}, fmt.Errorf("look at shard %d: %w", v.shard.ID(), err)
		}
		due := !t.NextDue.IsZero()
		if len(t.Ready) > 0 || !t.NextExpiry.IsZero() || (due && !t.NextDue.After(t.Now)) {
			busy = true
		}
		if due && (next.IsZero() || t.NextDue.Before(next)) {
			next = t.NextDue
		}
	}
	return busy, next, nil
}

// NextTime tells when the next timer is due or the next lease ends, whichever comes
// first; zero if there is neither.
func (s *Service) NextTime(ctx context.Context) (time.Time, error) {
	var next time.Time
	for _, v := range s.order {
		t, err := v.shard.Store().Tick(ctx, s.process, sweep.Term, true)
		if err != nil {
			return time.Time{}, fmt.Errorf("look at shard %d: %w", v.shard.ID(), err)
		}
		for _, at := range []time.Time{t.NextDue, t.NextExpiry} {
			if !at.IsZero() && (next.IsZero() || at.Before(next)) {
				next = at
			}
		}
	}
	return next, nil
}
