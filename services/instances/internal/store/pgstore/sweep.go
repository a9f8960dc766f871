package pgstore

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/wiggle-run/wiggle/services/instances/internal/machine"
	"github.com/wiggle-run/wiggle/services/instances/internal/store"
	"github.com/wiggle-run/wiggle/services/instances/internal/store/pgstore/internal/db"
)

// tick renews the sweep lease for its holder, or gives it to whoever asks when its
// time is over; the row is written only then, so others neither write nor wait. The
// rest is done where it is asked for: it looks at the ends of indexes, tokens_due for
// the first timer, for the holder tokens_leased for every lease (as many as tasks are
// under way; their end is in no index, since heartbeats move it), and tokens_ready
// once for each queue that holds something, however long that is (a loose index
// scan). At each end it passes over what is dead and not yet vacuumed.
const tick = `with recursive
taken as (
	update sweep_lease l
	set holder = $1, term = l.term + case when l.holder = $1 then 0 else 1 end,
		until = clock_timestamp() + $2::bigint * interval '1 microsecond'
	where l.only_row and (l.holder = $1 or l.until <= clock_timestamp())
	returning 1
),
ready as (
	(select t.namespace, t.queue from tokens t where $3::boolean and t.state = 1 and t.due_at is null order by t.namespace, t.queue limit 1)
	union all
	select n.namespace, n.queue
	from ready r cross join lateral (
		select t.namespace, t.queue from tokens t
		where t.state = 1 and t.due_at is null and (t.namespace, t.queue) > (r.namespace, r.queue)
		order by t.namespace, t.queue limit 1
	) n
)
select clock_timestamp(), exists (select from taken),
	(select t.due_at from tokens t where $3::boolean and t.due_at is not null order by t.due_at limit 1),
	case when $3::boolean and exists (select from taken) then (select min(t.lease_until) from tokens t where t.state = 2) end,
	(select coalesce(array_agg(r.namespace), '{}') from ready r), (select coalesce(array_agg(r.queue), '{}') from ready r)`

// Tick implements [store.Store].
func (s *Store) Tick(ctx context.Context, holder string, term time.Duration, look bool) (store.Tick, error) {
	var now, due, expiry pgtype.Timestamptz
	var namespaces, queues []string
	var t store.Tick
	err := s.pool.QueryRow(ctx, tick, holder, term.Microseconds(), look).Scan(&now, &t.Holder, &due, &expiry, &namespaces, &queues)
	if err != nil {
		return store.Tick{}, fmt.Errorf("tick: %w", err)
	}
	t.Now, t.NextDue, t.NextExpiry = when(now), when(due), when(expiry)
	for i, namespace := range namespaces {
		t.Ready = append(t.Ready, store.QueueKey{Namespace: namespace, Queue: queues[i]})
	}
	return t, nil
}

// backlog reads the front of each queue's part of tokens_ready, in the order in which it is claimed, and the rows that it
// names.
//
// Parameters: $1 namespaces, $2 queues, $3 how many of each.
const backlog = `select q.namespace, q.queue, b.tokens, (extract(epoch from clock_timestamp() - b.oldest) * 1000000)::bigint
from unnest($1::text[], $2::text[]) q(namespace, queue)
cross join lateral (
	select count(*) as tokens, min(f.queued_at) as oldest
	from (
		select t.queued_at from tokens t
		where t.namespace = q.namespace and t.queue = q.queue and t.state = 1 and t.due_at is null
		order by t.priority desc, t.instance_id, t.id
		limit $3
	) f
) b
where b.tokens > 0`

// Backlog implements [store.Store].
func (s *Store) Backlog(ctx context.Context, queues []store.QueueKey, limit int) ([]store.QueueBacklog, error) {
	namespaces, names := make([]string, len(queues)), make([]string, len(queues))
	for i, q := range queues {
		namespaces[i], names[i] = q.Namespace, q.Queue
	}
	rows, err := s.pool.Query(ctx, backlog, namespaces, names, limit)
	list, err := collect(rows, err, func(rows pgx.Rows) (q store.QueueBacklog, err error) {
		var oldest int64
		err = rows.Scan(&q.Namespace, &q.Queue, &q.Tokens, &oldest)
		q.Oldest = time.Duration(oldest) * time.Microsecond
		return q, err
	})
	if err != nil {
		return nil, fmt.Errorf("count the backlog: %w", err)
	}
	return list, nil
}

// Due implements [store.Store].
func (s *Store) Due(ctx context.Context, before time.Time, limit int) ([]store.TokenRef, error) {
	rows, err := s.queries.Due(ctx, db.DueParams{Before: timestamp(before), Lim: int32(limit)}) //nolint:gosec // a page
	if err != nil {
		return nil, fmt.Errorf("list due tokens: %w", err)
	}
	refs := make([]store.TokenRef, len(rows))
	for i, r := range rows {
		refs[i] = refTo(r.InstanceID, r.ID, r.Fence, r.DueAt)
	}
	return refs, nil
}

// Expired implements [store.Store].
func (s *Store) Expired(ctx context.Context, limit int) ([]store.TokenRef, error) {
	rows, err := s.queries.Expired(ctx, int32(limit)) //nolint:gosec // a page
	if err != nil {
		return nil, fmt.Errorf("list expired leases: %w", err)
	}
	refs := make([]store.TokenRef, len(rows))
	for i, r := range rows {
		refs[i] = refTo(r.InstanceID, r.ID, r.Fence, r.DueAt)
	}
	return refs, nil
}

func refTo(instance, token machine.ID, fence int64, due pgtype.Timestamptz) store.TokenRef {
	return store.TokenRef{Instance: instance, Token: token, Fence: fence, DueAt: when(due)}
}
