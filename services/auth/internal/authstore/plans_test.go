package authstore

import (
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/wiggle-run/wiggle/internal/pgtest"
	"github.com/wiggle-run/wiggle/pkg/postgres"
	"github.com/wiggle-run/wiggle/services/auth/migrations"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// fill makes the tables large.
const fill = `
insert into accounts (key, name, roles, disabled, created_at)
select 'a' || g, 'A' || g, array[case when g = 77 then 'admin' else 'viewer' end], false, now() from generate_series(1, 5000) g;
insert into credentials (account_id, kind, secret, changed_at) select id, 'password', 'x', now() from accounts;
insert into sessions (id, account_id, created_at, used_at, expires_at, secret, address, user_agent)
select 's' || id || '-' || n, id, now() - n * interval '1 hour', now(), now() + interval '7 days', '\x00', '', ''
from accounts, generate_series(1, 4) n;
insert into keys (id, owner_id, created_at, secret, certificate_subject, name, created_by, roles, permissions)
select 'k' || id, id, now(), case when id % 2 = 0 then '\x00'::bytea end, case when id % 2 = 1 then 'CN=' || id end, 'key' || id, '', '{viewer}', '{}'
from accounts;
insert into sign_in_attempts (slot, kind, full_at) select g, 0, now() + g * interval '1 second' from generate_series(1, 20000) g;
insert into sign_in_origins (account_id, origin, seen_at) select id, '192.0.2.' || id % 200, now() - id * interval '1 minute' from accounts;
insert into auth_changes (revision, everything, credential_ids, accounts) select g, false, '{}', '{}' from generate_series(1, 10000) g;
insert into audit (seq, at, allowed, principal, address, action, target, detail, trace_id)
select g, now() - (60000 - g) * interval '1 minute', g % 100 <> 0, 'user/a' || g % 500, '192.0.2.1', 'action.a' || g % 50, 't' || g % 1000, 'word' || g % 3000, ''
from generate_series(1, 60000) g;
update auth_state set revision = 10000;
`

var scans = regexp.MustCompile(`(?:Index (?:Only )?Scan (?:Backward )?using|Bitmap Index Scan on) (\w+)|(Seq Scan on \w+)`)

// AUT-8 and the rules of stores: what is asked often, or for a page, goes by an index.
func TestPlans(t *testing.T) {
	t.Parallel()
	pool := pgtest.NewPool(t)
	if _, err := postgres.Migrate(t.Context(), pool, migrations.Set(), postgres.Apply); err != nil {
		t.Fatal(err)
	}
	if _, err := pool.Exec(t.Context(), fill); err != nil {
		t.Fatal(postgres.Detail(err))
	}
	if _, err := pool.Exec(t.Context(), "vacuum analyze"); err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	audit := func(f Filter) string { return "audit " + f.Principal + f.Action + f.Target + f.Text }
	type plan struct {
		sql  string
		args []any
		want []string
	}
	plans := map[string]plan{
		"account":     {accountSQL, []any{"a7"}, []string{"accounts_key_key"}},
		"accounts":    {accountsSQL, []any{"a7", 100}, []string{"accounts_key_key"}},
		"password":    {passwordSQL, []any{"a7"}, []string{"accounts_key_key", "credentials_pkey"}},
		"admin":       {adminSQL, []any{[]string{"admin"}}, []string{"accounts_by_role"}},
		"sessions":    {sessionsSQL, []any{"a7", now, time.Hour}, []string{"accounts_key_key", "sessions_of_account"}},
		"session":     {sessionPrincipalSQL, []any{"s7-1", now}, []string{"sessions_pkey", "accounts_pkey", "Seq Scan on auth_state", "roles"}},
		"key":         {keyByIDSQL, []any{"k7", now}, []string{"keys_pkey", "accounts_pkey", "Seq Scan on auth_state", "roles"}},
		"certificate": {keyBySubjectSQL, []any{"CN=7", now}, []string{"keys_certificate_subject_key", "accounts_pkey", "Seq Scan on auth_state", "roles"}},
		"keys":        {keysSQL, []any{"key7", 100, now}, []string{"keys_name_key"}},
		"tried":       {triedSQL, []any{now, "a7", "192.0.2.7"}, []string{"accounts_key_key", "sign_in_origins_pkey", "Seq Scan on auth_state"}},
		"changes":     {changesSQL, []any{int64(9990), int64(1000)}, []string{"auth_changes_pkey", "Seq Scan on auth_state"}},
		"clean tries": {cleanAttemptsSQL, []any{now, 1000}, []string{"sign_in_attempts_full", "sign_in_attempts_pkey"}},
	}
	for index, f := range map[string]Filter{
		"audit_pkey": {}, "audit_by_principal": {Principal: "user/a7"}, "audit_by_target": {Target: "t7"}, "audit_denied": {Denied: true},
		"audit_words": {Text: "word7"}, "audit_at": {Until: now.Add(-999 * time.Hour)},
	} {
		sql, args := entriesSQL(f, 0, 100)
		want := []string{index}
		if index == "audit_at" {
			want = append(want, "audit_pkey")
		}
		plans[audit(f)+index] = plan{sql, args, want}
	}
	for name, p := range plans {
		rows, err := pool.Query(t.Context(), "explain (costs off) "+p.sql, append([]any{pgx.QueryExecModeExec}, p.args...)...)
		if err != nil {
			t.Fatalf("%s: %s", name, postgres.Detail(err))
		}
		lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			t.Fatalf("%s: %s", name, postgres.Detail(err))
		}
		text := strings.Join(lines, "\n")
		for _, m := range scans.FindAllStringSubmatch(text, -1) {
			used := m[1] + m[2]
			if !slices.ContainsFunc(p.want, func(w string) bool { return strings.Contains(used, w) }) {
				t.Errorf("%s uses %s:\n%s", name, used, text)
			}
		}
	}
}
