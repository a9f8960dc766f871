package searchstore

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/wiggle-run/wiggle/pkg/postgres"
	"github.com/wiggle-run/wiggle/services/search/internal/document"
)

// What bounds one statement.
const (
	maxBatch      = 500
	maxBatchBytes = 8 << 20
)

// upsert goes by the primary keys and locks documents by id, then their texts. The conflict reads the row as the last
// writer left it, so of two writers at the same time the newer document stays too.
const upsert = `with given as materialized (
	select * from unnest($1::integer[], $2::uuid[], $3::integer[], $4::integer[], $5::smallint[], $6::smallint[], $7::timestamptz[],
		$8::timestamptz[], $9::text[], $10::text[], $11::text[], $12::text[], $13::text[], $14::text[], $15::bigint[])
		u(shard, id, revision, version, state, priority, created_at, ended_at, namespace, workflow, text, failure, lexemes, numbers,
			content)
), written as (
	insert into documents as d (shard, id, revision, version, state, priority, created_at, ended_at, namespace, workflow, numbers,
		content, words)
	select shard, id, revision, version, state, priority, created_at, ended_at, namespace, workflow, nullif(numbers, '')::jsonb,
		content, to_tsvector($16::text::regconfig, text || E'\n' || failure) || array_to_tsvector(string_to_array(lexemes, ' '))
	from given order by shard, id
	on conflict (shard, id) do update set
		revision = excluded.revision, version = excluded.version, state = excluded.state, priority = excluded.priority,
		created_at = excluded.created_at, ended_at = excluded.ended_at, namespace = excluded.namespace,
		workflow = excluded.workflow, numbers = excluded.numbers, content = excluded.content, words = excluded.words,
		indexed_at = now()
	where d.revision < excluded.revision or d.revision = excluded.revision and d.content <> excluded.content
	returning d.shard, d.id
)
insert into document_texts as t (shard, id, text, failure)
select shard, id, g.text, g.failure from given g join written using (shard, id) order by shard, id
on conflict (shard, id) do update set text = excluded.text, failure = excluded.failure`

// Upsert writes documents and returns how many it wrote: those that are not older than what is stored, and say something
// else. With an error some may be written. Of two documents with one key the newer counts.
func (s *Store) Upsert(ctx context.Context, docs []*document.Document) (written int, err error) {
	docs = newest(docs)
	for len(docs) > 0 {
		n, size := 0, 0
		for n < len(docs) && n < maxBatch && (n == 0 || size < maxBatchBytes) {
			size += len(docs[n].Text) + len(docs[n].Failure)
			n++
		}
		wrote, err := s.upsert(ctx, docs[:n])
		written += wrote
		if err != nil {
			return written, err
		}
		docs = docs[n:]
	}
	return written, nil
}

// newest sorts documents by key and leaves one for each.
func newest(docs []*document.Document) []*document.Document {
	docs = slices.SortedStableFunc(slices.Values(docs), func(a, b *document.Document) int {
		return cmp.Or(compareKeys(a.Key, b.Key), cmp.Compare(b.Revision, a.Revision))
	})
	return slices.CompactFunc(docs, func(a, b *document.Document) bool { return a.Key == b.Key })
}

func compareKeys(a, b document.Key) int {
	return cmp.Or(cmp.Compare(a.Shard, b.Shard), bytes.Compare(a.ULID[:], b.ULID[:]))
}

func (s *Store) upsert(ctx context.Context, docs []*document.Document) (written int, err error) {
	args := s.arrays(docs)
	err = s.pool.InTx(ctx, postgres.TxOptions{Op: "write documents"}, func(ctx context.Context, tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, upsert, args...)
		written = int(tag.RowsAffected())
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("write documents: %w", err)
	}
	return written, nil
}

// arrays are documents as the parameters of upsert.
func (s *Store) arrays(docs []*document.Document) []any {
	n := len(docs)
	var (
		shards, revisions, versions  = make([]int32, n), make([]int32, n), make([]int32, n)
		ids                          = make([]pgtype.UUID, n)
		states, priorities           = make([]int16, n), make([]int16, n)
		created, ended               = make([]pgtype.Timestamptz, n), make([]pgtype.Timestamptz, n)
		namespaces, workflows, texts = make([]string, n), make([]string, n), make([]string, n)
		failures, lexemes, numbers   = make([]string, n), make([]string, n), make([]string, n)
		contents                     = make([]int64, n)
	)
	for i, d := range docs {
		shards[i], ids[i] = int32(d.Shard), uuid(d.ULID) //nolint:gosec // a shard fits
		revisions[i], versions[i], states[i], priorities[i] = d.Revision, d.Version, d.State, d.Priority
		created[i], ended[i] = timestamp(d.CreatedAt), timestamp(d.EndedAt)
		namespaces[i], workflows[i], texts[i], failures[i] = d.Namespace, d.Workflow, d.Text, d.Failure
		lexemes[i], numbers[i], contents[i] = strings.Join(d.Lexemes, " "), d.Numbers, d.Content(s.language)
	}
	return []any{
		shards, ids, revisions, versions, states, priorities, created, ended, namespaces, workflows, texts, failures, lexemes, numbers,
		contents, s.language,
	}
}

// remove goes by the primary keys.
const remove = `with gone as (
	delete from documents d using unnest($1::integer[], $2::uuid[], $3::integer[]) u(shard, id, revision)
	where d.shard = u.shard and d.id = u.id and d.revision <= u.revision returning d.shard, d.id
)
delete from document_texts t using gone where t.shard = gone.shard and t.id = gone.id`

// Delete removes documents, unless they are newer than the revision that is given with each, and returns how many it removed.
func (s *Store) Delete(ctx context.Context, gone []Head) (deleted int, err error) {
	if len(gone) == 0 {
		return 0, nil
	}
	keys, revisions := make([]document.Key, len(gone)), make([]int32, len(gone))
	for i, h := range gone {
		keys[i], revisions[i] = h.Key, h.Revision
	}
	shards, ids := keyArrays(keys)
	err = s.pool.InTx(ctx, postgres.TxOptions{Op: "delete documents"}, func(ctx context.Context, tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, remove, shards, ids, revisions)
		deleted = int(tag.RowsAffected())
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("delete documents: %w", err)
	}
	return deleted, nil
}
