package schedulestore_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/wiggle-run/wiggle/internal/pgtest"
	"github.com/wiggle-run/wiggle/pkg/permission"
	"github.com/wiggle-run/wiggle/pkg/postgres"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	"github.com/wiggle-run/wiggle/services/leader/internal/election"
	"github.com/wiggle-run/wiggle/services/leader/internal/schedule"
	"github.com/wiggle-run/wiggle/services/leader/internal/schedulestore"
	"github.com/wiggle-run/wiggle/services/leader/migrations"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// open opens a database with the leader's tables.
func open(t testing.TB, change ...func(*postgres.MemberConfig)) *postgres.Pool {
	t.Helper()
	set, key := migrations.Set(), "leader"
	names, err := fs.Glob(set.FS, "*.sql")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		text, err := fs.ReadFile(set.FS, name)
		if err != nil {
			t.Fatal(err)
		}
		key += "/" + string(text)
	}
	url := pgtest.NewDatabaseFrom(t, key, func(ctx context.Context, url string) error {
		pool, err := postgres.Open(ctx, postgres.MemberConfig{Name: "template", URL: url})
		if err != nil {
			return err
		}
		defer pool.Close()
		_, err = postgres.Migrate(ctx, pool, set, postgres.Apply)
		return err
	})
	return pgtest.OpenPool(t, url, change...)
}

var noon = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

