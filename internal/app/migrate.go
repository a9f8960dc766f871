package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"

	"github.com/wiggle-run/wiggle/pkg/postgres"
	"github.com/wiggle-run/wiggle/pkg/topology"
	authmigrations "github.com/wiggle-run/wiggle/services/auth/migrations"
	"github.com/wiggle-run/wiggle/services/instances"
	"github.com/wiggle-run/wiggle/services/instances/migrations"
	leadermigrations "github.com/wiggle-run/wiggle/services/leader/migrations"
	searchmigrations "github.com/wiggle-run/wiggle/services/search/migrations"
)

// Schema is what was done about one schema of a shard.
type Schema struct {
	Shard int
	// Name is the schema's: that of the role which owns it, or "shard" for what every shard has.
	Name string
	// Version is the newest migration in the database, Target the newest of this binary.
	Version, Target int64
	// Applied and Pending name migrations.
	Applied, Pending []string
}

// ShardFailure says that a shard could not be looked after.
type ShardFailure struct {
	Shard int
	Err   error
}

// Detail is why, in the database's own words: it is for an operator, who knows the topology anyway.
func (f ShardFailure) Detail() string { return postgres.Detail(f.Err) }

// MigrateOptions say what to migrate.
type MigrateOptions struct {
	// Shards, or all that are not retired if empty.
	Shards []int
	// Verify applies nothing and fails for what is pending.
	Verify bool
	Logger *slog.Logger
}

// Migrate brings the schemas of shards up to date. A shard that fails does not keep the others from being migrated.
func Migrate(ctx context.Context, t *topology.Topology, opts MigrateOptions) ([]Schema, []ShardFailure, error) {
	shards, err := migrated(t, opts.Shards)
	if err != nil {
		return nil, nil, err
	}
	var schemas []Schema
	var failed []ShardFailure
	for _, shard := range shards {
		if ctx.Err() != nil {
			return schemas, failed, context.Cause(ctx)
		}
		done, err := migrateShard(ctx, shard, opts)
		schemas = append(schemas, done...)
		if err != nil {
			failed = append(failed, ShardFailure{shard.ID, err})
		}
	}
	return schemas, failed, nil
}

func migrated(t *topology.Topology, ids []int) ([]topology.Shard, error) {
	var shards []topology.Shard
	if len(ids) == 0 {
		for _, shard := range t.Shards {
			if shard.State != topology.StateRetired {
				shards = append(shards, shard)
			}
		}
		return shards, nil
	}
	var errs []error
	for _, id := range slices.Compact(slices.Sorted(slices.Values(ids))) {
		shard, ok := t.Shard(id)
		switch {
		case !ok:
			errs = append(errs, fmt.Errorf("shard %d is not in the topology", id))
		case shard.State == topology.StateRetired:
			errs = append(errs, fmt.Errorf("shard %d is retired", id))
		default:
			shards = append(shards, shard)
		}
	}
	return shards, errors.Join(errs...)
}

// schemaSets are the schemas that a shard has by its roles.
func schemaSets(roles topology.Roles) []postgres.MigrationSet {
	sets := []postgres.MigrationSet{postgres.ShardMigrations()}
	if roles.Has(topology.RoleInstances) || roles.Has(topology.RoleHome) {
		sets = append(sets, migrations.Set())
	}
	if roles.Has(topology.RoleHome) {
		sets = append(sets, migrations.Home(), leadermigrations.Set())
	}
	if roles.Has(topology.RoleAuth) {
		sets = append(sets, authmigrations.Set())
	}
	if roles.Has(topology.RoleSearch) {
		sets = append(sets, searchmigrations.Set())
	}
	return sets
}

func migrateShard(ctx context.Context, shard topology.Shard, opts MigrateOptions) ([]Schema, error) {
	pool, err := openPrimary(ctx, shard, opts.Logger)
	if err != nil {
		return nil, err
	}
	defer pool.Close()
	mode := postgres.Apply
	if opts.Verify {
		mode = postgres.Verify
	}
	var done []Schema
	var errs []error
	for _, set := range schemaSets(shard.Roles) {
		report, err := postgres.Migrate(ctx, pool, set, mode)
		if report.Target > 0 {
			done = append(done, Schema{shard.ID, set.Role, report.Version, report.Target, report.Applied, report.Pending})
		}
		errs = append(errs, err)
	}
	return done, errors.Join(errs...)
}

func openPrimary(ctx context.Context, shard topology.Shard, logger *slog.Logger) (*postgres.Pool, error) {
	return postgres.Open(ctx, postgres.MemberConfig{
		Name: shard.Primary.Name(), URL: shard.Primary.ConnString(), MaxConns: 1, Logger: logger, ApplicationName: "wiggle-migrate",
	})
}

// Facts are what a topology does not say of itself.
type Facts struct {
	// Registry is which shards the cluster has ever had, as home's database knows. Empty if home was never opened.
	Registry []topology.RegistryEntry `json:"registry"`
	// Claims are which shard of which cluster each database is. Those that nobody has claimed are not there.
	Claims map[int]topology.Claim `json:"claims"`
}

// AskDatabases asks the databases of a topology for the facts. Those that do not answer are named beside.
func AskDatabases(ctx context.Context, t *topology.Topology) (Facts, []ShardFailure) {
	facts := Facts{Claims: map[int]topology.Claim{}}
	var failed []ShardFailure
	for _, shard := range t.Shards {
		if shard.State == topology.StateRetired {
			continue
		}
		if err := askDatabase(ctx, shard, &facts); err != nil {
			failed = append(failed, ShardFailure{shard.ID, err})
		}
	}
	return facts, failed
}

func askDatabase(ctx context.Context, shard topology.Shard, facts *Facts) error {
	pool, err := openPrimary(ctx, shard, nil)
	if err != nil {
		return err
	}
	defer pool.Close()
	cluster, err := postgres.VerifyClaim(ctx, pool, shard.ID, "")
	if e, ok := errors.AsType[*postgres.ClaimError](err); ok {
		// Another shard's: what it says of the cluster's shards is not about this topology.
		facts.Claims[shard.ID] = topology.Claim{ShardID: e.HasShard, ClusterID: e.HasCluster}
		return nil
	}
	if errors.Is(err, postgres.ErrUnclaimed) {
		return nil
	}
	if err != nil {
		return err
	}
	facts.Claims[shard.ID] = topology.Claim{ShardID: shard.ID, ClusterID: cluster}
	if shard.Roles.Has(topology.RoleHome) {
		facts.Registry, err = instances.Registry(ctx, pool)
	}
	return err
}
