package postgres_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/wiggle-run/wiggle/internal/pgtest"
	"github.com/wiggle-run/wiggle/pkg/postgres"
)

// bump reads a counter under a lock and writes one more, in two batches.
func bump(ctx context.Context, x *postgres.Exchange) error {
	var n int
	read := &pgx.Batch{}
	read.Queue("select n from counter where id = 1 for update").QueryRow(func(row pgx.Row) error { return row.Scan(&n) })
	if err := x.Do(ctx, read); err != nil {
		return err
	}
	write := &pgx.Batch{}
	write.Queue("update counter set n = $1 where id = 1", n+1)
	return x.Commit(ctx, write)
}

func TestExchangeCommits(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*postgres.MemberConfig){
		"direct":        func(*postgres.MemberConfig) {},
		"pooler's way":  func(c *postgres.MemberConfig) { c.TransactionPooler = true },
		"one at a time": func(c *postgres.MemberConfig) { c.MaxConns = 1 },
	} {
		pool := newCounterPool(t, change)
		for i := range 3 {
			if err := pool.Exchange(t.Context(), postgres.TxOptions{SynchronousCommit: "off"}, bump); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if n := counter(t, pool, 1); n != i+1 {
				t.Fatalf("%s: the counter is %d after %d exchanges", name, n, i+1)
			}
		}
	}
}

// What fails in the batch that carries COMMIT is not committed, nor is anything before it.
func TestExchangeIsAllOrNothing(t *testing.T) {
	t.Parallel()
	pool := newCounterPool(t, func(c *postgres.MemberConfig) { c.MaxConns = 1 })
	own := errors.New("no")
	for name, fn := range map[string]func(context.Context, *postgres.Exchange) error{
		"a broken rule in the last batch": func(ctx context.Context, x *postgres.Exchange) error {
			b := &pgx.Batch{}
			b.Queue("update counter set n = 100")
			b.Queue("insert into counter values (1, 1)")
			return x.Commit(ctx, b)
		},
		"a broken rule in the first": func(ctx context.Context, x *postgres.Exchange) error {
			b := &pgx.Batch{}
			b.Queue("update counter set n = 100")
			b.Queue("select 1 / (n - n) from counter where id = 1")
			return x.Do(ctx, b)
		},
		"an argument that cannot be sent": func(ctx context.Context, x *postgres.Exchange) error {
			b := &pgx.Batch{}
			b.Queue("update counter set n = 100")
			b.Queue("update counter set n = $1", "many")
			return x.Commit(ctx, b)
		},
		"an error of the caller": func(ctx context.Context, x *postgres.Exchange) error {
			b := &pgx.Batch{}
			b.Queue("update counter set n = 100")
			return errors.Join(x.Do(ctx, b), own)
		},
		"no commit": func(ctx context.Context, x *postgres.Exchange) error {
			b := &pgx.Batch{}
			b.Queue("update counter set n = 100")
			return x.Do(ctx, b)
		},
	} {
		err := pool.Exchange(t.Context(), postgres.TxOptions{}, fn)
		if postgres.Classify(err) != postgres.Permanent {
			t.Errorf("%s: got %v", name, err)
		}
		if a, b := counter(t, pool, 1), counter(t, pool, 2); a != 0 || b != 0 {
			t.Errorf("%s: counters are %d and %d", name, a, b)
		}
		if err := pool.Exchange(t.Context(), postgres.TxOptions{}, bump); err != nil {
			t.Fatalf("%s: the connection is of no use afterwards: %v", name, err)
		}
		if _, err := pool.Exec(t.Context(), "update counter set n = 0"); err != nil {
			t.Fatal(err)
		}
	}
}

// An exchange whose connection breaks before COMMIT was sent is repeated; one that breaks with its answer on the way
// has an unknown outcome, and so has a batch that is a transaction of its own.
func TestExchangeOnABrokenConnection(t *testing.T) {
	t.Parallel()
	url := pgtest.NewDatabase(t)
	direct := pgtest.OpenPool(t, url)
	createCounter(t, direct)
	px, proxied := newProxy(t, url)
	pool := pgtest.OpenPool(t, proxied)

	runs := 0
	counted := func(ctx context.Context, x *postgres.Exchange) error { runs++; return bump(ctx, x) }
	px.cutOnce("for update\x00")
	if err := pool.Exchange(t.Context(), postgres.TxOptions{}, counted); err != nil || runs != 2 || counter(t, direct, 1) != 1 {
		t.Errorf("cut before the commit: %v after %d runs", err, runs)
	}
	// This way statements are described once and their text is sent each time, for the proxy to see.
	described := pgtest.OpenPool(t, proxied, func(c *postgres.MemberConfig) { c.TransactionPooler, c.MaxConns = true, 1 })
	if err := described.Exchange(t.Context(), postgres.TxOptions{}, bump); err != nil {
		t.Fatal(err)
	}
	runs = 0
	px.cutOnce("commit\x00")
	if err := described.Exchange(t.Context(), postgres.TxOptions{}, counted); !errors.Is(err, postgres.ErrOutcomeUnknown) || runs != 1 {
		t.Errorf("cut in the batch of the commit: %v after %d runs", err, runs)
	}
	waitFor(t, 5*time.Second, "the server has committed", func() bool { return counter(t, direct, 1) == 3 })
	waitFor(t, time.Second, "the pool is up again", func() bool { return pool.Health().State == postgres.Up })
	once := &pgx.Batch{}
	once.Queue("update counter set n = n + 10 where id = 2")
	px.cutOnce("n + 10")
	if err := pool.Once(t.Context(), "once", once); !errors.Is(err, postgres.ErrOutcomeUnknown) {
		t.Errorf("cut in a batch of its own: %v", err)
	}
}

// The statements of a batch that is a transaction of its own are applied together or not at all.
func TestOnce(t *testing.T) {
	t.Parallel()
	pool := newCounterPool(t)
	bad := &pgx.Batch{}
	bad.Queue("update counter set n = 7 where id = 1")
	bad.Queue("insert into counter values (2, 1)")
	if err := pool.Once(t.Context(), "once", bad); !postgres.IsUniqueViolation(err, "counter_pkey") {
		t.Fatal(err)
	}
	if n := counter(t, pool, 1); n != 0 {
		t.Fatalf("half of a batch was applied: %d", n)
	}
	good := &pgx.Batch{}
	good.Queue("select set_config('lock_timeout', '5', true)")
	good.Queue("update counter set n = 7 where id = 1")
	if err := pool.Once(t.Context(), "once", good); err != nil || counter(t, pool, 1) != 7 {
		t.Fatal(err)
	}
}
