package pgstore

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"google.golang.org/protobuf/proto"

	"github.com/wiggle-run/wiggle/pkg/postgres"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	"github.com/wiggle-run/wiggle/services/instances/internal/machine"
	"github.com/wiggle-run/wiggle/services/instances/internal/store"
)

// racedStarts bounds how often an Update runs again because another process started
// an instance of it. Each time that instance is there to be loaded, so a batch runs
// again at most once for each of its starts; more is a defect.
const racedStarts = 100

// errRaced: an instance that the batch inserts was inserted by another process.
var errRaced = errors.New("instance was started by another process")

// lockInstances locks by the primary key, in its order. The lock lets others see
// that the row is there, and keeps those who write it away.
const lockInstances = `select ` + instanceColumns + ` from instances i where i.id = any ($1::uuid[]) order by i.id for no key update`

// lockTokens locks tokens and their parents by the primary key, in its order. A
// token's parent never changes, so looking it up before locking is safe.
const lockTokens = `select ` + tokenColumns + tokenPayloads + ` from tokens t
where t.id = any (array(
	select k.id from unnest($1::uuid[]) k(id)
	union all
	select c.parent_id from unnest($1::uuid[]) k(id) join lateral (select c.parent_id from tokens c where c.id = k.id limit 1) c
		on c.parent_id is not null))
order by t.id for update of t`

// latestVersions reads the end of each workflow's part of the primary key.
const latestVersions = `select k.namespace, k.workflow, d.version from unnest($1::text[], $2::text[]) k(namespace, workflow)
cross join lateral (select d.version from definitions d where d.namespace = k.namespace and d.workflow = k.workflow
	order by d.version desc limit 1) d`

// settledLeases reads each token's part of the primary key of history.
const settledLeases = `select k.instance_id, k.token_id, h.fence, h.settled_by, h.entry
from unnest($1::uuid[], $2::uuid[], $3::bigint[]) k(instance_id, token_id, fence)
cross join lateral (select h.fence, h.settled_by, h.entry from history h where h.instance_id = k.instance_id
	and h.token_id = k.token_id and h.fence = k.fence and h.settled_by <> 0 limit 1) h`

// The updates of rows that the batch has locked.
var (
	exactUpdateInstances = exactly(updateInstances, "$9")
	exactUpdateTokens    = exactly(updateTokens, "$32")
)

// deleteMerged and deleteEnded go by tokens_children and tokens_of_instance. They
// wait for claims and heartbeats alone.
const (
	deleteMerged = `delete from tokens where parent_id = any ($1::uuid[])`
	deleteEnded  = `delete from tokens where instance_id = any ($1::uuid[])`
)

// letIn finds children by tokens_children, then by the primary key. The instance is
// locked, and nobody claims a held token.
const letIn = `update tokens t set due_at = l.due_at
from (
	select c.id, u.due_at
	from unnest($1::uuid[], $2::integer[], $3::timestamptz[]) u(parent_id, idx, due_at)
	cross join lateral (select c.id from tokens c where c.parent_id = u.parent_id and c.idx = u.idx and c.held limit 1) c
) l
where t.id = any (array[l.id])
returning t.id, t.parent_id, t.idx`

// Update implements [store.Store].
func (s *Store) Update(ctx context.Context, keys store.Keys, apply func(*store.World) error) error {
	for range racedStarts {
		var b batch
		err := s.pool.Exchange(ctx, postgres.TxOptions{Op: "update"}, func(ctx context.Context, x *postgres.Exchange) error {
			b = batch{x: x, keys: keys, views: map[machine.ID][]byte{}}
			return b.run(ctx, apply)
		})
		if err == nil {
			s.fronts.made(b.world)
		}
		// An instance that the batch inserts was inserted by another process. Now it is there to be loaded.
		if !postgres.IsUniqueViolation(err, "instances_pkey") {
			return err
		}
	}
	return fmt.Errorf("update: %w %d times", errRaced, racedStarts)
}

// batch is one run of an Update.
type batch struct {
	x     *postgres.Exchange
	keys  store.Keys
	world *store.World
	// views are the views of tokens as they are stored.
	views map[machine.ID][]byte
}

