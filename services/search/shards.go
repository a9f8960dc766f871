package search

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/wiggle-run/wiggle/pkg/postgres"
	"github.com/wiggle-run/wiggle/pkg/topology"
	"github.com/wiggle-run/wiggle/services/search/internal/searchstore"
	"github.com/wiggle-run/wiggle/services/search/migrations"
)

// openPause is how long to wait before a database that did not answer is tried again.
const openPause = time.Second

// shard is one search shard as this process has it.
type shard struct {
	id      int
	isHome  bool
	pool    *postgres.Pool
	store   *searchstore.Store
	opened  atomic.Bool
	refusal atomic.Pointer[string] // why it is not opened
}

// addShards opens the pools of the search shards, and one to home, which tells the cluster's id.
func (s *Service) addShards() error {
	for _, sh := range searchShards(s.cfg.Topology) {
		pool, err := s.pool(s.cfg.member(sh.Primary))
		if err != nil {
			return err
		}
		v := &shard{id: sh.ID, isHome: sh.Roles.Has(topology.RoleHome), pool: pool, store: searchstore.New(pool, s.cfg.Language)}
		opening := "opening"
		v.refusal.Store(&opening)
		s.shards = append(s.shards, v)
	}
	home := s.cfg.Topology.Home().Primary
	var err error
	s.home, err = s.pool(postgres.MemberConfig{
		Name: home.Name(), URL: home.ConnString(), MaxConns: homePoolSize, Logger: s.cfg.Logger, ApplicationName: "wiggle-search",
	})
	return err
}

func (s *Service) pool(cfg postgres.MemberConfig) (*postgres.Pool, error) {
	pool, err := postgres.Open(context.Background(), cfg)
	if err != nil {
		return nil, fmt.Errorf("search: %w", err)
	}
	s.closers = append(s.closers, pool.Close)
	return pool, nil
}

// runShard opens a shard, trying until its database answers.
func (s *Service) runShard(ctx context.Context, v *shard) error {
	log := s.cfg.Logger.With("shard", v.id)
	for reported := ""; ; {
		err := s.open(ctx, v)
		if err == nil {
			v.opened.Store(true)
			log.InfoContext(ctx, "serving the search shard")
			<-ctx.Done()
			return nil
		}
		if refused(err) {
			return err // named by lifecycle
		}
		reason := postgres.Reason(err)
		v.refusal.Store(&reason)
		if reason != reported && ctx.Err() == nil {
			log.WarnContext(ctx, "the search shard cannot be served yet; trying again every second",
				slog.String("reason", reason), slog.Any("error", err))
			reported = reason
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(openPause):
		}
	}
}

// open migrates and claims the database (SHD-13, SHD-15).
func (s *Service) open(ctx context.Context, v *shard) error {
	mode := postgres.Apply
	if s.cfg.SchemaVerify {
		mode = postgres.Verify
	}
	for _, set := range []postgres.MigrationSet{postgres.ShardMigrations(), migrations.Set()} {
		if _, err := postgres.Migrate(ctx, v.pool, set, mode); err != nil {
			return fmt.Errorf("migrate: %w", err)
		}
	}
	if err := s.claim(ctx, v); err != nil {
		return err
	}
	return v.store.CheckLanguage(ctx)
}

// claim makes the database this shard's, or checks that it is. Who serves home mints the cluster's id; a shard that was
// claimed before needs no home.
func (s *Service) claim(ctx context.Context, v *shard) error {
	id, err := postgres.VerifyClaim(ctx, v.pool, v.id, s.cluster.Get())
	if err == nil {
		return s.cluster.Learn(v.id, id)
	}
	if !errors.Is(err, postgres.ErrUnclaimed) {
		return fmt.Errorf("claim: %w", err)
	}
	known := s.cluster.Get()
	if v.isHome {
		return errHome
	}
	if known == "" {
		known, err = postgres.VerifyClaim(ctx, s.home, s.cfg.Topology.Home().ID, "")
		switch {
		case errors.Is(err, postgres.ErrUnclaimed):
			return errHome
		case err != nil:
			return fmt.Errorf("ask the home shard for the cluster's id: %w", err)
		}
	}
	if id, err = postgres.Claim(ctx, v.pool, v.id, known); err != nil {
		return fmt.Errorf("claim: %w", err)
	}
	return s.cluster.Learn(v.id, id)
}

// errHome: the cluster is so new that it has no id.
var errHome = errors.New("new database, waiting for an instances process to open the home shard")

// refused tells whether trying again does not mend an error.
func refused(err error) bool {
	var (
		claim    *postgres.ClaimError
		drift    *postgres.DriftError
		pending  *postgres.PendingError
		newer    *postgres.SchemaTooNewError
		language *searchstore.LanguageError
	)
	return errors.As(err, &claim) || errors.As(err, &drift) || errors.As(err, &pending) || errors.As(err, &newer) ||
		errors.As(err, &language)
}

// state tells whether the shard can be used, and if not why.
func (v *shard) state() (ready bool, reason string) {
	if !v.opened.Load() {
		return false, *v.refusal.Load()
	}
	h := v.pool.Health()
	return h.Usable(), h.Reason
}

func (v *shard) ready() bool {
	ready, _ := v.state()
	return ready
}
