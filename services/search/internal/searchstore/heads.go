package searchstore

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/wiggle-run/wiggle/services/search/internal/document"
)

// Head is what a comparison needs of a document.
type Head struct {
	document.Key

	Revision int32
}

// Stretch names documents of the instances of one shard by a part of their ids.
type Stretch struct {
	// Shard is the instances', not the documents'.
	Shard int
	// After excludes ids up to it, UpTo those above it; without Last, UpTo is the end.
	After, UpTo [16]byte
	Open        bool // up to the last
	// Namespace and Workflow narrow, unless empty.
	Namespace, Workflow string
}

// heads reads a stretch of the primary key.
const heads = `select shard, id, revision from documents
where shard = $1 and id > $2 and ($4 or id <= $3) and ($5 = '' or namespace = $5) and ($6 = '' or workflow = $6)
order by id limit $7`

// Heads reads the heads of a stretch, at most limit, by id.
func (s *Store) Heads(ctx context.Context, st Stretch, limit int) (list []Head, err error) {
	err = s.read(ctx, "read heads", func(ctx context.Context, tx pgx.Tx) error {
		rows, err := tx.Query(ctx, heads, int32(st.Shard), uuid(st.After), uuid(st.UpTo), st.Open, //nolint:gosec // a shard fits
			st.Namespace, st.Workflow, limit)
		list, err = collect(rows, err, scanHead)
		return err
	})
	return list, err
}

// headsByKey goes by the primary key.
const headsByKey = `select d.shard, d.id, d.revision from unnest($1::integer[], $2::uuid[]) u(shard, id)
join documents d on d.shard = u.shard and d.id = u.id`

// HeadsOf reads the heads of those documents that are there.
func (s *Store) HeadsOf(ctx context.Context, keys []document.Key) (list []Head, err error) {
	shards, ids := keyArrays(keys)
	err = s.read(ctx, "read heads", func(ctx context.Context, tx pgx.Tx) error {
		rows, err := tx.Query(ctx, headsByKey, shards, ids)
		list, err = collect(rows, err, scanHead)
		return err
	})
	return list, err
}

func scanHead(rows pgx.Rows) (h Head, err error) {
	return h, rows.Scan(&h.Shard, &h.ULID, &h.Revision)
}

// namespaces jumps in documents_newest from one namespace to the next.
const namespaces = `with recursive n as (
	(select namespace from documents order by namespace limit 1)
	union all
	select (select d.namespace from documents d where d.namespace > n.namespace order by d.namespace limit 1) from n
	where n.namespace is not null
) select namespace from n where namespace is not null limit $1`

// Namespaces are those that documents are of, at most limit.
func (s *Store) Namespaces(ctx context.Context, limit int) (list []string, err error) {
	err = s.read(ctx, "list namespaces", func(ctx context.Context, tx pgx.Tx) error {
		rows, err := tx.Query(ctx, namespaces, limit)
		list, err = collect(rows, err, func(rows pgx.Rows) (name string, err error) { return name, rows.Scan(&name) })
		return err
	})
	return list, err
}
