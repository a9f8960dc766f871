// Package eventstore keeps the event log of a shard in PostgreSQL: reading it (package eventlog does, for the leader too),
// who follows it, and what of it is kept. Entries are written by pgstore, with what they tell of.
//
// Everything goes by primary keys, the log's from one of its ends. The front of the log is deleted in small batches, each a
// statement of its own: nobody but another trim locks entries, and of two at a time the later finds less.
package eventstore

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/wiggle-run/wiggle/pkg/postgres"
	"github.com/wiggle-run/wiggle/pkg/postgres/eventlog"
	"github.com/wiggle-run/wiggle/services/instances/internal/machine"
	"github.com/wiggle-run/wiggle/services/instances/internal/store"
)

// Log is the event log of a shard.
type Log struct {
	pool   *postgres.Pool
	reader *eventlog.Reader
}

var _ store.Events = (*Log)(nil)

// New makes the log of a shard whose schema is migrated.
func New(pool *postgres.Pool) *Log { return &Log{pool: pool, reader: eventlog.NewReader(pool)} }

// ReadEvents implements [store.Events].
func (l *Log) ReadEvents(ctx context.Context, after int64, limit int) (store.EventPage, error) {
	page, err := l.reader.Read(ctx, after, limit)
	if err != nil {
		return store.EventPage{}, err
	}
	out := store.EventPage{UpTo: page.UpTo, More: page.More, Events: make([]store.StoredEvent, len(page.Entries))}
	for i, e := range page.Entries {
		out.Events[i] = store.StoredEvent{
			Seq: e.Seq, Instance: machine.ID(e.Instance), Revision: e.Revision, Version: e.Version, Namespace: e.Namespace,
			Workflow: e.Workflow, Type: e.Type, Node: e.Node, Key: e.Key, Time: e.Time.UTC(), Payload: e.Payload, Trace: e.Trace,
		}
	}
	return out, nil
}

// DecidedEvents implements [store.Events].
func (l *Log) DecidedEvents(ctx context.Context) (seq int64, open bool, err error) {
	decided, last, err := l.reader.Look(ctx)
	return decided, last > decided, err
}

// selectBounds reads the two ends of the primary key. $1 is up to where the log is decided: what may be behind it is
// still to come.
const selectBounds = `select coalesce((select e.seq from events e where e.seq <= $1 order by e.seq desc limit 1), 0),
	coalesce((select e.seq - 1 from events e order by e.seq limit 1), 0)`

const (
	// decideTime is how long the end of the log is waited for to be decided, decidePause how often it is looked at.
	decideTime  = time.Second
	decidePause = 10 * time.Millisecond
)

// EventBounds implements [store.Events]. A reader that has just begun knows of nothing that it is decided; so the tail is waited
// for. A transaction that has been open for longer than that does not hold it back: whoever begins at the tail would
// otherwise get a log of any length.
func (l *Log) EventBounds(ctx context.Context) (tail, earliest int64, err error) {
	decided, last, err := l.reader.Look(ctx)
	pause := time.NewTicker(decidePause)
	defer pause.Stop()
	for began, end := time.Now(), last; err == nil && decided < end; {
		select {
		case <-pause.C:
		case <-ctx.Done():
			return 0, 0, ctx.Err()
		}
		if time.Since(began) > decideTime {
			decided = end
			break
		}
		decided, _, err = l.reader.Look(ctx)
	}
	if err != nil {
		return 0, 0, err
	}
	if err := l.pool.QueryRow(ctx, selectBounds, decided).Scan(&tail, &earliest); err != nil {
		return 0, 0, fmt.Errorf("read the ends of the event log: %w", err)
	}
	return tail, earliest, nil
}

const selectConsumer = `select seq from event_consumers where consumer = $1`

// EventConsumer implements [store.Events].
func (l *Log) EventConsumer(ctx context.Context, name string) (seq int64, err error) {
	switch err := l.pool.QueryRow(ctx, selectConsumer, name).Scan(&seq); {
	case errors.Is(err, pgx.ErrNoRows):
		return 0, store.ErrNotFound
	case err != nil:
		return 0, fmt.Errorf("read event consumer: %w", err)
	}
	return seq, nil
}

// insertConsumer leaves one that is there as it is, but for writing it once more, so that it is told.
const insertConsumer = `insert into event_consumers as c (consumer, seq) values ($1, $2)
on conflict (consumer) do update set seq = c.seq returning c.seq`

// AddEventConsumer implements [store.Events].
func (l *Log) AddEventConsumer(ctx context.Context, name string, seq int64) (int64, error) {
	if err := l.pool.QueryRow(ctx, insertConsumer, name, seq).Scan(&seq); err != nil {
		return 0, fmt.Errorf("add event consumer: %w", err)
	}
	return seq, nil
}

