package searchstore

import (
	"context"
	"fmt"
	"math"

	"github.com/jackc/pgx/v5"
)

const (
	// countAll is up to how many matches are counted one by one. To visit the row of each match costs about a microsecond.
	countAll = 100_000
	// sampleMatches is about how many matches the part of the table has that is looked through where there are more: enough
	// for an error of a percent.
	sampleMatches = 10_000
)

// Facet is how many documents of a workflow are in a state.
type Facet struct {
	Workflow string
	State    int16
	Count    int64
}

// Facets are counts.
type Facets struct {
	List []Facet
	// Estimated tells that they are extrapolated from a part of the table.
	Estimated bool
}

// Facets counts what a search finds. Without words and conditions on the context it reads documents_newest alone; else the
// GIN index and the rows that it names. Where PostgreSQL expects very many of these, a part of the table's pages is looked
// through, the same for the same search.
func (s *Store) Facets(ctx context.Context, q *Query) (f Facets, err error) {
	err = s.read(ctx, "count facets", func(ctx context.Context, tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, facetsPlan); err != nil {
			return err
		}
		q, some, err := q.narrow(ctx, tx)
		if err != nil || !some {
			f = Facets{}
			return err
		}
		part := 1.0
		if !q.byColumns() {
			expected, err := expected(ctx, tx, q)
			if err != nil {
				return err
			}
			if expected > float64(s.countAll) {
				part = min(sampleMatches/expected, 1)
			}
		}
		sql, args := q.facetsSQL(part)
		rows, err := tx.Query(ctx, sql, args...)
		list, err := collect(rows, err, func(rows pgx.Rows) (f Facet, err error) {
			err = rows.Scan(&f.Workflow, &f.State, &f.Count)
			f.Count = int64(math.Round(float64(f.Count) / part))
			return f, err
		})
		f = Facets{List: list, Estimated: part < 1}
		return err
	})
	return f, err
}

// facetsPlan keeps a count from comparing the words of every row, which costs many times what PostgreSQL takes it for; and
// has the rows of a frequent word read by several processes.
const facetsPlan = "set local enable_seqscan = off; set local parallel_setup_cost = 100; set local min_parallel_table_scan_size = '32MB'"

// expected is how many matches PostgreSQL expects.
func expected(ctx context.Context, tx pgx.Tx, q *Query) (float64, error) {
	w := q.conditions(false)
	var plan []struct {
		Plan struct {
			Rows float64 `json:"Plan Rows"`
		}
	}
	// Planned with its parameters, as they are what it expects by.
	args := append([]any{pgx.QueryExecModeExec}, w.args...)
	if err := tx.QueryRow(ctx, "explain (format json) select from documents d where "+w.sql.String(), args...).Scan(&plan); err != nil {
		return 0, err
	}
	if len(plan) != 1 {
		return 0, fmt.Errorf("a plan of %d parts", len(plan))
	}
	return plan[0].Plan.Rows, nil
}

// byColumns tells whether nothing is asked of the words.
func (q *Query) byColumns() bool { return q.Words.Query == "" && len(q.Lexemes) == 0 }

// facetsSQL counts in a part of the table, 1 for all of it.
func (q *Query) facetsSQL(part float64) (sql string, args []any) {
	w := q.conditions(q.byColumns())
	sample := ""
	if part < 1 {
		sample = fmt.Sprintf(" tablesample system (%s::float4) repeatable (0)", w.arg(part*100))
	}
	return "select d.workflow, d.state, count(*) from documents d" + sample + " where " + w.sql.String() +
		" group by d.workflow, d.state", w.args
}
