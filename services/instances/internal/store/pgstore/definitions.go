package pgstore

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"
	"google.golang.org/protobuf/proto"

	"github.com/wiggle-run/wiggle/pkg/postgres"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	"github.com/wiggle-run/wiggle/services/instances/internal/store"
	"github.com/wiggle-run/wiggle/services/instances/internal/store/pgstore/internal/db"
)

// Register implements [store.Definitions].
func (s *Store) Register(
	ctx context.Context, namespace, workflow string, choose store.Choose,
) (d store.Definition, created bool, err error) {
	err = s.pool.InTx(ctx, postgres.TxOptions{Op: "register"}, func(ctx context.Context, tx pgx.Tx) (err error) {
		d, created, err = register(ctx, s.queries.WithTx(tx), namespace, workflow, choose)
		return err
	})
	if err != nil {
		return store.Definition{}, false, err
	}
	return d, created, nil
}

func register(ctx context.Context, q *db.Queries, namespace, workflow string, choose store.Choose) (store.Definition, bool, error) {
	if err := q.LockDefinitions(ctx); err != nil {
		return store.Definition{}, false, fmt.Errorf("lock definitions: %w", err)
	}
	rows, err := q.DefinitionVersions(ctx, db.DefinitionVersionsParams{Namespace: namespace, Workflow: workflow})
	if err != nil {
		return store.Definition{}, false, fmt.Errorf("read versions: %w", err)
	}
	versions, err := decodeDefinitions(rows)
	if err != nil {
		return store.Definition{}, false, err
	}
	d, err := choose(versions)
	if err != nil {
		return store.Definition{}, false, err
	}
	for _, v := range versions {
		switch {
		case v.Version != d.Version:
		case v.Fingerprint != d.Fingerprint:
			return store.Definition{}, false, store.ErrConflict
		default:
			return v, false, nil
		}
	}
	d.Namespace, d.Workflow = namespace, workflow
	graph, err := proto.Marshal(d.Graph)
	if err != nil {
		return store.Definition{}, false, fmt.Errorf("encode definition: %w", err)
	}
	row, err := q.RegisterDefinition(ctx, db.RegisterDefinitionParams{
		Namespace: namespace, Workflow: workflow, Version: d.Version, Fingerprint: d.Fingerprint[:], Graph: graph,
	})
	if err != nil {
		return store.Definition{}, false, fmt.Errorf("insert definition: %w", err)
	}
	d.Revision, d.RegisteredAt = row.Revision, when(row.RegisteredAt)
	return d, true, nil
}

// PutDefinitions implements [store.Definitions]. It inserts in the order of
// revisions, so that two that bring the same ones do not deadlock.
func (s *Store) PutDefinitions(ctx context.Context, ds []store.Definition) (revision int64, err error) {
	ds = slices.Clone(ds)
	slices.SortFunc(ds, func(a, b store.Definition) int { return cmp.Compare(a.Revision, b.Revision) })
	err = s.pool.InTx(ctx, postgres.TxOptions{Op: "put definitions"}, func(ctx context.Context, tx pgx.Tx) error {
		q := s.queries.WithTx(tx)
		for _, d := range ds {
			if err := putDefinition(ctx, q, d); err != nil {
				return err
			}
		}
		revision, err = q.Revision(ctx)
		return err
	})
	return revision, err
}

func putDefinition(ctx context.Context, q *db.Queries, d store.Definition) error {
	graph, err := proto.Marshal(d.Graph)
	if err != nil {
		return fmt.Errorf("encode definition: %w", err)
	}
	n, err := q.InsertDefinition(ctx, db.InsertDefinitionParams{
		Namespace: d.Namespace, Workflow: d.Workflow, Version: d.Version, Fingerprint: d.Fingerprint[:],
		Revision: d.Revision, RegisteredAt: timestamp(d.RegisteredAt), Graph: graph,
	})
	if err != nil || n == 1 {
		return err
	}
	// Its version or its revision is taken: by itself, if it was put before.
	key := db.DefinitionByVersionParams{Namespace: d.Namespace, Workflow: d.Workflow, Version: d.Version}
	stored, err := q.DefinitionByVersion(ctx, key)
	if errors.Is(err, pgx.ErrNoRows) || (err == nil && !bytes.Equal(stored.Fingerprint, d.Fingerprint[:])) {
		return store.ErrConflict
	}
	return err
}

// ListDefinitions implements [store.Definitions].
func (s *Store) ListDefinitions(ctx context.Context, q store.DefinitionQuery) ([]store.Definition, error) {
	rows, err := s.queries.DefinitionsAfter(ctx, db.DefinitionsAfterParams{
		After: q.AfterRevision, Namespace: q.Namespace, Workflow: q.Workflow, Lim: int32(q.Limit), //nolint:gosec // a page
	})
	if err != nil {
		return nil, fmt.Errorf("list definitions: %w", err)
	}
	return decodeDefinitions(rows)
}

// Definition implements [store.Definitions].
func (s *Store) Definition(ctx context.Context, namespace, workflow string, version int32) (store.Definition, error) {
	var row db.Definition
	var err error
	if version == 0 {
		row, err = s.queries.LatestDefinition(ctx, db.LatestDefinitionParams{Namespace: namespace, Workflow: workflow})
	} else {
		key := db.DefinitionByVersionParams{Namespace: namespace, Workflow: workflow, Version: version}
		row, err = s.queries.DefinitionByVersion(ctx, key)
	}
	if err != nil {
		return store.Definition{}, wrapRead("read definition", err)
	}
	return decodeDefinition(row)
}

// Revision implements [store.Definitions].
func (s *Store) Revision(ctx context.Context) (int64, error) {
	revision, err := s.queries.Revision(ctx)
	if err != nil {
		return 0, fmt.Errorf("read revision: %w", err)
	}
	return revision, nil
}

func decodeDefinitions(rows []db.Definition) ([]store.Definition, error) {
	list := make([]store.Definition, len(rows))
	for i, row := range rows {
		var err error
		if list[i], err = decodeDefinition(row); err != nil {
			return nil, err
		}
	}
	return list, nil
}

func decodeDefinition(row db.Definition) (store.Definition, error) {
	d := store.Definition{
		Namespace: row.Namespace, Workflow: row.Workflow, Version: row.Version, Revision: row.Revision,
		RegisteredAt: when(row.RegisteredAt), Graph: &wigglev1.Definition{},
	}
	if copy(d.Fingerprint[:], row.Fingerprint) != len(d.Fingerprint) {
		return store.Definition{}, fmt.Errorf("definition %s version %d has a short fingerprint", d.Workflow, d.Version)
	}
	if err := proto.Unmarshal(row.Graph, d.Graph); err != nil {
		return store.Definition{}, fmt.Errorf("read definition %s version %d: %w", d.Workflow, d.Version, err)
	}
	return d, nil
}
