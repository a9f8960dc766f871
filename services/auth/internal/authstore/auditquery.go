package authstore

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// Filter narrows the audit log. What is empty narrows nothing.
type Filter struct {
	// Principal and Target are whole, Action is how an action begins.
	Principal, Target, Action string
	// Denied leaves what was not allowed.
	Denied bool
	// From and Until bound the time: at or after, before.
	From, Until time.Time
	// Text are words.
	Text string
}

// entriesSQL makes the query for a page of entries before a number (0: the newest), newest first. Numbers rise with times, so
// times are turned into numbers by audit_at, and every condition goes by an index that is ordered by numbers, or by the words'.
func entriesSQL(f Filter, before int64, limit int) (sql string, args []any) {
	var conditions []string
	where := func(condition string, arg any) {
		args = append(args, arg)
		conditions = append(conditions, fmt.Sprintf(condition, len(args)))
	}
	f.Principal, f.Target = fit(f.Principal, maxPrincipal), fit(f.Target, maxTarget)
	f.Action, f.Text = fit(f.Action, maxAction), fit(f.Text, maxPrincipal)
	if before > 0 {
		where("seq < $%d", before)
	}
	if f.Principal != "" {
		where("principal = $%d", f.Principal)
	}
	if f.Target != "" {
		where("target = $%d", f.Target)
	}
	if f.Action != "" {
		where("starts_with(action, $%[1]d) and action >= $%[1]d", f.Action)
	}
	if f.Denied {
		conditions = append(conditions, "not allowed")
	}
	if !f.From.IsZero() {
		where("seq >= (select a.seq from audit a where a.at >= $%d order by a.at, a.seq limit 1)", f.From)
	}
	if !f.Until.IsZero() {
		where("seq <= (select a.seq from audit a where a.at < $%d order by a.at desc, a.seq desc limit 1)", f.Until)
	}
	if f.Text != "" {
		where("words @@ plainto_tsquery('simple', translate($%d, '/.:@_+-', '       '))", f.Text)
	}
	sql = "select seq, at, principal, address, action, target, allowed, detail, trace_id from audit"
	if len(conditions) > 0 {
		sql += " where " + strings.Join(conditions, " and ")
	}
	args = append(args, limit)
	return sql + fmt.Sprintf(" order by seq desc limit $%d", len(args)), args
}

// Entries reads a page of the audit log, newest first, before a number; 0 is from the newest on.
func (s *Store) Entries(ctx context.Context, f Filter, before int64, limit int) ([]Entry, error) {
	sql, args := entriesSQL(f, before, limit)
	entries, err := list(ctx, s.pool, func(row pgx.CollectableRow) (Entry, error) {
		var e Entry
		err := row.Scan(&e.Seq, &e.At, &e.Principal, &e.Address, &e.Action, &e.Target, &e.Allowed, &e.Detail, &e.TraceID)
		e.At = e.At.UTC()
		return e, err
	}, sql, args...)
	return entries, wrap("list audit entries", err)
}