func (b *batch) run(ctx context.Context, apply func(*store.World) error) error {
	if err := b.load(ctx); err != nil {
		return fmt.Errorf("load: %w", err)
	}
	if missing := b.world.Missing(b.keys.Leases); len(missing) > 0 {
		if err := b.loadSettled(ctx, missing); err != nil {
			return fmt.Errorf("load settled leases: %w", err)
		}
	}
	if err := apply(b.world); err != nil {
		return err
	}
	if err := b.write(ctx); err != nil {
		return fmt.Errorf("write: %w", err)
	}
	return nil
}

// load locks and reads in one round trip.
func (b *batch) load(ctx context.Context) error {
	var instances []*machine.Instance
	var tokens []*machine.Token
	latest := map[store.WorkflowKey]int32{}
	var now pgtype.Timestamptz

	pipe := &pgx.Batch{}
	if len(b.keys.Instances) > 0 {
		pipe.Queue(lockInstances, uuids(b.keys.Instances)).Query(into(&instances, scanInstance))
	}
	if len(b.keys.Tokens) > 0 {
		pipe.Queue(lockTokens, uuids(b.keys.Tokens)).Query(into(&tokens, scanToken))
	}
	if len(b.keys.Latest) > 0 {
		namespaces, workflows := columnsOf(b.keys.Latest)
		pipe.Queue(latestVersions, namespaces, workflows).Query(func(rows pgx.Rows) error { return scanLatest(rows, latest) })
	}
	// Last, so that it is read when everything is locked.
	pipe.Queue("select clock_timestamp()").QueryRow(func(row pgx.Row) error { return row.Scan(&now) })
	if err := b.x.Do(ctx, pipe); err != nil {
		return err
	}

	b.world = store.NewWorld(when(now))
	for _, in := range instances {
		b.world.LoadInstance(in)
	}
	for _, t := range tokens {
		b.world.LoadToken(t)
		b.views[t.ID] = t.View.Data
	}
	for k, version := range latest {
		b.world.LoadLatest(k, version)
	}
	return nil
}

// into reads the rows of a pipelined query into a slice.
func into[T any](list *[]T, scan func(pgx.Rows) (T, error)) func(pgx.Rows) error {
	return func(rows pgx.Rows) (err error) {
		*list, err = collect(rows, nil, scan)
		return err
	}
}

// columnsOf are the distinct keys column by column: a thousand starts name one workflow.
func columnsOf(keys []store.WorkflowKey) (namespaces, workflows []string) {
	seen := map[store.WorkflowKey]bool{}
	for _, k := range keys {
		if !seen[k] {
			seen[k] = true
			namespaces, workflows = append(namespaces, k.Namespace), append(workflows, k.Workflow)
		}
	}
	return namespaces, workflows
}

func scanLatest(rows pgx.Rows, latest map[store.WorkflowKey]int32) error {
	for rows.Next() {
		var k store.WorkflowKey
		var version int32
		if err := rows.Scan(&k.Namespace, &k.Workflow, &version); err != nil {
			return err
		}
		latest[k] = version
	}
	return rows.Err()
}

func (b *batch) loadSettled(ctx context.Context, leases []store.Lease) error {
	var instances, tokens []pgtype.UUID
	var fences []int64
	for _, l := range leases {
		instances, tokens, fences = append(instances, uuid(l.Instance)), append(tokens, uuid(l.Token)), append(fences, l.Fence)
	}
	pipe := &pgx.Batch{}
	pipe.Queue(settledLeases, instances, tokens, fences).Query(b.scanSettled)
	return b.x.Do(ctx, pipe)
}

func (b *batch) scanSettled(rows pgx.Rows) error {
	for rows.Next() {
		var l store.Lease
		var by int16
		var data []byte
		if err := rows.Scan((*[16]byte)(&l.Instance), (*[16]byte)(&l.Token), &l.Fence, &by, &data); err != nil {
			return err
		}
		entry := &wigglev1.HistoryEntry{}
		if err := proto.Unmarshal(data, entry); err != nil {
			return fmt.Errorf("read history entry: %w", err)
		}
		b.world.LoadSettled(l, store.SettledFrom(l.Fence, machine.SettledBy(by), entry))
	}
	return rows.Err()
}

// write writes and commits in one round trip. What there is none of is not sent.
func (b *batch) write(ctx context.Context) error {
	ws, pipe := b.world.Writes(), &pgx.Batch{}
	for _, queue := range []func(*pgx.Batch, *store.Writes) error{
		queueInstances, queueMerged, b.queueNewTokens, b.queueTokens, queueLetIn, queueEnded, b.queueHistory, b.queueEvents,
	} {
		if err := queue(pipe, ws); err != nil {
			return err
		}
	}
	return b.x.Commit(ctx, pipe)
}

