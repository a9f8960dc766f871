package searchstore

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/wiggle-run/wiggle/internal/pgtest"
	"github.com/wiggle-run/wiggle/pkg/permission"
	"github.com/wiggle-run/wiggle/pkg/postgres"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	"github.com/wiggle-run/wiggle/services/search/internal/document"
	"github.com/wiggle-run/wiggle/services/search/migrations"
)

// fill makes 10 000 documents, of the 40 000 that there are in the end: a busy machine writes no more within the time of a
// statement. Each has the word common, one in a hundred medium, one in ten thousand rare.
const fill = `
insert into documents (created_at, content, id, shard, revision, version, state, priority, namespace, workflow, numbers, words)
select now() - g * interval '1 second', 0, lpad(to_hex(g), 32, '0')::uuid, g % 3, 1, 1, case when g % 50 = 0 then 4 else 3 end, 5, 'n',
	'w' || g % 5, jsonb_build_object('/total', g), to_tsvector('simple', $4 || ' common word' || g % 1000 || ' unique' || g ||
		case when g % 100 = 0 then ' medium' else '' end || case when g % 10000 = 0 then ' rare' else '' end)
	|| array_to_tsvector(array[($1::text[])[1 + g % 5], case when g % 50 = 0 then $2 else $3 end])
from generate_series($5::int + 1, $5::int + 10000) g`

// padding makes documents as large as they are.
func padding(words int) string {
	var b strings.Builder
	for i := range words {
		fmt.Fprintf(&b, " padding%d", i)
	}
	return b.String()
}

// explain gives the plan of a statement as the store's sessions make it.
func explain(t *testing.T, pool *postgres.Pool, sql string, args []any) string {
	t.Helper()
	rows, err := pool.Query(t.Context(), "explain (costs off) "+sql, append([]any{pgx.QueryExecModeExec}, args...)...)
	lines, err := collect(rows, err, func(rows pgx.Rows) (line string, err error) { return line, rows.Scan(&line) })
	if err != nil {
		t.Fatal(postgres.Detail(err))
	}
	return strings.Join(lines, "\n")
}

