package pgstore

import (
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/wiggle-run/wiggle/pkg/permission"
	"github.com/wiggle-run/wiggle/pkg/postgres"
	"github.com/wiggle-run/wiggle/services/instances/internal/machine"
	"github.com/wiggle-run/wiggle/services/instances/internal/store"
)

// plans says for each statement, by words of its text, which indexes its plan goes
// by, in the plan's order: with a star where no condition narrows the scan, which is
// right only for the end of an index or where its predicate is narrow.
func plans() map[string]string {
	return map[string]string{
		"name: DefinitionByVersion":          "definitions_pkey",
		"name: DefinitionVersions":           "definitions_pkey",
		"name: DefinitionsAfter":             "definitions_revision_key",
		"name: LatestDefinition":             "definitions_pkey",
		"name: InsertDefinition":             "",
		"name: RegisterDefinition":           "definitions_revision_key*",
		"name: Revision":                     "definitions_revision_key*",
		"name: Due":                          "tokens_due",
		"name: Expired":                      "sort tokens_leased*",
		"name: Ended":                        "instances_pkey",
		"name: History":                      "sort history_pkey",
		"name: Instance":                     "instances_pkey tokens_pkey tokens_of_instance",
		"u.ord, i.id, i.created_at":          "instances_pkey tokens_pkey",
		"u.ord, i.namespace, i.workflow\n":   "instances_pkey",
		"u.ord, i.namespace, i.workflow, i.": "tokens_pkey instances_pkey history_pkey",
		"from instances i where i.id > $1":   "instances_pkey",
		"r on true where i.id > $1":          "instances_pkey tokens_pkey",
		"with t as materialized":             "tokens_of_instance sort",
		"order by i.id for no key update":    "instances_pkey",
		"order by t.id for update of t":      "tokens_pkey tokens_pkey",
		"select k.namespace, k.workflow":     "definitions_pkey",
		"select k.instance_id, k.token_id":   "history_pkey",
		"insert into instances":              "",
		"insert into tokens":                 "",
		"insert into events":                 "",
		"select $1::timestamptz, u.*":        "",
		"update instances i set":             "instances_pkey tokens_pkey tokens_pkey",
		"with met as (update tokens t":       "tokens_pkey",
		"with moved as":                      "tokens_pkey",
		"update tokens t set due_at":         "tokens_children tokens_pkey",
		"delete from tokens where parent_id": "tokens_children",
		"delete from tokens where instance":  "tokens_of_instance",
		"picked as materialized":             "sort tokens_ready sort tokens_pkey instances_pkey",
		"select t.id, t.view_type, t.view":   "tokens_pkey",
		"select t.parent_id, t.idx":          "tokens_children",
		"held as materialized":               "tokens_leased tokens_pkey",
		"select b.id, b.fence":               "tokens_leased",
		"taken as (":                         "sweep_lease_pkey tokens_ready* tokens_ready tokens_due* tokens_leased*",
	}
}

var (
	scan  = regexp.MustCompile(`Index (?:Only )?Scan (?:Backward )?using (\w+) on`)
	other = regexp.MustCompile(`Seq Scan|Bitmap|Hash Join|Merge Join|Incremental Sort`)
)

// summary is a plan in the words of plans.
func summary(plan []string) string {
	var words []string
	for i, line := range plan {
		switch m := scan.FindStringSubmatch(line); {
		case m != nil && i+1 < len(plan) && strings.Contains(plan[i+1], "Index Cond"):
			words = append(words, m[1])
		case m != nil:
			words = append(words, m[1]+"*")
		case other.MatchString(line):
			words = append(words, strings.ToLower(strings.TrimLeft(line, " ->")))
		case strings.HasSuffix(line, "Sort"):
			words = append(words, "sort")
		}
	}
	return strings.Join(words, " ")
}

