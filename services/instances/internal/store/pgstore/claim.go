package pgstore

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/wiggle-run/wiggle/services/instances/internal/machine"
	"github.com/wiggle-run/wiggle/services/instances/internal/store"
	"github.com/wiggle-run/wiggle/services/instances/internal/store/pgstore/internal/db"
)

// claimTokens reads the front of tokens_ready once for each queue, in its order,
// and locks what nobody else has locked; the best of all queues are leased and the
// rest let go. It means what [machine.Claim] does. It waits for no lock. Bindings
// are checked on the rows: they are in no index, so a worker that serves a small
// part of a long queue pays for what it passes over.
//
// The leases' time is read when their tokens are locked, which clock sees to by
// counting them: since the statement began a token may have been leased, settled
// and made ready by others, and its leases must not overlap.
//
// Parameters: $1 namespace, $2 queues, $3 workflows, $4 versions, $5 worker, $6 lease, $7 tokens at most, $8 bytes
// at most.
const claimTokens = `with
picked as materialized (
	select r.*
	from unnest($2::text[]) q(queue)
	cross join lateral (
		select t.id, t.priority, t.instance_id, octet_length(t.view) as bytes
		from tokens t
		where t.namespace = $1 and t.queue = q.queue and t.state = 1 and t.due_at is null and ` + claimBinding + `
		order by t.priority desc, t.instance_id, t.id
		limit $7::bigint
		for update of t skip locked
	) r
),
` + claimBest

// claimOnward is claimTokens but for where it begins: for each queue and priority at a place in tokens_ready, see
// [fronts]. The places are in one list, the highest priority of each queue first.
//
// Parameters: as claimTokens, and $9 instances and $10 tokens of the places.
const claimOnward = `with
picked as materialized (
	select r.*
	from unnest($2::text[]) with ordinality q(queue, n)
	cross join lateral (
		select r.*
		from generate_series(9, 0, -1) p(priority)
		cross join lateral (
			select t.id, t.priority, t.instance_id, octet_length(t.view) as bytes
			from tokens t
			where t.namespace = $1 and t.queue = q.queue and t.priority = p.priority::smallint
				and (t.instance_id, t.id) >= (($9::uuid[])[q.n * 10 - p.priority], ($10::uuid[])[q.n * 10 - p.priority])
				and t.state = 1 and t.due_at is null and ` + claimBinding + `
			order by t.instance_id, t.id
			limit $7::bigint
			for update of t skip locked
		) r
		limit $7::bigint
	) r
),
` + claimBest

// claimBest is the rest of both.
const claimBest = `best as materialized (
	select p.id, p.rank
	from (
		select p.id, row_number() over w as rank, sum(coalesce(p.bytes, 0)) over w as total
		from picked p
		window w as (order by p.priority desc, p.instance_id, p.id rows unbounded preceding)
	) p
	where p.rank <= $7::bigint and (p.rank = 1 or p.total <= $8::bigint)
),
clock as materialized (select clock_timestamp() as at, count(*) from best),
leased as (
	update tokens t
	set state = 2, fence = t.fence + 1, worker = $5, leased_at = c.at,
		lease_until = least(c.at + $6::bigint * interval '1 microsecond', c.at + nullif(t.timeout_us, 0) * interval '1 microsecond'),
		deadline = c.at + nullif(t.timeout_us, 0) * interval '1 microsecond'
	from clock c cross join best b
	where t.id = any (array[b.id])
	returning ` + tokenColumns + tokenPayloads + `, b.rank
)
select t.*, ` + instanceColumns + `
from leased t cross join lateral (select i.* from instances i where i.id = t.instance_id limit 1) i
order by t.rank`

// claimBinding narrows a claim to what the worker serves.
const claimBinding = `(cardinality($3::text[]) = 0 or exists (
			select from unnest($3::text[], $4::integer[]) s(workflow, version)
			where s.workflow = t.workflow and (s.version = 0 or s.version = t.version)))`

// parentViews and childResults go by the primary key and by tokens_children.
const (
	parentViews  = `select t.id, t.view_type, t.view from tokens t where t.id = any ($1::uuid[])`
	childResults = `select t.parent_id, t.idx, t.key, t.has_result, t.view_type, t.view
from unnest($1::uuid[]) k(id)
cross join lateral (select c.* from tokens c where c.parent_id = k.id order by c.idx) t`
)

// Claim implements [store.Store].
func (s *Store) Claim(ctx context.Context, c store.Claim) ([]store.Claimed, error) {
	if c.Max <= 0 || len(c.Queues) == 0 {
		return nil, ctx.Err()
	}
	queues := distinct(c.Queues)
	claimed, begun, err := s.claim(ctx, &c, queues, false)
	if err == nil && len(claimed) == 0 && s.fronts.mayLook(begun, time.Now()) {
		claimed, _, err = s.claim(ctx, &c, queues, true)
	}
	if err != nil {
		return nil, fmt.Errorf("claim: %w", err)
	}
	if err := s.complete(ctx, claimed); err != nil {
		return claimed, fmt.Errorf("claim: read branches: %w", err)
	}
	return claimed, nil
}

