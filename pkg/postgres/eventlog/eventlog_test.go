package eventlog_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/wiggle-run/wiggle/internal/pgtest"
	"github.com/wiggle-run/wiggle/pkg/postgres"
	"github.com/wiggle-run/wiggle/pkg/postgres/eventlog"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// migrations are what makes the table, which the instances service owns.
var migrations = []string{
	"../../../services/instances/migrations/00002_events.sql", "../../../services/instances/migrations/00003_events_trace.sql",
}

// open makes a database with the log, and a table of instances whose rows writers lock.
func open(t testing.TB) *postgres.Pool {
	t.Helper()
	return openOn(t, func() *postgres.Pool {
		return pgtest.NewPool(t, func(c *postgres.MemberConfig) { c.MaxConns = 32 })
	})
}

// openOn is open in a database of the caller's.
func openOn(t testing.TB, database func() *postgres.Pool) *postgres.Pool {
	t.Helper()
	var all strings.Builder
	for _, migration := range migrations {
		text, err := os.ReadFile(migration)
		if err != nil {
			t.Fatal(err)
		}
		_, up, _ := strings.Cut(string(text), "-- +goose Up")
		up, _, _ = strings.Cut(up, "-- +goose Down")
		all.WriteString(up)
	}
	pool := database()
	run(t, pool, all.String()+"; create table counters (id integer primary key, n integer not null); insert into counters select g, 0 from generate_series(1, 8) g")
	return pool
}

// run runs statements.
func run(t testing.TB, pool *postgres.Pool, sql string) {
	t.Helper()
	conn, err := pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	if _, err := conn.Exec(t.Context(), sql, pgx.QueryExecModeSimpleProtocol); err != nil {
		t.Fatal(err)
	}
}

// writer is a transaction that writes to the log as the engine does: it locks an instance, and then takes numbers.
type writer struct {
	t    testing.TB
	conn *pgxpool.Conn
	tx   pgx.Tx
}

const insert = `insert into events (recorded_at, instance_id, revision, version, namespace, workflow, type, node, key)
select now(), $1::uuid, $2, 1, 'n', 'w', 'x', '', '' from generate_series(1, $3::integer) returning seq`

// begin locks an instance and writes n entries of it, without committing. It tells their numbers.
func begin(t testing.TB, pool *postgres.Pool, instance, n int) (*writer, []int64) {
	t.Helper()
	ctx := context.WithoutCancel(t.Context())
	conn, err := pool.Acquire(ctx)
	if err != nil {
		t.Fatal(err)
	}
	w := &writer{t: t, conn: conn}
	numbers, err := w.write(ctx, instance, n)
	if err != nil {
		conn.Release()
		t.Fatal(err)
	}
	return w, numbers
}

func (w *writer) write(ctx context.Context, instance, n int) (numbers []int64, err error) {
	if w.tx, err = w.conn.Begin(ctx); err != nil {
		return nil, err
	}
	var revision int
	const lock = "update counters set n = n + 1 where id = $1 returning n"
	if err := w.tx.QueryRow(ctx, lock, instance).Scan(&revision); err != nil {
		return nil, err
	}
	var id [16]byte
	binary.BigEndian.PutUint64(id[8:], uint64(instance))
	rows, err := w.tx.Query(ctx, insert, id, revision, n)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[int64])
}

func (w *writer) commit() {
	w.t.Helper()
	defer w.conn.Release()
	if err := w.tx.Commit(context.WithoutCancel(w.t.Context())); err != nil {
		w.t.Fatal(err)
	}
}

func (w *writer) rollback() {
	w.t.Helper()
	defer w.conn.Release()
	if err := w.tx.Rollback(context.WithoutCancel(w.t.Context())); err != nil {
		w.t.Fatal(err)
	}
}

// write writes n entries of an instance and commits.
func write(t testing.TB, pool *postgres.Pool, instance, n int) []int64 {
	t.Helper()
	w, numbers := begin(t, pool, instance, n)
	w.commit()
	return numbers
}

