package registry

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/wiggle-run/wiggle/pkg/permission"
	"github.com/wiggle-run/wiggle/services/instances/internal/store"
)

// Summary tells about one registered version.
type Summary struct {
	Workflow     string
	Version      int32
	Fingerprint  [32]byte
	RegisteredAt time.Time
	Nodes        int
}

// compare orders summaries: by name, newest version first.
func (s Summary) compare(other Summary) int {
	return cmp.Or(cmp.Compare(s.Workflow, other.Workflow), cmp.Compare(other.Version, s.Version))
}

// Catalogue lists a shard's definitions by name. Definitions are only ever added
// and never change, so it keeps what it read and reads on from there, from whichever
// copy of the shard's database: one that is behind adds nothing.
type Catalogue struct {
	mu          sync.Mutex
	revision    int64
	byNamespace map[string][]Summary
}

// NewCatalogue makes the catalogue of a shard.
func NewCatalogue() *Catalogue { return &Catalogue{byNamespace: map[string][]Summary{}} }

// lister is where the catalogue reads on.
type lister interface {
	ListDefinitions(ctx context.Context, q store.DefinitionQuery) ([]store.Definition, error)
}

// Listing asks for a part of a list.
type Listing struct {
	Namespace string
	// Only are the workflows that whoever asks may see; nil for all.
	Only *permission.Names
	// After and AfterVersion are what the list goes on behind. Empty: from the beginning.
	After        string
	AfterVersion int32
	// Limit bounds the answer.
	Limit int
}

// List lists versions of workflows, with those that shard has by now.
func (c *Catalogue) List(ctx context.Context, shard lister, l Listing) ([]Summary, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.readOn(ctx, shard); err != nil {
		return nil, err
	}
	all := c.byNamespace[l.Namespace]
	if l.After != "" {
		at, found := slices.BinarySearchFunc(all, Summary{Workflow: l.After, Version: l.AfterVersion}, Summary.compare)
		if found {
			at++
		}
		all = all[at:]
	}
	if l.Only.All() {
		return slices.Clone(all[:min(len(all), l.Limit)]), nil
	}
	var seen []Summary
	for _, s := range all {
		if len(seen) == l.Limit {
			break
		}
		if l.Only.Match(s.Workflow) {
			seen = append(seen, s)
		}
	}
	return seen, nil
}

// readOn takes in what was registered since the last time.
func (c *Catalogue) readOn(ctx context.Context, shard lister) error {
	for {
		ds, err := shard.ListDefinitions(ctx, store.DefinitionQuery{AfterRevision: c.revision, Limit: readPage})
		if err != nil {
			return fmt.Errorf("list definitions: %w", err)
		}
		for _, d := range ds {
			s := Summary{
				Workflow: d.Workflow, Version: d.Version, Fingerprint: d.Fingerprint,
				RegisteredAt: d.RegisteredAt, Nodes: len(d.Graph.GetNodes()),
			}
			list := c.byNamespace[d.Namespace]
			at, _ := slices.BinarySearchFunc(list, s, Summary.compare)
			c.byNamespace[d.Namespace] = slices.Insert(list, at, s)
			c.revision = d.Revision
		}
		if len(ds) < readPage {
			return nil
		}
	}
}
