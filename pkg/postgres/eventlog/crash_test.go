package eventlog_test

import (
	"context"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/wiggle-run/wiggle/internal/pgtest"
	"github.com/wiggle-run/wiggle/pkg/postgres"
	"github.com/wiggle-run/wiggle/pkg/postgres/eventlog"
)

// A server that crashes is known to be in another life, and a reader goes on as if it were new: nothing that it takes for
// decided is from before.
func TestServerCrashes(t *testing.T) {
	t.Parallel()
	server, err := pgtest.StartServer(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := pgtest.StopServer(server); err != nil {
			t.Error(err)
		}
	})
	pool := openOn(t, func() *postgres.Pool {
		return pgtest.OpenPool(t, server.URL("postgres"), func(c *postgres.MemberConfig) {
			c.Params = map[string]string{"synchronous_commit": "on"} // which servers for tests do without
		})
	})
	f := follow(t, eventlog.NewReader(pool))
	before := write(t, pool, 1, 3)
	f.expect("before", false, before...)
	life := f.reader.Life()
	f.expect("the same life", false)
	if f.reader.Life() != life || life == 0 {
		t.Errorf("the life was %d and is %d", life, f.reader.Life())
	}

	crash(t, pool)
	after := write(t, pool, 1, 3)
	f.expect("after it", false, after...)
	if f.reader.Life() == life {
		t.Errorf("after a crash the life is still %d", life)
	}
	if slices.Max(before) >= slices.Min(after) {
		t.Errorf("numbers were %v and are %v", before, after)
	}
}

// crash has the server crash, and waits until it has recovered.
func crash(t *testing.T, pool *postgres.Pool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	victim, err := pool.Acquire(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer victim.Release()
	witness, err := pool.Acquire(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer witness.Release()
	// A backend that is killed takes all of the server's memory with it: the server ends the others and recovers from its
	// log.
	if err := syscall.Kill(int(victim.Conn().PgConn().PID()), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	for err == nil {
		_, err = witness.Exec(ctx, "select 1")
	}
	for err != nil && ctx.Err() == nil {
		_, err = pool.Exec(ctx, "select 1")
	}
	if err != nil {
		t.Fatal(err)
	}
}
