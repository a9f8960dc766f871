package instances

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/wiggle-run/wiggle/pkg/clock"
	"github.com/wiggle-run/wiggle/pkg/lifecycle"
	"github.com/wiggle-run/wiggle/pkg/postgres"
	"github.com/wiggle-run/wiggle/pkg/postgres/replica"
	"github.com/wiggle-run/wiggle/pkg/topology"
	"github.com/wiggle-run/wiggle/services/instances/internal/dispatch"
	"github.com/wiggle-run/wiggle/services/instances/internal/reads"
	"github.com/wiggle-run/wiggle/services/instances/internal/store"
	"github.com/wiggle-run/wiggle/services/instances/internal/store/homestore"
	"github.com/wiggle-run/wiggle/services/instances/internal/store/pgstore"
	"github.com/wiggle-run/wiggle/services/instances/migrations"
)

// primary is a shard's primary database.
type primary struct {
	service *Service
	pool    *postgres.Pool
	shard   int
	isHome  bool
	// home is a pool to the home shard, where this process does not serve it.
	home *postgres.Pool
}

// addDatabases opens the pools of the shards that the process serves, and one to
// home, which the copies of the definitions are read from.
func (s *Service) addDatabases(cfg Config) error {
	shards, err := servedShards(cfg)
	if err != nil {
		return err
	}
	metrics, err := dispatch.NewMetrics(cfg.meter())
	if err != nil {
		return fmt.Errorf("instances: %w", err)
	}
	pools := map[int]*postgres.Pool{}
	for _, sh := range shards {
		if pools[sh.ID], err = s.pool(cfg.member(sh.Primary, 0)); err != nil {
			return err
		}
	}
	var elsewhere *postgres.Pool // home, where it is not served here
	homePool := pools[s.home]
	if homePool == nil {
		if elsewhere, err = s.pool(cfg.member(cfg.Topology.Home().Primary, homePoolSize)); err != nil {
			return err
		}
		homePool = elsewhere
		check := func(ctx context.Context) error { return s.checkTopology(ctx, elsewhere) }
		s.extra = append(s.extra, lifecycle.Component{Name: "topology", Run: check})
	}
	home := pgstore.New(homePool)
	for _, sh := range shards {
		var from store.Definitions = home
		if sh.ID == s.home {
			from = nil
		}
		pool := pools[sh.ID]
		db := &primary{service: s, pool: pool, shard: sh.ID, isHome: sh.ID == s.home, home: elsewhere}
		st := pgstore.New(pool)
		where, err := s.replicas(cfg, sh, pool, st)
		if err != nil {
			return err
		}
		s.add(sh.ID, db, st, where, from, clock.Real{}, metrics)
	}
	return nil
}

// replicas opens the pools of a shard's replicas. None is connected to before the shard is open.
func (s *Service) replicas(cfg Config, sh topology.Shard, pool *postgres.Pool, st store.Store) (*reads.Shard, error) {
	set, err := replica.New(replica.Config{
		Shard: sh, Primary: pool, Member: cfg.member, ClusterID: s.cluster.Get, Zone: cfg.Zone,
		Logger: s.log, Meter: cfg.meter(),
	})
	if err != nil {
		return nil, fmt.Errorf("instances: %w", err)
	}
	s.closers = append(s.closers, set.Close)
	return reads.New(set, st, pgstore.NewReader), nil
}

func (s *Service) pool(cfg postgres.MemberConfig) (*postgres.Pool, error) {
	pool, err := postgres.Open(context.Background(), cfg)
	if err != nil {
		return nil, fmt.Errorf("instances: %w", err)
	}
	s.closers = append(s.closers, pool.Close)
	return pool, nil
}

