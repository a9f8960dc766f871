// Package storetest makes shards for tests of the leader: databases with the schema of an instances shard, and entries of
// the event log as the instances service writes them.
package storetest

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"

	"github.com/jackc/pgx/v5"

	"github.com/wiggle-run/wiggle/pkg/postgres"
)

// Key names the content that Setup makes, for pgtest.NewDatabaseFrom.
const Key = "leader: an instances shard, 2"

// Setup brings the schema of an instances shard. The instances service owns it, and services do not import each other: it is
// read from its folder.
func Setup(ctx context.Context, databaseURL string) error {
	pool, err := postgres.Open(ctx, postgres.MemberConfig{Name: "setup", URL: databaseURL})
	if err != nil {
		return err
	}
	defer pool.Close()
	_, file, _, _ := runtime.Caller(0) //nolint:dogsled // it returns four, and the file is what is wanted
	instances := filepath.Join(filepath.Dir(file), "..", "..", "..", "..", "instances", "migrations")
	for _, set := range []postgres.MigrationSet{postgres.ShardMigrations(), {Role: "instances", FS: os.DirFS(instances)}} {
		if _, err := postgres.Migrate(ctx, pool, set, postgres.Apply); err != nil {
			return err
		}
	}
	return nil
}

// Insert writes entries of an instance, with the revisions from first on, in one transaction. Like the engine it has a
// transaction id before it takes a number.
func Insert(ctx context.Context, pool *postgres.Pool, instance [16]byte, first, count int) error {
	return pool.InTx(ctx, postgres.TxOptions{Op: "insert events"}, func(ctx context.Context, tx pgx.Tx) error {
		return InsertIn(ctx, tx, instance, first, count)
	})
}

// InsertIn is Insert within a transaction of the caller's.
func InsertIn(ctx context.Context, tx pgx.Tx, instance [16]byte, first, count int) error {
	if _, err := tx.Exec(ctx, "select pg_current_xact_id()"); err != nil {
		return err
	}
	_, err := tx.Exec(ctx, `insert into events
		(recorded_at, instance_id, revision, version, namespace, workflow, type, node, key, payload)
		select clock_timestamp(), $1, r, 1, 'default', 'order', 'paid', 'pay', 'k', convert_to(format('{"r":%s}', r), 'utf8')
		from generate_series($2::integer, $2::integer + $3::integer - 1) r`, instance, first, count)
	if err != nil {
		return fmt.Errorf("insert events: %w", err)
	}
	return nil
}
