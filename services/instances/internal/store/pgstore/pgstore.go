// Package pgstore keeps a shard in PostgreSQL. It passes the suite of package
// storetest.
//
// An Update is one transaction of two round trips however large the batch is: BEGIN
// with the locks and reads; the writes, one statement for each table and kind, over
// arrays, with COMMIT. A claim and a heartbeat are one guarded statement.
//
// # Locks
//
// An Update locks instances by id, then tokens by id, then inserts instances by id.
// After that it waits only for rows that claims and heartbeats hold, and those wait
// for nobody while they hold something: both skip what is locked. (A heartbeat that
// was skipped is repeated alone, holding nothing else.) So batches do not deadlock.
//
// # Plans
//
// The tables of a shard are empty in the morning, large at noon, and a plan that is
// cached while they are tiny would scan them for ever after. So plans must not
// depend on statistics: [Configure] switches sequential and bitmap scans off for
// the pool's sessions and has plans made once, and statements are written so that
// each table can then be reached in one way. In particular a table is joined to the
// arrays of a batch with
//
//	t.id = any (array[u.id])
//
// and not with t.id = u.id: from an equality PostgreSQL would also derive a merge
// join, for which it may read all of the table in the order of its index. A test
// explains every hot statement on empty and on full tables.
//
// Static queries are compiled by sqlc from queries/*.sql; what is pipelined or built
// by the shape of a call is in the file that runs it.
package pgstore

import (
	"context"
	"maps"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/wiggle-run/wiggle/pkg/postgres"
	"github.com/wiggle-run/wiggle/services/instances/internal/store"
	"github.com/wiggle-run/wiggle/services/instances/internal/store/eventstore"
	"github.com/wiggle-run/wiggle/services/instances/internal/store/pgstore/internal/db"
)

// Store is a shard in PostgreSQL.
type Store struct {
	*eventstore.Log

	pool    *postgres.Pool
	queries *db.Queries
	fronts  fronts
	reads   chan struct{} // a place for each read for users under way
}

var _ store.Store = (*Store)(nil)

// New makes the store of a shard whose schema is migrated. The pool must have been
// opened with what [Configure] sets.
func New(pool *postgres.Pool) *Store {
	return &Store{
		Log: eventstore.New(pool), pool: pool, queries: db.New(pool), reads: make(chan struct{}, max(pool.MaxConns()/2, 1)),
	}
}

// NewReader makes what reads a replica of the shard. Its pool is for reads alone, so it is not shared out; it must have been
// opened with what [Configure] sets.
func NewReader(pool *postgres.Pool) store.Reader {
	return &Store{pool: pool, queries: db.New(pool), reads: make(chan struct{}, pool.MaxConns())}
}

// reading waits for a place for a read for users: of an instance, its history, a list, a
// count. They take no more than half of the pool's connections, so that batches,
// claims and heartbeats do not wait behind them, however many there are (WRK-15).
func (s *Store) reading(ctx context.Context) (done func(), err error) {
	select {
	case s.reads <- struct{}{}:
		return func() { <-s.reads }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Configure sets what the store relies on: how arrays are sent, and what its plans
// depend on. Through a transaction pooler the latter has no effect; statements are then planned anew each time, for the
// tables as they are, which is right too and costs more.
func Configure(cfg *postgres.MemberConfig) {
	cfg.PlanCacheMode = "force_generic_plan"
	params := map[string]string{"enable_seqscan": "off", "enable_bitmapscan": "off", "jit": "off"}
	maps.Copy(params, cfg.Params)
	cfg.Params, cfg.Types = params, registerColumns
}

// collect reads all rows of a query.
func collect[T any](rows pgx.Rows, err error, scan func(pgx.Rows) (T, error)) ([]T, error) {
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var list []T
	for rows.Next() {
		v, err := scan(rows)
		if err != nil {
			return nil, err
		}
		list = append(list, v)
	}
	return list, rows.Err()
}

// timestamp encodes a time; the zero time is NULL.
func timestamp(t time.Time) pgtype.Timestamptz {
	return pgtype.Timestamptz{Time: t, Valid: !t.IsZero()}
}

// when decodes a time; NULL is the zero time.
func when(t pgtype.Timestamptz) time.Time {
	if !t.Valid {
		return time.Time{}
	}
	return t.Time.UTC()
}
