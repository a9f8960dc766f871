package pgstore

import (
	"bytes"
	"slices"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/wiggle-run/wiggle/services/instances/internal/machine"
)

// How rows are written: one array for each column, so that a statement over any
// number of rows has a fixed number of parameters and is prepared once.

// sorted are the values of a map in the order of their ids, which is the order in
// which every statement locks and inserts.
func sorted[V any](m map[machine.ID]V) []V {
	ids := make([]machine.ID, 0, len(m))
	for id := range m {
		ids = append(ids, id)
	}
	slices.SortFunc(ids, compareIDs)
	list := make([]V, len(ids))
	for i, id := range ids {
		list[i] = m[id]
	}
	return list
}

func compareIDs(a, b machine.ID) int { return bytes.Compare(a[:], b[:]) }

// tokenRows are tokens column by column.
type tokenRows struct {
	id, instance, parent                                 []pgtype.UUID
	fence, settledFence, timeout                         []int64
	due, queued, leasedAt, leaseUntil, deadline, retryAt []pgtype.Timestamptz
	index, attempt, version                              []int32
	width, pending, next, position                       []int32
	state, priority, settledBy                           []int16
	held, hasResult, keepView                            []bool
	namespace, workflow, queue, node, key, worker        []string
	viewType, progressType                               []string
	loops, failure, progress, view                       [][]byte
}

// add appends a token. With keepView the row's view is left as it is stored.
func (r *tokenRows) add(t *machine.Token, keepView bool) error {
	failure, err := encodeFailure(t.Failure)
	if err != nil {
		return err
	}
	r.id = append(r.id, uuid(t.ID))
	r.fence, r.settledFence = append(r.fence, t.Fence), append(r.settledFence, t.Settled.Fence)
	r.timeout = append(r.timeout, t.Timeout.Microseconds())
	r.due, r.queued = append(r.due, timestamp(t.DueAt)), append(r.queued, timestamp(t.QueuedAt))
	r.leasedAt, r.leaseUntil = append(r.leasedAt, timestamp(t.LeasedAt)), append(r.leaseUntil, timestamp(t.LeaseUntil))
	r.deadline, r.retryAt = append(r.deadline, timestamp(t.Deadline)), append(r.retryAt, timestamp(t.Settled.RetryAt))
	r.attempt, r.position = append(r.attempt, t.Attempt), append(r.position, t.Position)
	r.width, r.pending, r.next = append(r.width, t.Width), append(r.pending, t.Pending), append(r.next, t.Next)
	r.state, r.priority = append(r.state, int16(t.State)), append(r.priority, t.Priority)
	r.settledBy = append(r.settledBy, int16(t.Settled.By))
	r.held, r.hasResult = append(r.held, t.Held), append(r.hasResult, t.HasResult)
	r.queue, r.node, r.worker = append(r.queue, t.Queue), append(r.node, t.Node), append(r.worker, t.Worker)
	r.progressType, r.progress = append(r.progressType, t.Progress.ContentType), append(r.progress, t.Progress.Data)
	r.loops, r.failure = append(r.loops, encodeLoops(t.Loops)), append(r.failure, failure)
	view := t.View
	if keepView {
		view = machine.Payload{}
	}
	r.keepView = append(r.keepView, keepView)
	r.viewType, r.view = append(r.viewType, view.ContentType), append(r.view, view.Data)
	return nil
}

// addFixed appends what never changes of a token.
func (r *tokenRows) addFixed(t *machine.Token, in *machine.Instance) {
	r.instance = append(r.instance, uuid(t.Instance))
	r.parent = append(r.parent, pgtype.UUID{Bytes: t.Parent, Valid: !t.Parent.IsZero()})
	r.index, r.version = append(r.index, t.Index), append(r.version, in.Version)
	r.namespace, r.workflow = append(r.namespace, in.Namespace), append(r.workflow, in.Workflow)
	r.key = append(r.key, t.Key)
}

