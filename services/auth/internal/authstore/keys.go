package authstore

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/wiggle-run/wiggle/services/auth/internal/policy"
)

// Key is an API key.
type Key struct {
	ID, Name           string
	Roles, Permissions []string
	CreatedBy          string
	// CreatedAt is when it was made. The others are zero if it never ends, was never used, or has no old secret.
	CreatedAt, ExpiresAt, UsedAt, OldSecretUntil time.Time
	// CertificateSubject is empty for a key with a secret.
	CertificateSubject string
	// Owner is the account that it goes with; 0 for none.
	Owner int64
}

const (
	keyColumns = "k.id, k.name, k.roles, k.permissions, k.created_by, k.created_at, k.expires_at, k.used_at, k.old_secret_until, " +
		"coalesce(k.certificate_subject, ''), coalesce(k.owner_id, 0)"
	// keysSQL goes by the unique index on name.
	keysSQL = "select " + keyColumns + ", coalesce($3::timestamptz, now()) from keys k where k.name > $1 order by k.name limit $2"
	// keySQL goes by the primary key and the unique index on name; a key's own id comes before another's name.
	keySQL = "select " + keyColumns + " from keys k where k.id = $1 or k.name = $1 order by k.id = $1 desc limit 1"
)

func scanKey(row pgx.CollectableRow) (Key, error) { return scanKeyWith(row) }

func scanKeyWith(row pgx.CollectableRow, more ...any) (Key, error) {
	var k Key
	var expires, used, until *time.Time
	err := row.Scan(append([]any{
		&k.ID, &k.Name, &k.Roles, &k.Permissions, &k.CreatedBy, &k.CreatedAt, &expires, &used, &until, &k.CertificateSubject, &k.Owner,
	}, more...)...)
	k.CreatedAt, k.ExpiresAt, k.UsedAt, k.OldSecretUntil = k.CreatedAt.UTC(), value(expires), value(used), value(until)
	return k, err
}

// Keys reads a page of keys by name, after a name, and tells the time of it.
func (s *Store) Keys(ctx context.Context, after string, limit int) (keys []Key, now time.Time, err error) {
	keys, err = list(ctx, s.pool, func(row pgx.CollectableRow) (Key, error) { return scanKeyWith(row, &now) },
		keysSQL, after, limit, s.now())
	return keys, now, wrap("list keys", err)
}

// Key reads a key by its id or name. Errors: [ErrNotFound].
func (tx *Tx) Key(ctx context.Context, idOrName string) (Key, error) {
	k, err := one(ctx, tx.tx, scanKey, keySQL, fit(idOrName, policy.MaxName+1))
	return k, wrap("read key", err)
}

// takenSQL goes by the unique indexes.
const takenSQL = "select exists (select from keys where name = $1), exists (select from keys where certificate_subject = $2)"

// KeyTaken tells whether another key has the name or the certificate's subject.
func (tx *Tx) KeyTaken(ctx context.Context, name, subject string) (nameTaken, subjectTaken bool, err error) {
	err = tx.tx.QueryRow(ctx, takenSQL, name, subject).Scan(&nameTaken, &subjectTaken)
	return nameTaken, subjectTaken, wrap("look for keys", err)
}

// InsertKey writes a key, with a secret's hash or a certificate's subject.
func (tx *Tx) InsertKey(ctx context.Context, k Key, secret []byte) error {
	var owner *int64
	if k.Owner != 0 {
		owner = &k.Owner
	}
	var subject *string
	if k.CertificateSubject != "" {
		subject = &k.CertificateSubject
	}
	_, err := tx.tx.Exec(ctx, `
		insert into keys (id, owner_id, created_at, expires_at, secret, certificate_subject, name, created_by, roles, permissions)
		values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)`,
		k.ID, owner, k.CreatedAt, some(k.ExpiresAt), secret, subject, k.Name, k.CreatedBy, texts(k.Roles), texts(k.Permissions))
	return wrap("insert key", err)
}

// RotateKey gives a key another secret, and lets the one before work until a time; zero ends it at once.
func (tx *Tx) RotateKey(ctx context.Context, id string, secret []byte, until time.Time) error {
	_, err := tx.tx.Exec(ctx, `
		update keys set secret = $2, old_secret_until = $3, old_secret = case when $3::timestamptz is null then null else secret end
		where id = $1`, id, secret, some(until))
	return wrap("rotate key", err)
}

// DeleteKey removes a key and has caches forget it.
func (tx *Tx) DeleteKey(ctx context.Context, id string) error {
	_, err := tx.tx.Exec(ctx, "delete from keys where id = $1", id)
	tx.Forget(id)
	return wrap("delete key", err)
}

// ForgetKeysOf has caches forget the keys that go with an account. It goes by keys_of_owner.
func (tx *Tx) ForgetKeysOf(ctx context.Context, account int64) error {
	ids, err := list(ctx, tx.tx, pgx.RowTo[string], "select id from keys where owner_id = $1 limit $2", account, maxForgotten+1)
	tx.Forget(ids...)
	return wrap("list an account's keys", err)
}
