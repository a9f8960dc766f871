package pgtest

import (
	"context"
	"testing"

	"github.com/wiggle-run/wiggle/pkg/postgres"
)

func TestMain(m *testing.M) { Main(m) }

func TestDatabasesAreSeparate(t *testing.T) {
	t.Parallel()
	a, b := NewPool(t), NewPool(t)
	if _, err := a.Exec(t.Context(), "create table only_here ()"); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Exec(t.Context(), "select from only_here"); !postgres.IsUndefinedTable(err) {
		t.Errorf("the other database: %v", err)
	}
}

func TestTemplateIsMadeOnce(t *testing.T) {
	t.Parallel()
	made := 0
	setup := func(ctx context.Context, url string) error {
		made++
		pool, err := postgres.Open(ctx, postgres.MemberConfig{Name: "setup", URL: url})
		if err != nil {
			return err
		}
		defer pool.Close()
		_, err = pool.Exec(ctx, "create table copied (id int); insert into copied values (7)")
		return err
	}
	for range 3 {
		pool := OpenPool(t, NewDatabaseFrom(t, t.Name(), setup))
		var id int
		if err := pool.QueryRow(t.Context(), "select id from copied").Scan(&id); err != nil || id != 7 {
			t.Errorf("id %d, %v", id, err)
		}
	}
	if made > 1 {
		t.Errorf("made %d times", made)
	}
}

func BenchmarkNewDatabase(b *testing.B) {
	for b.Loop() {
		NewDatabase(b)
	}
}
