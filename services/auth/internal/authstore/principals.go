package authstore

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/wiggle-run/wiggle/services/auth/internal/policy"
)

// Principal is whose a credential is, as it is stored.
type Principal struct {
	// Name of the account or key.
	Name string
	// Key tells a key from a session.
	Key bool
	// CredentialID is the session's or key's, Owner the account that it is or goes with; 0 for none.
	CredentialID string
	Owner        int64
	// Disabled accounts' credentials are not valid.
	Disabled           bool
	Roles, Permissions []string
	// Secret and OldSecret are hashes. The old one is valid until OldSecretUntil.
	Secret, OldSecret []byte
	OldSecretUntil    time.Time
	// Ends is when it ends by itself: zero if never. A session that is used meanwhile ends later.
	Ends, UsedAt time.Time
	// Now is the time, and Revision that of everything, at which it was read.
	Now      time.Time
	Revision int64
}

// maxSubject bounds the subject of a certificate.
const maxSubject = 512

// Both read by the primary key, with the permissions of its stored roles and the revision, in one snapshot.
const (
	sessionPrincipalSQL = `
select a.name, a.id, a.disabled, a.roles, s.secret, s.used_at, s.expires_at,
	(select coalesce(array_agg(p), '{}') from roles r, unnest(r.permissions) p where r.name = any (a.roles)),
	(select revision from auth_state), coalesce($2::timestamptz, clock_timestamp())
from sessions s join accounts a on a.id = s.account_id where s.id = $1`
	keyPrincipalSQL = `
select k.name, k.id, coalesce(k.owner_id, 0), coalesce(a.disabled, false), k.roles, k.permissions, k.secret, k.old_secret,
	k.old_secret_until, k.used_at, k.expires_at,
	(select coalesce(array_agg(p), '{}') from roles r, unnest(r.permissions) p where r.name = any (k.roles)),
	(select revision from auth_state), coalesce($2::timestamptz, clock_timestamp())
from keys k left join accounts a on a.id = k.owner_id where `
	keyByIDSQL      = keyPrincipalSQL + "k.id = $1"
	keyBySubjectSQL = keyPrincipalSQL + "k.certificate_subject = $1"
)

// SessionPrincipal reads whose a session is. Errors: [ErrNotFound].
func (s *Store) SessionPrincipal(ctx context.Context, id string) (Principal, error) {
	p, err := sessionPrincipal(ctx, s.pool, s.sessions, s.now(), id)
	return p, wrap("read session", err)
}

func sessionPrincipal(ctx context.Context, q queryer, rules policy.Sessions, now *time.Time, id string) (Principal, error) {
	return one(ctx, q, func(row pgx.CollectableRow) (Principal, error) {
		p := Principal{CredentialID: id}
		var expires time.Time
		var stored []string
		err := row.Scan(&p.Name, &p.Owner, &p.Disabled, &p.Roles, &p.Secret, &p.UsedAt, &expires, &stored, &p.Revision, &p.Now)
		p.Ends = rules.End(p.UsedAt, expires).UTC()
		p.Permissions = policy.Roles(policy.BuiltIn()).Permissions(p.Roles, stored)
		return p, err
	}, sessionPrincipalSQL, id, now)
}

// KeyPrincipal reads whose a key is. Errors: [ErrNotFound].
func (s *Store) KeyPrincipal(ctx context.Context, id string) (Principal, error) {
	p, err := keyPrincipal(ctx, s.pool, s.now(), keyByIDSQL, id)
	return p, wrap("read key", err)
}

// CertificatePrincipal reads whose a certificate is, by its subject. Errors: [ErrNotFound].
func (s *Store) CertificatePrincipal(ctx context.Context, subject string) (Principal, error) {
	p, err := keyPrincipal(ctx, s.pool, s.now(), keyBySubjectSQL, fit(subject, maxSubject))
	return p, wrap("read key", err)
}

func keyPrincipal(ctx context.Context, q queryer, now *time.Time, sql, by string) (Principal, error) {
	return one(ctx, q, func(row pgx.CollectableRow) (Principal, error) {
		p := Principal{Key: true}
		var until, used, expires *time.Time
		var own, stored []string
		err := row.Scan(&p.Name, &p.CredentialID, &p.Owner, &p.Disabled, &p.Roles, &own, &p.Secret, &p.OldSecret, &until, &used, &expires,
			&stored, &p.Revision, &p.Now)
		p.OldSecretUntil, p.UsedAt, p.Ends = value(until), value(used), value(expires)
		p.Permissions = policy.Roles(policy.BuiltIn()).Permissions(p.Roles, append(stored, own...))
		return p, err
	}, sql, by, now)
}

// Caller reads, within the change, what the session or key of an id is and may do. Errors: [ErrNotFound], also where it is
// over or its account is disabled.
func (tx *Tx) Caller(ctx context.Context, key bool, id string) (Principal, error) {
	var p Principal
	var err error
	if key {
		p, err = keyPrincipal(ctx, tx.tx, &tx.Now, keyByIDSQL, id)
	} else {
		p, err = sessionPrincipal(ctx, tx.tx, tx.sessions, &tx.Now, id)
	}
	if err == nil && (p.Disabled || policy.Over(p.Ends, tx.Now)) {
		return Principal{}, ErrNotFound
	}
	return p, wrap("read the caller", err)
}

// Touch records that a session or key was used now, unless that is known to within a minute.
func (s *Store) Touch(ctx context.Context, p Principal) error {
	table := "sessions"
	if p.Key {
		table = "keys"
	}
	// By the primary key; the condition makes one of many that come at the same time write.
	_, err := s.pool.Exec(ctx, "update "+table+" set used_at = $2 where id = $1 "+
		"and (used_at is null or used_at <= $2::timestamptz - $3::interval)", p.CredentialID, p.Now, policy.TouchEvery)
	return wrap("record the use", err)
}
