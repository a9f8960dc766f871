package leader

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/wiggle-run/wiggle/pkg/postgres"
	"github.com/wiggle-run/wiggle/pkg/postgres/eventlog"
	"github.com/wiggle-run/wiggle/pkg/topology"
	"github.com/wiggle-run/wiggle/services/leader/internal/store"
	"github.com/wiggle-run/wiggle/services/leader/migrations"
)

// openPause is how long to wait before a home that cannot be opened is tried again.
const openPause = time.Second

// database is the primary of a shard.
type database struct {
	*store.Shard
	service   *Service
	pool      *postgres.Pool
	id        int
	instances bool // the instances service owns and migrates it

	mu   sync.Mutex
	open bool
}

func newDatabase(s *Service, sh topology.Shard, pool *postgres.Pool) *database {
	owned := sh.Roles.Has(topology.RoleInstances)
	return &database{Shard: store.NewShard(pool, owned), service: s, pool: pool, id: sh.ID, instances: owned}
}

// NewReader makes a reader of the shard's event log.
func (d *database) NewReader() *eventlog.Reader { return eventlog.NewReader(d.pool) }

// Open checks that the database is the shard's, once; it is called by every duty before it begins. A shard of the instances
// service is left to that: until it is migrated and claimed the duty fails and is tried again. Others have perhaps no
// service that runs, and get what every shard has here.
func (d *database) Open(ctx context.Context) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.open {
		return nil
	}
	if !d.instances && !d.service.cfg.SchemaVerify {
		if err := d.claim(ctx); err != nil {
			return err
		}
	}
	if err := d.verify(ctx); err != nil {
		return err
	}
	d.open = true
	return nil
}

// verify checks that the database is this shard of home's cluster.
func (d *database) verify(ctx context.Context) error {
	cluster, err := d.service.cluster(ctx)
	if err == nil {
		_, err = postgres.VerifyClaim(ctx, d.pool, d.id, cluster)
	}
	if errors.Is(err, postgres.ErrUnclaimed) {
		return errors.New("the shard waits for its service to migrate and claim it")
	}
	return err
}

// claim brings what every shard has, and makes the database this shard's.
func (d *database) claim(ctx context.Context) error {
	cluster, err := d.service.cluster(ctx)
	if err != nil {
		return err
	}
	if _, err := postgres.Migrate(ctx, d.pool, postgres.ShardMigrations(), postgres.Apply); err != nil {
		return err
	}
	_, err = postgres.Claim(ctx, d.pool, d.id, cluster)
	return err
}

// cluster asks home for the cluster's id.
func (s *Service) cluster(ctx context.Context) (string, error) {
	id, err := postgres.VerifyClaim(ctx, s.home.pool, s.home.id, "")
	if err != nil {
		return "", fmt.Errorf("ask the home shard for the cluster's id: %w", err)
	}
	return id, nil
}

// openHome waits until home is claimed and brings the leader's schema. Its error is one that trying again does not mend;
// when ctx ends first there is none.
func (s *Service) openHome(ctx context.Context) error {
	for reported := ""; ; {
		err := s.migrateHome(ctx)
		if err == nil {
			s.refusal.Store(nil)
			return nil
		}
		if ctx.Err() != nil {
			return nil //nolint:nilerr // as said
		}
		if refused(err) {
			return fmt.Errorf("home shard: %w", err)
		}
		reason := postgres.Reason(err)
		s.refusal.Store(&reason)
		if reason != reported {
			s.log.Warn("the home shard cannot be used yet; trying again every second", "reason", reason, "error", err)
			reported = reason
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(openPause):
		}
	}
}

func (s *Service) migrateHome(ctx context.Context) error {
	_, err := s.cluster(ctx)
	if errors.Is(err, postgres.ErrUnclaimed) {
		return errors.New("waiting for the instances service to claim it")
	}
	if err != nil {
		return err
	}
	mode := postgres.Apply
	if s.cfg.SchemaVerify {
		mode = postgres.Verify
	}
	_, err = postgres.Migrate(ctx, s.home.pool, migrations.Set(), mode)
	return err
}

// refused tells whether trying again mends nothing.
func refused(err error) bool {
	var (
		claim *postgres.ClaimError
		drift *postgres.DriftError
		newer *postgres.SchemaTooNewError
	)
	return errors.As(err, &claim) || errors.As(err, &drift) || errors.As(err, &newer)
}
