// Package schedulestore keeps schedules and what became of them in the home shard's database.
//
// Two write to a row: users, through [Store.Change], and the leader, through [Store.Record]. A user's change raises the
// revision. What the leader records is of two kinds:
//
//   - That a due time was fired is a fact, whoever has changed the schedule meanwhile. It is recorded once, by the due time:
//     fired due times of a schedule rise.
//   - What the schedule has to do next is recorded only if the row still is as the leader has read it.
//
// Both only under the term of the leader that fires now. So a leader that was replaced, and a change at any moment,
// can make neither a due time count twice nor one be lost.
//
// Time is the database's. Every statement takes a time in its place, for tests.
package schedulestore

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"google.golang.org/protobuf/proto"

	"github.com/wiggle-run/wiggle/pkg/permission"
	"github.com/wiggle-run/wiggle/pkg/postgres"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	"github.com/wiggle-run/wiggle/services/leader/internal/schedule"
)

// ErrNotFound tells that there is no such schedule.
var ErrNotFound = errors.New("no such schedule")

// Row is a schedule as it is kept.
type Row struct {
	// Schedule has its namespace filled.
	Schedule *wigglev1.Schedule
	// Revision rises with every change by a user.
	Revision int64
	schedule.State

	Fired, Skipped, Missed int64
	// Problem says why the last due time could not be fired.
	Problem              string
	CreatedAt, UpdatedAt time.Time
}

// Store keeps schedules.
type Store struct {
	pool *postgres.Pool
	now  func() *time.Time
}

// New makes a store on the home shard's database, whose schema is migrated.
func New(pool *postgres.Pool) *Store {
	return &Store{pool: pool, now: func() *time.Time { return nil }}
}

// WithNow is the store with a time of the test's in place of the database's.
func (s *Store) WithNow(now func() time.Time) *Store {
	return &Store{pool: s.pool, now: func() *time.Time { return some(now()) }}
}

const columns = "schedule, revision, next_at, queued_at, last_at, last_instance_id, from_at, fired, skipped, missed, problem, " +
	"created_at, updated_at"

func scanRow(r pgx.CollectableRow) (Row, error) { return scan(r) }

// scan reads the columns, and what comes after them.
func scan(r pgx.CollectableRow, more ...any) (Row, error) {
	var row Row
	var text []byte
	var next, queued, last *time.Time
	into := []any{
		&text, &row.Revision, &next, &queued, &last, &row.LastInstance, &row.From, &row.Fired, &row.Skipped, &row.Missed,
		&row.Problem, &row.CreatedAt, &row.UpdatedAt,
	}
	if err := r.Scan(append(into, more...)...); err != nil {
		return Row{}, err
	}
	row.Next, row.Queued, row.Last = value(next), value(queued), value(last)
	row.Schedule = &wigglev1.Schedule{}
	if err := proto.Unmarshal(text, row.Schedule); err != nil {
		return Row{}, fmt.Errorf("decode a schedule: %w", err)
	}
	return row, nil
}

// Get reads a schedule, by its key. Errors: [ErrNotFound].
func (s *Store) Get(ctx context.Context, namespace, id string) (Row, error) {
	rows, err := s.pool.Query(ctx, "select "+columns+" from schedules where namespace = $1 and id = $2", namespace, id)
	if err != nil {
		return Row{}, fmt.Errorf("read schedule: %w", err)
	}
	row, err := pgx.CollectExactlyOneRow(rows, scanRow)
	if errors.Is(err, pgx.ErrNoRows) {
		return Row{}, ErrNotFound
	}
	if err != nil {
		return Row{}, fmt.Errorf("read schedule: %w", err)
	}
	return row, nil
}

// listSQL reads by the key from one id on, one more than asked for, and leaves out what makes a page too large.
const (
	listSQL   = listBegin + listEnd
	listBegin = "select " + columns + `, total from (
	select *, sum(octet_length(schedule)) over (order by id) as bytes, row_number() over (order by id) as number, count(*) over () as total
	from (
		select * from schedules where namespace = $1 and id > $2 and ($3 = '' or workflow = $3)`
	listEnd = ` order by id limit $4::bigint + 1
	) page
) page where number = 1 or number <= $4 and bytes <= $5 order by id`
	// listSome is listSQL for whoever may see some workflows. It passes over what others have, of which there is as much as
	// people wrote.
	listSome = listBegin + ` and (workflow = any ($6::text[]) or workflow ^@ any ($7::text[]))` + listEnd
)

// Listing asks for a part of a namespace's schedules.
type Listing struct {
	Namespace string
	// Workflow narrows, unless empty.
	Workflow string
	// Only are the workflows that whoever asks may see; nil for all.
	Only *permission.Names
	// After is the id that the list goes on behind. Empty: from the beginning.
	After string
	// Limit bounds the rows, Bytes the encoded schedules, but for the first.
	Limit, Bytes int
}

// List reads schedules by id, at least one if there is one. It reports whether there are more.
func (s *Store) List(ctx context.Context, l Listing) (list []Row, more bool, err error) {
	sql, args := listSQL, []any{l.Namespace, l.After, l.Workflow, l.Limit, l.Bytes}
	if !l.Only.All() {
		sql, args = listSome, append(args, l.Only.Exact, l.Only.Prefixes)
	}
	rows, err := s.pool.Query(ctx, sql, args...)
	if err != nil {
		return nil, false, fmt.Errorf("list schedules: %w", err)
	}
	total := 0
	list, err = pgx.CollectRows(rows, func(r pgx.CollectableRow) (Row, error) { return scan(r, &total) })
	if err != nil {
		return nil, false, fmt.Errorf("list schedules: %w", err)
	}
	return list, total > len(list), nil
}

