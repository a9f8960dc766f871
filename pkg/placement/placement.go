package placement

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/oklog/ulid/v2"
)

// MaxWeight is the largest weight of a shard: far above what makes sense, and low enough for every score to be finite.
const MaxWeight = 1e12

// Generation is one version of the weights.
type Generation struct {
	// ID numbers the generations, in the order of ActiveFrom.
	ID int
	// ActiveFrom is when the generation takes over from the one before it.
	ActiveFrom time.Time
	// Weights is the share of each shard, by shard id, relative to the others. A shard that is not in it has weight zero.
	Weights map[int]float64
}

// ValidWeight reports whether w may be a weight: a number from 0 to MaxWeight.
func ValidWeight(w float64) bool { return w >= 0 && w <= MaxWeight }

// Generations is an immutable, non-empty sequence of generations. Build it with New; the zero value places nothing.
type Generations struct {
	list []compiled
}

// compiled is a generation in the form that Place wants.
type compiled struct {
	Generation
	// fromMillis is the first millisecond at which it is in force; ULIDs count in milliseconds.
	fromMillis int64
	// shards are those with a positive weight, by ascending id.
	shards []weighted
}

type weighted struct {
	shard  int
	weight float64
}

// New checks and copies generations. It refuses an empty list, ids or instants that do not both increase, negative
// shard ids, weights that ValidWeight refuses, and a generation without a positive weight.
func New(generations []Generation) (Generations, error) {
	if len(generations) == 0 {
		return Generations{}, errors.New("placement: no generations")
	}
	list := make([]compiled, 0, len(generations))
	for i, g := range generations {
		if i > 0 && (g.ID <= generations[i-1].ID || !g.ActiveFrom.After(generations[i-1].ActiveFrom)) {
			return Generations{}, fmt.Errorf("placement: generation %d does not come after generation %d in id and time",
				g.ID, generations[i-1].ID)
		}
		c, err := compile(g)
		if err != nil {
			return Generations{}, err
		}
		list = append(list, c)
	}
	return Generations{list: list}, nil
}

func compile(g Generation) (compiled, error) {
	g.Weights = maps.Clone(g.Weights)
	c := compiled{Generation: g, fromMillis: g.ActiveFrom.UnixMilli()}
	if g.ActiveFrom.After(time.UnixMilli(c.fromMillis)) {
		c.fromMillis++
	}
	for _, shard := range slices.Sorted(maps.Keys(g.Weights)) {
		weight := g.Weights[shard]
		if shard < 0 || !ValidWeight(weight) {
			return compiled{}, fmt.Errorf("placement: generation %d: shard %d cannot have weight %v", g.ID, shard, weight)
		}
		if weight > 0 {
			c.shards = append(c.shards, weighted{shard, weight})
		}
	}
	if len(c.shards) == 0 {
		return compiled{}, fmt.Errorf("placement: generation %d has no positive weight", g.ID)
	}
	return c, nil
}

// InForce returns the generation in force at an instant: the last one whose ActiveFrom is not after it, or the first
// one before that. The caller owns the result. It panics on the zero Generations.
func (g Generations) InForce(at time.Time) Generation {
	i := len(g.list) - 1
	for i > 0 && g.list[i].ActiveFrom.After(at) {
		i--
	}
	in := g.list[i].Generation
	in.Weights = maps.Clone(in.Weights)
	return in
}

// Place returns the shard of the start with ULID u, by the generation in force at the time in u. It takes that time at its
// word: whether a client's ULID may lie in the future is for the caller to decide. It panics on the zero Generations.
func Place(g Generations, u ulid.ULID) int {
	millis := int64(u.Time()) //nolint:gosec // a ULID's time has 48 bits
	i := len(g.list) - 1
	for i > 0 && g.list[i].fromMillis > millis {
		i--
	}
	return rendezvous(g.list[i].shards, u)
}