// follower reads with a reader from where it was.
type follower struct {
	t      testing.TB
	reader *eventlog.Reader
	upTo   int64
	seen   []eventlog.Entry
}

func follow(t testing.TB, r *eventlog.Reader) *follower { return &follower{t: t, reader: r} }

// read reads once, at most limit, and tells the numbers that it found.
func (f *follower) read(limit int) ([]int64, eventlog.Page) {
	f.t.Helper()
	page, err := f.reader.Read(f.t.Context(), f.upTo, limit)
	if err != nil {
		f.t.Fatal(postgres.Detail(err))
	}
	var numbers []int64
	for _, e := range page.Entries {
		numbers = append(numbers, e.Seq)
	}
	if n := len(numbers); n > 0 && page.UpTo != numbers[n-1] || n == 0 && page.UpTo != f.upTo {
		f.t.Errorf("behind %d were %v, up to %d", f.upTo, numbers, page.UpTo)
	}
	f.upTo, f.seen = page.UpTo, append(f.seen, page.Entries...)
	return numbers, page
}

// expect sees that these numbers are found next, and whether there are some whose transactions may yet commit.
// Transactions of other tests, in other databases of the server, hold the log back too: but none for long.
func (f *follower) expect(what string, undecided bool, want ...int64) {
	f.t.Helper()
	got, page := f.read(1000)
	for page.Undecided && (!undecided || len(got) < len(want)) {
		var more []int64
		more, page = f.read(1000)
		got = append(got, more...)
	}
	if !slices.Equal(got, want) || page.Undecided != undecided || page.More {
		f.t.Errorf("%s: read %v (undecided %t, more %t), want %v (%t)", what, got, page.Undecided, page.More, want, undecided)
	}
}

// decide sees that a number comes to be decided.
func (f *follower) decide(want int64) {
	f.t.Helper()
	for {
		decided, last, err := f.reader.Look(f.t.Context())
		if err != nil {
			f.t.Fatal(postgres.Detail(err))
		}
		if last != want {
			f.t.Fatalf("the last number is %d, want %d", last, want)
		}
		if decided == want {
			return
		}
	}
}

// A number is passed only when it is decided what becomes of it (EVT-3).
func TestWaitsForOpenTransactions(t *testing.T) {
	t.Parallel()
	pool := open(t)
	f := follow(t, eventlog.NewReader(pool))
	f.expect("nothing", false)

	first := write(t, pool, 1, 2)
	f.expect("an idle log", false, first...)
	f.expect("nothing more", false)

	open, early := begin(t, pool, 1, 1)
	late := write(t, pool, 2, 1)
	f.expect("while a smaller number is open", true)
	later := write(t, pool, 3, 1)
	f.expect("and another", true)
	f.expect("and again", true)
	open.commit()
	f.expect("once it has committed", false, slices.Concat(early, late, later)...)

	open, _ = begin(t, pool, 1, 1)
	late = write(t, pool, 2, 1)
	f.expect("while a smaller number is open", true)
	open.rollback()
	f.expect("once it was rolled back", false, late...)

	open, _ = begin(t, pool, 1, 1)
	f.expect("the last number is open", true)
	open.rollback()
	f.expect("and never was", false)

	// A reader that was not there when the numbers were taken knows no more.
	open, early = begin(t, pool, 1, 1)
	late = write(t, pool, 2, 1)
	other := follow(t, eventlog.NewReader(pool))
	other.upTo = f.upTo
	other.expect("to another reader", true)
	open.commit()
	other.expect("to another reader, once it has committed", false, slices.Concat(early, late)...)
	f.expect("which the first has not looked at before", false, slices.Concat(early, late)...)
}

