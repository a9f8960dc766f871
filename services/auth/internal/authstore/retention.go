package authstore

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/wiggle-run/wiggle/pkg/lifecycle"
	"github.com/wiggle-run/wiggle/pkg/postgres"
)

const (
	// trimBatch is how many rows one transaction removes.
	trimBatch = 5000
	// keptOrigins is for how long an address from which an account has signed in is known.
	keptOrigins = 90 * 24 * time.Hour
)

// TrimAudit removes the oldest entries of the audit log if they are older than kept, a batch at a time, and records that it
// did, in the same transaction. Only the trigger that it tells so lets it. lifecycle.ErrMore where there is more to remove.
func (s *Store) TrimAudit(ctx context.Context, kept time.Duration) error {
	removed := 0
	err := s.pool.InTx(ctx, postgres.TxOptions{Op: "trim the audit log"}, func(ctx context.Context, tx pgx.Tx) (err error) {
		removed, err = s.trimAudit(ctx, tx, kept)
		return err
	})
	if err == nil && removed == trimBatch {
		return lifecycle.ErrMore
	}
	return err
}

// trimSQL goes by the old end of audit_at. Only one process trims at a time: it has locked the end of the log.
const trimSQL = `
with gone as (
	delete from audit where seq in (
		select seq from audit where at < current_setting('wiggle.audit_retention')::timestamptz order by at, seq limit $1
	) returning seq
)
select count(*), coalesce(min(seq), 0), coalesce(max(seq), 0) from gone`

func (s *Store) trimAudit(ctx context.Context, tx pgx.Tx, kept time.Duration) (removed int, err error) {
	var until string
	err = tx.QueryRow(ctx, `
		select set_config('wiggle.audit_retention', (coalesce($1::timestamptz, now()) - $2::interval)::text, true)
		from audit_head for update`,
		s.now(), kept).Scan(&until)
	if err != nil {
		return 0, err
	}
	var first, last int64
	if err := tx.QueryRow(ctx, trimSQL, trimBatch).Scan(&removed, &first, &last); err != nil || removed == 0 {
		return 0, err
	}
	return removed, appendEntries(ctx, tx, s.now(), []Entry{{
		Principal: "service", Action: "audit.trim", Target: fmt.Sprintf("%d-%d", first, last), Allowed: true,
		Detail: fmt.Sprintf("removed %d entries from before %s, as WIGGLE_AUTH_AUDIT_RETENTION says", removed, until),
	}})
}

// Sessions that are over are few among those that are not, and both are few: the table is read.
const (
	cleanSessionsSQL = `
delete from sessions where id in (
	select id from sessions
	where expires_at <= coalesce($1::timestamptz, now()) or used_at <= coalesce($1::timestamptz, now()) - $2::interval
	limit $3 for update skip locked
)`
	// cleanAttemptsSQL goes by sign_in_attempts_full: a slot whose burst is there is as one that is not.
	cleanAttemptsSQL = `
delete from sign_in_attempts where (slot, kind) in (
	select slot, kind from sign_in_attempts where full_at <= coalesce($1::timestamptz, now())
	order by full_at limit $2 for update skip locked
)`
	// cleanOriginsSQL goes by sign_in_origins_seen.
	cleanOriginsSQL = `
delete from sign_in_origins where (account_id, origin) in (
	select account_id, origin from sign_in_origins where seen_at <= coalesce($1::timestamptz, now()) - $2::interval
	order by seen_at limit $3
)`
)

// Clean removes a batch of what is over: sessions, limits of tries, forgotten addresses. lifecycle.ErrMore where there is more.
func (s *Store) Clean(ctx context.Context) error {
	more := false
	for _, c := range []struct {
		sql  string
		args []any
	}{
		{cleanSessionsSQL, []any{s.now(), s.sessions.Idle, trimBatch}},
		{cleanAttemptsSQL, []any{s.now(), trimBatch}},
		{cleanOriginsSQL, []any{s.now(), keptOrigins, trimBatch}},
	} {
		tag, err := s.pool.Exec(ctx, c.sql, c.args...)
		if err != nil {
			return wrap("clean up", err)
		}
		more = more || tag.RowsAffected() == trimBatch
	}
	if more {
		return lifecycle.ErrMore
	}
	return nil
}
