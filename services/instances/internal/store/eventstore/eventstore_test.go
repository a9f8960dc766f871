package eventstore_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/wiggle-run/wiggle/internal/pgtest"
	"github.com/wiggle-run/wiggle/pkg/postgres"
	"github.com/wiggle-run/wiggle/services/instances/internal/store"
	"github.com/wiggle-run/wiggle/services/instances/internal/store/eventstore"
	"github.com/wiggle-run/wiggle/services/instances/internal/store/pgstore"
	"github.com/wiggle-run/wiggle/services/instances/migrations"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// open opens a migrated database.
func open(t testing.TB, change ...func(*postgres.MemberConfig)) *postgres.Pool {
	t.Helper()
	url := pgtest.NewDatabaseFrom(t, "instances/"+migrations.Checksum(), func(ctx context.Context, url string) error {
		pool, err := postgres.Open(ctx, postgres.MemberConfig{Name: "template", URL: url})
		if err != nil {
			return err
		}
		defer pool.Close()
		_, err = postgres.Migrate(ctx, pool, migrations.Set(), postgres.Apply)
		return err
	})
	return pgtest.OpenPool(t, url, append([]func(*postgres.MemberConfig){pgstore.Configure}, change...)...)
}

func exec(t testing.TB, pool *postgres.Pool, sql string) {
	t.Helper()
	conn, err := pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	if _, err := conn.Exec(t.Context(), sql, pgx.QueryExecModeSimpleProtocol); err != nil {
		t.Fatal(err)
	}
}

// fill writes so many entries, a second apart, the last one now.
const fill = `
insert into events (recorded_at, instance_id, revision, version, namespace, workflow, type, node, key)
select now() - (100000 - g) * interval '1 second', lpad(to_hex(g), 32, '0')::uuid, 1, 1, 'n', 'w', 'wf.started', '', ''
from generate_series(1, 100000) g;
insert into event_consumers (consumer, seq) select 'c' || g, 50000 + g from generate_series(1, 20) g;
analyze`

// What reads and trims the log goes by its primary key whatever it held when the statement was planned (EVT-6).
func TestPlans(t *testing.T) {
	t.Parallel()
	pool := open(t)
	for _, state := range []struct{ name, sql string }{{"empty", "analyze"}, {"full", fill}} {
		exec(t, pool, state.sql)
		for name, s := range eventstore.Statements() {
			plan := explain(t, pool, s.SQL, s.Params)
			if strings.Contains(plan, "Seq Scan on events ") || strings.Contains(plan, "Bitmap") || strings.Contains(plan, "Merge Join") ||
				strings.Contains(plan, "Hash Join") || strings.Contains(plan, "Seq Scan on events\n") {
				t.Errorf("%s: %s is planned as\n%s", state.name, name, plan)
			}
			if n := strings.Count(plan, "using events_pkey"); n != s.Scans {
				t.Errorf("%s: %s uses the primary key %d times, want %d\n%s", state.name, name, n, s.Scans, plan)
			}
		}
	}
}

func explain(t *testing.T, pool *postgres.Pool, sql string, params int) string {
	t.Helper()
	conn, err := pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	ctx := t.Context()
	execute := "explain (costs off) execute explained"
	if params > 0 {
		execute += "(" + strings.TrimSuffix(strings.Repeat("null,", params), ",") + ")"
	}
	if _, err := conn.Exec(ctx, "prepare explained as "+sql, pgx.QueryExecModeSimpleProtocol); err != nil {
		t.Fatal(err)
	}
	rows, err := conn.Query(ctx, execute, pgx.QueryExecModeSimpleProtocol)
	if err != nil {
		t.Fatal(err)
	}
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Exec(ctx, "deallocate explained", pgx.QueryExecModeSimpleProtocol); err != nil {
		t.Fatal(err)
	}
	return strings.Join(lines, "\n") + "\n"
}

// The relay holds the log as a consumer does, once it has run.
func TestRelayHolds(t *testing.T) {
	t.Parallel()
	pool := open(t)
	log := eventstore.New(pool)
	exec(t, pool, strings.ReplaceAll(fill, "100000", "10")+"; delete from event_consumers; update event_relay set seq = 4")
	trim := store.TrimEvents{Retention: -time.Hour, HardCap: time.Hour, Limit: 3}
	if list, err := log.EventConsumers(t.Context()); err != nil || len(list) != 0 {
		t.Errorf("before it has run it is listed: %v, %v", list, err)
	}
	exec(t, pool, "update event_relay set term = 1")
	list, err := log.EventConsumers(t.Context())
	if err != nil || len(list) != 1 || list[0].Name != store.RelayConsumer || list[0].Seq != 4 || list[0].Behind != 6 {
		t.Errorf("listed: %v, %v", list, err)
	}
	deleted := 0
	for {
		done, err := log.TrimEvents(t.Context(), trim)
		if err != nil {
			t.Fatal(postgres.Detail(err))
		}
		deleted += done.Deleted
		trim.After = done.UpTo
		if !done.More {
			break
		}
	}
	if deleted != 4 || trim.After != 4 {
		t.Errorf("%d entries deleted, up to %d, want those that it has passed", deleted, trim.After)
	}
	exec(t, pool, "update event_relay set term = 0")
	if done, err := log.TrimEvents(t.Context(), trim); err != nil || done.Deleted != 3 {
		t.Errorf("a relay that has never run holds the log: %+v, %v", done, err)
	}
}

// A trim goes on where it was, and so reads none of what is deleted at the front and not vacuumed away (EVT-6).
func TestTrimPassesOverNothingTwice(t *testing.T) {
	t.Parallel()
	pool := open(t, func(c *postgres.MemberConfig) { c.MaxConns = 1 })
	exec(t, pool, fill+"; delete from event_consumers; alter table events set (autovacuum_enabled = false)")
	log := eventstore.New(pool)
	trim := store.TrimEvents{Retention: -time.Hour, HardCap: time.Hour, Limit: 1000}
	for i := range 30 {
		done, err := log.TrimEvents(t.Context(), trim)
		if err != nil || done.Deleted != trim.Limit {
			t.Fatalf("batch %d: %+v, %v", i, done, err)
		}
		trim.After = done.UpTo
	}
	// What a batch reads of the log, by the server's own count: its pages of the key and of the table, about twice.
	hits := func() (n int64) {
		t.Helper()
		const count = `select pg_stat_force_next_flush(), s.heap_blks_hit + s.heap_blks_read + s.idx_blks_hit + s.idx_blks_read
from pg_statio_user_tables s where relname = 'events'`
		if err := pool.QueryRow(t.Context(), "select pg_stat_clear_snapshot()").Scan(nil); err != nil {
			t.Fatal(err)
		}
		if err := pool.QueryRow(t.Context(), count).Scan(nil, &n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	_ = hits() // has the counts so far written
	before := hits()
	if _, err := log.TrimEvents(t.Context(), trim); err != nil {
		t.Fatal(err)
	}
	_ = hits()
	if n := hits() - before; n > 10*int64(trim.Limit) {
		t.Errorf("a batch of %d reads %d pages", trim.Limit, n)
	}
}