// A transaction that holds no number holds the log back too, if it has begun to write: it might take one. What began
// after the number was looked at does not.
func TestLaterTransactionsHoldNothing(t *testing.T) {
	t.Parallel()
	pool := open(t)
	f := follow(t, eventlog.NewReader(pool))
	old, _ := begin(t, pool, 1, 1)
	numbers := write(t, pool, 2, 1)
	f.expect("while the old one is open", true)
	young, youngs := begin(t, pool, 3, 1) // its id is greater than the reader's
	old.rollback()
	f.expect("with a younger one open", true, numbers...)
	young.commit()
	f.expect("once that has committed", false, youngs...)
}

// Gaps of the sequence, however wide, are no reason to wait.
func TestGaps(t *testing.T) {
	t.Parallel()
	pool := open(t)
	f := follow(t, eventlog.NewReader(pool))
	before := write(t, pool, 1, 1)
	run(t, pool, "select setval('events_seq', 1000000)")
	f.expect("before a gap", false, before...)
	after := write(t, pool, 1, 1)
	f.expect("behind it", false, after...)
	f.upTo = 1 << 50
	page, err := f.reader.Read(t.Context(), f.upTo, 10)
	if err != nil || page.UpTo != after[0] || page.Undecided || page.More || len(page.Entries) > 0 {
		t.Errorf("behind a number that was never given: %+v, %v", page, err)
	}
}

// Pages are full, or at the end of what is decided.
func TestPages(t *testing.T) {
	t.Parallel()
	pool := open(t)
	f := follow(t, eventlog.NewReader(pool))
	numbers := write(t, pool, 1, 5)
	f.decide(numbers[4])
	held, _ := begin(t, pool, 2, 1)
	defer held.rollback()
	write(t, pool, 3, 5)
	for _, want := range []struct {
		numbers []int64
		more    bool
	}{{numbers[:2], true}, {numbers[2:4], true}, {numbers[4:], false}, {nil, false}} {
		if got, page := f.read(2); !slices.Equal(got, want.numbers) || page.More != want.more || !page.Undecided {
			t.Errorf("read %v (more %t, undecided %t), want %v (%t)", got, page.More, page.Undecided, want.numbers, want.more)
		}
	}
}

