package authstore

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/wiggle-run/wiggle/pkg/postgres"
	"github.com/wiggle-run/wiggle/services/auth/internal/policy"
)

// ErrNotFound tells that there is no such account, role, key or session.
var ErrNotFound = errors.New("not found")

// Store keeps it all. It is safe for concurrent use.
type Store struct {
	pool     *postgres.Pool
	sessions policy.Sessions
	now      func() *time.Time
}

// New makes a store on the auth shard's primary, whose schema is migrated before anything is called.
func New(pool *postgres.Pool, sessions policy.Sessions) *Store {
	return &Store{pool: pool, sessions: sessions, now: func() *time.Time { return nil }}
}

// WithNow is the store with a time of the test's in place of the database's.
func (s *Store) WithNow(now func() time.Time) *Store {
	return &Store{pool: s.pool, sessions: s.sessions, now: func() *time.Time {
		t := now()
		return &t
	}}
}

// queryer is a pool or a transaction.
type queryer interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// one reads the one row that there is, or [ErrNotFound].
func one[T any](ctx context.Context, q queryer, scan pgx.RowToFunc[T], sql string, args ...any) (T, error) {
	var none T
	rows, err := q.Query(ctx, sql, args...)
	if err != nil {
		return none, err
	}
	got, err := pgx.CollectExactlyOneRow(rows, scan)
	if errors.Is(err, pgx.ErrNoRows) {
		return none, ErrNotFound
	}
	return got, err
}

// list reads all rows.
func list[T any](ctx context.Context, q queryer, scan pgx.RowToFunc[T], sql string, args ...any) ([]T, error) {
	rows, err := q.Query(ctx, sql, args...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, scan)
}

// texts is a list as a column has it: never null.
func texts(list []string) []string {
	if list == nil {
		return []string{}
	}
	return list
}

// fit is a text as the database takes it: at most so many bytes, without NUL and of whole letters.
func fit(text string, limit int) string {
	if len(text) > limit {
		text = text[:limit]
	}
	return strings.ReplaceAll(strings.ToValidUTF8(text, "\uFFFD"), "\x00", "")
}

// nameKey is by what an account of a name, as somebody has typed it, is found.
func nameKey(name string) string { return fit(policy.NameKey(name), policy.MaxName+1) }

// value is a time of a column: the zero time for null.
func value(t *time.Time) time.Time {
	if t == nil {
		return time.Time{}
	}
	return t.UTC()
}

// some is a time as a column has it: null for the zero time.
func some(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}

func wrap(doing string, err error) error {
	if err == nil || errors.Is(err, ErrNotFound) {
		return err
	}
	return fmt.Errorf("%s: %w", doing, err)
}
