package postgres_test

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/fstest"

	"github.com/wiggle-run/wiggle/internal/pgtest"
	"github.com/wiggle-run/wiggle/pkg/postgres"
)

func set(files map[string]string) postgres.MigrationSet {
	fsys := fstest.MapFS{}
	for name, content := range files {
		fsys[name] = &fstest.MapFile{Data: []byte(content)}
	}
	return postgres.MigrationSet{Role: "sample", FS: fsys}
}

var twoFiles = map[string]string{
	"0001_first.sql": "create table first (id int);\ncreate function f() returns int language sql as $$ select 1; $$;",
	"0002_second.sql": "-- +goose Up\n-- +goose StatementBegin\ndo $$ begin create table second (id int); end $$;\n-- +goose StatementEnd\n" +
		"insert into second values (1);",
}

func with(files map[string]string, name, content string) map[string]string {
	out := map[string]string{name: content}
	for n, c := range files {
		if n != name {
			out[n] = c
		}
	}
	return out
}

func TestMigrate(t *testing.T) {
	t.Parallel()
	pool := pgtest.NewPool(t)
	ctx := t.Context()

	report, err := postgres.Migrate(ctx, pool, set(twoFiles), postgres.Verify)
	pending, ok := errors.AsType[*postgres.PendingError](err)
	if !ok || !slices.Equal(pending.Files, []string{"0001_first.sql", "0002_second.sql"}) || report.Version != 0 || report.Target != 2 {
		t.Errorf("verify on an empty database: %+v, %v", report, err)
	}
	var tables int
	if err := pool.QueryRow(ctx, "select count(*) from pg_tables where schemaname = 'public'").Scan(&tables); err != nil || tables != 0 {
		t.Errorf("verify made %d tables, %v", tables, err)
	}

	report, err = postgres.Migrate(ctx, pool, set(twoFiles), postgres.Apply)
	if err != nil || !slices.Equal(report.Applied, []string{"0001_first.sql", "0002_second.sql"}) || report.Version != 2 || len(report.Pending) != 0 {
		t.Errorf("apply: %+v, %v", report, err)
	}
	for _, mode := range []postgres.MigrateMode{postgres.Apply, postgres.Verify} {
		report, err = postgres.Migrate(ctx, pool, set(twoFiles), mode)
		if err != nil || len(report.Applied) != 0 || report.Version != 2 {
			t.Errorf("again: %+v, %v", report, err)
		}
	}

	edited := with(twoFiles, "0001_first.sql", twoFiles["0001_first.sql"]+" ")
	_, err = postgres.Migrate(ctx, pool, set(edited), postgres.Apply)
	if drift, ok := errors.AsType[*postgres.DriftError](err); !ok || drift.File != "0001_first.sql" || !strings.Contains(err.Error(), "0001_first.sql") {
		t.Errorf("edited: %v", err)
	}
	missing := map[string]string{"0002_second.sql": twoFiles["0002_second.sql"]}
	_, err = postgres.Migrate(ctx, pool, set(missing), postgres.Verify)
	if drift, ok := errors.AsType[*postgres.DriftError](err); !ok || !drift.Missing {
		t.Errorf("missing: %v", err)
	}
}

func TestMigrationFailureAppliesTheOnesBefore(t *testing.T) {
	t.Parallel()
	pool := pgtest.NewPool(t)
	files := with(twoFiles, "0003_bad.sql", "create table third (); select nonsense;")
	report, err := postgres.Migrate(t.Context(), pool, set(files), postgres.Apply)
	if err == nil || !strings.Contains(err.Error(), "0003_bad.sql") || report.Version != 2 || !slices.Equal(report.Pending, []string{"0003_bad.sql"}) {
		t.Errorf("%+v, %v", report, err)
	}
	if _, err := pool.Exec(t.Context(), "select from third"); !postgres.IsUndefinedTable(err) {
		t.Errorf("half of it stayed: %v", err)
	}
	files = with(files, "0003_bad.sql", "create table third ();")
	if report, err = postgres.Migrate(t.Context(), pool, set(files), postgres.Apply); err != nil || report.Version != 3 {
		t.Errorf("corrected before it was applied: %+v, %v", report, err)
	}
}

func TestOlderBinary(t *testing.T) {
	t.Parallel()
	var logs bytes.Buffer
	pool := pgtest.NewPool(t, func(c *postgres.MemberConfig) { c.Logger = slog.New(slog.NewTextHandler(&logs, nil)) })
	compatible := with(twoFiles, "0003_expand.sql", "create table third ();")
	breaking := with(compatible, "0004_contract.sql", "-- Why: nobody reads it.\n-- wiggle: requires 0003\ndrop table first;")
	if _, err := postgres.Migrate(t.Context(), pool, set(breaking), postgres.Apply); err != nil {
		t.Fatal(err)
	}
	for _, mode := range []postgres.MigrateMode{postgres.Verify, postgres.Apply} {
		logs.Reset()
		report, err := postgres.Migrate(t.Context(), pool, set(compatible), mode)
		if err != nil || report.Version != 4 || report.Target != 3 || !report.Newer() {
			t.Errorf("a binary that knows 0003: %+v, %v", report, err)
		}
		if said := logs.String(); !strings.Contains(said, "newer than this binary") || !strings.Contains(said, "version=4 known=3") {
			t.Errorf("a binary that knows 0003 logs %q", said)
		}
		_, err = postgres.Migrate(t.Context(), pool, set(twoFiles), mode)
		tooNew, ok := errors.AsType[*postgres.SchemaTooNewError](err)
		if !ok || tooNew.Requires != 3 || tooNew.Known != 2 || !strings.Contains(err.Error(), "run a newer release") {
			t.Errorf("a binary that knows 0002: %v", err)
		}
	}
}

