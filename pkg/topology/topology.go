package topology

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/wiggle-run/wiggle/pkg/placement"
)

// What holds where neither the document nor the environment says otherwise, and the limits of what they may say.
const (
	DefaultPool         = 32
	DefaultReplicaPool  = 16
	DefaultMaxLagMillis = 5000

	MaxPool      = 10_000
	MaxLagMillis = 24 * 60 * 60 * 1000
)

// Topology is a checked description of a cluster's databases. It is shared between goroutines and must not be changed.
type Topology struct {
	// Shards are in the order of their ids, which may have gaps. Exactly one has RoleHome and one RoleAuth, and both
	// of these are active.
	Shards []Shard
	// Generations are in the order of their ids and instants; there is at least one.
	Generations []Generation

	placement placement.Generations
}

// Generation is one version of the weights of the shards.
type Generation = placement.Generation

// Shard is one primary database with its replicas.
type Shard struct {
	ID    int
	State State
	Roles Roles
	// Primary is zero in a retired shard that names none.
	Primary  Member
	Replicas []Member
}

// MemberRole says whether a member is a shard's primary or one of its replicas.
type MemberRole string

// The roles of a member.
const (
	MemberPrimary MemberRole = "primary"
	MemberReplica MemberRole = "replica"
)

// Member is one database server (or, with several hosts in its URL, one group of them that acts as one) of a shard, with
// every setting resolved.
type Member struct {
	// Shard is the id of the shard it belongs to.
	Shard int
	Role  MemberRole
	// Index counts the replicas of a shard from 0, in the order of the document; 0 for the primary.
	Index int
	// URL is for people: without user and password and with few parameters. Connect with ConnString.
	URL string
	// User is whom connections sign in as, or "" for the driver's choice.
	User string
	// Pool is how many connections each process opens to it.
	Pool int
	// MaxLag is by how much it may lag and still be read from; of a replica.
	MaxLag time.Duration
	// Fallback is what reads do when the shard has no healthy replica; of the primary.
	Fallback Fallback
	// Commit is what commits wait for; of the primary.
	Commit Commit
	// Zone is where it runs, for reading from the nearest; "" if not said.
	Zone string

	conn Secret
}

// ConnString returns the URL to connect with. It holds the password: it must go to the driver and nowhere else. It is ""
// for the zero Member.
func (m Member) ConnString() string { return m.conn.Reveal() }

// Name returns "shard 1 primary" or "shard 1 replica 0".
func (m Member) Name() string {
	if m.Role == MemberReplica {
		return fmt.Sprintf("shard %d replica %d", m.Shard, m.Index)
	}
	return fmt.Sprintf("shard %d primary", m.Shard)
}

// String describes the member on one line, without credentials.
func (m Member) String() string {
	s := fmt.Sprintf("%s %s pool=%d", m.Role, m.URL, m.Pool)
	if m.Role == MemberReplica {
		s += fmt.Sprintf(" maxLag=%v", m.MaxLag)
	} else {
		s += fmt.Sprintf(" commit=%s fallback=%s", m.Commit, m.Fallback)
	}
	if m.Zone != "" {
		s += fmt.Sprintf(" zone=%q", m.Zone)
	}
	return s
}

// Shard returns the shard with an id, and whether there is one.
func (t *Topology) Shard(id int) (Shard, bool) {
	i, ok := slices.BinarySearchFunc(t.Shards, id, func(s Shard, id int) int { return s.ID - id })
	if !ok {
		return Shard{}, false
	}
	return t.Shards[i], true
}

// Home returns the shard that holds the cluster-wide rows and to which legacy ids route.
func (t *Topology) Home() Shard { return t.WithRole(RoleHome)[0] }

// Auth returns the shard that holds the accounts.
func (t *Topology) Auth() Shard { return t.WithRole(RoleAuth)[0] }

// WithRole returns the shards that have a role, whatever their state, in the order of their ids.
func (t *Topology) WithRole(r Role) []Shard {
	var list []Shard
	for _, s := range t.Shards {
		if s.Roles.Has(r) {
			list = append(list, s)
		}
	}
	return list
}

// Placement returns the generations in the form in which placement.Place wants them.
func (t *Topology) Placement() placement.Generations { return t.placement }

// String describes the topology on several lines, without credentials.
func (t *Topology) String() string {
	var b strings.Builder
	for _, g := range t.Generations {
		fmt.Fprintf(&b, "generation %d from %s: weights %v\n", g.ID, g.ActiveFrom.UTC().Format(time.RFC3339Nano), g.Weights)
	}
	for _, s := range t.Shards {
		fmt.Fprintf(&b, "shard %d %s %s\n", s.ID, s.State, s.Roles)
		if s.Primary.Role != "" {
			fmt.Fprintf(&b, "  %s\n", s.Primary)
		}
		for _, r := range s.Replicas {
			fmt.Fprintf(&b, "  %s\n", r)
		}
	}
	return b.String()
}

// ShardConnections is how many connections one process opens to the servers of a shard.
type ShardConnections struct {
	Shard   int
	Primary int
	// Replicas is the sum over all replicas.
	Replicas int
}

// Total is the sum for the shard.
func (c ShardConnections) Total() int { return c.Primary + c.Replicas }

// Connections is how many connections one process opens if it serves every shard (SHD-15).
type Connections struct {
	// Shards has an entry for every shard that is not retired, in the order of their ids.
	Shards []ShardConnections
}

// Total is the sum over the shards. The max_connections of a server must exceed the sum of what all processes open to it.
func (c Connections) Total() int {
	total := 0
	for _, s := range c.Shards {
		total += s.Total()
	}
	return total
}

// Connections says how many connections one process opens: per shard its pool and one replicaPool for each replica.
// Retired shards are left out, as none is opened to them.
func (t *Topology) Connections() Connections {
	var c Connections
	for _, s := range t.Shards {
		if s.State == StateRetired {
			continue
		}
		sum := ShardConnections{Shard: s.ID, Primary: s.Primary.Pool}
		for _, r := range s.Replicas {
			sum.Replicas += r.Pool
		}
		c.Shards = append(c.Shards, sum)
	}
	return c
}
