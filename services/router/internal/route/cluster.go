package route

import (
	"slices"
	"strconv"
	"time"

	"github.com/oklog/ulid/v2"

	"github.com/wiggle-run/wiggle/pkg/faults"
	"github.com/wiggle-run/wiggle/pkg/placement"
	"github.com/wiggle-run/wiggle/pkg/shardid"
	"github.com/wiggle-run/wiggle/pkg/topology"
)

// maxAhead is how far the time of a caller's ulid may lie ahead: enough for clocks, and too little to choose a
// generation that is not yet known everywhere.
const maxAhead = 5 * time.Minute

// Cluster is what the topology says, compiled for routing. It does not change.
type Cluster struct {
	home      int
	instances []int // that must answer a call over all shards, in order
	retired   map[int]bool
	placement placement.Generations
	shards    []Shard
}

// Shard is a shard as the topology has it, but for how to connect to it.
type Shard struct {
	ID    int
	State string
	Roles []string
	// Instances tells whether it has the role instances and is not retired.
	Instances bool
	// Zones are those of its replicas, in their order.
	Zones []string
}

// NewCluster compiles a topology.
func NewCluster(t *topology.Topology) *Cluster {
	c := &Cluster{home: t.Home().ID, retired: make(map[int]bool), placement: t.Placement()}
	for _, s := range t.WithRole(topology.RoleInstances) {
		c.retired[s.ID] = s.State == topology.StateRetired
		if !c.retired[s.ID] {
			c.instances = append(c.instances, s.ID)
		}
	}
	for _, s := range t.Shards {
		out := Shard{ID: s.ID, State: string(s.State), Instances: slices.Contains(c.instances, s.ID)}
		for _, role := range s.Roles {
			out.Roles = append(out.Roles, string(role))
		}
		for _, r := range s.Replicas {
			out.Zones = append(out.Zones, r.Zone)
		}
		c.shards = append(c.shards, out)
	}
	return c
}

// Shards are all shards in order. They must not be changed.
func (c *Cluster) Shards() []Shard { return c.shards }

// Wire is a shard as messages have it. Shards are 31 bits wide (package shardid).
func Wire(shard int) int32 { return int32(shard) } //nolint:gosec // see there

// Home is the shard that also holds the cluster-wide rows.
func (c *Cluster) Home() int { return c.home }

// Instances are the shards that hold instances and are not retired, in order. It must not be changed.
func (c *Cluster) Instances() []int { return c.instances }

// check tells whether calls may be routed to the shard; name is what the caller asked for.
func (c *Cluster) check(shard int, thing, name string) error {
	retired, known := c.retired[shard]
	switch {
	case !known && shard != c.home:
		return faults.ShardUnknown(shard)
	case retired:
		return faults.NotFound(thing, name)
	}
	return nil
}

// Scannable tells whether all of a shard's instances may be read.
func (c *Cluster) Scannable(shard int) error { return c.check(shard, "shard", strconv.Itoa(shard)) }

// Instance is the shard of an instance.
func (c *Cluster) Instance(id string) (int, error) {
	parsed, err := shardid.ParseInstance(id)
	if err != nil {
		return 0, faults.InvalidArgument("%v", err)
	}
	shard := parsed.Route(c.home)
	return shard, c.check(shard, "instance", id)
}

// Task is the shard of a task.
func (c *Cluster) Task(id string) (int, error) {
	parsed, err := shardid.ParseToken(id)
	if err != nil {
		return 0, faults.InvalidArgument("%v", err)
	}
	shard := parsed.Route(c.home)
	return shard, c.check(shard, "task", id)
}

// Place reads or mints the ulid of a start and places it.
func (c *Cluster) Place(text string, now time.Time) (ulid.ULID, int, error) {
	if text == "" {
		id := ulid.MustNew(ulid.Timestamp(now), ulid.DefaultEntropy())
		return id, placement.Place(c.placement, id), nil
	}
	parsed, err := shardid.ParseInstance("wfi.s0." + text)
	id, ok := parsed.ULID()
	if err != nil || !ok {
		return ulid.ULID{}, 0, faults.InvalidArgument(
			"%.30q is no ulid: want 26 characters of lower-case Crockford base 32, such as 01k6zqk3v8r5d1f0m9c2x7y4ab", text)
	}
	if ulid.Time(id.Time()).After(now.Add(maxAhead)) {
		return ulid.ULID{}, 0, faults.InvalidArgument(
			"the time in ulid %q lies more than %v ahead; check the caller's clock", text, maxAhead)
	}
	return id, placement.Place(c.placement, id), nil
}
