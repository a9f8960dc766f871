package store

import (
	"context"

	"github.com/wiggle-run/wiggle/services/instances/internal/machine"
)

// Reader is the part of a [Store] that only reads, and that a replica of the shard can do too, as of some moment before.
// Its methods are the store's.
//
//nolint:interfacebloat // a seam, as Store is
type Reader interface {
	Instance(ctx context.Context, id machine.ID, tokens int) (InstanceView, error)
	Instances(ctx context.Context, ids []machine.ID, maxBytes int) ([]*machine.Instance, error)
	Scan(ctx context.Context, q Scan) (list []*machine.Instance, more bool, err error)
	History(ctx context.Context, id machine.ID, after HistoryKey, limit int) ([]HistoryRow, error)
	List(ctx context.Context, f Filter, after ListKey, limit int) ([]*machine.Instance, error)
	Count(ctx context.Context, f Filter) (map[machine.InstanceState]int64, error)
	Definition(ctx context.Context, namespace, workflow string, version int32) (Definition, error)
	ListDefinitions(ctx context.Context, q DefinitionQuery) ([]Definition, error)
	Subjects
}

var _ Reader = Store(nil)
