package pgstore

import (
	"bytes"
	"fmt"
	"slices"

	"google.golang.org/protobuf/proto"

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
	id, instance, parent                                 column
	fence, settledFence, timeout                         column
	due, queued, leasedAt, leaseUntil, deadline, retryAt column
	index, attempt, version                              column
	width, pending, next, position                       column
	state, priority, settledBy                           column
	held, hasResult, keepView                            column
	namespace, workflow, queue, node, key, worker        column
	viewType, progressType                               column
	loops, failure, trace, progress, view                column
}

// add appends a token. With keepView the row's view is left as it is stored.
func (r *tokenRows) add(t *machine.Token, keepView bool) error {
	failure, err := encodeFailure(t.Failure)
	if err != nil {
		return err
	}
	r.id.id(t.ID)
	r.fence.int64(t.Fence)
	r.settledFence.int64(t.Settled.Fence)
	r.timeout.int64(t.Timeout.Microseconds())
	r.due.time(t.DueAt)
	r.queued.time(t.QueuedAt)
	r.leasedAt.time(t.LeasedAt)
	r.leaseUntil.time(t.LeaseUntil)
	r.deadline.time(t.Deadline)
	r.retryAt.time(t.Settled.RetryAt)
	r.attempt.int32(t.Attempt)
	r.position.int32(t.Position)
	r.width.int32(t.Width)
	r.pending.int32(t.Pending)
	r.next.int32(t.Next)
	r.state.int16(int16(t.State))
	r.priority.int16(t.Priority)
	r.settledBy.int16(int16(t.Settled.By))
	r.held.bool(t.Held)
	r.hasResult.bool(t.HasResult)
	r.queue.text(t.Queue)
	r.node.text(t.Node)
	r.worker.text(t.Worker)
	r.progressType.text(t.Progress.ContentType)
	r.progress.bytes(t.Progress.Data)
	r.loops.bytes(encodeLoops(t.Loops))
	r.failure.bytes(failure)
	r.trace.optionalText(t.Trace)
	view := t.View
	if keepView {
		view = machine.Payload{}
	}
	r.keepView.bool(keepView)
	r.viewType.text(view.ContentType)
	r.view.bytes(view.Data)
	return nil
}

// addFixed appends what never changes of a token.
func (r *tokenRows) addFixed(t *machine.Token, in *machine.Instance) {
	r.instance.id(t.Instance)
	r.parent.optionalID(t.Parent)
	r.index.int32(t.Index)
	r.version.int32(in.Version)
	r.namespace.text(in.Namespace)
	r.workflow.text(in.Workflow)
	r.key.text(t.Key)
}

// insertTokens inserts by id, into the primary key and the indexes that the row's
// state puts it in.
const insertTokens = `insert into tokens (id, instance_id, parent_id, fence, settled_fence, timeout_us, due_at, queued_at, leased_at,
	lease_until, deadline, settled_retry_at, idx, attempt, version, width, pending, next_idx, position, state, priority, settled_by,
	held, has_result, namespace, workflow, queue, node, key, worker, view_type, progress_type, loops, failure, progress, view, trace)
select * from unnest($1::uuid[], $2::uuid[], $3::uuid[], $4::bigint[], $5::bigint[], $6::bigint[], $7::timestamptz[],
	$8::timestamptz[], $9::timestamptz[], $10::timestamptz[], $11::timestamptz[], $12::timestamptz[], $13::integer[],
	$14::integer[], $15::integer[], $16::integer[], $17::integer[], $18::integer[], $19::integer[], $20::smallint[],
	$21::smallint[], $22::smallint[], $23::boolean[], $24::boolean[], $25::text[], $26::text[], $27::text[], $28::text[],
	$29::text[], $30::text[], $31::text[], $32::text[], $33::bytea[], $34::bytea[], $35::bytea[], $36::bytea[], $37::text[])`

func (r *tokenRows) insertArgs() []any {
	return []any{
		r.id, r.instance, r.parent, r.fence, r.settledFence, r.timeout, r.due, r.queued, r.leasedAt, r.leaseUntil, r.deadline,
		r.retryAt, r.index, r.attempt, r.version, r.width, r.pending, r.next, r.position, r.state, r.priority, r.settledBy, r.held,
		r.hasResult, r.namespace, r.workflow, r.queue, r.node, r.key, r.worker, r.viewType, r.progressType, r.loops, r.failure,
		r.progress, r.view, r.trace,
	}
}