// ackEvents writes only what moves a consumer forward. The end of the log is the last number that was given.
const ackEvents = `insert into event_consumers as c (consumer, seq)
select $1, least($2::bigint, case when s.is_called then s.last_value else 0 end) from events_seq s
on conflict (consumer) do update set seq = excluded.seq, acked_at = now() where c.seq < excluded.seq`

// AckEvents implements [store.Events].
func (l *Log) AckEvents(ctx context.Context, name string, seq int64) error {
	if _, err := l.pool.Exec(ctx, ackEvents, name, seq); err != nil {
		return fmt.Errorf("acknowledge events: %w", err)
	}
	return nil
}

// selectConsumers reads a few rows, and the two ends of the log.
const selectConsumers = `select f.name, f.seq, f.at, greatest(coalesce(e.last, 0) - greatest(f.seq, e.first - 1), 0)
from (
	select consumer as name, seq, acked_at as at from event_consumers
	union all
	select '` + store.RelayConsumer + `', seq, relayed_at from event_relay where term > 0
) f
cross join (select (select seq from events order by seq limit 1) as first, (select seq from events order by seq desc limit 1) as last) e
order by f.name`

// EventConsumers implements [store.Events].
func (l *Log) EventConsumers(ctx context.Context) ([]store.EventConsumer, error) {
	rows, err := l.pool.Query(ctx, selectConsumers)
	if err != nil {
		return nil, fmt.Errorf("list event consumers: %w", err)
	}
	list, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (store.EventConsumer, error) {
		var c store.EventConsumer
		var at pgtype.Timestamptz
		err := row.Scan(&c.Name, &c.Seq, &at, &c.Behind)
		c.AckedAt = at.Time.UTC()
		return c, err
	})
	if err != nil {
		return nil, fmt.Errorf("list event consumers: %w", err)
	}
	return list, nil
}

const deleteConsumer = `delete from event_consumers where consumer = $1`

// DeleteEventConsumer implements [store.Events].
func (l *Log) DeleteEventConsumer(ctx context.Context, name string) error {
	if _, err := l.pool.Exec(ctx, deleteConsumer, name); err != nil {
		return fmt.Errorf("delete event consumer: %w", err)
	}
	return nil
}

// trimEvents looks at so many entries from the front and deletes those before the first that is kept. It starts behind
// $1, so that it does not pass over what was deleted and not vacuumed yet each time. A relay that has never run (term 0)
// does not hold the log.
//
// Parameters: $1 number, $2 retention, $3 hard cap (microseconds), $4 how many.
const trimEvents = `with passed as materialized (
	select least(coalesce((select min(c.seq) from event_consumers c), 9223372036854775807),
		coalesce((select r.seq from event_relay r where r.term > 0), 9223372036854775807)) as seq,
		now() - $2::bigint * interval '1 microsecond' as old, now() - $3::bigint * interval '1 microsecond' as ancient
), front as materialized (
	select e.seq, e.recorded_at < p.old and e.seq <= p.seq or e.recorded_at < p.ancient as goes
	from (select l.seq, l.recorded_at from events l where l.seq > $1 order by l.seq limit $4) e cross join passed p
), cut as materialized (
	select count(*) as looked, max(f.seq) as last, min(f.seq) filter (where not f.goes) as keep from front f
), gone as (
	delete from events e using front f, cut c
	where e.seq = any (array[f.seq]) and (c.keep is null or f.seq < c.keep) returning 1
)
select (select count(*) from gone), c.looked, coalesce(c.keep - 1, c.last, $1), c.keep is not null from cut c`

// eventsSize reads the two ends of the primary key.
const eventsSize = `select coalesce(l.seq - f.seq + 1, 0),
	coalesce(extract(epoch from clock_timestamp() - f.recorded_at) * 1000000, 0)::bigint
from (select 1) one
left join lateral (select e.seq, e.recorded_at from events e order by e.seq limit 1) f on true
left join lateral (select e.seq from events e order by e.seq desc limit 1) l on true`

// EventsSize implements [store.Events].
func (l *Log) EventsSize(ctx context.Context) (size store.EventsSize, err error) {
	var oldest int64
	if err := l.pool.QueryRow(ctx, eventsSize).Scan(&size.Entries, &oldest); err != nil {
		return store.EventsSize{}, fmt.Errorf("measure the event log: %w", err)
	}
	size.Oldest = time.Duration(oldest) * time.Microsecond
	return size, nil
}

// TrimEvents implements [store.Events].
func (l *Log) TrimEvents(ctx context.Context, t store.TrimEvents) (store.TrimmedEvents, error) {
	var out store.TrimmedEvents
	var looked int
	var kept bool
	err := l.pool.QueryRow(ctx, trimEvents, t.After, t.Retention.Microseconds(), t.HardCap.Microseconds(), t.Limit).
		Scan(&out.Deleted, &looked, &out.UpTo, &kept)
	if err != nil {
		return store.TrimmedEvents{}, fmt.Errorf("trim the event log: %w", err)
	}
	out.More = looked == t.Limit && !kept
	return out, nil
}