// put makes a schedule whose next due time is given.
func put(t *testing.T, s *schedulestore.Store, id string, next time.Time, change ...func(*schedulestore.Row)) {
	t.Helper()
	_, _, err := s.Change(t.Context(), "default", id, func(now time.Time, _ *schedulestore.Row) (*schedulestore.Row, error) {
		row := &schedulestore.Row{
			Schedule: &wigglev1.Schedule{Id: id, Namespace: "default", Workflow: "w"}, State: schedule.State{Next: next, From: now},
		}
		for _, c := range change {
			c(row)
		}
		return row, nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func get(t *testing.T, s *schedulestore.Store, id string) schedulestore.Row {
	t.Helper()
	row, err := s.Get(t.Context(), "default", id)
	if err != nil {
		t.Fatal(err)
	}
	return row
}

func due(t *testing.T, s *schedulestore.Store) schedulestore.Batch {
	t.Helper()
	batch, err := s.Due(t.Context(), 10, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	return batch
}

// TestChange: a row is made, changed and left alone; its revision tells.
func TestChange(t *testing.T) {
	t.Parallel()
	s := schedulestore.New(open(t)).WithNow(func() time.Time { return noon })
	put(t, s, "a", noon.Add(time.Minute))
	row := get(t, s, "a")
	if row.Revision != 1 || !row.Next.Equal(noon.Add(time.Minute)) || !row.CreatedAt.Equal(noon) || row.Schedule.GetWorkflow() != "w" {
		t.Errorf("made: %+v", row)
	}
	put(t, s, "a", noon.Add(time.Hour))
	if row = get(t, s, "a"); row.Revision != 2 || !row.Next.Equal(noon.Add(time.Hour)) {
		t.Errorf("changed: %+v", row)
	}
	left, created, err := s.Change(t.Context(), "default", "a", func(_ time.Time, old *schedulestore.Row) (*schedulestore.Row, error) {
		if old == nil || old.Revision != 2 {
			t.Errorf("to be changed: %+v", old)
		}
		return nil, nil
	})
	if left != nil || created || err != nil || get(t, s, "a").Revision != 2 {
		t.Errorf("left alone: %+v, %t, %v", left, created, err)
	}
	if deleted, err := s.Delete(t.Context(), "default", "a"); !deleted || err != nil {
		t.Errorf("deleted: %t, %v", deleted, err)
	}
	if deleted, err := s.Delete(t.Context(), "default", "a"); deleted || err != nil {
		t.Errorf("deleted again: %t, %v", deleted, err)
	}
	if _, err := s.Get(t.Context(), "default", "a"); !errors.Is(err, schedulestore.ErrNotFound) {
		t.Errorf("read after it was deleted: %v", err)
	}
}

// TestChangesAtOnce: of those who make the same schedule at the same moment one makes it, and all others change it.
func TestChangesAtOnce(t *testing.T) {
	t.Parallel()
	s := schedulestore.New(open(t))
	var wg sync.WaitGroup
	var mu sync.Mutex
	made := 0
	for range 8 {
		wg.Go(func() {
			_, created, err := s.Change(t.Context(), "default", "a", func(now time.Time, _ *schedulestore.Row) (*schedulestore.Row, error) {
				return &schedulestore.Row{Schedule: &wigglev1.Schedule{Id: "a", Namespace: "default"}, State: schedule.State{From: now}}, nil
			})
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				t.Error(err)
			}
			if created {
				made++
			}
		})
	}
	wg.Wait()
	if got := get(t, s, "a").Revision; made != 1 || got != 8 {
		t.Errorf("%d have made it, revision %d", made, got)
	}
}

// TestDue: what is due comes in the order in which it is, as far as the bounds go; with when the first is.
func TestDue(t *testing.T) {
	t.Parallel()
	now := noon
	s := schedulestore.New(open(t)).WithNow(func() time.Time { return now })
	if b := due(t, s); len(b.Rows) != 0 || !b.Wake.IsZero() || !b.Now.Equal(noon) {
		t.Errorf("without schedules: %+v", b)
	}
	put(t, s, "never", time.Time{})
	for i, after := range []time.Duration{3, 1, 2, 4} {
		put(t, s, fmt.Sprint(i), noon.Add(after*time.Minute))
	}
	if b := due(t, s); len(b.Rows) != 0 || !b.Wake.Equal(noon.Add(time.Minute)) {
		t.Errorf("before any is due: %+v", b)
	}
	now = noon.Add(3 * time.Minute)
	var got []string
	for _, row := range due(t, s).Rows {
		got = append(got, row.Schedule.GetId())
	}
	if fmt.Sprint(got) != "[1 2 0]" {
		t.Errorf("due are %v", got)
	}
	large := func(r *schedulestore.Row) { r.Schedule.Input = &wigglev1.Payload{Data: make([]byte, 1000)} }
	for _, id := range []string{"0", "1", "2"} {
		put(t, s, id, noon, large)
	}
	for bytes, want := range map[int]int{10: 1, 1500: 1, 2100: 2, 1 << 20: 3} {
		if b, err := s.Due(t.Context(), 10, bytes); err != nil || len(b.Rows) != want {
			t.Errorf("within %d bytes %d are due, want %d: %v", bytes, len(b.Rows), want, err)
		}
	}
	if b, err := s.Due(t.Context(), 2, 1<<20); err != nil || len(b.Rows) != 2 {
		t.Errorf("of two at most %d are due: %v", len(b.Rows), err)
	}
}

// TestList pages by id, by number and by size.
func TestList(t *testing.T) {
	t.Parallel()
	s := schedulestore.New(open(t)).WithNow(func() time.Time { return noon })
	for _, id := range []string{"b", "a", "c", "B", "d"} {
		put(t, s, id, noon, func(r *schedulestore.Row) {
			if id == "c" {
				r.Schedule.Workflow = "other"
			}
			r.Schedule.Input = &wigglev1.Payload{Data: make([]byte, 1000)}
		})
	}
	for _, c := range []struct {
		workflow, after string
		limit, bytes    int
		only            *permission.Names
		want            string
		more            bool
	}{
		{"", "", 9, 1 << 20, nil, "B a b c d", false},
		{"", "", 5, 1 << 20, nil, "B a b c d", false},
		{"", "", 4, 1 << 20, nil, "B a b c", true},
		{"", "b", 4, 1 << 20, nil, "c d", false},
		{"", "", 4, 2500, nil, "B a", true},
		{"", "", 4, 1, nil, "B", true},
		{"", "c", 4, 1, nil, "d", false},
		{"other", "", 4, 1 << 20, nil, "c", false},
		{"w", "a", 1, 1 << 20, nil, "b", true},
		{"", "", 1, 1 << 20, &permission.Names{Prefixes: []string{"oth"}}, "c", false},
		{"", "", 2, 1 << 20, &permission.Names{Exact: []string{"none", "w"}}, "B a", true},
		{"", "a", 2, 1 << 20, &permission.Names{Exact: []string{"w"}}, "b d", false},
		{"other", "", 4, 1 << 20, &permission.Names{Exact: []string{"w"}}, "", false},
		{"", "", 4, 1 << 20, &permission.Names{}, "", false},
	} {
		rows, more, err := s.List(t.Context(), schedulestore.Listing{
			Namespace: "default", Workflow: c.workflow, Only: c.only, After: c.after, Limit: c.limit, Bytes: c.bytes,
		})
		var got []string
		for _, row := range rows {
			got = append(got, row.Schedule.GetId())
		}
		if strings.Join(got, " ") != c.want || more != c.more || err != nil {
			t.Errorf("%+v: %v, more %t, %v", c, got, more, err)
		}
	}
}

// TestRecord: what was fired is recorded once, and what comes next only over the row as it was read; both under the term alone.
func TestRecord(t *testing.T) {
	t.Parallel()
	s := schedulestore.New(open(t)).WithNow(func() time.Time { return noon })
	if err := s.Take(t.Context(), 5); err != nil {
		t.Fatal(err)
	}
	put(t, s, "a", noon)
	read := due(t, s).Rows[0]
	next := noon.Add(time.Minute)
	fired := schedulestore.Outcome{Read: read, Fired: noon, Instance: "i1", Next: next, Wake: next, Problem: ""}
	record := func(term int64, o schedulestore.Outcome) error {
		return s.Record(t.Context(), term, []schedulestore.Outcome{o})
	}
	is := func(what string, want schedulestore.Row) {
		t.Helper()
		got := get(t, s, "a")
		if got.Fired != want.Fired || got.Skipped != want.Skipped || got.Missed != want.Missed || !got.Next.Equal(want.Next) ||
			!got.Last.Equal(want.Last) || got.LastInstance != want.LastInstance || got.Problem != want.Problem {
			t.Errorf("%s: %+v", what, got)
		}
	}
	if err := record(4, fired); !isFenced(err, 5) {
		t.Errorf("under a term that is over: %v", err)
	}
	if err := s.Take(t.Context(), 4); !isFenced(err, 5) {
		t.Errorf("taking a term that is over: %v", err)
	}
	if err := record(6, fired); err == nil || isFenced(err, 5) {
		t.Errorf("under a term that was not taken: %v", err)
	}
	is("refused", schedulestore.Row{State: schedule.State{Next: noon}})
	for range 2 { // the second as after a commit whose answer was lost
		if err := record(5, fired); err != nil {
			t.Fatal(err)
		}
		is("fired", schedulestore.Row{State: schedule.State{Next: next, Last: noon, LastInstance: "i1"}, Fired: 1})
	}
	// A user changes the schedule between the reading and the record: what was fired counts, and no more.
	read = get(t, s, "a")
	put(t, s, "a", next, func(r *schedulestore.Row) { r.Fired, r.Last, r.LastInstance = read.Fired, read.Last, read.LastInstance })
	later := next.Add(time.Minute)
	if err := record(5, schedulestore.Outcome{
		Read: read, Fired: next, Instance: "i2", Skipped: 3, Missed: 4, Next: later, Wake: later, Problem: "p",
	}); err != nil {
		t.Fatal(err)
	}
	is("fired while it was changed", schedulestore.Row{State: schedule.State{Next: next, Last: next, LastInstance: "i2"}, Fired: 2})
	if err := record(5, schedulestore.Outcome{Read: read, Skipped: 3, Next: later, Wake: later}); err != nil {
		t.Fatal(err)
	}
	is("skipped while it was changed", schedulestore.Row{State: schedule.State{Next: next, Last: next, LastInstance: "i2"}, Fired: 2})
	if err := record(5, schedulestore.Outcome{
		Read: get(t, s, "a"), Skipped: 3, Missed: 4, Next: later, Wake: later, Problem: "p",
	}); err != nil {
		t.Fatal(err)
	}
	is("skipped", schedulestore.Row{
		State: schedule.State{Next: later, Last: next, LastInstance: "i2"}, Fired: 2, Skipped: 3, Missed: 4, Problem: "p",
	})
}

func isFenced(err error, term int64) bool {
	fenced, ok := errors.AsType[*election.FencedError](err)
	return ok && fenced.Term == term
}

// TestPlans: on a large table what is due, and when the next is, come from the front of the index, a list goes on by the key, and
// what was fired is recorded row by row.
func TestPlans(t *testing.T) {
	t.Parallel()
	pool := open(t)
	conn, err := pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	for _, sql := range []string{
		`insert into schedules (namespace, id, revision, wake_at, next_at, from_at, created_at, updated_at, paused, workflow, schedule)
		select 'n' || g % 5, 'id' || g, 1, case when g % 10 > 0 then now() + (g - 10) * interval '1 second' end, now(), now(), now(), now(),
			false, 'w', 'x' from generate_series(1, 50000) g`,
		"vacuum analyze schedules",
	} {
		if _, err := conn.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	for name, c := range map[string]struct {
		sql  string
		args []any
		want []string
	}{
		"due":    {schedulestore.DueSQL, []any{nil, 500, 1 << 20}, []string{"Index Scan using schedules_wake", "Index Cond: (wake_at <= "}},
		"wake":   {schedulestore.WakeSQL, []any{nil}, []string{"Index Only Scan using schedules_wake"}},
		"list":   {schedulestore.ListSQL, []any{"n1", "id3", "", 100, 1 << 20}, []string{"Index Scan using schedules_pkey", "Index Cond: "}},
		"record": {schedulestore.RecordSQL, schedulestore.RecordArgs(make([]schedulestore.Outcome, 1)), []string{"Index Scan using schedules_pkey"}},
	} {
		rows, err := conn.Query(t.Context(), "explain (costs off) "+c.sql, c.args...)
		if err != nil {
			t.Fatal(err)
		}
		lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		plan := strings.Join(lines, "\n")
		for _, words := range c.want {
			if !strings.Contains(plan, words) {
				t.Errorf("%s does not go by %q:\n%s", name, words, plan)
			}
		}
		if strings.Contains(plan, "Seq Scan") {
			t.Errorf("%s reads the table:\n%s", name, plan)
		}
	}
}