// claim claims once: from where the fronts of the queues are, or with look from their beginning.
func (s *Store) claim(
	ctx context.Context, c *store.Claim, queues []string, look bool,
) (claimed []store.Claimed, begun *flight, err error) {
	budget := c.MaxBytes
	if budget == 0 {
		budget = store.DefaultClaimBytes
	}
	workflows, versions := make([]string, len(c.Workflows)), make([]int32, len(c.Workflows))
	for i, b := range c.Workflows {
		workflows[i], versions[i] = b.Workflow, b.Version
	}
	begun = s.fronts.begin(c, queues, look, time.Now())
	sql, args := claimTokens, []any{c.Namespace, queues, workflows, versions, c.Worker, c.Lease.Microseconds(), c.Max, budget}
	if begun.from != nil {
		instances, tokens := placeColumns(begun.from)
		sql, args = claimOnward, append(args, instances, tokens)
	}
	rows, err := s.pool.Query(ctx, sql, args...)
	claimed, err = collect(rows, err, scanClaimed)
	s.fronts.end(begun, claimed, err, time.Now())
	return claimed, begun, err
}

// placeColumns are places column by column, the highest priority of each queue first.
func placeColumns(queues []places) (instances, tokens []pgtype.UUID) {
	for _, q := range queues {
		for _, p := range slices.Backward(q[:]) {
			instances, tokens = append(instances, uuid(p.instance)), append(tokens, uuid(p.token))
		}
	}
	return instances, tokens
}

// distinct drops queues that are named twice: their tokens would be locked twice.
func distinct(queues []string) []string {
	seen, list := make(map[string]bool, len(queues)), make([]string, 0, len(queues))
	for _, q := range queues {
		if !seen[q] {
			seen[q] = true
			list = append(list, q)
		}
	}
	return list
}

func scanClaimed(rows pgx.Rows) (store.Claimed, error) {
	var t db.Token
	var in db.Instance
	var rank int64
	if err := rows.Scan(append(append(tokenTargets(&t), &rank), instanceTargets(&in)...)...); err != nil {
		return store.Claimed{}, fmt.Errorf("read claimed token: %w", err)
	}
	token, err := decodeToken(&t)
	if err != nil {
		return store.Claimed{}, err
	}
	instance, err := decodeInstance(&in)
	return store.Claimed{Token: token, Instance: instance}, err
}

// complete adds the context that a branch has around it and what branches brought
// to a combine. Neither changes while the token is leased; if it is gone, so is the
// lease.
func (s *Store) complete(ctx context.Context, claimed []store.Claimed) error {
	parents, joins := map[machine.ID]machine.Payload{}, map[machine.ID][]store.Result{}
	for _, c := range claimed {
		if !c.Token.Parent.IsZero() {
			parents[c.Token.Parent] = machine.Payload{}
		}
		if c.Token.Width > 0 {
			joins[c.Token.ID] = make([]store.Result, 0, c.Token.Width)
		}
	}
	pipe := &pgx.Batch{}
	if len(parents) > 0 {
		pipe.Queue(parentViews, uuids(keysOf(parents))).Query(func(rows pgx.Rows) error { return scanParents(rows, parents) })
	}
	if len(joins) > 0 {
		pipe.Queue(childResults, uuids(keysOf(joins))).Query(func(rows pgx.Rows) error { return scanResults(rows, joins) })
	}
	if pipe.Len() == 0 {
		return nil
	}
	if err := s.pool.SendBatch(ctx, pipe).Close(); err != nil {
		return err
	}
	for i := range claimed {
		t := claimed[i].Token
		claimed[i].Base = parents[t.Parent]
		claimed[i].Results = joins[t.ID]
	}
	return nil
}

func keysOf[V any](m map[machine.ID]V) []machine.ID {
	ids := make([]machine.ID, 0, len(m))
	for id := range m {
		ids = append(ids, id)
	}
	return ids
}

func scanParents(rows pgx.Rows, parents map[machine.ID]machine.Payload) error {
	for rows.Next() {
		var id machine.ID
		var view machine.Payload
		if err := rows.Scan((*[16]byte)(&id), &view.ContentType, &view.Data); err != nil {
			return err
		}
		parents[id] = view
	}
	return rows.Err()
}

func scanResults(rows pgx.Rows, joins map[machine.ID][]store.Result) error {
	for rows.Next() {
		var parent machine.ID
		var r store.Result
		if err := rows.Scan((*[16]byte)(&parent), &r.Index, &r.Key, &r.HasResult, &r.View.ContentType, &r.View.Data); err != nil {
			return err
		}
		joins[parent] = append(joins[parent], r)
	}
	return rows.Err()
}
