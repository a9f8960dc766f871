package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/wiggle-run/wiggle/internal/devstack"
	"github.com/wiggle-run/wiggle/internal/pgtest"
	"github.com/wiggle-run/wiggle/pkg/postgres"
)

// waitFor polls a condition that another process brings about.
func waitFor(t *testing.T, within time.Duration, what string, cond func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	poll := time.NewTicker(5 * time.Millisecond)
	defer poll.Stop()
	for !cond() {
		select {
		case <-poll.C:
		case <-ctx.Done():
			t.Fatalf("not within %v: %s", within, what)
		}
	}
}

func TestTimeLimitsAreAlwaysSet(t *testing.T) {
	t.Parallel()
	url := pgtest.NewDatabase(t)
	for name, tc := range map[string]struct {
		cfg  postgres.MemberConfig
		want map[string]string
	}{
		"defaults": {
			postgres.MemberConfig{URL: url},
			map[string]string{
				"statement_timeout": "15s", "lock_timeout": "5s", "idle_in_transaction_session_timeout": "10s",
				"application_name": "wiggle", "plan_cache_mode": "auto", "default_transaction_read_only": "off",
			},
		},
		"configured": {
			postgres.MemberConfig{
				URL: url, StatementTimeout: time.Minute, LockTimeout: time.Second, IdleInTxTimeout: 2 * time.Second,
				ApplicationName: "wiggle instances", PlanCacheMode: "force_generic_plan", ReadOnly: true,
				Params: map[string]string{"jit": "off"},
			},
			map[string]string{
				"statement_timeout": "1min", "lock_timeout": "1s", "idle_in_transaction_session_timeout": "2s", "jit": "off",
				"application_name": "wiggle instances", "plan_cache_mode": "force_generic_plan", "default_transaction_read_only": "on",
			},
		},
		"from the URL": {
			postgres.MemberConfig{URL: url + "&statement_timeout=7000&application_name=mine"},
			map[string]string{"statement_timeout": "7s", "lock_timeout": "5s", "application_name": "mine"},
		},
		"configured over the URL": {
			postgres.MemberConfig{URL: url + "&statement_timeout=7000", StatementTimeout: 15 * time.Second},
			map[string]string{"statement_timeout": "15s"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := pgtest.OpenPool(t, url, func(c *postgres.MemberConfig) { *c = tc.cfg })
			for setting, want := range tc.want {
				var got string
				if err := pool.QueryRow(t.Context(), "select current_setting($1)", setting).Scan(&got); err != nil || got != want {
					t.Errorf("%s = %q, want %q (%v)", setting, got, want, err)
				}
			}
		})
	}
}

