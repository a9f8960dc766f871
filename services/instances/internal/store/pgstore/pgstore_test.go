package pgstore

import (
	"context"
	"testing"

	"github.com/wiggle-run/wiggle/internal/pgtest"
	"github.com/wiggle-run/wiggle/pkg/postgres"
	"github.com/wiggle-run/wiggle/services/instances/internal/store"
	"github.com/wiggle-run/wiggle/services/instances/internal/store/storetest"
	"github.com/wiggle-run/wiggle/services/instances/migrations"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

func TestStore(t *testing.T) {
	t.Parallel()
	storetest.Run(t, func(t *testing.T) store.Store {
		t.Helper()
		return New(open(t))
	})
}

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
	return pgtest.OpenPool(t, url, append([]func(*postgres.MemberConfig){Configure}, change...)...)
}
