package pgstore

import (
	"github.com/jackc/pgx/v5"

	"github.com/wiggle-run/wiggle/services/instances/internal/store"
)

// insertEvents appends to the event log, in the order of the arrays, which is the order
// in which the default takes numbers. It must stand behind the statements that write or
// lock rows: readers rely on a transaction having its id before it takes a number
// (package eventlog). A transaction that writes events has changed an instance or a
// token, so there always is one.
//
// Parameters: $1 to $10 entries, $11 time.
const insertEvents = `insert into events (instance_id, revision, version, namespace, workflow, type, node, key, payload, trace, recorded_at)
select u.*, $11::timestamptz from unnest($1::uuid[], $2::integer[], $3::integer[], $4::text[], $5::text[], $6::text[], $7::text[],
	$8::text[], $9::bytea[], $10::text[]) u`

// eventRows are entries of the event log column by column.
type eventRows struct {
	instance, revision, version                        column
	namespace, workflow, kind, node, key, eventPayload column
	trace                                              column
}

func (r *eventRows) add(e *store.LogEntry) {
	in := e.Instance
	r.instance.id(in.ID)
	r.revision.int32(e.Revision)
	r.version.int32(in.Version)
	r.namespace.text(in.Namespace)
	r.workflow.text(in.Workflow)
	r.kind.text(e.Type)
	r.node.text(e.Node)
	r.key.text("") // instances have none yet
	r.eventPayload.bytes(e.Payload)
	r.trace.optionalText(e.Trace)
}

// queueEvents is the last of a batch; see [insertEvents].
func (b *batch) queueEvents(pipe *pgx.Batch, ws *store.Writes) error {
	if len(ws.Events) == 0 {
		return nil
	}
	var rows eventRows
	for i := range ws.Events {
		rows.add(&ws.Events[i])
	}
	pipe.Queue(insertEvents, rows.instance, rows.revision, rows.version, rows.namespace, rows.workflow, rows.kind, rows.node, rows.key,
		rows.eventPayload, rows.trace, timestamp(b.world.Now))
	return nil
}