// open migrates and claims the database (SHD-13, SHD-15).
func (p *primary) open(ctx context.Context) error {
	if _, err := Migrate(ctx, p.pool, p.isHome, p.service.cfg.SchemaVerify); err != nil {
		return refuse(err)
	}
	if err := p.claim(ctx); err != nil {
		return refuse(err)
	}
	if !p.isHome {
		return nil
	}
	problems, err := homestore.Enter(ctx, p.pool, p.service.cfg.Topology)
	if problems != nil {
		return refusedError{problems}
	}
	return err
}

// checkTopology holds the topology against the registry in a process that does not
// serve home itself. Until home answers the shards are served all the same, as they
// do not need home (ARC-1).
func (s *Service) checkTopology(ctx context.Context, home *postgres.Pool) error {
	for {
		entries, err := homestore.Registry(ctx, home)
		if err == nil {
			if problems := topology.Check(s.cfg.Topology, entries, nil); problems != nil {
				return problems
			}
			<-ctx.Done()
			return nil
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(openPause):
		}
	}
}

// refuse marks errors that trying again does not mend.
func refuse(err error) error {
	if err == nil {
		return nil
	}
	var (
		claim   *postgres.ClaimError
		drift   *postgres.DriftError
		pending *postgres.PendingError
		newer   *postgres.SchemaTooNewError
	)
	if errors.As(err, &claim) || errors.As(err, &drift) || errors.As(err, &pending) || errors.As(err, &newer) {
		return refusedError{err}
	}
	return err
}

// Migrate brings the schema of a shard up to date, or with verify checks that it
// is, and reports on each set of migrations.
func Migrate(ctx context.Context, pool *postgres.Pool, home, verify bool) ([]postgres.Report, error) {
	mode := postgres.Apply
	if verify {
		mode = postgres.Verify
	}
	sets := []postgres.MigrationSet{postgres.ShardMigrations(), migrations.Set()}
	if home {
		sets = append(sets, migrations.Home())
	}
	reports := make([]postgres.Report, 0, len(sets))
	for _, set := range sets {
		report, err := postgres.Migrate(ctx, pool, set, mode)
		if err != nil {
			return reports, fmt.Errorf("migrate: %w", err)
		}
		reports = append(reports, report)
	}
	return reports, nil
}

// claim makes the database this shard's, or checks that it is. Only home mints the
// cluster's id. A shard that was claimed before needs no home to go on; one that
// was not waits for it.
func (p *primary) claim(ctx context.Context) error {
	known := p.service.cluster.Get()
	if !p.isHome && known == "" {
		id, err := postgres.VerifyClaim(ctx, p.pool, p.shard, "")
		if err == nil {
			return p.service.cluster.Learn(p.shard, id)
		}
		if !errors.Is(err, postgres.ErrUnclaimed) {
			return fmt.Errorf("claim: %w", err)
		}
		if known, err = p.learnFromHome(ctx); err != nil {
			return err
		}
	}
	id, err := postgres.Claim(ctx, p.pool, p.shard, known)
	if err != nil {
		return fmt.Errorf("claim: %w", err)
	}
	return p.service.cluster.Learn(p.shard, id)
}

// learnFromHome waits a moment for the cluster's id: where this process serves home
// too, for that to be opened; else it asks home's database.
func (p *primary) learnFromHome(ctx context.Context) (string, error) {
	if p.home != nil {
		id, err := postgres.VerifyClaim(ctx, p.home, p.service.home, "")
		if err == nil {
			return id, nil
		}
		if !errors.Is(err, postgres.ErrUnclaimed) {
			return "", fmt.Errorf("ask the home shard for the cluster's id: %w", err)
		}
	}
	select {
	case <-p.service.cluster.Known():
		return p.service.cluster.Get(), nil
	case <-ctx.Done():
		return "", ctx.Err()
	case <-time.After(openPause):
		return "", errors.New("new database, waiting for the home shard to tell the cluster's id")
	}
}

// usable tells whether the database answers.
func (p *primary) usable() (bool, string) {
	h := p.pool.Health()
	return h.Usable(), h.Reason
}