// changeAttempts bounds how often a change is made again because somebody else made the schedule meanwhile.
const changeAttempts = 3

// Change makes or changes a schedule. The function gets the time and the row as it is, nil if there is none, and returns the
// row as it is to be; the revision is seen to here. It may be called again. A nil row, or an error, changes nothing. Change
// returns the row, and whether there was none.
func (s *Store) Change(
	ctx context.Context, namespace, id string, change func(now time.Time, old *Row) (*Row, error),
) (row *Row, created bool, err error) {
	for range changeAttempts {
		taken := false
		err = s.pool.InTx(ctx, postgres.TxOptions{Op: "change schedule"}, func(ctx context.Context, tx pgx.Tx) error {
			row, created, taken, err = s.change(ctx, tx, namespace, id, change)
			return err
		})
		if err != nil {
			return nil, false, fmt.Errorf("change schedule: %w", err)
		}
		if !taken {
			return row, created, nil
		}
	}
	return nil, false, errors.New("change schedule: it comes and goes")
}

// change is one try. It locks the row, so that what the leader records comes before or after.
func (s *Store) change(
	ctx context.Context, tx pgx.Tx, namespace, id string, change func(now time.Time, old *Row) (*Row, error),
) (row *Row, created, taken bool, err error) {
	rows, err := tx.Query(ctx, "select "+columns+" from schedules where namespace = $1 and id = $2 for update", namespace, id)
	if err != nil {
		return nil, false, false, err
	}
	found, err := pgx.CollectRows(rows, scanRow)
	if err != nil {
		return nil, false, false, err
	}
	var now time.Time // behind the lock
	if err := tx.QueryRow(ctx, "select coalesce($1::timestamptz, clock_timestamp())", s.now()).Scan(&now); err != nil {
		return nil, false, false, err
	}
	var old *Row
	if len(found) > 0 {
		old = &found[0]
	}
	row, err = change(now, old)
	if err != nil || row == nil {
		return row, false, false, err
	}
	row.UpdatedAt = now
	if old == nil {
		row.CreatedAt, row.Revision = now, 1
		taken, err := insert(ctx, tx, row)
		return row, true, taken, err
	}
	row.CreatedAt, row.Revision = old.CreatedAt, old.Revision+1
	return row, false, false, update(ctx, tx, row)
}

// insert writes a new row. It reports whether somebody else has just done so.
func insert(ctx context.Context, tx pgx.Tx, r *Row) (taken bool, err error) {
	text, err := proto.Marshal(r.Schedule)
	if err != nil {
		return false, fmt.Errorf("encode: %w", err)
	}
	tag, err := tx.Exec(ctx, `
		insert into schedules (namespace, id, revision, wake_at, next_at, from_at, created_at, updated_at, paused, workflow, schedule)
		values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)
		on conflict (namespace, id) do nothing`,
		r.Schedule.GetNamespace(), r.Schedule.GetId(), r.Revision, some(r.Waits()), some(r.Next), r.From, r.CreatedAt, r.UpdatedAt,
		r.Schedule.GetPaused(), r.Schedule.GetWorkflow(), text)
	return err == nil && tag.RowsAffected() == 0, err
}

func update(ctx context.Context, tx pgx.Tx, r *Row) error {
	text, err := proto.Marshal(r.Schedule)
	if err != nil {
		return fmt.Errorf("encode: %w", err)
	}
	_, err = tx.Exec(ctx, `
		update schedules set revision = $3, wake_at = $4, next_at = $5, queued_at = $6, from_at = $7, updated_at = $8, skipped = $9,
			problem = $10, paused = $11, workflow = $12, schedule = $13
		where namespace = $1 and id = $2`,
		r.Schedule.GetNamespace(), r.Schedule.GetId(), r.Revision, some(r.Waits()), some(r.Next), some(r.Queued), r.From, r.UpdatedAt,
		r.Skipped, r.Problem, r.Schedule.GetPaused(), r.Schedule.GetWorkflow(), text)
	return err
}

// Delete removes a schedule and reports whether there was one.
func (s *Store) Delete(ctx context.Context, namespace, id string) (bool, error) {
	tag, err := s.pool.Exec(ctx, "delete from schedules where namespace = $1 and id = $2", namespace, id)
	if err != nil {
		return false, fmt.Errorf("delete schedule: %w", err)
	}
	return tag.RowsAffected() > 0, nil
}

// DeleteIf is Delete, if the workflow of the schedule is allowed, whose error it returns. The row is locked meanwhile.
func (s *Store) DeleteIf(ctx context.Context, namespace, id string, allowed func(workflow string) error) (deleted bool, err error) {
	err = s.pool.InTx(ctx, postgres.TxOptions{Op: "delete schedule"}, func(ctx context.Context, tx pgx.Tx) error {
		deleted = false
		var workflow string
		const lock = "select workflow from schedules where namespace = $1 and id = $2 for update"
		err := tx.QueryRow(ctx, lock, namespace, id).Scan(&workflow)
		if errors.Is(err, pgx.ErrNoRows) {
			return nil
		}
		if err == nil {
			err = allowed(workflow)
		}
		if err != nil {
			return err
		}
		_, err = tx.Exec(ctx, "delete from schedules where namespace = $1 and id = $2", namespace, id)
		deleted = err == nil
		return err
	})
	if err != nil {
		return false, fmt.Errorf("delete schedule: %w", err)
	}
	return deleted, nil
}

// some is a time as a column has it: null for the zero time.
func some(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}

func value(t *time.Time) time.Time {
	if t == nil {
		return time.Time{}
	}
	return t.UTC()
}
