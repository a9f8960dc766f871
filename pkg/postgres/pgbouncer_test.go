//go:build pgbouncer

// Run by make test-pgbouncer, which installs it.

package postgres_test

import (
	"context"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/wiggle-run/wiggle/internal/pgtest"
	"github.com/wiggle-run/wiggle/pkg/postgres"
)

// startPgBouncer runs PgBouncer in transaction mode in front of a database and returns the connection string through it.
func startPgBouncer(t *testing.T, databaseURL string) string {
	t.Helper()
	program, err := exec.LookPath("pgbouncer")
	if err != nil {
		program = "/usr/sbin/pgbouncer" // not in every user's PATH
	}
	u, err := url.Parse(databaseURL)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	_, port, _ := net.SplitHostPort(addr)
	_ = l.Close()
	dir, err := os.MkdirTemp("/tmp", "wiggle-pgbouncer-") //nolint:usetesting // PgBouncer's account cannot reach t.TempDir
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	config := fmt.Sprintf("[databases]\n* = host=%s port=%s user=postgres\n[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = %s\n"+
		"unix_socket_dir =\nauth_type = any\npool_mode = transaction\ndefault_pool_size = 2\n",
		u.Query().Get("host"), u.Query().Get("port"), port)
	if err := os.WriteFile(filepath.Join(dir, "pgbouncer.ini"), []byte(config), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program, filepath.Join(dir, "pgbouncer.ini"))
	cmd.Dir, cmd.SysProcAttr = dir, &syscall.SysProcAttr{Credential: ownerOf(t, u.Query().Get("host"))}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	waitFor(t, 5*time.Second, "pgbouncer listens", func() bool {
		conn, err := net.Dial("tcp", addr)
		if err != nil {
			return false
		}
		return conn.Close() == nil
	})
	return "postgres://postgres@" + addr + u.Path + "?sslmode=disable"
}

// ownerOf is who may enter the server's socket directory; nil if that is us. PgBouncer does not run as root.
func ownerOf(t *testing.T, dir string) *syscall.Credential {
	t.Helper()
	if os.Geteuid() != 0 {
		return nil
	}
	var stat syscall.Stat_t
	if err := syscall.Stat(dir, &stat); err != nil {
		t.Fatal(err)
	}
	if _, err := user.LookupId(strconv.Itoa(int(stat.Uid))); err != nil {
		t.Fatal(err) // PgBouncer looks its user up by name
	}
	return &syscall.Credential{Uid: stat.Uid, Gid: stat.Gid}
}

// More clients than server connections share these, transaction by transaction, with nothing of a session in the way.
func TestPgBouncerInTransactionMode(t *testing.T) {
	t.Parallel()
	proxied := startPgBouncer(t, pgtest.NewDatabase(t))
	pools := make([]*postgres.Pool, 4)
	for i := range pools {
		pools[i] = pgtest.OpenPool(t, proxied, func(c *postgres.MemberConfig) { c.TransactionPooler, c.MaxConns = true, 4 })
		if _, err := postgres.Migrate(t.Context(), pools[i], postgres.ShardMigrations(), postgres.Apply); err != nil {
			t.Fatal(err)
		}
	}
	cluster, err := postgres.Claim(t.Context(), pools[0], 5, "")
	if err != nil {
		t.Fatal(err)
	}
	createCounter(t, pools[0])
	const clients, rounds = 16, 20
	var wg sync.WaitGroup
	for i := range clients {
		pool := pools[i%len(pools)]
		wg.Go(func() {
			for range rounds {
				err := pool.InTx(t.Context(), postgres.TxOptions{SynchronousCommit: "local"}, func(ctx context.Context, tx pgx.Tx) error {
					var timeout string
					if err := tx.QueryRow(ctx, "select current_setting($1)", "statement_timeout").Scan(&timeout); err != nil {
						return err
					}
					if timeout != "15s" {
						return fmt.Errorf("statement timeout is %s", timeout)
					}
					_, err := tx.Exec(ctx, "update counter set n = n + $1 where id = any($2)", 1, []int{1})
					return err
				})
				if err != nil {
					t.Error(postgres.Detail(err))
				}
				if _, err := postgres.VerifyClaim(t.Context(), pool, 5, cluster); err != nil {
					t.Error(postgres.Detail(err))
				}
			}
		})
	}
	wg.Wait()
	if n := counter(t, pools[0], 1); n != clients*rounds {
		t.Errorf("counter is %d", n)
	}
}
