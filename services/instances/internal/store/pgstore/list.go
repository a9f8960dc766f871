package pgstore

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"

	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	"github.com/wiggle-run/wiggle/services/instances/internal/machine"
	"github.com/wiggle-run/wiggle/services/instances/internal/store"
)

// Lists and counts are built by the shape of their filter and, as they are few and
// may be large, planned anew each time for the table as it is. Both look at one
// state after the other, in instances_by_state or instances_by_workflow: within a
// state the index is in the order of time, so a page reads for each state its own
// rows and those of the same time; a count reads the index alone.
//
// For a caller who may not see every workflow they go workflow by workflow instead, each by instances_by_workflow: what
// others have costs it nothing, however much that is. Which workflows there are definitions tell, without which no
// instance is.

// where is a filter as conditions on one state s of instances i, and where not all workflows are seen on one workflow w.
type where struct {
	sql  strings.Builder
	from string // beside s
	args []any
}

// arg adds an argument and gives its placeholder.
func (w *where) arg(v any) string {
	w.args = append(w.args, v)
	return fmt.Sprintf("$%d", len(w.args))
}

func conditions(f store.Filter) *where {
	w := &where{args: []any{statesOf(f)}}
	fmt.Fprintf(&w.sql, "i.state = s.state and i.namespace = %s", w.arg(f.Namespace))
	switch {
	case !f.Only.All():
		w.sql.WriteString(" and i.workflow = w.workflow")
		w.from = w.workflows(f)
	case f.Workflow != "":
		fmt.Fprintf(&w.sql, " and i.workflow = %s", w.arg(f.Workflow))
	}
	if !f.From.IsZero() {
		fmt.Fprintf(&w.sql, " and i.created_at >= %s", w.arg(timestamp(f.From)))
	}
	if !f.Before.IsZero() {
		fmt.Fprintf(&w.sql, " and i.created_at < %s", w.arg(timestamp(f.Before)))
	}
	return w
}

// workflows are those of a namespace that are seen, by the primary key of definitions. $2 is the namespace.
func (w *where) workflows(f store.Filter) string {
	sql := fmt.Sprintf("d.namespace = $2 and (d.workflow = any (%s::text[]) or d.workflow ^@ any (%s::text[]))",
		w.arg(f.Only.Exact), w.arg(f.Only.Prefixes))
	if f.Workflow != "" {
		sql += " and d.workflow = " + w.arg(f.Workflow)
	}
	return "\ncross join (select distinct d.workflow from definitions d where " + sql + ") w"
}

// statesOf are the states that a filter asks for, each once.
func statesOf(f store.Filter) []int16 {
	var states []int16
	if len(f.States) == 0 {
		for number := range wigglev1.InstanceState_name {
			states = append(states, int16(number)) //nolint:gosec // a handful
		}
	}
	for _, state := range f.States {
		states = append(states, int16(state))
	}
	slices.Sort(states)
	return slices.Compact(states)
}

// List implements [store.Store].
func (s *Store) List(ctx context.Context, f store.Filter, after store.ListKey, limit int) ([]*machine.Instance, error) {
	done, err := s.reading(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	sql, args := listSQL(f, after, limit)
	rows, err := s.pool.Query(ctx, sql, append([]any{pgx.QueryExecModeExec}, args...)...)
	list, err := collect(rows, err, scanInstance)
	if err != nil {
		return nil, fmt.Errorf("list instances: %w", err)
	}
	return list, nil
}

func listSQL(f store.Filter, after store.ListKey, limit int) (sql string, args []any) {
	w := conditions(f)
	if after != (store.ListKey{}) {
		at := w.arg(timestamp(after.CreatedAt))
		fmt.Fprintf(&w.sql, " and i.created_at <= %s and (i.created_at, i.id) < (%s, %s)", at, at, w.arg(uuid(after.ID)))
	}
	lim := strconv.Itoa(max(limit, 0)) // in the text, so that the plan is made for a page
	return `select i.* from unnest($1::smallint[]) s(state)` + w.from + `
cross join lateral (select ` + instanceColumns + ` from instances i where ` + w.sql.String() + `
	order by i.created_at desc, i.id desc limit ` + lim + `) i
order by i.created_at desc, i.id desc limit ` + lim, w.args
}

// Count implements [store.Store].
func (s *Store) Count(ctx context.Context, f store.Filter) (map[machine.InstanceState]int64, error) {
	done, err := s.reading(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	sql, args := countSQL(f)
	rows, err := s.pool.Query(ctx, sql, append([]any{pgx.QueryExecModeExec}, args...)...)
	type count struct {
		state machine.InstanceState
		n     int64
	}
	list, err := collect(rows, err, func(rows pgx.Rows) (c count, err error) {
		return c, rows.Scan((*int16)(&c.state), &c.n)
	})
	if err != nil {
		return nil, fmt.Errorf("count instances: %w", err)
	}
	counts := make(map[machine.InstanceState]int64, len(list))
	for _, c := range list {
		counts[c.state] = c.n
	}
	return counts, nil
}

func countSQL(f store.Filter) (sql string, args []any) {
	w := conditions(f)
	counted := `
cross join lateral (select count(*) as n from instances i where ` + w.sql.String() + `) c
where c.n > 0`
	if w.from != "" {
		return `select s.state, sum(c.n)::bigint from unnest($1::smallint[]) s(state)` + w.from + counted + ` group by s.state`, w.args
	}
	return `select s.state, c.n from unnest($1::smallint[]) s(state)` + counted, w.args
}