// insertTokens inserts by id, into the primary key and the indexes that the row's
// state puts it in.
const insertTokens = `insert into tokens (id, instance_id, parent_id, fence, settled_fence, timeout_us, due_at, queued_at, leased_at,
	lease_until, deadline, settled_retry_at, idx, attempt, version, width, pending, next_idx, position, state, priority, settled_by,
	held, has_result, namespace, workflow, queue, node, key, worker, view_type, progress_type, loops, failure, progress, view)
select * from unnest($1::uuid[], $2::uuid[], $3::uuid[], $4::bigint[], $5::bigint[], $6::bigint[], $7::timestamptz[],
	$8::timestamptz[], $9::timestamptz[], $10::timestamptz[], $11::timestamptz[], $12::timestamptz[], $13::integer[],
	$14::integer[], $15::integer[], $16::integer[], $17::integer[], $18::integer[], $19::integer[], $20::smallint[],
	$21::smallint[], $22::smallint[], $23::boolean[], $24::boolean[], $25::text[], $26::text[], $27::text[], $28::text[],
	$29::text[], $30::text[], $31::text[], $32::text[], $33::bytea[], $34::bytea[], $35::bytea[], $36::bytea[])`

func (r *tokenRows) insertArgs() []any {
	return []any{
		r.id, r.instance, r.parent, r.fence, r.settledFence, r.timeout, r.due, r.queued, r.leasedAt, r.leaseUntil, r.deadline,
		r.retryAt, r.index, r.attempt, r.version, r.width, r.pending, r.next, r.position, r.state, r.priority, r.settledBy, r.held,
		r.hasResult, r.namespace, r.workflow, r.queue, r.node, r.key, r.worker, r.viewType, r.progressType, r.loops, r.failure,
		r.progress, r.view,
	}
}

// updateTokens finds each row by the primary key. The rows are locked. A view that
// is as it was is not sent, and a stored one that is out of line not written again.
const updateTokens = `update tokens t set fence = u.fence, settled_fence = u.settled_fence, timeout_us = u.timeout_us, due_at = u.due_at,
	queued_at = u.queued_at, leased_at = u.leased_at, lease_until = u.lease_until, deadline = u.deadline,
	settled_retry_at = u.settled_retry_at, attempt = u.attempt, width = u.width, pending = u.pending, next_idx = u.next_idx,
	position = u.position, state = u.state, priority = u.priority, settled_by = u.settled_by, held = u.held,
	has_result = u.has_result, queue = u.queue, node = u.node, worker = u.worker, progress_type = u.progress_type,
	loops = u.loops, failure = u.failure, progress = u.progress,
	view_type = case when u.keep_view then t.view_type else u.view_type end,
	view = case when u.keep_view then t.view else u.view end
from unnest($1::uuid[], $2::bigint[], $3::bigint[], $4::bigint[], $5::timestamptz[], $6::timestamptz[], $7::timestamptz[],
	$8::timestamptz[], $9::timestamptz[], $10::timestamptz[], $11::integer[], $12::integer[], $13::integer[], $14::integer[],
	$15::integer[], $16::smallint[], $17::smallint[], $18::smallint[], $19::boolean[], $20::boolean[], $21::boolean[], $22::text[],
	$23::text[], $24::text[], $25::text[], $26::text[], $27::bytea[], $28::bytea[], $29::bytea[], $30::bytea[])
	as u(id, fence, settled_fence, timeout_us, due_at, queued_at, leased_at, lease_until, deadline, settled_retry_at, attempt, width,
	pending, next_idx, position, state, priority, settled_by, held, has_result, keep_view, queue, node, worker, view_type,
	progress_type, loops, failure, progress, view)
where t.id = any (array[u.id])`