// explain plans a statement as a pool's session does, once for all parameters.
func explain(t *testing.T, conn *pgxpool.Conn, sql string) []string {
	t.Helper()
	ctx := t.Context()
	if _, err := conn.Exec(ctx, "prepare explained as "+sql, pgx.QueryExecModeSimpleProtocol); err != nil {
		t.Fatalf("%v in %s", err, sql)
	}
	var params int
	if err := conn.QueryRow(ctx, "select cardinality(parameter_types) from pg_prepared_statements where name = 'explained'", pgx.QueryExecModeExec).Scan(&params); err != nil {
		t.Fatal(err)
	}
	execute := "explain (costs off) execute explained"
	if params > 0 {
		execute += "(" + strings.TrimSuffix(strings.Repeat("null,", params), ",") + ")"
	}
	rows, err := conn.Query(ctx, execute, pgx.QueryExecModeSimpleProtocol)
	plan, err := collect(rows, err, func(rows pgx.Rows) (line string, err error) { return line, rows.Scan(&line) })
	if err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Exec(ctx, "deallocate explained", pgx.QueryExecModeSimpleProtocol); err != nil {
		t.Fatal(err)
	}
	return plan
}

// fill makes the tables large: instances that ended, tokens in every state, history.
const fill = `
insert into instances (id, created_at, version, position, state, priority, namespace, workflow)
select lpad(to_hex(g), 32, '0')::uuid, now() - g * interval '1 second', 1, 2, case when g % 20 = 0 then 1 else 3 end, 5,
	'n' || g % 3, 'w' || g % 5
from generate_series(1, 20000) g;
insert into tokens (id, instance_id, parent_id, fence, settled_fence, timeout_us, due_at, idx, attempt, version, width, pending,
	next_idx, position, state, priority, settled_by, held, has_result, namespace, workflow, queue, node, key, worker, view_type,
	progress_type, lease_until)
select lpad(to_hex(g), 32, '0')::uuid, lpad(to_hex(g / 10), 32, '0')::uuid, lpad(to_hex(g / 10), 32, '0')::uuid, 1, 0, 0,
	case when g % 5 = 3 then now() + g * interval '1 second' end, g % 10, 1, 1, 0, 0, 0, 0,
	case g % 5 when 0 then 1 when 1 then 1 when 2 then 2 when 3 then 3 else 6 end, 5, 0, false, false, 'n' || g % 3, 'w' || g % 5,
	'q' || g % 4, 'a', '', '', '', '', now() + g * interval '1 second'
from generate_series(1, 20000) g;
insert into history (instance_id, token_id, recorded_at, position, ord, settled_by, entry)
select lpad(to_hex(g / 10), 32, '0')::uuid, lpad(to_hex(g / 10), 32, '0')::uuid, now(), g % 10, 0, 1, ''
from generate_series(1, 20000) g;
insert into definitions (namespace, workflow, version, fingerprint, revision, registered_at, graph)
select 'n', 'w' || g % 50, g, '', g + 10, now(), '' from generate_series(1, 2000) g;
`

const truncate = "truncate tokens, instances, history, definitions;"

// Statistics are taken by the tests that ask for some, and at no other moment.
const alone = `
alter table tokens set (autovacuum_enabled = false);
alter table instances set (autovacuum_enabled = false);
alter table history set (autovacuum_enabled = false);
alter table definitions set (autovacuum_enabled = false);
`

