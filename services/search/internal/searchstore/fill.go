package searchstore

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/wiggle-run/wiggle/services/search/internal/document"
)

// fillPart is how many documents are brought in together.
const fillPart = 20_000

// ErrNotEmpty: the shard holds documents already.
var ErrNotEmpty = errors.New("the search shard is not empty")

const (
	fillTable = `create temporary table given (shard integer, id uuid, revision integer, version integer, state smallint, priority smallint,
	created_at timestamptz, ended_at timestamptz, namespace text, workflow text, text text, failure text, lexemes text, numbers text,
	content bigint)`
	fillDocuments = `insert into documents (shard, id, revision, version, state, priority, created_at, ended_at, namespace, workflow,
	numbers, content, words)
select shard, id, revision, version, state, priority, created_at, ended_at, namespace, workflow, nullif(numbers, '')::jsonb, content,
	to_tsvector($1::text::regconfig, text || E'\n' || failure) || array_to_tsvector(string_to_array(lexemes, ' '))
from given`
	fillTexts = `insert into document_texts (shard, id, text, failure) select shard, id, text, failure from given`
	// fillIndexes are those that are cheaper to make at the end.
	fillIndexes = `select indexname, indexdef from pg_indexes where tablename = 'documents' and indexname in
	('documents_newest', 'documents_words')`
)

// Fill brings many documents into an empty shard, fast: by COPY, and with the indexes made at the end. It is for
// measurements; nothing else may use the shard meanwhile. progress is told how many are in.
func (s *Store) Fill(ctx context.Context, n int, nth func(i int) *document.Document, progress func(done int)) error {
	if has, err := s.Count(ctx); err != nil || has > 0 {
		return errors.Join(err, ErrNotEmpty)
	}
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		return fmt.Errorf("fill: %w", err)
	}
	defer conn.Release()
	defer func() { _ = conn.Conn().Close(context.WithoutCancel(ctx)) }() // with its settings
	prepare := []string{"set statement_timeout = 0", "set synchronous_commit = off", "set maintenance_work_mem = '512MB'", fillTable}
	for _, sql := range prepare {
		if _, err := conn.Exec(ctx, sql); err != nil {
			return fmt.Errorf("fill: %w", err)
		}
	}
	restore, err := dropIndexes(ctx, conn)
	if err != nil {
		return err
	}
	for done := 0; done < n; {
		part := min(fillPart, n-done)
		if err := s.fillPart(ctx, conn, part, func(i int) *document.Document { return nth(done + i) }); err != nil {
			return err
		}
		done += part
		progress(done)
	}
	for _, sql := range append(restore, "vacuum (analyze) documents", "vacuum (analyze) document_texts") {
		if _, err := conn.Exec(ctx, sql); err != nil {
			return fmt.Errorf("fill: %w", err)
		}
	}
	return nil
}

// dropIndexes drops the indexes that are made again at the end, and returns how.
func dropIndexes(ctx context.Context, conn *pgxpool.Conn) (restore []string, err error) {
	type definition struct{ name, sql string }
	rows, err := conn.Query(ctx, fillIndexes)
	list, err := collect(rows, err, func(rows pgx.Rows) (d definition, err error) { return d, rows.Scan(&d.name, &d.sql) })
	if err != nil {
		return nil, fmt.Errorf("fill: %w", err)
	}
	for _, d := range list {
		if _, err := conn.Exec(ctx, "drop index "+pgx.Identifier{d.name}.Sanitize()); err != nil {
			return nil, fmt.Errorf("fill: %w", err)
		}
		restore = append(restore, d.sql)
	}
	return restore, nil
}

func (s *Store) fillPart(ctx context.Context, conn *pgxpool.Conn, n int, nth func(i int) *document.Document) error {
	columns := []string{
		"shard", "id", "revision", "version", "state", "priority", "created_at", "ended_at", "namespace", "workflow", "text", "failure",
		"lexemes", "numbers", "content",
	}
	rows := pgx.CopyFromSlice(n, func(i int) ([]any, error) {
		d := nth(i)
		return []any{
			int32(d.Shard), uuid(d.ULID), d.Revision, d.Version, d.State, d.Priority, //nolint:gosec // a shard fits
			timestamp(d.CreatedAt), timestamp(d.EndedAt), d.Namespace, d.Workflow, d.Text, d.Failure,
			strings.Join(d.Lexemes, " "), d.Numbers, d.Content(s.language),
		}, nil
	})
	if _, err := conn.Conn().CopyFrom(ctx, pgx.Identifier{"given"}, columns, rows); err != nil {
		return fmt.Errorf("fill: %w", err)
	}
	for _, statement := range []struct {
		sql  string
		args []any
	}{{fillDocuments, []any{s.language}}, {fillTexts, nil}, {"truncate given", nil}} {
		if _, err := conn.Exec(ctx, statement.sql, statement.args...); err != nil {
			return fmt.Errorf("fill: %w", err)
		}
	}
	return nil
}
