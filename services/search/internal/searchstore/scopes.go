package searchstore

import (
	"context"
	"slices"

	"github.com/jackc/pgx/v5"
)

// maxLexemes bounds the workflows that a search for a limited caller asks the index for. Where it may see more of them in
// a namespace, they are most of it, and rows are looked at instead.
const maxLexemes = 500

// workflowsOf jumps in documents_of_workflow from one workflow of a namespace to the next, within each prefix.
const workflowsOf = `with recursive p as (select unnest($2::text[]) collate "C" as prefix), w as (
	select p.prefix, (select d.workflow from documents d
		where d.namespace = $1 and d.workflow >= p.prefix order by d.workflow limit 1) as workflow
	from p
	union all
	select w.prefix, (select d.workflow from documents d
		where d.namespace = $1 and d.workflow > w.workflow order by d.workflow limit 1)
	from w where w.workflow ^@ w.prefix
) select workflow from w where workflow ^@ prefix`

// narrow is a search by whoever may see some workflows as one that names these. It reports false if there are none.
func (q *Query) narrow(ctx context.Context, tx pgx.Tx) (*Query, bool, error) {
	if q.Only.All() {
		return q, true, nil
	}
	narrowed := *q
	switch {
	case len(q.Workflows) > 0:
		narrowed.Workflows = slices.DeleteFunc(slices.Clone(q.Workflows), func(name string) bool { return !q.Only.Match(name) })
	case len(q.Only.Prefixes) == 0:
		narrowed.Workflows = q.Only.Exact
	default:
		rows, err := tx.Query(ctx, workflowsOf, q.Namespace, q.Only.Prefixes)
		begun, err := collect(rows, err, func(rows pgx.Rows) (name string, err error) { return name, rows.Scan(&name) })
		if err != nil {
			return nil, false, err
		}
		narrowed.Workflows = slices.Concat(q.Only.Exact, begun)
	}
	return &narrowed, len(narrowed.Workflows) > 0, nil
}

// named is how many of the workflows are asked of the index: all, or for limited callers with very many none.
func (q *Query) named() int {
	if !q.Only.All() && len(q.Workflows) > maxLexemes {
		return 0
	}
	return len(q.Workflows)
}
