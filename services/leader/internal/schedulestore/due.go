package schedulestore

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/wiggle-run/wiggle/pkg/postgres"
	"github.com/wiggle-run/wiggle/services/leader/internal/election"
)

// Batch is what is due.
type Batch struct {
	// Now is the time at which it was read.
	Now time.Time
	// Rows are due, the oldest first.
	Rows []Row
	// Wake is when the first of all schedules is due, those in Rows too. Zero: none is.
	Wake time.Time
}

// dueSQL reads the front of schedules_wake, and stops where schedules become too many bytes together.
const dueSQL = "select " + columns + ` from (
	select *, sum(octet_length(schedule)) over in_turn as bytes, row_number() over in_turn as number from (
		select * from schedules where wake_at <= coalesce($1::timestamptz, now()) order by wake_at, namespace, id limit $2
	) due window in_turn as (order by wake_at, namespace, id)
) due where bytes <= $3 or number = 1 order by wake_at, namespace, id`

// wakeSQL reads the first entry of schedules_wake.
const wakeSQL = `select coalesce($1::timestamptz, now()),
	(select wake_at from schedules where wake_at is not null order by wake_at limit 1)`

// Due reads what is due: at most limit schedules and not many more bytes than that, but at least one if there is one. It
// locks nothing. One round trip.
func (s *Store) Due(ctx context.Context, limit, bytes int) (Batch, error) {
	now := s.now()
	var batch Batch
	var wake *time.Time
	queries := &pgx.Batch{}
	queries.Queue(dueSQL, now, limit, bytes).Query(func(rows pgx.Rows) (err error) {
		batch.Rows, err = pgx.CollectRows(rows, scanRow)
		return err
	})
	queries.Queue(wakeSQL, now).QueryRow(func(row pgx.Row) error { return row.Scan(&batch.Now, &wake) })
	if err := s.pool.SendBatch(ctx, queries).Close(); err != nil {
		return Batch{}, fmt.Errorf("read due schedules: %w", err)
	}
	batch.Now, batch.Wake = batch.Now.UTC(), value(wake)
	return batch, nil
}

// Take makes the term the one that fires. Where a later one does, it is an *election.FencedError.
func (s *Store) Take(ctx context.Context, term int64) error {
	var met int64
	err := s.pool.QueryRow(ctx, "update schedule_firing set term = greatest(term, $1) returning term", term).Scan(&met)
	if err != nil {
		return fmt.Errorf("take over the schedules: %w", err)
	}
	if met > term {
		return &election.FencedError{Term: met}
	}
	return nil
}

// Outcome is what was done about a schedule that was due.
type Outcome struct {
	// Read is the row as it was read.
	Read Row
	// Fired is the due time that was fired, and Instance what it started. Zero: none was.
	Fired    time.Time
	Instance string
	// Skipped and Missed are how many due times were left out.
	Skipped, Missed int64
	// Next, Queued and Wake are what is to be done now.
	Next, Queued, Wake time.Time
	// Problem says why the due time could not be fired. Empty: it could.
	Problem string
}

// The two guards, see the package's comment.
const (
	counts = "(u.fired_at is not null and (s.last_at is null or s.last_at < u.fired_at))"
	moves  = "(s.revision = u.revision and s.next_at is not distinct from u.read_next and s.queued_at is not distinct from u.read_queued)"
)

// recordSQL goes by the primary key, row by row.
const recordSQL = `
update schedules s set
	fired = s.fired + case when ` + counts + ` then 1 else 0 end,
	last_at = case when ` + counts + ` then u.fired_at else s.last_at end,
	last_instance_id = case when ` + counts + ` then u.instance_id else s.last_instance_id end,
	skipped = s.skipped + case when ` + moves + ` then u.skipped else 0 end,
	missed = s.missed + case when ` + moves + ` then u.missed else 0 end,
	next_at = case when ` + moves + ` then u.next_at else s.next_at end,
	queued_at = case when ` + moves + ` then u.queued_at else s.queued_at end,
	wake_at = case when ` + moves + ` then u.wake_at else s.wake_at end,
	problem = case when ` + moves + ` then u.problem else s.problem end
from unnest($1::text[], $2::text[], $3::bigint[], $4::timestamptz[], $5::timestamptz[], $6::timestamptz[], $7::text[], $8::bigint[],
	$9::bigint[], $10::timestamptz[], $11::timestamptz[], $12::timestamptz[], $13::text[])
	as u(namespace, id, revision, read_next, read_queued, fired_at, instance_id, skipped, missed, next_at, queued_at, wake_at, problem)
where s.namespace = u.namespace and s.id = u.id and (` + counts + ` or ` + moves + `)`

// errNotTaken tells that home has forgotten the term: it was restored from a backup.
var errNotTaken = errors.New("the term is not taken")

// Record writes what was done under a term. Where a later one fires nothing is written, and the error is an
// *election.FencedError. The term's row is locked against a leader that takes over, then the schedules' rows.
func (s *Store) Record(ctx context.Context, term int64, outcomes []Outcome) error {
	args := recordArgs(outcomes)
	err := s.pool.InTx(ctx, postgres.TxOptions{Op: "record firing"}, func(ctx context.Context, tx pgx.Tx) error {
		var current int64
		if err := tx.QueryRow(ctx, "select term from schedule_firing for share").Scan(&current); err != nil {
			return err
		}
		switch {
		case current > term:
			return &election.FencedError{Term: current}
		case current < term:
			return errNotTaken
		}
		_, err := tx.Exec(ctx, recordSQL, args...)
		return err
	})
	if err != nil {
		return fmt.Errorf("record what was fired: %w", err)
	}
	return nil
}

// recordArgs are the columns of outcomes.
func recordArgs(outcomes []Outcome) []any {
	n := len(outcomes)
	namespaces, ids, instances, problems := make([]string, n), make([]string, n), make([]string, n), make([]string, n)
	revisions, skipped, missed := make([]int64, n), make([]int64, n), make([]int64, n)
	readNext, readQueued, fired := make([]*time.Time, n), make([]*time.Time, n), make([]*time.Time, n)
	next, queued, wake := make([]*time.Time, n), make([]*time.Time, n), make([]*time.Time, n)
	for i, o := range outcomes {
		namespaces[i], ids[i] = o.Read.Schedule.GetNamespace(), o.Read.Schedule.GetId()
		revisions[i], readNext[i], readQueued[i] = o.Read.Revision, some(o.Read.Next), some(o.Read.Queued)
		fired[i], instances[i] = some(o.Fired), o.Instance
		skipped[i], missed[i] = o.Skipped, o.Missed
		next[i], queued[i], wake[i] = some(o.Next), some(o.Queued), some(o.Wake)
		problems[i] = o.Problem
	}
	return []any{
		namespaces, ids, revisions, readNext, readQueued, fired, instances, skipped, missed, next, queued, wake, problems,
	}
}
