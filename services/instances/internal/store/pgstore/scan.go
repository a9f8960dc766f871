package pgstore

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/wiggle-run/wiggle/services/instances/internal/machine"
	"github.com/wiggle-run/wiggle/services/instances/internal/store"
	"github.com/wiggle-run/wiggle/services/instances/internal/store/pgstore/internal/db"
)

// Reads of many instances with their contexts, for the search index. None takes a lock. What does not fit into an answer
// is not read to its end: a context that lies apart from its row is fetched as the row is sent.

// instanceWithContext are an instance's columns in the order of [db.Instance], with the context of one that runs from
// its first token, in r.
const instanceWithContext = `i.id, i.created_at, i.ended_at, i.version, i.position, i.state, i.priority, i.namespace, i.workflow,
	coalesce(r.view_type, i.context_type) as context_type, i.trace, i.failure,
	case when r.id is null then i.context else r.view end as context`

// firstToken goes by the primary key of tokens, once for each instance.
const firstToken = `left join lateral (select t.view_type, t.view, t.id from tokens t where t.id = i.id limit 1) r on true`

// manyInstances goes by the primary keys of instances and tokens, once for each id.
const manyInstances = `select u.ord, ` + instanceWithContext + `
from unnest($1::uuid[]) with ordinality u(id, ord)
cross join lateral (select i.* from instances i where i.id = u.id limit 1) i
` + firstToken + `
order by u.ord`

// scanHeads and scanInstances read a stretch of the primary key of instances; a namespace or workflow that is not there
// is found out by reading all that is behind.
const (
	scanTail = ` where i.id > $1 and ($2 = '' or i.namespace = $2) and ($3 = '' or i.workflow = $3)
order by i.id limit $4`
	scanHeads     = `select ` + instanceColumns + ` from instances i` + scanTail
	scanInstances = `select ` + instanceWithContext + ` from instances i ` + firstToken + scanTail
)

// Instances implements [store.Store].
func (s *Store) Instances(ctx context.Context, ids []machine.ID, maxBytes int) ([]*machine.Instance, error) {
	done, err := s.reading(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	rows, err := s.pool.Query(ctx, manyInstances, ids)
	if err != nil {
		return nil, fmt.Errorf("read instances: %w", err)
	}
	defer rows.Close()
	list := make([]*machine.Instance, len(ids))
	read := 0
	for bytes := 0; rows.Next(); {
		var ord int
		in, err := scanAfter(rows, &ord)
		if err != nil {
			return nil, err
		}
		if bytes += len(in.Context.Data); bytes > maxBytes && read > 0 {
			return list[:read], nil // what follows is for another call
		}
		list[ord-1], read = in, ord
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("read instances: %w", err)
	}
	return list, nil
}

// scanAfter reads a row whose first column is another.
func scanAfter(rows pgx.Rows, first any) (*machine.Instance, error) {
	var r db.Instance
	if err := rows.Scan(append([]any{first}, instanceTargets(&r)...)...); err != nil {
		return nil, fmt.Errorf("read instance: %w", err)
	}
	return decodeInstance(&r)
}

// Scan implements [store.Store].
func (s *Store) Scan(ctx context.Context, q store.Scan) (list []*machine.Instance, more bool, err error) {
	done, err := s.reading(ctx)
	if err != nil {
		return nil, false, err
	}
	defer done()
	sql := scanInstances
	if q.HeadsOnly {
		sql = scanHeads
	}
	rows, err := s.pool.Query(ctx, sql, uuid(q.After), q.Namespace, q.Workflow, q.Limit+1)
	if err != nil {
		return nil, false, fmt.Errorf("scan instances: %w", err)
	}
	defer rows.Close()
	for bytes := 0; rows.Next(); {
		in, err := scanInstance(rows)
		if err != nil {
			return nil, false, err
		}
		bytes += len(in.Context.Data)
		if n := len(list); n == q.Limit || n > 0 && bytes > q.MaxBytes {
			return list, true, nil
		}
		list = append(list, in)
	}
	if err := rows.Err(); err != nil {
		return nil, false, fmt.Errorf("scan instances: %w", err)
	}
	return list, false, nil
}
