package pgmeter

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/wiggle-run/wiggle/pkg/postgres"
)

// Databases are those of the shards, for their counters. Reading them is two statements each, which are among what they count.
type Databases []*database

type database struct {
	name string
	pool *postgres.Pool
}

// Counters are PostgreSQL's of all shards; differences tell what was done between.
type Counters struct {
	// Known is false where there is no database to ask.
	Known bool
	// Commits of the shards; WAL bytes of their servers.
	Commits, WAL int64
	// Rows by table.
	Rows map[string]RowCounts
}

// RowCounts are of rows of a table. Hot are those updates that stayed within their page.
type RowCounts struct{ Inserted, Updated, Hot, Deleted int64 }

// Plus adds.
func (c RowCounts) Plus(o RowCounts) RowCounts {
	return RowCounts{c.Inserted + o.Inserted, c.Updated + o.Updated, c.Hot + o.Hot, c.Deleted + o.Deleted}
}

// Minus subtracts.
func (c RowCounts) Minus(o RowCounts) RowCounts {
	return c.Plus(RowCounts{-o.Inserted, -o.Updated, -o.Hot, -o.Deleted})
}

const (
	// statisticsSchema keeps what the bench adds to a database apart.
	statisticsSchema = "wiggle_bench"

	statementTime = time.Minute
	// horizonTime is how long a transaction may be held open.
	horizonTime = time.Hour
)

// openPool opens a pool for the bench's own statements.
func openPool(ctx context.Context, name, databaseURL string, size int) (*postgres.Pool, error) {
	return postgres.Open(ctx, postgres.MemberConfig{
		Name: name, URL: databaseURL, MaxConns: size, ApplicationName: "wiggle-bench",
		StatementTimeout: statementTime, IdleInTxTimeout: horizonTime,
	})
}

// Open reaches the databases at these URLs, by shard. On an error they are to be closed too.
func Open(ctx context.Context, urls []string) (Databases, error) {
	var all Databases
	for i, u := range urls {
		pool, err := openPool(ctx, fmt.Sprintf("shard %d", i), u, 2)
		if err != nil {
			return all, err
		}
		d := &database{pool: pool}
		all = append(all, d)
		if err := pool.QueryRow(ctx, "select current_database()").Scan(&d.name); err != nil {
			return all, fmt.Errorf("reach the database of shard %d: %w", i, err)
		}
	}
	return all, nil
}

// Close closes the connections.
func (all Databases) Close() {
	for _, d := range all {
		d.pool.Close()
	}
}

// Counters sums over the shards. Shards may share a server, whose WAL is then counted once.
func (all Databases) Counters(ctx context.Context) (Counters, error) {
	sum := Counters{Known: len(all) > 0, Rows: map[string]RowCounts{}}
	wal := map[string]int64{}
	for _, d := range all {
		var commits, bytes int64
		var server string
		err := d.pool.QueryRow(ctx, `
			select s.xact_commit, pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')::bigint,
			       pg_postmaster_start_time()::text || current_setting('port') || current_setting('data_directory')
			from pg_stat_database s where s.datname = current_database()`).Scan(&commits, &bytes, &server)
		if err != nil {
			return Counters{}, fmt.Errorf("read the counters of %s: %w", d.name, err)
		}
		sum.Commits += commits
		wal[server] = bytes
		if err := readRowCounts(ctx, d, sum.Rows); err != nil {
			return Counters{}, err
		}
	}
	for _, bytes := range wal {
		sum.WAL += bytes
	}
	return sum, nil
}

func readRowCounts(ctx context.Context, d *database, into map[string]RowCounts) error {
	rows, err := d.pool.Query(ctx, `select relname, n_tup_ins, n_tup_upd, n_tup_hot_upd, n_tup_del from pg_stat_user_tables`)
	if err != nil {
		return fmt.Errorf("read the tables of %s: %w", d.name, err)
	}
	defer rows.Close()
	for rows.Next() {
		var name string
		var c RowCounts
		if err := rows.Scan(&name, &c.Inserted, &c.Updated, &c.Hot, &c.Deleted); err != nil {
			return fmt.Errorf("read the tables of %s: %w", d.name, err)
		}
		into[name] = into[name].Plus(c)
	}
	return rows.Err()
}

// Size is how large a table is, as far as PostgreSQL's statistics know.
type Size struct {
	// Bytes of the table with what is stored apart, and of its indexes.
	Bytes      int64 `json:"bytes"`
	IndexBytes int64 `json:"index_bytes"`
	// Live and Dead rows, estimated.
	Live int64 `json:"live_rows"`
	Dead int64 `json:"dead_rows"`
}