func TestBehindTransactionPooler(t *testing.T) {
	t.Parallel()
	pool := pgtest.NewPool(t, func(c *postgres.MemberConfig) {
		c.TransactionPooler, c.StatementTimeout = true, 3*time.Second
	})
	show := func(q interface {
		QueryRow(context.Context, string, ...any) pgx.Row
	},
	) (timeout string, prepared int) {
		err := q.QueryRow(t.Context(), "select current_setting('statement_timeout'), (select count(*) from pg_prepared_statements) where $1",
			true).Scan(&timeout, &prepared)
		if err != nil {
			t.Error(err)
		}
		return timeout, prepared
	}
	if timeout, prepared := show(pool); timeout != "0" || prepared != 0 {
		t.Errorf("outside: timeout %s, %d prepared", timeout, prepared)
	}
	err := pool.InTx(t.Context(), postgres.TxOptions{}, func(_ context.Context, tx pgx.Tx) error {
		if timeout, prepared := show(tx); timeout != "3s" || prepared != 0 {
			t.Errorf("inside: timeout %s, %d prepared", timeout, prepared)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

func TestBadConfigurationNamesNoSecret(t *testing.T) {
	t.Parallel()
	for _, url := range []string{
		"postgres://user:sec:ret/pw@host:notaport/db", "postgres://user:secret@host:99999x/db",
		"postgres://u:secret@h/db?sslmode=secretmode", "host=h password='secret port=x", "postgres://u:secret@h/db?sslrootcert=/nonexistent&sslmode=verify-full",
		"postgres://u:secret@h/db?target_session_attrs=best", "postgres://u:secret@h/db?pool_max_conns=x",
	} {
		_, err := postgres.Open(t.Context(), postgres.MemberConfig{Name: "s1/primary", URL: url})
		if err == nil {
			t.Errorf("%s is accepted", url)
			continue
		}
		if text := fmt.Sprintf("%v %+v", err, err); strings.Contains(text, "secret") || strings.Contains(text, "ret/pw") || !strings.Contains(text, "s1/primary") {
			t.Errorf("%s: %s", url, text)
		}
	}
	cfg := postgres.MemberConfig{Name: "s1/primary", URL: "postgres://u:secret@h/db", Password: "secret"}
	if text := fmt.Sprintf("%v %+v %#v %s", cfg, cfg, cfg, slog.AnyValue(cfg).Resolve()); strings.Contains(text, "secret") {
		t.Error(text)
	}
	_, err := postgres.Open(t.Context(), postgres.MemberConfig{URL: "postgres://h/db", StatementTimeout: -1, MaxConns: -1, PlanCacheMode: "x"})
	for _, part := range []string{"statement timeout", "pool of -1", "plan cache mode"} {
		if err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("%q is missing in: %v", part, err)
		}
	}
}

func TestDownIsKnownAndErrorsAreSanitised(t *testing.T) {
	t.Parallel()
	px, url := newProxy(t, pgtest.NewDatabase(t))
	_ = px.listener.Close()
	pool := pgtest.OpenPool(t, url, func(c *postgres.MemberConfig) {
		c.Name, c.User, c.Password = "s7/primary", "someone", "hunter2"
	})
	if h := pool.Health(); h.State != postgres.Untried || !h.Usable() {
		t.Errorf("before the first call: %+v", h)
	}
	_, err := pool.Exec(t.Context(), "select 1")
	e, ok := errors.AsType[*postgres.Error](err)
	if !ok || e.Class != postgres.Unavailable || !errors.Is(err, postgres.ErrUnavailable) || e.RetryAfter <= 0 || len(e.Ref) != 8 {
		t.Fatalf("got %#v", err)
	}
	for _, secret := range []string{"127.0.0.1", "hunter2", "someone"} {
		if strings.Contains(err.Error(), secret) {
			t.Errorf("%q is in %q", secret, err)
		}
	}
	if detail := postgres.Detail(err); !strings.Contains(detail, "127.0.0.1") || strings.Contains(detail, "hunter2") {
		t.Errorf("detail: %s", detail)
	}
	if h := pool.Health(); h.State != postgres.Down || h.Reason != "connection refused" || h.LastFailure.IsZero() {
		t.Errorf("health: %+v", h)
	}
	// Nothing is tried while it is down: a call returns sooner than a context that has ended would be looked at.
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := pool.QueryRow(ended, "select 1").Scan(new(int)); !errors.Is(err, postgres.ErrUnavailable) {
		t.Errorf("fails fast: %v", err)
	}
}

func TestServerRestart(t *testing.T) {
	t.Parallel()
	s, err := pgtest.StartServer(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var states []postgres.State
	changes := make(chan postgres.State, 100)
	pool := pgtest.OpenPool(t, s.URL("postgres"), func(c *postgres.MemberConfig) {
		c.OnState = func(h postgres.Health) { changes <- h.State }
	})
	exec := func() error { _, err := pool.Exec(t.Context(), "select 1"); return err }
	if err := exec(); err != nil {
		t.Fatal(err)
	}
	dir, installation := s.Dir(), s.Config().Installation
	if err := s.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	waitFor(t, 3*time.Second, "the pool is down", func() bool { _ = exec(); return pool.Health().State == postgres.Down })
	if err := exec(); !errors.Is(err, postgres.ErrUnavailable) {
		t.Errorf("while down: %v", err)
	}
	s, err = devstack.StartServer(t.Context(), devstack.ServerConfig{Dir: dir, Installation: installation, Profile: devstack.Throwaway})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = pgtest.StopServer(s) })
	// Nobody asks: the probe alone finds out.
	waitFor(t, 1500*time.Millisecond, "the pool is up", func() bool { return pool.Health().State == postgres.Up })
	if err := exec(); err != nil {
		t.Errorf("after the restart: %v", err)
	}
	close(changes)
	for state := range changes {
		states = append(states, state)
	}
	if states[0] != postgres.Up || states[len(states)-1] != postgres.Up {
		t.Errorf("states: %v", states)
	}
}

func TestOneBrokenConnectionIsNoOutage(t *testing.T) {
	t.Parallel()
	pool := pgtest.NewPool(t)
	var pid int
	if err := pool.QueryRow(t.Context(), "select pg_backend_pid()").Scan(&pid); err != nil {
		t.Fatal(err)
	}
	_, err := pool.Exec(t.Context(), "select pg_terminate_backend(pg_backend_pid())")
	if class := postgres.Classify(err); class != postgres.Unknown {
		t.Errorf("outside a transaction: %v (%v)", class, err)
	}
	runs := 0
	err = pool.InTx(t.Context(), postgres.TxOptions{}, func(ctx context.Context, tx pgx.Tx) error {
		if runs++; runs == 1 {
			_, err := tx.Exec(ctx, "select pg_terminate_backend(pg_backend_pid())")
			return fmt.Errorf("wrapped: %w", err)
		}
		return nil
	})
	if err != nil || runs != 2 {
		t.Errorf("in a transaction: %d runs, %v", runs, err)
	}
	waitFor(t, time.Second, "the pool is up", func() bool { return pool.Health().State == postgres.Up })
}

func TestDemotedServerCostsThePool(t *testing.T) {
	t.Parallel()
	s, err := pgtest.StartServer(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = pgtest.StopServer(s) })
	pool := pgtest.OpenPool(t, s.URL("postgres"))
	admin := pgtest.OpenPool(t, s.URL("postgres"), func(c *postgres.MemberConfig) { c.ReadOnly = true })
	if _, err := pool.Exec(t.Context(), "create table t ()"); err != nil {
		t.Fatal(err)
	}
	setReadOnly := func(value string) {
		t.Helper()
		for _, sql := range []string{"alter system set default_transaction_read_only = " + value, "select pg_reload_conf()"} {
			if _, err := admin.Exec(t.Context(), sql); err != nil {
				t.Fatal(err)
			}
		}
	}
	setReadOnly("on")
	waitFor(t, 3*time.Second, "writes are refused", func() bool {
		_, err := pool.Exec(t.Context(), "insert into t default values")
		return errors.Is(err, postgres.ErrReadOnly)
	})
	if h := pool.Health(); h.State != postgres.Down || h.Class != postgres.ReadOnly {
		t.Errorf("health: %+v", h)
	}
	setReadOnly("off")
	waitFor(t, 3*time.Second, "the pool is up", func() bool { return pool.Health().State == postgres.Up })
	if _, err := pool.Exec(t.Context(), "insert into t default values"); err != nil {
		t.Error(err)
	}
	// A write through a read-only pool fails, and says nothing about the member.
	if _, err := admin.Exec(t.Context(), "insert into t default values"); !errors.Is(err, postgres.ErrReadOnly) {
		t.Errorf("through a read-only pool: %v", err)
	}
	if h := admin.Health(); h.State != postgres.Up {
		t.Errorf("health of the read-only pool: %+v", h)
	}
}

func TestFullPoolIsNoOutage(t *testing.T) {
	t.Parallel()
	pool := pgtest.NewPool(t, func(c *postgres.MemberConfig) { c.MaxConns, c.AcquireTimeout = 1, time.Second })
	conn, err := pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	_, err = pool.Exec(t.Context(), "select 1")
	if !errors.Is(err, postgres.ErrUnavailable) || !strings.Contains(err.Error(), "no connection") {
		t.Errorf("got %v", err)
	}
	if h := pool.Health(); h.State != postgres.Up {
		t.Errorf("health %+v", h)
	}
	conn.Release()
	if _, err := pool.Exec(t.Context(), "select 1"); err != nil {
		t.Error(err)
	}
}

func TestConnectionsAreGivenBack(t *testing.T) {
	t.Parallel()
	pool := pgtest.NewPool(t, func(c *postgres.MemberConfig) { c.MaxConns = 1 })
	ctx := t.Context()
	if _, err := pool.Exec(ctx, "create table t (id int primary key)"); err != nil {
		t.Fatal(err)
	}
	if _, err := pool.CopyFrom(ctx, pgx.Identifier{"t"}, []string{"id"}, pgx.CopyFromRows([][]any{{1}, {2}})); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		rows, err := pool.Query(ctx, "select id from t order by id")
		if err != nil {
			t.Fatal(err)
		}
		ids, err := pgx.CollectRows(rows, pgx.RowTo[int])
		if err != nil || len(ids) != 2 {
			t.Fatalf("%v, %v", ids, err)
		}
		rows, _ = pool.Query(ctx, "select 'x'")
		if _, err := pgx.CollectRows(rows, pgx.RowTo[int]); err == nil {
			t.Error("a string is no int")
		}
		if rows, err := pool.Query(ctx, "select nonsense"); err == nil {
			rows.Close()
			t.Error("nonsense is selected")
		}
		if err := pool.QueryRow(ctx, "select id from t where id = 9").Scan(new(int)); !errors.Is(err, pgx.ErrNoRows) {
			t.Errorf("got %v", err)
		}
		batch := &pgx.Batch{}
		batch.Queue("select 1").QueryRow(func(row pgx.Row) error { return row.Scan(new(int)) })
		batch.Queue("insert into t values (1)")
		if err := pool.SendBatch(ctx, batch).Close(); !postgres.IsUniqueViolation(err, "t_pkey") || postgres.IsUniqueViolation(err, "other") {
			t.Errorf("got %v", err)
		}
		_, err = pool.CopyFrom(ctx, pgx.Identifier{"t"}, []string{"id"}, pgx.CopyFromRows([][]any{{1}}))
		if !postgres.IsUniqueViolation(err, "") || postgres.Classify(err) != postgres.Permanent {
			t.Errorf("got %v", err)
		}
	}
	if n := pool.Stat().AcquiredConns(); n != 0 {
		t.Errorf("%d connections are out", n)
	}
	if n := pool.Stat().NewConnsCount(); n != 1 {
		t.Errorf("connected %d times", n)
	}
}