func TestBadMigrationSets(t *testing.T) {
	t.Parallel()
	pool := pgtest.NewPool(t)
	for name, s := range map[string]postgres.MigrationSet{
		"empty":       set(nil),
		"role":        {Role: "x; drop", FS: fstest.MapFS{}},
		"name":        set(map[string]string{"first.sql": "select 1"}),
		"down":        set(map[string]string{"0001_a.sql": "-- +goose Up\nselect 1;\n-- +goose Down\nselect 2;"}),
		"same number": set(map[string]string{"0001_a.sql": "select 1", "0001_b.sql": "select 1"}),
		"future":      set(map[string]string{"0001_a.sql": "-- wiggle: requires 0002\nselect 1"}),
	} {
		if _, err := postgres.Migrate(t.Context(), pool, s, postgres.Apply); err == nil {
			t.Errorf("%s is accepted", name)
		}
	}
}

// Many processes start at once: each migration is applied once, and everyone finds the schema ready.
func TestMigrateConcurrently(t *testing.T) {
	t.Parallel()
	url := pgtest.NewDatabase(t)
	files := twoFiles
	for i := 3; i < 10; i++ {
		files = with(files, fmt.Sprintf("%04d_more.sql", i), fmt.Sprintf("create table t%d (id int)", i))
	}
	// Outside a transaction and waiting for all snapshots: would deadlock with others that wait for the lock in SQL.
	files = with(files, "0010_index.sql", "-- +goose NO TRANSACTION\n-- +goose Up\ncreate index concurrently on first (id);")
	var wg sync.WaitGroup
	applied := make(chan string, 100)
	for range 6 {
		pool := pgtest.OpenPool(t, url)
		wg.Go(func() {
			report, err := postgres.Migrate(t.Context(), pool, set(files), postgres.Apply)
			if err != nil || report.Version != 10 {
				t.Errorf("%+v, %v", report, err)
			}
			for _, name := range report.Applied {
				applied <- name
			}
		})
	}
	wg.Wait()
	close(applied)
	count := 0
	for range applied {
		count++
	}
	if count != 10 {
		t.Errorf("%d migrations were applied", count)
	}
}

func TestMigrateThroughPoolerAndWhileDown(t *testing.T) {
	t.Parallel()
	px, url := newProxy(t, pgtest.NewDatabase(t))
	pool := pgtest.OpenPool(t, url, func(c *postgres.MemberConfig) { c.TransactionPooler = true })
	if _, err := postgres.Migrate(t.Context(), pool, set(twoFiles), postgres.Apply); err != nil {
		t.Error(err)
	}
	px.setRefuse(true)
	if _, err := postgres.Migrate(t.Context(), pool, set(twoFiles), postgres.Apply); !errors.Is(err, postgres.ErrUnavailable) {
		t.Errorf("while down: %v", err)
	}
}

func TestClaim(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	home, other := pgtest.NewPool(t), pgtest.NewPool(t)
	if _, err := postgres.VerifyClaim(ctx, home, 0, ""); !errors.Is(err, postgres.ErrUnclaimed) {
		t.Errorf("before it is migrated: %v", err)
	}
	for _, pool := range []*postgres.Pool{home, other} {
		if _, err := postgres.Migrate(ctx, pool, postgres.ShardMigrations(), postgres.Apply); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := postgres.VerifyClaim(ctx, home, 0, ""); !errors.Is(err, postgres.ErrUnclaimed) {
		t.Errorf("before it is claimed: %v", err)
	}
	// All claim at once without knowing the cluster's id; one mints it.
	ids := make(chan string, 8)
	var wg sync.WaitGroup
	for range cap(ids) {
		wg.Go(func() {
			id, err := postgres.Claim(ctx, home, 0, "")
			if err != nil {
				t.Error(err)
			}
			ids <- id
		})
	}
	wg.Wait()
	cluster := <-ids
	for range cap(ids) - 1 {
		if id := <-ids; id != cluster || len(id) != 26 {
			t.Errorf("%q and %q", cluster, id)
		}
	}
	if id, err := postgres.Claim(ctx, other, 3, cluster); err != nil || id != cluster {
		t.Errorf("the other: %q, %v", id, err)
	}
	_, err := postgres.Claim(ctx, other, 4, cluster)
	if claim, ok := errors.AsType[*postgres.ClaimError](err); !ok || claim.HasShard != 3 || claim.WantShard != 4 {
		t.Errorf("another shard: %v", err)
	}
	_, err = postgres.VerifyClaim(ctx, other, 3, "another")
	if claim, ok := errors.AsType[*postgres.ClaimError](err); !ok || claim.HasCluster != cluster ||
		!strings.Contains(err.Error(), cluster) || !strings.Contains(err.Error(), "another") {
		t.Errorf("another cluster: %v", err)
	}
}