// What a reader remembers is bounded, whatever holds it back for however long.
func TestManyFences(t *testing.T) {
	t.Parallel()
	pool := open(t)
	f := follow(t, eventlog.NewReader(pool))
	held, want := begin(t, pool, 1, 1)
	for range 3 * eventlog.MaxFences {
		want = append(want, write(t, pool, 2, 1)...)
		f.expect("while the first is open", true)
		if n := f.reader.Fences(); n > eventlog.MaxFences {
			t.Fatalf("the reader remembers %d looks", n)
		}
	}
	held.commit()
	var got []int64
	for len(got) < len(want) {
		numbers, page := f.read(1000)
		if got = append(got, numbers...); len(numbers) == 0 && !page.Undecided {
			t.Fatalf("%d of %d entries came", len(got), len(want))
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("read %v, want %v", got, want)
	}
}

// After a crash numbers and ids that did not commit are given again; then what a reader knew of them counts for nothing.
//
//nolint:paralleltest // every reader on the server forgets with this one
func TestForgetsWithTheServersLife(t *testing.T) {
	pool := open(t)
	f := follow(t, eventlog.NewReader(pool))
	first := write(t, pool, 1, 1)
	lost, _ := begin(t, pool, 1, 5)
	lost.rollback()
	f.expect("with numbers that never were", false, first...)
	f.decide(first[0] + 5)

	// What a crash would do: the sequence's log was not on disk, and the server counts anew.
	run(t, pool, fmt.Sprintf("select setval('events_seq', %d); select pg_stat_reset_shared('bgwriter')", first[0]))
	open, early := begin(t, pool, 1, 1)
	late := write(t, pool, 2, 1)
	f.expect("numbers that are given again", true)
	open.commit()
	f.expect("once the first of them has committed", false, slices.Concat(early, late)...)
}

// Many transactions, some of them long, some rolled back, over few instances, and readers that follow: each sees the
// whole table, in its order, and each instance in the order of its changes (EVT-3).
func TestFollowers(t *testing.T) {
	t.Parallel()
	const writers, rounds, instances = 12, 60, 8
	pool := open(t)
	shared := eventlog.NewReader(pool)
	followers := []*follower{follow(t, shared), follow(t, shared), follow(t, eventlog.NewReader(pool))}
	seed := rand.Uint64()
	t.Logf("seed %d", seed)

	done := make(chan struct{})
	var following, writing sync.WaitGroup
	for i, f := range followers {
		following.Go(func() {
			f.followUntil(done, 1+i*7)
		})
	}
	for n := range writers {
		random := rand.New(rand.NewPCG(seed, uint64(n)))
		writing.Go(func() {
			for range rounds {
				w, _ := begin(t, pool, 1+random.IntN(instances), 1+random.IntN(3))
				for range random.IntN(6) { // some take long
					if _, err := w.tx.Exec(t.Context(), "select count(*) from events"); err != nil {
						t.Error(err)
					}
				}
				if random.IntN(5) == 0 {
					w.rollback()
				} else {
					w.commit()
				}
			}
		})
	}
	writing.Wait()
	close(done)
	following.Wait()

	rows, err := pool.Query(t.Context(), "select seq from events order by seq")
	if err != nil {
		t.Fatal(err)
	}
	want, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	if err != nil {
		t.Fatal(err)
	}
	for i, f := range followers {
		var got []int64
		last := map[[16]byte]int32{}
		for _, e := range f.seen {
			got = append(got, e.Seq)
			if e.Revision < last[e.Instance] {
				t.Errorf("reader %d: of instance %x came revision %d behind %d", i, e.Instance, e.Revision, last[e.Instance])
			}
			last[e.Instance] = e.Revision
		}
		if !slices.Equal(got, want) {
			t.Errorf("reader %d saw %d entries, there are %d", i, len(got), len(want))
		}
	}
}

// followUntil reads until writers are done and nothing more comes.
func (f *follower) followUntil(done <-chan struct{}, limit int) {
	for {
		over := false
		select {
		case <-done:
			over = true
		default:
		}
		numbers, page := f.read(limit)
		if over && len(numbers) == 0 && !page.Undecided {
			return
		}
	}
}

// Reading goes by the primary key, whatever the table held when the statement was planned.
func TestPlan(t *testing.T) {
	t.Parallel()
	pool := open(t)
	conn, err := pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	exec := func(sql string) {
		t.Helper()
		if _, err := conn.Exec(t.Context(), sql, pgx.QueryExecModeSimpleProtocol); err != nil {
			t.Fatal(err)
		}
	}
	exec("set plan_cache_mode = force_generic_plan")
	exec(strings.ReplaceAll(eventlog.NoScans, "true)", "false)"))
	const fill = `insert into events (recorded_at, instance_id, revision, version, namespace, workflow, type, node, key)
select now(), gen_random_uuid(), 1, 1, 'n', 'w', 'x', '', '' from generate_series(1, 20000)`
	for _, state := range []string{"select 1", "analyze events", fill, "analyze events", "delete from events where seq < 15000"} {
		exec(state)
		exec("prepare reading as " + eventlog.ReadEntries)
		rows, err := conn.Query(t.Context(), "explain (costs off) execute reading(10, 100)", pgx.QueryExecModeSimpleProtocol)
		if err != nil {
			t.Fatal(err)
		}
		lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			t.Fatal(err)
		}
		plan := strings.Join(lines, "\n")
		if !strings.Contains(plan, "Index Scan using events_pkey") || !strings.Contains(plan, "Index Cond") || strings.Contains(plan, "Sort") {
			t.Errorf("after %q reading goes by\n%s", state, plan)
		}
		exec("deallocate reading")
	}
}
