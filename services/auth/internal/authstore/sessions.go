package authstore

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/wiggle-run/wiggle/services/auth/internal/policy"
)

// Session is a sign-in that lasts.
type Session struct {
	ID, Account, Address, UserAgent string
	// CreatedAt is its beginning, UsedAt its last use to within a minute, ExpiresAt its end at the latest.
	CreatedAt, UsedAt, ExpiresAt time.Time
}

const (
	sessionColumns = "s.id, a.name, s.address, s.user_agent, s.created_at, s.used_at, s.expires_at"
	// living is a condition on sessions that are not over.
	living = "s.expires_at > coalesce($2::timestamptz, now()) and s.used_at > coalesce($2::timestamptz, now()) - $3::interval"
	// sessionsSQL goes by the unique index on accounts.key and sessions_of_account.
	sessionsSQL = "select " + sessionColumns + ` from sessions s join accounts a on a.id = s.account_id
		where a.key = $1 and ` + living + " order by s.created_at desc, s.id"

	maxAddress   = 64
	maxSessionID = 64
	maxUserAgent = 256
)

func scanSession(row pgx.CollectableRow) (Session, error) {
	var s Session
	err := row.Scan(&s.ID, &s.Account, &s.Address, &s.UserAgent, &s.CreatedAt, &s.UsedAt, &s.ExpiresAt)
	s.CreatedAt, s.UsedAt, s.ExpiresAt = s.CreatedAt.UTC(), s.UsedAt.UTC(), s.ExpiresAt.UTC()
	return s, err
}

// Sessions reads an account's sessions that are not over, newest first. Their number is bounded (policy.MaxSessions).
func (s *Store) Sessions(ctx context.Context, account string) ([]Session, error) {
	sessions, err := list(ctx, s.pool, scanSession, sessionsSQL, nameKey(account), s.now(), s.sessions.Idle)
	return sessions, wrap("list sessions", err)
}

// InsertSession begins a session. Where the account has as many as it may, those that were not used for longest end.
func (tx *Tx) InsertSession(ctx context.Context, a Account, id string, secret []byte, address, userAgent string) (Session, error) {
	made := Session{
		ID: id, Account: a.Name, Address: fit(address, maxAddress), UserAgent: fit(userAgent, maxUserAgent),
		CreatedAt: tx.Now, UsedAt: tx.Now, ExpiresAt: tx.sessions.Expires(tx.Now),
	}
	ended, err := list(ctx, tx.tx, pgx.RowTo[string], `
		delete from sessions where id in (
			select id from sessions where account_id = $1 order by used_at desc, id offset $2
		) returning id`, a.ID, policy.MaxSessions-1)
	if err != nil {
		return Session{}, wrap("end old sessions", err)
	}
	tx.Forget(ended...)
	_, err = tx.tx.Exec(ctx, `
		insert into sessions (id, account_id, created_at, used_at, expires_at, secret, address, user_agent)
		values ($1, $2, $3, $3, $4, $5, $6, $7)`, id, a.ID, tx.Now, made.ExpiresAt, secret, made.Address, made.UserAgent)
	return made, wrap("insert session", err)
}

// SignedIn records that an account signed in from an origin.
func (tx *Tx) SignedIn(ctx context.Context, account int64, origin string) error {
	_, err := tx.tx.Exec(ctx, `
		with seen as (
			insert into sign_in_origins (account_id, origin, seen_at) values ($1, $2, $3)
			on conflict (account_id, origin) do update set seen_at = $3
		)
		update accounts set signed_in_at = $3 where id = $1`, account, origin, tx.Now)
	return wrap("record the sign-in", err)
}

// EndSessions ends sessions of an account: the one of an id, or all if it is empty, but never the one that is kept. It
// returns how many, and has caches forget them.
func (tx *Tx) EndSessions(ctx context.Context, account int64, id, kept string) (int, error) {
	ended, err := list(ctx, tx.tx, pgx.RowTo[string],
		"delete from sessions where account_id = $1 and ($2 = '' or id = $2) and id <> $3 returning id",
		account, fit(id, maxSessionID), kept)
	if err != nil {
		return 0, wrap("end sessions", err)
	}
	tx.Forget(ended...)
	return len(ended), nil
}
