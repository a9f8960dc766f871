package authstore

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/wiggle-run/wiggle/services/auth/internal/credential"
	"github.com/wiggle-run/wiggle/services/auth/internal/policy"
)

// setupLasts is how long a set-up token is valid.
const setupLasts = 24 * time.Hour

// OfferSetUp keeps a new set-up token and tells whether it is to be handed out: only where there is no administrator, and no
// token that is still valid and unused.
func (tx *Tx) OfferSetUp(ctx context.Context, token credential.Credential) (offered bool, err error) {
	if has, err := tx.HasAdmin(ctx); err != nil || has {
		return false, err
	}
	tag, err := tx.tx.Exec(ctx, `
		insert into setup_token as t (id, secret, expires_at) values ($1, $2, $3)
		on conflict (only_row) do update set id = $1, secret = $2, expires_at = $3, used_at = null
		where t.used_at is not null or t.expires_at <= $4`, token.ID, token.Hash(), tx.Now.Add(setupLasts), tx.Now)
	if err != nil {
		return false, wrap("keep a set-up token", err)
	}
	return tag.RowsAffected() == 1, nil
}

// UseSetUp tells whether the token is the one that was handed out, is valid and was not used, and has it used.
func (tx *Tx) UseSetUp(ctx context.Context, token credential.Credential) (bool, error) {
	secret, err := one(ctx, tx.tx, pgx.RowTo[[]byte],
		"update setup_token set used_at = $2 where id = $1 and used_at is null and expires_at > $2 returning secret", token.ID, tx.Now)
	if err == ErrNotFound { //nolint:errorlint // one returns it as it is
		return false, nil
	}
	return token.Matches(secret), wrap("use the set-up token", err)
}

// MakeAdmin gives an account that can do everything the password of a hash: a new one, or the one of the name as it is.
func (tx *Tx) MakeAdmin(ctx context.Context, name, hash string) error {
	id, err := tx.InsertAccount(ctx, name, hash, []string{policy.RoleAdmin})
	if err != nil || id != 0 {
		return err
	}
	a, err := tx.Account(ctx, name)
	if err != nil {
		return err
	}
	a.Disabled, a.Roles = false, append(a.Roles, policy.RoleAdmin)
	if err := tx.UpdateAccount(ctx, a); err != nil {
		return err
	}
	tx.ForgetAccount(a.Name)
	if _, err := tx.EndSessions(ctx, a.ID, "", ""); err != nil {
		return err
	}
	return tx.SetPassword(ctx, a.ID, hash)
}
