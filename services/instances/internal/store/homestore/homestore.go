// Package homestore keeps the registry of shards on the home shard: every shard id
// ever used, with its state, which only moves forward (SHD-21).
package homestore

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/wiggle-run/wiggle/pkg/postgres"
	"github.com/wiggle-run/wiggle/pkg/topology"
)

// Registry reads the registry. A home shard that was never opened has none.
func Registry(ctx context.Context, pool *postgres.Pool) ([]topology.RegistryEntry, error) {
	rows, err := pool.Query(ctx, "select shard_id, state from shard_registry order by shard_id")
	if err == nil {
		var entries []topology.RegistryEntry
		entries, err = pgx.CollectRows(rows, pgx.RowToStructByPos[topology.RegistryEntry])
		if err == nil {
			return entries, nil
		}
	}
	if postgres.IsUndefinedTable(err) {
		return nil, nil
	}
	return nil, fmt.Errorf("read the shard registry: %w", err)
}

// Enter holds a topology against the registry and, if it is not refused, enters
// its shards: new ids with their state, known ones with theirs moved forward. The
// answer is what is wrong with the topology; then nothing is entered. Processes
// that start at the same time enter one after the other.
func Enter(ctx context.Context, pool *postgres.Pool, t *topology.Topology) (*topology.Problems, error) {
	var problems *topology.Problems
	err := pool.InTx(ctx, postgres.TxOptions{Op: "enter shards"}, func(ctx context.Context, tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "lock table shard_registry in share row exclusive mode"); err != nil {
			return err
		}
		rows, err := tx.Query(ctx, "select shard_id, state from shard_registry order by shard_id")
		if err != nil {
			return err
		}
		entries, err := pgx.CollectRows(rows, pgx.RowToStructByPos[topology.RegistryEntry])
		if err != nil {
			return err
		}
		if problems = topology.Check(t, entries, nil); problems != nil {
			return nil //nolint:nilerr // the answer is the problems, and nothing is entered
		}
		ids, states := make([]int32, len(t.Shards)), make([]string, len(t.Shards))
		for i, s := range t.Shards {
			ids[i], states[i] = int32(s.ID), string(s.State) //nolint:gosec // a shard fits
		}
		_, err = tx.Exec(ctx, `
			insert into shard_registry (shard_id, state)
			select * from unnest($1::integer[], $2::text[])
			on conflict (shard_id) do update set state = excluded.state, changed_at = now()
			where shard_registry.state <> excluded.state`, ids, states)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("enter the topology's shards in the registry: %w", err)
	}
	return problems, nil
}
