package authstore

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/wiggle-run/wiggle/pkg/faults"
	"github.com/wiggle-run/wiggle/pkg/postgres"
)

// Entry is one thing that somebody did or tried.
type Entry struct {
	// Seq and At are given when it is appended.
	Seq int64
	At  time.Time
	// Principal did Action on Target from Address.
	Principal, Address, Action, Target string
	Allowed                            bool
	Detail, TraceID                    string
}

// Bounds of an entry's texts, in bytes. What is longer is cut.
const (
	maxPrincipal = 256
	maxAction    = 128
	maxTarget    = 512
	maxDetail    = 1024
	maxTrace     = 64
)

// appendSQL locks the end of the log until the commit: numbers have no gaps, in the order of commits, and times follow them.
const appendSQL = `
with head as (
	update audit_head set seq = seq + $1, at = greatest(at, coalesce($2::timestamptz, clock_timestamp())) returning seq - $1 as before, at
)
insert into audit (seq, at, principal, address, action, target, allowed, detail, trace_id)
select head.before + u.n, head.at, u.principal, u.address, u.action, u.target, u.allowed, u.detail, u.trace_id
from head, unnest($3::text[], $4::text[], $5::text[], $6::text[], $7::boolean[], $8::text[], $9::text[])
	with ordinality u (principal, address, action, target, allowed, detail, trace_id, n)`

// appendEntries appends entries in their order. It is the last that a transaction does.
func appendEntries(ctx context.Context, tx pgx.Tx, now *time.Time, entries []Entry) error {
	n := len(entries)
	if n == 0 {
		return nil
	}
	principals, addresses, actions, targets := make([]string, n), make([]string, n), make([]string, n), make([]string, n)
	details, traces, allowed := make([]string, n), make([]string, n), make([]bool, n)
	for i, e := range entries {
		principals[i], addresses[i], actions[i] = fit(e.Principal, maxPrincipal), fit(e.Address, maxAddress), fit(e.Action, maxAction)
		// What callers named may be a credential, and what is in the log stays there.
		targets[i], details[i] = fit(faults.Hide(e.Target), maxTarget), fit(faults.Hide(e.Detail), maxDetail)
		traces[i] = fit(e.TraceID, maxTrace)
		allowed[i] = e.Allowed
	}
	_, err := tx.Exec(ctx, appendSQL, int64(n), now, principals, addresses, actions, targets, allowed, details, traces)
	if err != nil {
		return fmt.Errorf("append to the audit log: %w", err)
	}
	return nil
}

// Record appends entries that belong to no change.
func (s *Store) Record(ctx context.Context, entries ...Entry) error {
	return s.pool.InTx(ctx, postgres.TxOptions{Op: "record"}, func(ctx context.Context, tx pgx.Tx) error {
		return appendEntries(ctx, tx, s.now(), entries)
	})
}
