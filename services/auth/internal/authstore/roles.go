package authstore

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/wiggle-run/wiggle/services/auth/internal/policy"
)

// Roles are few: all of them are read at once.
const rolesSQL = "select name, description, permissions from roles order by name"

func scanRole(row pgx.CollectableRow) (policy.Role, error) {
	var r policy.Role
	err := row.Scan(&r.Name, &r.Description, &r.Permissions)
	return r, err
}

// Roles reads all roles, the built-in ones among them.
func (s *Store) Roles(ctx context.Context) (policy.Roles, error) {
	stored, err := list(ctx, s.pool, scanRole, rolesSQL)
	if err != nil {
		return nil, wrap("list roles", err)
	}
	return policy.WithBuiltIn(stored), nil
}

// PutRole writes a role. Whoever has it may do what it says from now on, so caches forget everything.
func (tx *Tx) PutRole(ctx context.Context, r policy.Role) error {
	_, err := tx.tx.Exec(ctx, `
		insert into roles (name, description, permissions) values ($1, $2, $3)
		on conflict (name) do update set description = $2, permissions = $3`, r.Name, r.Description, texts(r.Permissions))
	if err != nil {
		return wrap("put role", err)
	}
	tx.Roles = tx.Roles.Put(r)
	tx.ForgetAll()
	return nil
}

// DeleteRole removes a role that nobody has.
func (tx *Tx) DeleteRole(ctx context.Context, name string) error {
	tag, err := tx.tx.Exec(ctx, "delete from roles where name = $1", name)
	if err == nil && tag.RowsAffected() == 0 {
		return ErrNotFound
	}
	tx.Roles = tx.Roles.Without(name)
	return wrap("delete role", err)
}

// roleUsedSQL reads accounts and keys until it meets one: roles are deleted once in a while.
const roleUsedSQL = `
select (select name from accounts where roles @> array[$1::text] limit 1), (select name from keys where roles @> array[$1::text] limit 1)`

// RoleUsedBy names an account or a key that has a role; nothing if none has.
func (tx *Tx) RoleUsedBy(ctx context.Context, role string) (account, key string, err error) {
	var a, k *string
	if err := tx.tx.QueryRow(ctx, roleUsedSQL, role).Scan(&a, &k); err != nil {
		return "", "", wrap("see who has the role", err)
	}
	if a != nil {
		account = *a
	}
	if k != nil {
		key = *k
	}
	return account, key, nil
}