// Few matches are found by their words, many by walking from the newest on; counts without words read an index alone; and
// what concerns known documents goes by the primary key.
func TestPlans(t *testing.T) {
	t.Parallel()
	pool := pgtest.NewPool(t, Configure)
	if _, err := postgres.Migrate(t.Context(), pool, migrations.Set(), postgres.Apply); err != nil {
		t.Fatal(err)
	}
	var lexemes []string
	for i := range 5 {
		lexemes = append(lexemes, document.WorkflowLexeme(fmt.Sprint("w", i)))
	}
	failed := wigglev1.InstanceState_INSTANCE_STATE_FAILED
	for part := range 4 {
		_, err := pool.Exec(t.Context(), fill, lexemes, document.StateLexeme(failed), "=sother", padding(40), part*10_000)
		if err != nil {
			t.Fatal(postgres.Detail(err))
		}
	}
	// Where commits are not flushed at once, as on a server for tests, rows are seen to be visible to all after a checkpoint.
	for _, sql := range []string{"analyze", "checkpoint", "vacuum documents"} {
		if _, err := pool.Exec(t.Context(), sql); err != nil {
			t.Fatal(postgres.Detail(err))
		}
	}
	const words, newest = "documents_words", "documents_newest"
	query := func(text string, change ...func(*Query)) *Query {
		q := &Query{Filter: Filter{Namespace: "n"}}
		if text != "" {
			q.Words = Words{Query: text, Ranked: true}
		}
		for _, f := range change {
			f(q)
		}
		return q
	}
	after := &Position{CreatedAt: time.Now()}
	atLeast := 100.0
	rank := func(q *Query, w Window, after *Position) func() (string, []any) {
		return func() (string, []any) { return q.rankSQL(w, after, 21) }
	}
	list := func(q *Query, after *Position) func() (string, []any) {
		return func() (string, []any) { return q.listSQL(after, 21) }
	}
	facets := func(q *Query) func() (string, []any) { return func() (string, []any) { return q.facetsSQL(1) } }
	fixed := func(sql string, args ...any) func() (string, []any) {
		return func() (string, []any) { return sql, args }
	}
	shards, ids := keyArrays([]document.Key{{Shard: 1}})
	for name, test := range map[string]struct {
		sql        func() (string, []any)
		want, none string
	}{
		"rare word":           {rank(query("'rare'"), Window{}, nil), words, newest},
		"rare and common":     {rank(query("'rare'&'common'"), Window{}, nil), words, newest},
		"common word":         {rank(query("'common'"), Window{}, nil), newest, words},
		"common, second page": {rank(query("'common'"), Window{Known: true, Lower: time.Now().Add(-time.Minute)}, after), newest, words},
		"state":               {list(query("", func(q *Query) { q.States = []wigglev1.InstanceState{failed}; q.Lexemes = []string{"unique77"} }), nil), words, newest},
		"newest":              {list(query(""), nil), newest, words},
		"newest, next page":   {list(query(""), after), newest, words},
		"number":              {list(query("", func(q *Query) { q.Ranges = []Range{{Path: "/total", AtLeast: &atLeast}} }), nil), newest, words},
		"facets":              {facets(query("")), "Index Only Scan using " + newest, words},
		"facets of a state":   {facets(query("", func(q *Query) { q.States = []wigglev1.InstanceState{failed} })), "Index Only Scan using " + newest, words},
		"facets of a word":    {facets(query("'medium'")), words, newest},
		"heads":               {fixed(heads, int32(1), ids[0], ids[0], true, "", "", 100), "documents_pkey", "Seq Scan"},
		"heads of keys":       {fixed(headsByKey, shards, ids), "documents_pkey", "Seq Scan"},
		"namespaces":          {fixed(namespaces, 100), "Index Only Scan", "Seq Scan"},
		"rare workflow of who sees some": {
			list(query("", func(q *Query) { q.Workflows, q.Only = []string{"none"}, &permission.Names{} }), nil), words, newest,
		},
		"newest of who sees most": {list(query("", func(q *Query) {
			q.Workflows, q.Only = []string{"w0", "w1", "w2", "w3"}, &permission.Names{}
		}), nil), newest, words},
		"workflows": {fixed(workflowsOf, "n", []string{"w"}), "documents_of_workflow", "Seq Scan on documents"},
		"delete":    {fixed(remove, shards, ids, []int32{1}), "documents_pkey", "Seq Scan on documents"},
	} {
		sql, args := test.sql()
		plan := explain(t, pool, sql, args)
		if !strings.Contains(plan, test.want) || strings.Contains(plan, test.none) {
			t.Errorf("%s: the plan should go by %s and not by %s\n%s\n%s", name, test.want, test.none, sql, plan)
		}
	}
	estimates(t, pool, query)
}

// Where very many documents match their counts are extrapolated, the same each time and not far off.
func estimates(t *testing.T, pool *postgres.Pool, query func(string, ...func(*Query)) *Query) {
	t.Helper()
	s := New(pool, "simple")
	s.countAll = 20_000
	few, err := s.Facets(t.Context(), query("'medium'"))
	if err != nil || few.Estimated || total(few) != 400 {
		t.Errorf("few are counted: %v, %v", few, err)
	}
	many, err := s.Facets(t.Context(), query("'common'"))
	if err != nil || !many.Estimated || total(many) < 36_000 || total(many) > 44_000 || len(many.List) < 5 {
		t.Errorf("many are estimated: %v, %v", many, err)
	}
	again, err := s.Facets(t.Context(), query("'common'"))
	if err != nil || total(again) != total(many) {
		t.Errorf("asked again: %v after %v, %v", again, many, err)
	}
	seen := &permission.Names{Exact: []string{"w1", "w2"}, Prefixes: []string{"w3", "w4", "x"}}
	s.countAll = 10_000
	some, err := s.Facets(t.Context(), query("'common'", func(q *Query) { q.Only = seen }))
	if err != nil || !some.Estimated || total(some) < 28_000 || total(some) > 36_000 || len(some.List) != 4 ||
		slices.ContainsFunc(some.List, func(f Facet) bool { return f.Workflow == "w0" }) {
		t.Errorf("those that somebody sees are estimated: %v, %v", some, err)
	}
	all, err := s.Facets(t.Context(), query(""))
	if err != nil || all.Estimated || total(all) != 40_000 {
		t.Errorf("all: %v, %v", all, err)
	}
}

func total(f Facets) (n int64) {
	for _, facet := range f.List {
		n += facet.Count
	}
	return n
}