// Every statement goes by the same indexes whatever the tables held when it was
// planned: nothing yet, a lot, or nothing any more.
func TestPlans(t *testing.T) {
	t.Parallel()
	r := &recorder{sql: map[string]bool{}}
	pool := open(t, func(c *postgres.MemberConfig) { c.Tracer = r })
	exercise(t, New(pool))
	statements := r.statements()
	conn, err := pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	for _, state := range []struct{ name, sql string }{
		{"never analyzed", alone + truncate},
		{"empty", "analyze"},
		{"full", fill + "analyze"},
		{"emptied", "delete from tokens; delete from instances; delete from history; delete from definitions"},
		{"emptied and analyzed", "vacuum analyze"},
		{"full again", fill + "analyze"},
		{"truncated", truncate},
	} {
		if _, err := conn.Exec(t.Context(), state.sql, pgx.QueryExecModeSimpleProtocol); err != nil {
			t.Fatal(err)
		}
		seen := map[string]bool{}
		for _, sql := range statements {
			words, want, ok := expected(sql)
			if !ok {
				t.Errorf("no plan is expected of %s", sql)
				continue
			}
			seen[words] = true
			plan := explain(t, conn, sql)
			if got := summary(plan); got != want {
				t.Errorf("%s: the plan goes by %q, want %q\n%s\n%s", state.name, got, want, sql, strings.Join(plan, "\n"))
			}
		}
		if len(seen) != len(plans()) {
			t.Errorf("%d of %d statements were run", len(seen), len(plans()))
		}
	}
}

func expected(sql string) (words, want string, ok bool) {
	for words, want := range plans() {
		if strings.Contains(sql, words) {
			return words, want, true
		}
	}
	return "", "", false
}

// statements are what was recorded, without what reads no table and without lists, which
// are planned anew each time.
func (r *recorder) statements() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.DeleteFunc(slices.Sorted(maps.Keys(r.sql)), func(sql string) bool {
		return strings.HasPrefix(sql, "begin") || sql == "commit" || sql == "rollback" || sql == "select clock_timestamp()" || sql == giveWay ||
			strings.Contains(sql, "lock table") || strings.Contains(sql, "s(state)")
	})
}

// On large tables a page of a list reads the front of each state's part of an
// index, and a count reads an index alone.
func TestListPlans(t *testing.T) {
	t.Parallel()
	pool := open(t)
	conn, err := pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	for _, sql := range []string{fill, "vacuum analyze"} {
		if _, err := conn.Exec(t.Context(), sql, pgx.QueryExecModeSimpleProtocol); err != nil {
			t.Fatal(err)
		}
	}
	key := store.ListKey{CreatedAt: time.Now(), ID: machine.ID{1}}
	only := &permission.Names{Exact: []string{"w1"}, Prefixes: []string{"x"}}
	some := store.Filter{Namespace: "n1", Only: only}
	sql, _ := listSQL(some, key, 50)
	plan := strings.Join(explain(t, conn, sql), "\n")
	if !strings.Contains(plan, "instances_by_workflow") || !strings.Contains(plan, "definitions_pkey") ||
		strings.Contains(plan, "Seq Scan on instances") || strings.Contains(plan, "instances_by_state") {
		t.Errorf("a list of some workflows goes by\n%s", plan)
	}
	sql, _ = countSQL(some)
	if plan = strings.Join(explain(t, conn, sql), "\n"); !strings.Contains(plan, "Index Only Scan using instances_by_workflow") {
		t.Errorf("a count of some workflows goes by\n%s", plan)
	}
	for index, f := range map[string]store.Filter{
		"instances_by_state":    {Namespace: "n1", Before: time.Now()},
		"instances_by_workflow": {Namespace: "n1", Workflow: "w1"},
	} {
		sql, _ := listSQL(f, key, 50)
		if strings.Contains(sql, "w.") {
			t.Errorf("a list of all workflows reads others: %s", sql)
		}
		plan := explain(t, conn, sql)
		if got, want := summary(plan), "sort incremental sort "+index; got != want {
			t.Errorf("a list goes by %q, want %q\n%s", got, want, strings.Join(plan, "\n"))
		}
		sql, _ = countSQL(f)
		plan = explain(t, conn, sql)
		if got := summary(plan); got != index || !strings.Contains(strings.Join(plan, "\n"), "Index Only Scan") {
			t.Errorf("a count goes by %q, want %q alone\n%s", got, index, strings.Join(plan, "\n"))
		}
	}
}
