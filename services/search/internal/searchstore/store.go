// Package searchstore keeps the documents of one search shard in PostgreSQL and searches them.
//
// # Writes
//
// Documents are written in batches, each batch one statement that locks documents by id and then their texts. A
// document whose revision is older than the stored one's changes nothing, in whatever order they come (SRC-1), and one
// that says what is stored is not written again.
//
// # How a search goes
//
// Everything that is asked for by equality is one tsquery over the column words: the words of the query, and the lexemes of
// package document for workflow, state and values of the context. PostgreSQL reaches the matches in one of two ways, by how
// many it expects: by the GIN index, or, where many documents match, by walking from the newest document on until
// enough were found. So statements are planned anew for each search ([Configure]).
//
// To rank is to read all matches, which a word that is in every document would make slow. So matches are ranked a [Window] at
// a time: the newest [WindowSize] first, then those that were started before them. Within a window the best come first.
package searchstore

import (
	"context"
	"fmt"
	"maps"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/wiggle-run/wiggle/pkg/postgres"
	"github.com/wiggle-run/wiggle/services/search/internal/document"
)

const (
	// WindowSize is how many matches are ranked together at least, where there are so many.
	WindowSize = 1000
	// readTimeout bounds each statement of a search.
	readTimeout = 3 * time.Second
)

// Store is one search shard.
type Store struct {
	pool     *postgres.Pool
	language string
	countAll int
}

// New makes the store of a shard whose schema is migrated. language is a text search configuration of its server.
func New(pool *postgres.Pool, language string) *Store {
	return &Store{pool: pool, language: language, countAll: countAll}
}

// Configure sets what the store relies on. Statements are planned with their parameters, as it is these that tell how many
// documents match; the index of a search is read in no order, from memory if all is well.
func Configure(cfg *postgres.MemberConfig) {
	cfg.PlanCacheMode = "force_custom_plan"
	params := map[string]string{"random_page_cost": "1.1", "work_mem": "32MB", "jit": "off"}
	maps.Copy(params, cfg.Params)
	cfg.Params = params
}

// CheckLanguage tells whether the server has the text search configuration.
func (s *Store) CheckLanguage(ctx context.Context) error {
	var known bool
	const sql = "select exists (select from pg_ts_config where cfgname = $1 and pg_ts_config_is_visible(oid))"
	if err := s.pool.QueryRow(ctx, sql, s.language).Scan(&known); err != nil {
		return fmt.Errorf("look for the text search configuration: %w", err)
	}
	if !known {
		return &LanguageError{Language: s.language}
	}
	return nil
}

// LanguageError tells that a server has no text search configuration of that name.
type LanguageError struct{ Language string }

// Error names it.
func (e *LanguageError) Error() string {
	return fmt.Sprintf("the database has no text search configuration %q", e.Language)
}

// Count is how many documents there are.
func (s *Store) Count(ctx context.Context) (n int64, err error) {
	err = s.read(ctx, "count documents", func(ctx context.Context, tx pgx.Tx) error {
		return tx.QueryRow(ctx, "select count(*) from documents").Scan(&n)
	})
	return n, err
}

// read runs a read in a transaction with a time limit.
func (s *Store) read(ctx context.Context, op string, fn func(ctx context.Context, tx pgx.Tx) error) error {
	opts := postgres.TxOptions{Op: op, ReadOnly: true, StatementTimeout: readTimeout}
	if err := s.pool.InTx(ctx, opts, fn); err != nil {
		return fmt.Errorf("%s: %w", op, err)
	}
	return nil
}

// collect reads all rows of a query.
func collect[T any](rows pgx.Rows, err error, scan func(pgx.Rows) (T, error)) ([]T, error) {
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var list []T
	for rows.Next() {
		v, err := scan(rows)
		if err != nil {
			return nil, err
		}
		list = append(list, v)
	}
	return list, rows.Err()
}

// timestamp encodes a time; the zero time is NULL.
func timestamp(t time.Time) pgtype.Timestamptz {
	return pgtype.Timestamptz{Time: t, Valid: !t.IsZero()}
}

// when decodes a time; NULL is the zero time.
func when(t pgtype.Timestamptz) time.Time {
	if !t.Valid {
		return time.Time{}
	}
	return t.Time.UTC()
}

func uuid(id [16]byte) pgtype.UUID { return pgtype.UUID{Bytes: id, Valid: true} }

// keyArrays are keys as two arrays.
func keyArrays(keys []document.Key) (shards []int32, ids []pgtype.UUID) {
	shards, ids = make([]int32, len(keys)), make([]pgtype.UUID, len(keys))
	for i, k := range keys {
		shards[i], ids[i] = int32(k.Shard), uuid(k.ULID) //nolint:gosec // a shard fits
	}
	return shards, ids
}