// Sizes sums the sizes of tables by name over the shards.
func (all Databases) Sizes(ctx context.Context) (map[string]Size, error) {
	sizes := map[string]Size{}
	for _, d := range all {
		rows, err := d.pool.Query(ctx, `
			select relname, pg_table_size(relid), pg_indexes_size(relid), n_live_tup, n_dead_tup from pg_stat_user_tables
			where schemaname = current_schema()`)
		if err != nil {
			return nil, fmt.Errorf("read the sizes of %s: %w", d.name, err)
		}
		defer rows.Close()
		for rows.Next() {
			var name string
			var s Size
			if err := rows.Scan(&name, &s.Bytes, &s.IndexBytes, &s.Live, &s.Dead); err != nil {
				return nil, fmt.Errorf("read the sizes of %s: %w", d.name, err)
			}
			sum := sizes[name]
			sizes[name] = Size{sum.Bytes + s.Bytes, sum.IndexBytes + s.IndexBytes, sum.Live + s.Live, sum.Dead + s.Dead}
		}
		if err := rows.Err(); err != nil {
			return nil, fmt.Errorf("read the sizes of %s: %w", d.name, err)
		}
	}
	return sizes, nil
}

// StatementCalls is how many statements were executed on the shards so far, but for the bench's own, from
// pg_stat_statements; false where that is not loaded.
func (all Databases) StatementCalls(ctx context.Context) (int64, bool) {
	sum := int64(0)
	for _, d := range all {
		if execAll(ctx, d.pool, "create schema if not exists "+statisticsSchema,
			"create extension if not exists pg_stat_statements with schema "+statisticsSchema) != nil {
			return 0, false
		}
		var calls int64
		err := d.pool.QueryRow(ctx, `
			select coalesce(sum(calls), 0)::bigint from `+statisticsSchema+`.pg_stat_statements
			where dbid = (select oid from pg_database where datname = current_database())
			  and query !~ 'pg_stat_|current_database|`+statisticsSchema+`'
			  and query !~* '^\s*(begin|commit|rollback|set)\y'`).Scan(&calls)
		if err != nil {
			return 0, false
		}
		sum += calls
	}
	return sum, true
}

// Facts are what a server says of itself.
type Facts struct{ FSync, SynchronousCommit, SharedBuffers, Version string }

// Facts are those of the first shard's server, empty without any.
func (all Databases) Facts(ctx context.Context) (Facts, error) {
	var f Facts
	if len(all) == 0 {
		return f, nil
	}
	err := all[0].pool.QueryRow(ctx, `
		select current_setting('fsync'), current_setting('synchronous_commit'), current_setting('shared_buffers'),
		       current_setting('server_version')`).Scan(&f.FSync, &f.SynchronousCommit, &f.SharedBuffers, &f.Version)
	if err != nil {
		return f, fmt.Errorf("read the settings of PostgreSQL: %w", err)
	}
	return f, nil
}

// otherDatabase is the same server's, under another name.
func otherDatabase(databaseURL, name string) (string, error) {
	u, err := url.Parse(databaseURL)
	if err != nil || u.Scheme == "" {
		return "", errors.New("the URL of a database: want postgres://user@host/database")
	}
	u.Path = "/" + name
	return u.String(), nil
}

func quoteIdentifier(name string) string { return `"` + strings.ReplaceAll(name, `"`, `""`) + `"` }

// HoldHorizon opens a transaction with a snapshot on each shard. release ends them.
func (all Databases) HoldHorizon(ctx context.Context) (release func(), err error) {
	var releases []func()
	release = func() {
		for _, f := range releases {
			f()
		}
	}
	for _, d := range all {
		conn, err := d.pool.Acquire(ctx)
		if err != nil {
			release()
			return nil, err
		}
		releases = append(releases, func() {
			_, _ = conn.Exec(context.WithoutCancel(ctx), "rollback")
			conn.Release()
		})
		if _, err := conn.Exec(ctx, "begin isolation level repeatable read"); err != nil {
			release()
			return nil, fmt.Errorf("hold a transaction on %s: %w", d.name, err)
		}
		if _, err := conn.Exec(ctx, "select count(*) from pg_class"); err != nil {
			release()
			return nil, fmt.Errorf("hold a transaction on %s: %w", d.name, err)
		}
	}
	return release, nil
}
