package pgstore

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"google.golang.org/protobuf/proto"

	"github.com/wiggle-run/wiggle/services/instances/internal/machine"
	"github.com/wiggle-run/wiggle/services/instances/internal/store"
)

// giveWay bounds how long an Advance waits for a row that somebody holds. It takes
// its rows without the instances' locks, so it and an Update might wait for each other:
// then it is the one that gives up, long before PostgreSQL looks for deadlocks.
const giveWay = `select set_config('lock_timeout', '20', true)`

// advanceTokens finds each row by the primary key, and writes it and its history if it
// is what was expected (WRK-18). Who holds the lease has seen everything else of the
// row, so what a report clears is cleared and what cannot change is left. The guard is
// written so that it can be no way to the rows: neither a join on a fence nor the index of
// leased tokens.
//
// Parameters: $1 time, $2 to $19 tokens.
const advanceTokens = `with moved as (
	update tokens t set fence = u.fence, settled_fence = u.was, settled_by = 1, settled_retry_at = null, timeout_us = u.timeout_us,
		queued_at = $1::timestamptz, leased_at = case when u.state = 2 then $1::timestamptz end,
		lease_until = u.lease_until, deadline = u.deadline, attempt = 1, position = u.at + 1, state = u.state,
		priority = u.priority, queue = u.queue, node = u.node, worker = u.worker, progress_type = '', progress = null,
		failure = null, loops = u.loops, trace = u.trace,
		view_type = case when u.keep_view then t.view_type else u.view_type end,
		view = case when u.keep_view then t.view else u.view end
	from unnest($2::uuid[], $3::bigint[], $4::integer[], $5::bigint[], $6::bigint[], $7::timestamptz[], $8::timestamptz[],
		$9::smallint[], $10::smallint[], $11::boolean[], $12::text[], $13::text[], $14::text[], $15::text[], $16::bytea[],
		$17::bytea[], $18::bytea[], $19::text[])
		as u(id, was, at, fence, timeout_us, lease_until, deadline, state, priority, keep_view, queue, node, worker, view_type,
		loops, view, entry, trace)
	where t.id = any (array[u.id]) and t.fence = any (array[u.was]) and t.position = any (array[u.at]) and t.state + 0 = 2
	returning t.id, t.instance_id, u.was, u.at, u.entry
), wrote as (
	insert into history (recorded_at, instance_id, token_id, fence, position, ord, settled_by, entry)
	select $1::timestamptz, m.instance_id, m.id, m.was, m.at, 0, 1, m.entry from moved m
)
select m.id from moved m`

// Advance implements [store.Store].
func (s *Store) Advance(ctx context.Context, now time.Time, moves []store.Move) ([]bool, error) {
	order := make([]int, len(moves))
	for i := range order {
		order[i] = i
	}
	// In the order in which everybody locks, as far as this goes by locks at all.
	slices.SortFunc(order, func(a, b int) int { return compareIDs(moves[a].From.ID, moves[b].From.ID) })
	var rows moveRows
	place := make(map[machine.ID]int, len(moves))
	for _, i := range order {
		place[moves[i].From.ID] = i
		if err := rows.add(&moves[i]); err != nil {
			return nil, err
		}
	}
	moved := make([]bool, len(moves))
	pipe := &pgx.Batch{}
	pipe.Queue(giveWay)
	pipe.Queue(advanceTokens, rows.args(now)...).Query(func(r pgx.Rows) error {
		for r.Next() {
			var id machine.ID
			if err := r.Scan((*[16]byte)(&id)); err != nil {
				return err
			}
			moved[place[id]] = true
		}
		return r.Err()
	})
	if err := s.pool.Once(ctx, "advance", pipe); err != nil {
		return nil, fmt.Errorf("advance tokens: %w", err)
	}
	s.fronts.moved(moves, moved)
	return moved, nil
}

// moveRows are moves column by column.
type moveRows struct {
	id, was, at, fence, timeout, leaseUntil, deadline column
	state, priority, keepView                         column
	queue, node, worker, viewType, loops, view, entry column
	trace                                             column
}

func (r *moveRows) add(m *store.Move) error {
	from, to := m.From, m.To
	entry, err := proto.Marshal(m.Entry.Value)
	if err != nil {
		return fmt.Errorf("write history entry: %w", err)
	}
	r.id.id(to.ID)
	r.was.int64(from.Fence)
	r.at.int32(from.Position)
	r.fence.int64(to.Fence)
	r.timeout.int64(to.Timeout.Microseconds())
	r.leaseUntil.time(to.LeaseUntil)
	r.deadline.time(to.Deadline)
	r.state.int16(int16(to.State))
	r.priority.int16(to.Priority)
	r.queue.text(to.Queue)
	r.node.text(to.Node)
	r.worker.text(to.Worker)
	r.loops.bytes(encodeLoops(to.Loops))
	r.trace.optionalText(to.Trace)
	view, keep := to.View, sameSlice(to.View.Data, from.View.Data)
	if keep {
		view = machine.Payload{}
	}
	r.keepView.bool(keep)
	r.viewType.text(view.ContentType)
	r.view.bytes(view.Data)
	r.entry.bytes(entry)
	return nil
}

func (r *moveRows) args(now time.Time) []any {
	return []any{
		timestamp(now), r.id, r.was, r.at, r.fence, r.timeout, r.leaseUntil, r.deadline, r.state, r.priority, r.keepView, r.queue,
		r.node, r.worker, r.viewType, r.loops, r.view, r.entry, r.trace,
	}
}
