package postgres_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/wiggle-run/wiggle/internal/pgtest"
	"github.com/wiggle-run/wiggle/pkg/postgres"
)

func newCounterPool(t *testing.T, change ...func(*postgres.MemberConfig)) *postgres.Pool {
	t.Helper()
	pool := pgtest.NewPool(t, change...)
	createCounter(t, pool)
	return pool
}

func createCounter(t *testing.T, pool *postgres.Pool) {
	t.Helper()
	if _, err := pool.Exec(t.Context(), "create table counter (id int primary key, n int not null); insert into counter values (1, 0), (2, 0)"); err != nil {
		t.Fatal(err)
	}
}

func counter(t *testing.T, pool *postgres.Pool, id int) (n int) {
	t.Helper()
	if err := pool.QueryRow(t.Context(), "select n from counter where id = $1", id).Scan(&n); err != nil {
		t.Error(err)
	}
	return n
}

func increment(ctx context.Context, tx pgx.Tx) error {
	_, err := tx.Exec(ctx, "update counter set n = n + 1 where id = 1")
	return err
}

// The answer to a commit is lost: the proxy passes COMMIT on and then cuts the connection.
func TestLostCommitAnswerIsUnknown(t *testing.T) {
	t.Parallel()
	url := pgtest.NewDatabase(t)
	direct := pgtest.OpenPool(t, url)
	createCounter(t, direct)
	px, proxied := newProxy(t, url)
	pool := pgtest.OpenPool(t, proxied)
	runs := 0
	px.cutOnce("commit\x00") // not the name of the database
	err := pool.InTx(t.Context(), postgres.TxOptions{Op: "report"}, func(ctx context.Context, tx pgx.Tx) error {
		runs++
		return increment(ctx, tx)
	})
	if !errors.Is(err, postgres.ErrOutcomeUnknown) || postgres.Classify(err) != postgres.Unknown {
		t.Errorf("got %v", err)
	}
	if runs != 1 {
		t.Errorf("an unknown outcome was repeated: %d runs", runs)
	}
	waitFor(t, 5*time.Second, "the server has committed", func() bool { return counter(t, direct, 1) == 1 })
	waitFor(t, time.Second, "the pool is up again", func() bool { return pool.Health().State == postgres.Up })
	if err := pool.InTx(t.Context(), postgres.TxOptions{}, increment); err != nil || counter(t, direct, 1) != 2 {
		t.Errorf("afterwards: %v", err)
	}
}

// A connection that breaks before COMMIT was sent has applied nothing, and is repeated in place.
func TestBrokenBeforeCommitIsRepeated(t *testing.T) {
	t.Parallel()
	url := pgtest.NewDatabase(t)
	px, proxied := newProxy(t, url)
	pool := pgtest.OpenPool(t, proxied)
	createCounter(t, pool)
	for _, at := range []string{"begin", "update counter"} {
		before, runs := counter(t, pool, 1), 0
		px.cutOnce(at)
		err := pool.InTx(t.Context(), postgres.TxOptions{}, func(ctx context.Context, tx pgx.Tx) error {
			runs++
			return increment(ctx, tx)
		})
		if err != nil || counter(t, pool, 1) != before+1 {
			t.Errorf("cut at %s: %v after %d runs", at, err, runs)
		}
	}
	px.cutOnce("update counter")
	_, err := pool.Exec(t.Context(), "update counter set n = n where id = 1")
	if !errors.Is(err, postgres.ErrOutcomeUnknown) {
		t.Errorf("outside a transaction: %v", err)
	}
	px.setRefuse(true)
	px.cutAll()
	waitFor(t, 3*time.Second, "unavailable", func() bool {
		return errors.Is(pool.InTx(t.Context(), postgres.TxOptions{}, increment), postgres.ErrUnavailable)
	})
	px.setRefuse(false)
	waitFor(t, 1500*time.Millisecond, "up again", func() bool { return pool.Health().State == postgres.Up })
}

// Two transactions lock the same rows in opposite order; PostgreSQL fails one, which is repeated.
func TestDeadlockIsRepeated(t *testing.T) {
	t.Parallel()
	pool := newCounterPool(t)
	var both, all sync.WaitGroup
	both.Add(2)
	lock := func(first, second int) error {
		runs := 0
		return pool.InTx(t.Context(), postgres.TxOptions{}, func(ctx context.Context, tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, "update counter set n = n + 1 where id = $1", first); err != nil {
				return err
			}
			if runs++; runs == 1 {
				both.Done()
				both.Wait() // both hold their first row
			}
			_, err := tx.Exec(ctx, "update counter set n = n + 1 where id = $1", second)
			return err
		})
	}
	errs := make(chan error, 2)
	all.Go(func() { errs <- lock(1, 2) })
	all.Go(func() { errs <- lock(2, 1) })
	all.Wait()
	for range 2 {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	if a, b := counter(t, pool, 1), counter(t, pool, 2); a != 2 || b != 2 {
		t.Errorf("counters are %d and %d", a, b)
	}
}

func TestRepeatsAreBounded(t *testing.T) {
	t.Parallel()
	pool := newCounterPool(t)
	holder, err := pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer holder.Release()
	if _, err := holder.Exec(t.Context(), "begin; select from counter where id = 1 for update"); err != nil {
		t.Fatal(err)
	}
	runs := 0
	opts := postgres.TxOptions{LockTimeout: 5 * time.Millisecond, MaxAttempts: 3}
	err = pool.InTx(t.Context(), opts, func(ctx context.Context, tx pgx.Tx) error {
		runs++
		return increment(ctx, tx)
	})
	if postgres.Classify(err) != postgres.NotApplied || runs != 3 {
		t.Errorf("%d runs, %v", runs, err)
	}
	if _, err := holder.Exec(t.Context(), "rollback"); err != nil {
		t.Error(err)
	}
}