// exactly has a statement fail, by a division by zero, if it does not meet as many rows
// as its last parameter says. They are locked, so anything else is a defect, and COMMIT is on its way behind it.
func exactly(update, parameter string) string {
	return "with met as (" + update + " returning 1) select 1 / (count(*) = " + parameter + "::bigint)::integer from met"
}

func queueInstances(pipe *pgx.Batch, ws *store.Writes) error {
	var fresh, changed instanceRows
	for _, in := range sorted(ws.NewInstances) {
		if err := fresh.add(in); err != nil {
			return err
		}
	}
	for _, in := range sorted(ws.Instances) {
		if err := changed.add(in); err != nil {
			return err
		}
	}
	if fresh.id.n > 0 {
		pipe.Queue(insertInstances, fresh.insertArgs()...)
	}
	if n := changed.id.n; n > 0 {
		pipe.Queue(exactUpdateInstances, append(changed.updateArgs(), n)...)
	}
	return nil
}

func queueMerged(pipe *pgx.Batch, ws *store.Writes) error {
	if len(ws.Merged) > 0 {
		pipe.Queue(deleteMerged, uuids(ws.Merged))
	}
	return nil
}

func (b *batch) queueNewTokens(pipe *pgx.Batch, ws *store.Writes) error {
	var rows tokenRows
	for _, t := range sorted(ws.NewTokens) {
		if err := rows.add(t, false); err != nil {
			return err
		}
		rows.addFixed(t, b.world.Instance(t.Instance))
	}
	if rows.id.n > 0 {
		pipe.Queue(insertTokens, rows.insertArgs()...)
	}
	return nil
}

func (b *batch) queueTokens(pipe *pgx.Batch, ws *store.Writes) error {
	var rows tokenRows
	for _, t := range sorted(ws.Tokens) {
		if err := rows.add(t, sameSlice(t.View.Data, b.views[t.ID])); err != nil {
			return err
		}
	}
	if n := rows.id.n; n > 0 {
		pipe.Queue(exactUpdateTokens, append(rows.updateArgs(), n)...)
	}
	return nil
}

// sameSlice tells whether a view is the very one that was loaded. Nobody changes
// payloads in place, so that one need not be written.
func sameSlice(a, b []byte) bool {
	return len(a) > 0 && len(a) == len(b) && &a[0] == &b[0]
}

func queueLetIn(pipe *pgx.Batch, ws *store.Writes) error {
	var parents []pgtype.UUID
	var indexes []int32
	var due []pgtype.Timestamptz
	for _, l := range ws.LetIn {
		parents, indexes, due = append(parents, uuid(l.Parent)), append(indexes, l.Index), append(due, timestamp(l.DueAt))
	}
	if len(parents) > 0 {
		pipe.Queue(letIn, parents, indexes, due).Query(func(rows pgx.Rows) error { return scanLetIn(rows, ws.LetIn) })
	}
	return nil
}

// scanLetIn fills in which tokens were let in.
func scanLetIn(rows pgx.Rows, letIn []machine.LetIn) error {
	for rows.Next() {
		var in machine.LetIn
		if err := rows.Scan((*[16]byte)(&in.Token), (*[16]byte)(&in.Parent), &in.Index); err != nil {
			return err
		}
		for i := range letIn {
			if letIn[i].Parent == in.Parent && letIn[i].Index == in.Index {
				letIn[i].Token = in.Token
			}
		}
	}
	return rows.Err()
}

func queueEnded(pipe *pgx.Batch, ws *store.Writes) error {
	var ids []machine.ID
	for id := range ws.Ended {
		// One that started and ended in this batch has no token.
		if ws.NewInstances[id] == nil {
			ids = append(ids, id)
		}
	}
	slices.SortFunc(ids, compareIDs)
	if len(ids) > 0 {
		pipe.Queue(deleteEnded, uuids(ids))
	}
	return nil
}

func (b *batch) queueHistory(pipe *pgx.Batch, ws *store.Writes) error {
	var rows historyRows
	for i := range ws.History {
		if err := rows.add(&ws.History[i], i); err != nil {
			return err
		}
	}
	if rows.instance.n > 0 {
		pipe.Queue(insertHistory, pgtype.Timestamptz{Time: b.world.Now, Valid: true}, rows.instance, rows.token, rows.fence, rows.position,
			rows.ord, rows.settledBy, rows.entry)
	}
	return nil
}
