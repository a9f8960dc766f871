package authstore

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/wiggle-run/wiggle/pkg/postgres"
	"github.com/wiggle-run/wiggle/services/auth/internal/policy"
)

const (
	// keptChanges is how many revisions are kept: whoever is further behind forgets everything.
	keptChanges = 10_000
	// maxForgotten bounds the names of one answer; more of them are everything.
	maxForgotten = 1000
)

// Changes are what caches must forget.
type Changes struct {
	// Revision is the last of the changes.
	Revision int64
	// CredentialIDs are sessions and keys, Accounts those all of whose sessions are meant, by name. All is everything.
	CredentialIDs, Accounts []string
	All                     bool
}

func (c *Changes) empty() bool { return !c.All && len(c.CredentialIDs) == 0 && len(c.Accounts) == 0 }

// bound turns what is too much into everything.
func (c *Changes) bound() {
	slices.Sort(c.CredentialIDs)
	c.CredentialIDs = slices.Compact(c.CredentialIDs)
	slices.Sort(c.Accounts)
	c.Accounts = slices.Compact(c.Accounts)
	if c.All || len(c.CredentialIDs)+len(c.Accounts) > maxForgotten {
		c.All, c.CredentialIDs, c.Accounts = true, nil, nil
	}
}

// Tx is a change under way. It is used by one goroutine, and not after the function that it was given to.
type Tx struct {
	// Now is the time of the change, and Roles are all roles as they are at its beginning.
	Now   time.Time
	Roles policy.Roles

	tx       pgx.Tx
	sessions policy.Sessions
	changes  Changes
	entries  []Entry
}

// Forget has caches forget sessions and keys, by id.
func (tx *Tx) Forget(credentialIDs ...string) {
	tx.changes.CredentialIDs = append(tx.changes.CredentialIDs, credentialIDs...)
}

// ForgetAccount has caches forget all sessions of an account, by its name.
func (tx *Tx) ForgetAccount(name string) { tx.changes.Accounts = append(tx.changes.Accounts, name) }

// ForgetAll has caches forget everything.
func (tx *Tx) ForgetAll() { tx.changes.All = true }

// Audit appends entries to the audit log when the change commits.
func (tx *Tx) Audit(entries ...Entry) { tx.entries = append(tx.entries, entries...) }

// Change runs do in a transaction while no other change does. It may be run again; what it returns an error for has not
// happened. The changes that are returned have revision 0 if caches have nothing to forget.
func (s *Store) Change(ctx context.Context, op string, do func(ctx context.Context, tx *Tx) error) (Changes, error) {
	var changes Changes
	err := s.pool.InTx(ctx, postgres.TxOptions{Op: op}, func(ctx context.Context, db pgx.Tx) error {
		tx := &Tx{tx: db, sessions: s.sessions}
		if err := tx.begin(ctx, s.now()); err != nil {
			return err
		}
		if err := do(ctx, tx); err != nil {
			return err
		}
		if err := tx.finish(ctx); err != nil {
			return err
		}
		changes = tx.changes
		return nil
	})
	if err != nil {
		return Changes{}, wrap(op, err)
	}
	return changes, nil
}

const lockSQL = "select from auth_state for update"

// begin waits for the change before, and only then reads the time and the roles. One round trip.
func (tx *Tx) begin(ctx context.Context, now *time.Time) error {
	var stored []policy.Role
	b := &pgx.Batch{}
	b.Queue(lockSQL)
	b.Queue("select coalesce($1::timestamptz, clock_timestamp())", now).QueryRow(func(row pgx.Row) error { return row.Scan(&tx.Now) })
	b.Queue(rolesSQL).Query(func(rows pgx.Rows) (err error) {
		stored, err = pgx.CollectRows(rows, scanRole)
		return err
	})
	if err := tx.tx.SendBatch(ctx, b).Close(); err != nil {
		return err
	}
	tx.Now, tx.Roles = tx.Now.UTC(), policy.WithBuiltIn(stored)
	return nil
}

// finish numbers the change and appends to the audit log.
func (tx *Tx) finish(ctx context.Context) error {
	if !tx.changes.empty() {
		tx.changes.bound()
		if err := tx.number(ctx); err != nil {
			return fmt.Errorf("number the change: %w", err)
		}
	}
	return appendEntries(ctx, tx.tx, &tx.Now, tx.entries)
}

// numberSQL trims by the front of the primary key.
const numberSQL = `
with state as (update auth_state set revision = revision + 1 returning revision),
trimmed as (delete from auth_changes where revision <= (select revision from state) - $4)
insert into auth_changes (revision, everything, credential_ids, accounts) select revision, $1, $2, $3 from state returning revision`

func (tx *Tx) number(ctx context.Context) error {
	c := &tx.changes
	return tx.tx.QueryRow(ctx, numberSQL, c.All, texts(c.CredentialIDs), texts(c.Accounts), keptChanges).Scan(&c.Revision)
}

// changesSQL reads behind a revision by the primary key, in one snapshot with the present revision.
const changesSQL = `
select s.revision, c.everything, c.credential_ids, c.accounts
from auth_state s left join lateral (
	select * from auth_changes where revision > $1 order by revision limit $2
) c on s.revision - $1 between 1 and $2`

// ChangesAfter tells what changed behind a revision. Whoever is too far behind, or ahead, which is before a restore from a
// backup, is to forget everything. One statement.
func (s *Store) ChangesAfter(ctx context.Context, after int64) (Changes, error) {
	var all Changes
	rows, err := s.pool.Query(ctx, changesSQL, after, int64(maxForgotten))
	if err != nil {
		return Changes{}, wrap("list changes", err)
	}
	var everything *bool
	var ids, accounts []string
	found := int64(0)
	_, err = pgx.ForEachRow(rows, []any{&all.Revision, &everything, &ids, &accounts}, func() error {
		if everything != nil {
			found++
			all.All = all.All || *everything
			all.CredentialIDs = append(all.CredentialIDs, ids...)
			all.Accounts = append(all.Accounts, accounts...)
		}
		return nil
	})
	if err != nil {
		return Changes{}, wrap("list changes", err)
	}
	if found != all.Revision-after {
		all.All = true
	}
	all.bound()
	return all, nil
}