type countingTracer struct{ queries chan string }

func (c *countingTracer) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	c.queries <- data.SQL
	return ctx
}
func (c *countingTracer) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

func TestTracer(t *testing.T) {
	t.Parallel()
	tracer := &countingTracer{queries: make(chan string, 10)}
	pool := pgtest.NewPool(t, func(c *postgres.MemberConfig) { c.Tracer = tracer })
	if _, err := pool.Exec(t.Context(), "select 42"); err != nil {
		t.Fatal(err)
	}
	if sql := <-tracer.queries; sql != "select 42" {
		t.Errorf("traced %q", sql)
	}
	if h := pool.Health(); h.State != postgres.Up || h.LastSuccess.IsZero() {
		t.Errorf("health %+v", h)
	}
}

func TestClassifyForeignErrors(t *testing.T) {
	t.Parallel()
	for code, want := range map[string]postgres.Class{
		"40001": postgres.NotApplied, "40P01": postgres.NotApplied, "55P03": postgres.NotApplied, "53300": postgres.NotApplied,
		"57014": postgres.Interrupted, "25P03": postgres.Interrupted, "57P01": postgres.Unknown, "08007": postgres.Unknown,
		"57P03": postgres.Unavailable, "08006": postgres.Unavailable, "53100": postgres.Unavailable, "25006": postgres.ReadOnly,
		"23505": postgres.Permanent, "42601": postgres.Permanent, "0A000": postgres.Permanent,
	} {
		if got := postgres.Classify(fmt.Errorf("doing: %w", &pgconn.PgError{Code: code})); got != want {
			t.Errorf("%s is %v, want %v", code, got, want)
		}
	}
	if got := postgres.Classify(nil); got != postgres.OK {
		t.Errorf("nil is %v", got)
	}
	if got := postgres.Classify(errors.New("other")); got != postgres.Permanent {
		t.Errorf("other is %v", got)
	}
}

// TestOnConnect: a connection that is refused is not used, and the next one is asked again.
func TestOnConnect(t *testing.T) {
	t.Parallel()
	wrong := errors.New("not this server")
	refuse := true
	pool := pgtest.NewPool(t, func(c *postgres.MemberConfig) {
		c.OnConnect = func(ctx context.Context, conn *pgx.Conn) error {
			if refuse {
				return wrong
			}
			_, err := conn.Exec(ctx, "select 1")
			return err
		}
	})
	if _, err := pool.Exec(t.Context(), "select 1"); !errors.Is(err, wrong) || postgres.Classify(err) != postgres.Permanent {
		t.Errorf("a connection that is refused: %v", err)
	}
	if n := pool.Stat().TotalConns(); n != 0 {
		t.Errorf("%d connections are kept", n)
	}
	refuse = false
	if _, err := pool.Exec(t.Context(), "select 1"); err != nil {
		t.Errorf("one that is not: %v", err)
	}
}
