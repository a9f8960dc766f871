// Package index is the search shards together: which of them a document belongs to. Documents are spread over the shards by a
// rendezvous hash of their ulid, the same as instances over theirs (package placement), so that a shard that is added takes
// its part from each of the others and no document moves between those.
package index

import (
	"errors"
	"fmt"
	"time"

	"github.com/oklog/ulid/v2"

	"github.com/wiggle-run/wiggle/pkg/placement"
	"github.com/wiggle-run/wiggle/services/search/internal/document"
	"github.com/wiggle-run/wiggle/services/search/internal/searchstore"
)

// Shard is one search shard.
type Shard struct {
	ID    int
	Store *searchstore.Store
	// Ready tells whether the shard can be used now.
	Ready func() bool
}

// Index is all search shards.
type Index struct {
	// Shards are in the order of their ids.
	Shards []*Shard

	byID  map[int]*Shard
	place placement.Generations
}

// New makes an index of at least one shard.
func New(shards []*Shard) (*Index, error) {
	if len(shards) == 0 {
		return nil, errors.New("the topology has no shard with the role search")
	}
	x := &Index{Shards: shards, byID: map[int]*Shard{}}
	weights := map[int]float64{}
	for _, s := range shards {
		x.byID[s.ID], weights[s.ID] = s, 1
	}
	var err error
	x.place, err = placement.New([]placement.Generation{{ID: 1, ActiveFrom: time.Unix(0, 0), Weights: weights}})
	if err != nil {
		return nil, fmt.Errorf("spread documents: %w", err)
	}
	return x, nil
}

// Of is the shard that a document belongs to.
func (x *Index) Of(key document.Key) *Shard {
	return x.byID[placement.Place(x.place, ulid.ULID(key.ULID))]
}

// Split parts things by the shard that they belong to.
func Split[T any](x *Index, things []T, key func(T) document.Key) map[*Shard][]T {
	parts := map[*Shard][]T{}
	for _, t := range things {
		shard := x.Of(key(t))
		parts[shard] = append(parts[shard], t)
	}
	return parts
}
