package pgtest

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/url"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/wiggle-run/wiggle/internal/devstack"
	"github.com/wiggle-run/wiggle/pkg/postgres"
)

const (
	// EnvURL names a server to use: a connection string of a superuser to any database of it.
	EnvURL = "WIGGLE_TEST_POSTGRES_URL"

	adminConns   = 4
	adminTimeout = 2 * time.Minute
	poolConns    = 8
	// templateLock is the advisory lock under which template databases are made.
	templateLock = 0x77696767 // "wigg"
)

// server is the one that this test binary uses.
type server struct {
	admin *postgres.Pool
	url   string
	own   *devstack.Server // nil if it was given to us
	err   error
}

var (
	once    sync.Once
	current server
	counter atomic.Int64
)

// Main is [Run] for a package that has nothing to do after its tests: it exits.
func Main(m *testing.M, opts ...goleak.Option) { os.Exit(Run(m, opts...)) }

// Run runs the tests of a package, stops the server if this process started one, fails the run if goroutines are left
// (options say which are to be ignored), and returns the code to exit with.
func Run(m *testing.M, opts ...goleak.Option) int {
	code := m.Run()
	if err := stop(); err != nil {
		fmt.Fprintln(os.Stderr, "pgtest:", err)
		code = max(code, 1)
	}
	if code == 0 {
		if err := goleak.Find(opts...); err != nil {
			fmt.Fprintln(os.Stderr, "pgtest: goroutines are left:", err)
			code = 1
		}
	}
	return code
}

// NewDatabase creates an empty database and returns its connection string. It is dropped when the test ends, also
// under connections that are still open.
func NewDatabase(t testing.TB) string {
	t.Helper()
	return newDatabase(t, "template0")
}

// NewDatabaseFrom is [NewDatabase] with a content that is made once per server and then copied, which is much
// faster than migrating for each test. key stands for the content and must change with it (take the role and a checksum
// of its migrations); setup makes it in an empty database and must close its connections.
func NewDatabaseFrom(t testing.TB, key string, setup func(ctx context.Context, databaseURL string) error) string {
	t.Helper()
	template, err := ensureTemplate(t.Context(), key, setup)
	if err != nil {
		t.Fatalf("pgtest: template %q: %v", key, err)
	}
	return newDatabase(t, template)
}

// NewPool opens a pool of 8 connections on a new empty database; it is closed when the test ends. The functions change
// its configuration before.
func NewPool(t testing.TB, change ...func(*postgres.MemberConfig)) *postgres.Pool {
	t.Helper()
	return OpenPool(t, NewDatabase(t), change...)
}

// OpenPool is [NewPool] on a database that exists.
func OpenPool(t testing.TB, databaseURL string, change ...func(*postgres.MemberConfig)) *postgres.Pool {
	t.Helper()
	cfg := postgres.MemberConfig{Name: "test", URL: databaseURL, MaxConns: poolConns}
	for _, f := range change {
		f(&cfg)
	}
	pool, err := postgres.Open(t.Context(), cfg)
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	t.Cleanup(pool.Close)
	return pool
}

func newDatabase(t testing.TB, template string) string {
	t.Helper()
	s := start()
	if s.err != nil {
		t.Fatalf("pgtest: %v", s.err)
	}
	name := fmt.Sprintf("t%d_%d_%s", os.Getpid(), counter.Add(1), identifier(t.Name()))
	if err := create(t.Context(), s.admin, name, template); err != nil {
		t.Fatalf("pgtest: create database: %v", err)
	}
	t.Cleanup(func() {
		if _, err := s.admin.Exec(context.WithoutCancel(t.Context()), "drop database if exists "+name+" with (force)"); err != nil {
			t.Errorf("pgtest: drop database: %v", err)
		}
	})
	return databaseURL(s.url, name)
}

// create copies a template. Where the server knows strategies, copying through WAL avoids two checkpoints.
func create(ctx context.Context, admin *postgres.Pool, name, template string) error {
	_, err := admin.Exec(ctx, "create database "+name+" template "+template)
	if err != nil {
		return fmt.Errorf("%s", postgres.Detail(err))
	}
	return nil
}

// ensureTemplate makes the template of key unless this server has it. A template is marked as one when it is complete.
func ensureTemplate(ctx context.Context, key string, setup func(context.Context, string) error) (string, error) {
	s := start()
	if s.err != nil {
		return "", s.err
	}
	sum := sha256.Sum256([]byte(key))
	name := "template_" + hex.EncodeToString(sum[:8])
	conn, err := s.admin.Acquire(ctx)
	if err != nil {
		return "", err
	}
	defer conn.Release()
	const complete = "select exists (select from pg_database where datname = $1 and datistemplate)"
	var exists bool
	if err := conn.QueryRow(ctx, complete, name).Scan(&exists); err != nil || exists {
		return name, err
	}
	if _, err := conn.Exec(ctx, "select pg_advisory_lock($1)", templateLock); err != nil {
		return "", err
	}
	defer func() { _, _ = conn.Exec(context.WithoutCancel(ctx), "select pg_advisory_unlock($1)", templateLock) }()
	if err := conn.QueryRow(ctx, complete, name).Scan(&exists); err != nil || exists {
		return name, err
	}
	for _, sql := range []string{"drop database if exists " + name + " with (force)", "create database " + name + " template template0"} {
		if _, err := conn.Exec(ctx, sql); err != nil {
			return "", err
		}
	}
	if err := setup(ctx, databaseURL(s.url, name)); err != nil {
		return "", err
	}
	_, err = conn.Exec(ctx, "alter database "+name+" is_template true")
	return name, err
}

// start returns the server, starting one when first called without one given.
func start() *server {
	once.Do(func() { current = open(context.Background()) })
	return &current
}

func open(ctx context.Context) server {
	s := server{url: os.Getenv(EnvURL)}
	if s.url == "" {
		if s.own, s.err = StartServer(ctx); s.err != nil {
			return s
		}
		s.url = s.own.URL("postgres")
	}
	s.admin, s.err = postgres.Open(ctx, postgres.MemberConfig{
		Name: "pgtest", URL: s.url, MaxConns: adminConns, AcquireTimeout: adminTimeout, StatementTimeout: adminTimeout,
		LockTimeout: adminTimeout,
	})
	return s
}

func stop() error {
	once.Do(func() {}) // too late to start one
	if current.admin != nil {
		current.admin.Close()
	}
	if current.own == nil {
		return nil
	}
	return StopServer(current.own)
}

// databaseURL is the connection string of another database on the same server.
func databaseURL(serverURL, name string) string {
	u, err := url.Parse(serverURL)
	if err != nil {
		return serverURL // postgres.Open reports it
	}
	u.Path = "/" + name
	return u.String()
}

// identifier makes part of a database name from the name of a test, so that logs tell which it was.
func identifier(name string) string {
	clean := strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9':
			return r
		case r >= 'A' && r <= 'Z':
			return r + 'a' - 'A'
		}
		return '_'
	}, name)
	return clean[:min(len(clean), 30)]
}