// updateTokens finds each row by the primary key. The rows are locked. A view that
// is as it was is not sent, and a stored one that is out of line not written again.
const updateTokens = `update tokens t set fence = u.fence, settled_fence = u.settled_fence, timeout_us = u.timeout_us, due_at = u.due_at,
	queued_at = u.queued_at, leased_at = u.leased_at, lease_until = u.lease_until, deadline = u.deadline,
	settled_retry_at = u.settled_retry_at, attempt = u.attempt, width = u.width, pending = u.pending, next_idx = u.next_idx,
	position = u.position, state = u.state, priority = u.priority, settled_by = u.settled_by, held = u.held,
	has_result = u.has_result, queue = u.queue, node = u.node, worker = u.worker, progress_type = u.progress_type,
	loops = u.loops, failure = u.failure, progress = u.progress, trace = u.trace,
	view_type = case when u.keep_view then t.view_type else u.view_type end,
	view = case when u.keep_view then t.view else u.view end
from unnest($1::uuid[], $2::bigint[], $3::bigint[], $4::bigint[], $5::timestamptz[], $6::timestamptz[], $7::timestamptz[],
	$8::timestamptz[], $9::timestamptz[], $10::timestamptz[], $11::integer[], $12::integer[], $13::integer[], $14::integer[],
	$15::integer[], $16::smallint[], $17::smallint[], $18::smallint[], $19::boolean[], $20::boolean[], $21::boolean[], $22::text[],
	$23::text[], $24::text[], $25::text[], $26::text[], $27::bytea[], $28::bytea[], $29::bytea[], $30::bytea[],
	$31::text[])
	as u(id, fence, settled_fence, timeout_us, due_at, queued_at, leased_at, lease_until, deadline, settled_retry_at, attempt, width,
	pending, next_idx, position, state, priority, settled_by, held, has_result, keep_view, queue, node, worker, view_type,
	progress_type, loops, failure, progress, view, trace)
where t.id = any (array[u.id])`

func (r *tokenRows) updateArgs() []any {
	return []any{
		r.id, r.fence, r.settledFence, r.timeout, r.due, r.queued, r.leasedAt, r.leaseUntil, r.deadline, r.retryAt, r.attempt,
		r.width, r.pending, r.next, r.position, r.state, r.priority, r.settledBy, r.held, r.hasResult, r.keepView, r.queue, r.node,
		r.worker, r.viewType, r.progressType, r.loops, r.failure, r.progress, r.view, r.trace,
	}
}

// instanceRows are instances column by column.
type instanceRows struct {
	id, created, ended       column
	version, position        column
	state, priority          column
	namespace, workflow, typ column
	trace, failure, context  column
	terminal                 column
}

func (r *instanceRows) add(in *machine.Instance) error {
	failure, err := encodeFailure(in.Failure)
	if err != nil {
		return err
	}
	r.id.id(in.ID)
	r.created.time(in.CreatedAt)
	r.ended.time(in.EndedAt)
	r.version.int32(in.Version)
	r.position.int32(in.Position)
	r.state.int16(int16(in.State))
	r.priority.int16(in.Priority)
	r.namespace.text(in.Namespace)
	r.workflow.text(in.Workflow)
	r.typ.text(in.Context.ContentType)
	r.context.bytes(in.Context.Data)
	r.trace.bytes(encodeTrace(in.Trace))
	r.failure.bytes(failure)
	r.terminal.bool(in.State.Terminal())
	return nil
}

// insertInstances inserts by id. Where another process is inserting the same id it
// waits for that one's end; then the row is there, and the insert fails.
const insertInstances = `insert into instances (id, created_at, ended_at, version, position, state, priority, namespace, workflow,
	context_type, trace, failure, context)
select * from unnest($1::uuid[], $2::timestamptz[], $3::timestamptz[], $4::integer[], $5::integer[], $6::smallint[], $7::smallint[],
	$8::text[], $9::text[], $10::text[], $11::bytea[], $12::bytea[], $13::bytea[])`

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
	instance, token, fence, position, ord, settledBy, entry column
}

// insertHistory inserts into the primary key.
const insertHistory = `insert into history (recorded_at, instance_id, token_id, fence, position, ord, settled_by, entry)
select $1::timestamptz, u.* from unnest($2::uuid[], $3::uuid[], $4::bigint[], $5::integer[], $6::integer[], $7::smallint[],
	$8::bytea[]) u`

// add appends an entry with its place in the batch.
func (r *historyRows) add(e *machine.Entry, ord int) error {
	entry, err := proto.Marshal(e.Value)
	if err != nil {
		return fmt.Errorf("write history entry: %w", err)
	}
	r.instance.id(e.Instance)
	r.token.id(e.Token)
	r.fence.optionalInt64(e.Fence)
	r.position.int32(e.Position)
	r.ord.int32(int32(ord)) //nolint:gosec // of a batch
	r.settledBy.int16(int16(e.By))
	r.entry.bytes(entry)
	return nil
}
