package store_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/wiggle-run/wiggle/internal/pgtest"
	"github.com/wiggle-run/wiggle/pkg/postgres"
	"github.com/wiggle-run/wiggle/services/leader/internal/election"
	"github.com/wiggle-run/wiggle/services/leader/internal/election/electiontest"
	"github.com/wiggle-run/wiggle/services/leader/internal/store"
	"github.com/wiggle-run/wiggle/services/leader/internal/store/storetest"
	"github.com/wiggle-run/wiggle/services/leader/migrations"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

func migrated(t *testing.T) *postgres.Pool {
	t.Helper()
	pool := pgtest.OpenPool(t, pgtest.NewDatabaseFrom(t, storetest.Key, storetest.Setup))
	if _, err := postgres.Migrate(t.Context(), pool, migrations.Set(), postgres.Apply); err != nil {
		t.Fatal(err)
	}
	return pool
}

// movable is the lease on home, whose end a test sets.
type movable struct {
	*store.Lease
	pool *postgres.Pool
}

func (m movable) EndsIn(t *testing.T, d time.Duration) {
	t.Helper()
	_, err := m.pool.Exec(t.Context(), "update leader_lease set until = clock_timestamp() + $1::bigint * interval '1 microsecond'",
		d.Microseconds())
	if err != nil {
		t.Fatal(err)
	}
}

// TestLeaseConforms: the lease goes by the database's clock alone.
func TestLeaseConforms(t *testing.T) {
	t.Parallel()
	pool := migrated(t)
	electiontest.Conform(t, movable{store.NewLease(pool), pool})
}

// TestObserversDoNotWrite: who only looks at a lease writes nothing, and waits for nobody.
func TestObserversDoNotWrite(t *testing.T) {
	t.Parallel()
	pool := migrated(t)
	lease := store.NewLease(pool)
	ask := election.Ask{Holder: "a", Length: time.Hour}
	if s, err := lease.Try(t.Context(), ask); err != nil || !s.Held {
		t.Fatal(s, err)
	}
	tx, err := pool.Raw().Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(t.Context()) }()
	if _, err := tx.Exec(t.Context(), "select from leader_lease for update"); err != nil {
		t.Fatal(err)
	}
	var before, after string
	const version = "select xmin::text || ctid::text from leader_lease"
	if err := pool.QueryRow(t.Context(), version).Scan(&before); err != nil {
		t.Fatal(err)
	}
	ask.Holder = "b"
	if s, err := lease.Try(t.Context(), ask); err != nil || s.Held || s.Holder != "a" {
		t.Errorf("%+v, %v", s, err)
	}
	if err := pool.QueryRow(t.Context(), version).Scan(&after); err != nil || after != before {
		t.Errorf("the row was %s and is %s, %v", before, after, err)
	}
}

// TestFence: what a duty writes it writes under no earlier term than the row's, and a row that is missing is no later term.
func TestFence(t *testing.T) {
	t.Parallel()
	pool := migrated(t)
	shard, bare := store.NewShard(pool, true), store.NewShard(pool, false)
	ctx := t.Context()
	writes := map[string]func(term int64) error{
		"beat":         func(term int64) error { _, err := shard.Beat(ctx, term); return err },
		"beat alone":   func(term int64) error { _, err := bare.Beat(ctx, term); return err },
		"take cursor":  func(term int64) error { _, err := shard.TakeCursor(ctx, term); return err },
		"write cursor": func(term int64) error { return shard.WriteCursor(ctx, term, store.Cursor{Seq: term, Stream: "s"}) },
	}
	for _, step := range []struct {
		term   int64
		fenced bool
	}{{1, false}, {1, false}, {3, false}, {2, true}, {3, false}, {4, false}, {1, true}} {
		for name, write := range writes {
			err := write(step.term)
			fenced, ok := errors.AsType[*election.FencedError](err)
			if ok != step.fenced || (err != nil) != step.fenced {
				t.Errorf("%s under term %d: %v", name, step.term, err)
			}
			if ok && fenced.Term <= step.term {
				t.Errorf("%s under term %d: fenced by %d", name, step.term, fenced.Term)
			}
		}
	}
	if c, err := shard.TakeCursor(ctx, 4); err != nil || c != (store.Cursor{Seq: 4, Stream: "s"}) {
		t.Errorf("cursor %+v, %v", c, err)
	}
	for _, table := range []string{"wiggle_heartbeat", "event_relay"} {
		if _, err := pool.Exec(ctx, "delete from "+table); err != nil {
			t.Fatal(err)
		}
	}
	for name, write := range writes {
		err := write(9)
		if _, fenced := errors.AsType[*election.FencedError](err); fenced || err == nil {
			t.Errorf("%s without a row: %v", name, err)
		}
	}
}

// TestBeat: the heartbeat rises, bears the database's time, and tells the last number of the log (REP-1).
func TestBeat(t *testing.T) {
	t.Parallel()
	pool := migrated(t)
	shard := store.NewShard(pool, true)
	for i, want := range []int64{0, 3, 6} {
		last, err := shard.Beat(t.Context(), 5)
		if err != nil || last != want {
			t.Errorf("beat %d tells %d, want %d; %v", i, last, want, err)
		}
		var seen string
		const row = `select format('%s %s %s', beat, term, abs(extract(epoch from clock_timestamp() - beaten_at)) < 60)
			from wiggle_heartbeat`
		if err := pool.QueryRow(t.Context(), row).Scan(&seen); err != nil || seen != fmt.Sprintf("%d 5 t", i+1) {
			t.Errorf("after beat %d: %s, %v", i, seen, err)
		}
		if err := storetest.Insert(t.Context(), pool, [16]byte{1}, 3*i, 3); err != nil {
			t.Fatal(err)
		}
	}
}