func (r *tokenRows) updateArgs() []any {
	return []any{
		r.id, r.fence, r.settledFence, r.timeout, r.due, r.queued, r.leasedAt, r.leaseUntil, r.deadline, r.retryAt, r.attempt,
		r.width, r.pending, r.next, r.position, r.state, r.priority, r.settledBy, r.held, r.hasResult, r.keepView, r.queue, r.node,
		r.worker, r.viewType, r.progressType, r.loops, r.failure, r.progress, r.view,
	}
}

// instanceRows are instances column by column.
type instanceRows struct {
	id                       []pgtype.UUID
	created, ended           []pgtype.Timestamptz
	version, position        []int32
	state, priority          []int16
	namespace, workflow, typ []string
	trace, failure, context  [][]byte
	terminal                 []bool
}

func (r *instanceRows) add(in *machine.Instance) error {
	failure, err := encodeFailure(in.Failure)
	if err != nil {
		return err
	}
	r.id = append(r.id, uuid(in.ID))
	r.created, r.ended = append(r.created, timestamp(in.CreatedAt)), append(r.ended, timestamp(in.EndedAt))
	r.version, r.position = append(r.version, in.Version), append(r.position, in.Position)
	r.state, r.priority = append(r.state, int16(in.State)), append(r.priority, in.Priority)
	r.namespace, r.workflow = append(r.namespace, in.Namespace), append(r.workflow, in.Workflow)
	r.typ, r.context = append(r.typ, in.Context.ContentType), append(r.context, in.Context.Data)
	r.trace, r.failure = append(r.trace, encodeTrace(in.Trace)), append(r.failure, failure)
	r.terminal = append(r.terminal, in.State.Terminal())
	return nil
}

// insertInstances inserts by id. Where another process is inserting the same id it
// waits for that one's end; then the row is there, and left as it is.
const insertInstances = `insert into instances (id, created_at, ended_at, version, position, state, priority, namespace, workflow,
	context_type, trace, failure, context)
select * from unnest($1::uuid[], $2::timestamptz[], $3::timestamptz[], $4::integer[], $5::integer[], $6::smallint[], $7::smallint[],
	$8::text[], $9::text[], $10::text[], $11::bytea[], $12::bytea[], $13::bytea[])
on conflict (id) do nothing`

func (r *instanceRows) insertArgs() []any {
	return []any{
		r.id, r.created, r.ended, r.version, r.position, r.state, r.priority, r.namespace, r.workflow, r.typ, r.trace, r.failure,
		r.context,
	}
}

// updateInstances finds each row by the primary key. The rows are locked. An
// instance that ended without a context gets its first token's, by that one's
// primary key, before its tokens are deleted.
const updateInstances = `update instances i set state = u.state, ended_at = u.ended_at, position = u.position, failure = u.failure,
	context_type = case when not u.terminal then i.context_type when u.context is not null then u.context_type
		else coalesce((select r.view_type from tokens r where r.id = u.id), i.context_type) end,
	context = case when not u.terminal then i.context
		else coalesce(u.context, (select r.view from tokens r where r.id = u.id), i.context) end
from unnest($1::uuid[], $2::timestamptz[], $3::integer[], $4::smallint[], $5::text[], $6::bytea[], $7::bytea[], $8::boolean[])
	as u(id, ended_at, position, state, context_type, failure, context, terminal)
where i.id = any (array[u.id])`

func (r *instanceRows) updateArgs() []any {
	return []any{r.id, r.ended, r.position, r.state, r.typ, r.failure, r.context, r.terminal}
}

// historyRows are history entries column by column.
type historyRows struct {
	instance, token []pgtype.UUID
	fence           []pgtype.Int8
	position, ord   []int32
	settledBy       []int16
	entry           [][]byte
}

// insertHistory inserts into the primary key.
const insertHistory = `insert into history (recorded_at, instance_id, token_id, fence, position, ord, settled_by, entry)
select $1::timestamptz, u.* from unnest($2::uuid[], $3::uuid[], $4::bigint[], $5::integer[], $6::integer[], $7::smallint[],
	$8::bytea[]) u`
