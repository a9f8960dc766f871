package authstore

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
)

// Account is somebody who signs in.
type Account struct {
	ID       int64
	Name     string
	Roles    []string
	Disabled bool
	// CreatedAt is when it was made, SignedInAt when it last signed in: zero if never.
	CreatedAt, SignedInAt time.Time
}

const (
	accountColumns = "a.id, a.name, a.roles, a.disabled, a.created_at, a.signed_in_at"
	// accountSQL goes by the unique index on key.
	accountSQL = "select " + accountColumns + " from accounts a where a.key = $1"
	// accountsSQL goes by the unique index on key.
	accountsSQL = "select " + accountColumns + " from accounts a where a.key > $1 order by a.key limit $2"
)

func scanAccount(row pgx.CollectableRow) (Account, error) { return scanAccountWith(row) }

func scanAccountWith(row pgx.CollectableRow, more ...any) (Account, error) {
	var a Account
	var signedIn *time.Time
	err := row.Scan(append([]any{&a.ID, &a.Name, &a.Roles, &a.Disabled, &a.CreatedAt, &signedIn}, more...)...)
	a.CreatedAt, a.SignedInAt = a.CreatedAt.UTC(), value(signedIn)
	return a, err
}

// Account reads an account. Errors: [ErrNotFound].
func (s *Store) Account(ctx context.Context, name string) (Account, error) {
	a, err := one(ctx, s.pool, scanAccount, accountSQL, nameKey(name))
	return a, wrap("read account", err)
}

// Accounts reads a page of accounts by name, after that of a key.
func (s *Store) Accounts(ctx context.Context, after string, limit int) ([]Account, error) {
	accounts, err := list(ctx, s.pool, scanAccount, accountsSQL, after, limit)
	return accounts, wrap("list accounts", err)
}

// passwordSQL goes by the unique index on key and the primary key of credentials.
const passwordSQL = "select " + accountColumns + `, c.secret from accounts a
join credentials c on c.account_id = a.id and c.kind = 'password' where a.key = $1`

// WithPassword reads an account and its password's hash. Errors: [ErrNotFound].
func (s *Store) WithPassword(ctx context.Context, name string) (a Account, hash string, err error) {
	a, err = one(ctx, s.pool, func(row pgx.CollectableRow) (Account, error) { return scanAccountWith(row, &hash) },
		passwordSQL, nameKey(name))
	return a, hash, wrap("read account", err)
}

// Account reads an account within the change. Errors: [ErrNotFound].
func (tx *Tx) Account(ctx context.Context, name string) (Account, error) {
	a, err := one(ctx, tx.tx, scanAccount, accountSQL, nameKey(name))
	return a, wrap("read account", err)
}

// InsertAccount makes an account and tells its id; 0 if the name is taken.
func (tx *Tx) InsertAccount(ctx context.Context, name, hash string, roles []string) (id int64, err error) {
	id, err = one(ctx, tx.tx, pgx.RowTo[int64], `
		with made as (
			insert into accounts (key, name, roles, disabled, created_at) values ($1, $2, $3, false, $4) on conflict (key) do nothing
			returning id
		)
		insert into credentials (account_id, kind, secret, changed_at) select id, 'password', $5, $4 from made returning account_id`,
		nameKey(name), name, texts(roles), tx.Now, hash)
	if err == ErrNotFound { //nolint:errorlint // one returns it as it is
		return 0, nil
	}
	return id, wrap("insert account", err)
}

// UpdateAccount writes the account's roles and whether it is disabled.
func (tx *Tx) UpdateAccount(ctx context.Context, a Account) error {
	_, err := tx.tx.Exec(ctx, "update accounts set roles = $2, disabled = $3 where id = $1", a.ID, texts(a.Roles), a.Disabled)
	return wrap("update account", err)
}

// DeleteAccount removes an account with its sessions and keys.
func (tx *Tx) DeleteAccount(ctx context.Context, id int64) error {
	_, err := tx.tx.Exec(ctx, "delete from accounts where id = $1", id)
	return wrap("delete account", err)
}

// Password reads the hash of an account's password. Errors: [ErrNotFound].
func (tx *Tx) Password(ctx context.Context, id int64) (string, error) {
	hash, err := one(ctx, tx.tx, pgx.RowTo[string], "select secret from credentials where account_id = $1 and kind = 'password'", id)
	return hash, wrap("read password", err)
}

// SetPassword gives an account another hash.
func (tx *Tx) SetPassword(ctx context.Context, id int64, hash string) error {
	_, err := tx.tx.Exec(ctx, `
		insert into credentials (account_id, kind, secret, changed_at) values ($1, 'password', $2, $3)
		on conflict (account_id, kind) do update set secret = $2, changed_at = $3`, id, hash, tx.Now)
	return wrap("set password", err)
}

// adminSQL goes by accounts_by_role.
const adminSQL = "select exists (select from accounts where roles && $1 and not disabled)"

// HasAdmin tells whether an account is enabled and has a role that covers everything, as things stand in the change.
func (tx *Tx) HasAdmin(ctx context.Context) (has bool, err error) {
	err = tx.tx.QueryRow(ctx, adminSQL, tx.Roles.Admins()).Scan(&has)
	return has, wrap("look for an administrator", err)
}

// HasAdmin tells the same outside of changes.
func (s *Store) HasAdmin(ctx context.Context) (has bool, err error) {
	roles, err := s.Roles(ctx)
	if err == nil {
		err = s.pool.QueryRow(ctx, adminSQL, roles.Admins()).Scan(&has)
	}
	return has, wrap("look for an administrator", err)
}
