package topology

import (
	"fmt"
	"math"
	"slices"
	"strings"
)

// Problem is one reason to refuse a topology.
type Problem struct {
	// Where is what it is about: "document", "defaults", "generation 2", "shard 3", "shard 1 primary",
	// "shard 1 replica 0", "shards[4]" for one without a usable id, or the name of an environment variable.
	Where string
	// Message says what is wrong, and where that is not plain, what would be right. It never holds a password.
	Message string
}

// String returns "Where: Message".
func (p Problem) String() string { return p.Where + ": " + p.Message }

// Problems is every reason to refuse a topology, as an error: first those of the environment, then the document, its
// defaults, generations and shards, these by id. A nil *Problems has none.
type Problems struct {
	// List is not empty.
	List []Problem
}

// Error lists the problems, one per line.
func (p *Problems) Error() string {
	var b strings.Builder
	b.WriteString("storage topology refused: ")
	if len(p.List) == 1 {
		b.WriteString(p.List[0].String())
		return b.String()
	}
	fmt.Fprintf(&b, "%d problems:", len(p.List))
	for _, problem := range p.List {
		b.WriteString("\n  " + problem.String())
	}
	return b.String()
}

// Err returns p as an error, or nil if p is nil: a nil *Problems in an error would not be nil.
func (p *Problems) Err() error {
	if p == nil {
		return nil
	}
	return p
}

// place is where a problem is, with its rank among the others.
type place struct {
	name string
	rank [rankDepth]int
}

// rankDepth is for: kind of place, id, index of an entry without id, member of a shard.
const rankDepth = 4

const (
	rankSetting = iota
	rankDocument
	rankDefaults
	rankGeneration
	rankShard
)

func placeDocument() place { return place{"document", [rankDepth]int{rankDocument}} }

func placeDefaults() place { return place{"defaults", [rankDepth]int{rankDefaults}} }

func placeSetting(name string) place { return place{name, [rankDepth]int{rankSetting}} }

func placeGeneration(id int) place {
	return place{fmt.Sprintf("generation %d", id), [rankDepth]int{rankGeneration, id}}
}

func placeShard(id int) place {
	return place{fmt.Sprintf("shard %d", id), [rankDepth]int{rankShard, id}}
}

// placeEntry is for a generation or shard whose id cannot be told; it comes after those whose can.
func placeEntry(rank int, list string, index int) place {
	return place{fmt.Sprintf("%s[%d]", list, index), [rankDepth]int{rank, math.MaxInt, index}}
}

// primary and replica are places inside that of a shard; they come after it.
func (p place) primary() place { return place{p.name + " primary", p.below(1)} }

func (p place) replica(index int) place {
	return place{fmt.Sprintf("%s replica %d", p.name, index), p.below(2 + index)}
}

func (p place) below(n int) [rankDepth]int { return [rankDepth]int{p.rank[0], p.rank[1], p.rank[2], n} }

// collector gathers problems.
type collector struct {
	found []placed
}

type placed struct {
	place   place
	message string
}

func (c *collector) addf(at place, format string, args ...any) {
	c.found = append(c.found, placed{at, fmt.Sprintf(format, args...)})
}

// problems returns what was found, ordered by place and then as found, or nil.
func (c *collector) problems() *Problems {
	if len(c.found) == 0 {
		return nil
	}
	slices.SortStableFunc(c.found, func(a, b placed) int {
		return slices.Compare(a.place.rank[:], b.place.rank[:])
	})
	p := &Problems{List: make([]Problem, len(c.found))}
	for i, f := range c.found {
		p.List[i] = Problem{Where: f.place.name, Message: f.message}
	}
	return p
}
