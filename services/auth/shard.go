package auth

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/wiggle-run/wiggle/pkg/postgres"
	"github.com/wiggle-run/wiggle/services/auth/migrations"
)

const (
	// openPause is how long to wait before a database that did not answer is tried again.
	openPause = time.Second
	// homePoolSize is for the cluster's id alone.
	homePoolSize = 1
)

// addPools opens the pool of the auth shard, and one to home, which tells the cluster's id.
func (s *Service) addPools() error {
	auth, home := s.cfg.Topology.Auth(), s.cfg.Topology.Home()
	s.shard, s.isHome = auth.ID, auth.ID == home.ID
	var err error
	if s.pool, err = postgres.Open(context.Background(), s.cfg.member(auth.Primary, s.cfg.PoolSize)); err != nil {
		return err
	}
	s.closers = append(s.closers, s.pool.Close)
	if s.home, err = postgres.Open(context.Background(), s.cfg.member(home.Primary, homePoolSize)); err != nil {
		return err
	}
	s.closers = append(s.closers, s.home.Close)
	return nil
}

// runShard opens the shard, trying until its database answers, and keeps house in it.
func (s *Service) runShard(ctx context.Context) error {
	log := s.cfg.Logger.With(slog.Int("shard", s.shard))
	for reported := ""; ; {
		err := s.open(ctx)
		if err == nil {
			s.opened.Store(true)
			log.InfoContext(ctx, "serving the auth shard")
			return s.keepHouse(ctx)
		}
		if refused(err) {
			return err // named by lifecycle
		}
		reason := postgres.Reason(err)
		s.refusal.Store(&reason)
		if reason != reported && ctx.Err() == nil {
			log.WarnContext(ctx, "the auth shard cannot be served yet; trying again every second",
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

// open migrates and claims the database (SHD-13, SHD-15), and sees to the first administrator.
func (s *Service) open(ctx context.Context) error {
	mode := postgres.Apply
	if s.cfg.SchemaVerify {
		mode = postgres.Verify
	}
	for _, set := range []postgres.MigrationSet{postgres.ShardMigrations(), migrations.Set()} {
		if _, err := postgres.Migrate(ctx, s.pool, set, mode); err != nil {
			return fmt.Errorf("migrate: %w", err)
		}
	}
	if err := s.claim(ctx); err != nil {
		return err
	}
	return s.firstAdmin(ctx)
}

// claim makes the database this shard's, or checks that it is. Who serves home mints the cluster's id; a shard that was
// claimed before needs no home.
func (s *Service) claim(ctx context.Context) error {
	id, err := postgres.VerifyClaim(ctx, s.pool, s.shard, s.cluster.Get())
	if err == nil {
		return s.cluster.Learn(s.shard, id)
	}
	if !errors.Is(err, postgres.ErrUnclaimed) {
		return fmt.Errorf("claim: %w", err)
	}
	if s.isHome {
		return errHome
	}
	known, err := postgres.VerifyClaim(ctx, s.home, s.cfg.Topology.Home().ID, "")
	switch {
	case errors.Is(err, postgres.ErrUnclaimed):
		return errHome
	case err != nil:
		return fmt.Errorf("ask the home shard for the cluster's id: %w", err)
	}
	if id, err = postgres.Claim(ctx, s.pool, s.shard, known); err != nil {
		return fmt.Errorf("claim: %w", err)
	}
	return s.cluster.Learn(s.shard, id)
}

// errHome: the cluster is so new that it has no id.
var errHome = errors.New("new database, waiting for an instances process to open the home shard")

// refused tells whether trying again does not mend an error.
func refused(err error) bool {
	var (
		claim   *postgres.ClaimError
		drift   *postgres.DriftError
		pending *postgres.PendingError
		newer   *postgres.SchemaTooNewError
		admin   *adminError
	)
	return errors.As(err, &claim) || errors.As(err, &drift) || errors.As(err, &pending) || errors.As(err, &newer) ||
		errors.As(err, &admin)
}

// state tells whether the shard can be used, and if not why.
func (s *Service) state() (ready bool, reason string) {
	if !s.opened.Load() {
		return false, *s.refusal.Load()
	}
	h := s.pool.Health()
	return h.Usable(), h.Reason
}

func (s *Service) ready() bool {
	ready, _ := s.state()
	return ready
}