func TestTxOptions(t *testing.T) {
	t.Parallel()
	pool := newCounterPool(t)
	opts := postgres.TxOptions{
		Isolation: pgx.Serializable, ReadOnly: true, SynchronousCommit: "local", StatementTimeout: 3 * time.Second,
	}
	err := pool.InTx(t.Context(), opts, func(ctx context.Context, tx pgx.Tx) error {
		for setting, want := range map[string]string{
			"transaction_isolation": "serializable", "transaction_read_only": "on", "synchronous_commit": "local", "statement_timeout": "3s",
		} {
			var got string
			if err := tx.QueryRow(ctx, "select current_setting($1)", setting).Scan(&got); err != nil || got != want {
				t.Errorf("%s = %s, want %s (%v)", setting, got, want, err)
			}
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	if err := pool.InTx(t.Context(), postgres.TxOptions{SynchronousCommit: "x; drop table counter"}, increment); err == nil {
		t.Error("accepted")
	}
	err = pool.InTx(t.Context(), postgres.TxOptions{StatementTimeout: 10 * time.Millisecond}, func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, "select pg_sleep(10)")
		return err
	})
	if postgres.Classify(err) != postgres.Interrupted {
		t.Errorf("statement timeout: %v", err)
	}
}

func TestTxRollsBack(t *testing.T) {
	t.Parallel()
	pool := newCounterPool(t)
	errOwn := errors.New("own")
	err := pool.InTx(t.Context(), postgres.TxOptions{}, func(ctx context.Context, tx pgx.Tx) error {
		return errors.Join(increment(ctx, tx), errOwn)
	})
	if _, wrapped := errors.AsType[*postgres.Error](err); wrapped || !errors.Is(err, errOwn) {
		t.Errorf("own error: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	err = pool.InTx(ctx, postgres.TxOptions{}, func(ctx context.Context, tx pgx.Tx) error {
		defer cancel()
		return increment(ctx, tx)
	})
	if postgres.Classify(err) != postgres.Interrupted || !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	err = pool.InTx(t.Context(), postgres.TxOptions{}, func(ctx context.Context, tx pgx.Tx) error {
		_, _ = tx.Exec(ctx, "nonsense") // swallowed, so the commit is a rollback
		return nil
	})
	if !errors.Is(err, pgx.ErrTxCommitRollback) || postgres.Classify(err) != postgres.Permanent {
		t.Errorf("swallowed: %v", err)
	}
	func() {
		defer func() {
			if recover() == nil {
				t.Error("the panic is gone")
			}
		}()
		_ = pool.InTx(t.Context(), postgres.TxOptions{}, func(ctx context.Context, tx pgx.Tx) error {
			_ = increment(ctx, tx)
			panic("in the middle")
		})
	}()
	if n := counter(t, pool, 1); n != 0 {
		t.Errorf("counter is %d", n)
	}
	if n := pool.Stat().AcquiredConns(); n != 0 {
		t.Errorf("%d connections are out", n)
	}
}

// A commit that waits for standbys which do not come is cut off by CommitTimeout. It is in the log of the primary, so its
// outcome is unknown.
func TestCommitWithoutQuorumIsUnknown(t *testing.T) {
	t.Parallel()
	s, err := pgtest.StartServer(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = pgtest.StopServer(s) })
	pool := pgtest.OpenPool(t, s.URL("postgres"), func(c *postgres.MemberConfig) { c.CommitTimeout = 50 * time.Millisecond })
	createCounter(t, pool)
	admin := pgtest.OpenPool(t, s.URL("postgres"), func(c *postgres.MemberConfig) {
		c.Params = map[string]string{"synchronous_commit": "local"}
	})
	for _, sql := range []string{"alter system set synchronous_standby_names = 'ANY 1 (absent)'", "select pg_reload_conf()"} {
		if _, err := admin.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	waitFor(t, 5*time.Second, "the setting is in force", func() bool {
		var names string
		return admin.QueryRow(t.Context(), "show synchronous_standby_names").Scan(&names) == nil && names != ""
	})
	// It is for commits when the server's checkpointer has read it, too, which nothing shows: until then they do not wait.
	waitFor(t, 5*time.Second, "a commit waits", func() bool {
		err = pool.InTx(t.Context(), postgres.TxOptions{SynchronousCommit: "on"}, increment)
		return err != nil
	})
	if !errors.Is(err, postgres.ErrOutcomeUnknown) {
		t.Errorf("got %v", err)
	}
	// Someone else cancels the wait: PostgreSQL answers success with a warning.
	patient := pgtest.OpenPool(t, s.URL("postgres"), func(c *postgres.MemberConfig) {
		c.ApplicationName, c.CommitTimeout = "patient", time.Minute
	})
	done := make(chan error, 1)
	go func() { done <- patient.InTx(t.Context(), postgres.TxOptions{SynchronousCommit: "on"}, increment) }()
	waitFor(t, 5*time.Second, "the commit waits", func() bool {
		tag, err := admin.Exec(t.Context(), "select pg_cancel_backend(pid) from pg_stat_activity where wait_event = 'SyncRep' and application_name = 'patient'")
		return err == nil && tag.RowsAffected() > 0
	})
	if err := <-done; !errors.Is(err, postgres.ErrOutcomeUnknown) {
		t.Errorf("cancelled wait: %v", err)
	}
}
