package topology

import (
	"fmt"
	"maps"
	"slices"
	"time"
)

// checkShards makes the checks of SHD-13 that are about the list of shards. It runs after the URLs are read.
func checkShards(c *collector, s *source) {
	if len(s.shards) == 0 {
		if !s.badShards {
			c.addf(placeDocument(), "has no shards")
		}
		return
	}
	checkUnique(c, s.shards)
	checkOne(c, s.shards, RoleHome)
	checkOne(c, s.shards, RoleAuth)
	checkDatabases(c, s.shards)
}

func checkUnique(c *collector, shards []sourceShard) {
	count := map[int]int{}
	for i := range shards {
		if !shards[i].badID {
			count[shards[i].id]++
		}
	}
	for id, n := range count {
		if n > 1 {
			c.addf(placeShard(id), "is listed %d times", n)
		}
	}
}

// checkOne checks that one shard has the role, and that it is active: a shard that may not be lost cannot be drained.
func checkOne(c *collector, shards []sourceShard, role Role) {
	var holders []string
	unknown := false
	for i := range shards {
		shard := &shards[i]
		unknown = unknown || shard.badRoles
		if !shard.roles.Has(role) {
			continue
		}
		holders = append(holders, shard.at.name)
		if !shard.badState && shard.state != StateActive {
			c.addf(shard.at, "is the %s shard and cannot be %s", role, shard.state)
		}
	}
	switch {
	case len(holders) > 1:
		c.addf(placeDocument(), "has %d %s shards (%s); exactly one shard has the role %q", len(holders), role, join(holders, ", "), role)
	case len(holders) == 0 && !unknown:
		c.addf(placeDocument(), "has no %s shard; exactly one shard has the role %q", role, role)
	}
}

// checkDatabases finds two shards on one database without asking the database.
func checkDatabases(c *collector, shards []sourceShard) {
	first := map[string]*sourceShard{}
	for i := range shards {
		shard := &shards[i]
		if shard.primary == nil || shard.primary.badURL {
			continue
		}
		u, _ := parseURL(shard.primary.URL.Reveal())
		key := u.database()
		other, taken := first[key]
		switch {
		case !taken:
			first[key] = shard
		case shard.badID || other.badID || shard.id != other.id: // a shard listed twice has had its problem
			c.addf(shard.at, "is on the same database as %s", other.at.name)
		}
	}
}

// checkGenerations makes the checks of SHD-13 that are about generations.
func checkGenerations(c *collector, s *source) {
	if len(s.generations) == 0 {
		if !s.badGenerations {
			c.addf(placeDocument(), "has no generations")
		}
		return
	}
	for i := range s.generations {
		g := &s.generations[i]
		if i > 0 {
			checkIncrease(c, &s.generations[i-1], g)
		}
		if g.badWeights {
			continue
		}
		checkWeights(c, s, g, i == len(s.generations)-1)
	}
}

func checkIncrease(c *collector, before, g *sourceGeneration) {
	if !before.badID && !g.badID && g.ID <= before.ID {
		c.addf(g.at, "has an id that is not above %d, that of the generation before it", before.ID)
	}
	if !before.badActiveFrom && !g.badActiveFrom && !g.ActiveFrom.After(before.ActiveFrom) {
		c.addf(g.at, "has an activeFrom that is not after %s, that of %s",
			before.ActiveFrom.Format(time.RFC3339Nano), before.at.name)
	}
}

// checkWeights checks the weights of one generation. That a weighted shard is listed and active is asked of the last
// generation only: to drain a shard is to append a generation without it and to set it draining (SHD-24), while the generations
// before, which still weight it, must stay as they are, for starts with older ULIDs are placed by them (SHD-4).
func checkWeights(c *collector, s *source, g *sourceGeneration, last bool) {
	positive := false
	for _, id := range slices.Sorted(maps.Keys(g.Weights)) {
		weighted := g.Weights[id] > 0
		positive = positive || weighted
		i := slices.IndexFunc(s.shards, func(shard sourceShard) bool { return !shard.badID && shard.id == id })
		if i < 0 {
			incomplete := s.badShards || slices.ContainsFunc(s.shards, func(shard sourceShard) bool { return shard.badID })
			if last && !incomplete {
				c.addf(g.at, "weights shard %d, which is not listed", id)
			}
			continue
		}
		if !weighted {
			continue
		}
		shard := &s.shards[i]
		if last && !shard.badState && shard.state != StateActive {
			c.addf(g.at, "weights shard %d, which is %s", id, shard.state)
		}
		if !shard.badRoles && !shard.roles.Has(RoleInstances) {
			c.addf(g.at, "weights shard %d, which does not have the role %q", id, RoleInstances)
		}
	}
	if !positive {
		c.addf(g.at, "has no positive weight")
	}
}

// RegistryEntry is what the registry of the home shard says about a shard id (SHD-21).
type RegistryEntry struct {
	ShardID int
	State   State
}

// Claim is what a database says about itself. A database that says nothing has not been claimed yet.
type Claim struct {
	ShardID   int
	ClusterID string
}

// Check makes those checks of SHD-13 that need more than the document: against the registry of shard ids ever used, and
// against the claims that were read, through the primary of each shard, from the databases; claims is by the shard id in t,
// without those that could not be reached or are unclaimed. All databases must belong to the cluster of the home shard's, or if
// there is no claim of that, to the cluster of the claimed shard with the lowest id. It returns nil if nothing is wrong.
func Check(t *Topology, registry []RegistryEntry, claims map[int]Claim) *Problems {
	c := &collector{}
	for _, entry := range registry {
		if fault := checkEntry(t, entry); fault != "" {
			c.addf(placeShard(entry.ShardID), "%s", fault)
		}
	}
	cluster, whose := claimedCluster(t, claims)
	for _, shard := range t.Shards {
		claim, ok := claims[shard.ID]
		if !ok {
			continue
		}
		if claim.ShardID != shard.ID {
			c.addf(placeShard(shard.ID), "is on a database that is claimed by shard %d", claim.ShardID)
		}
		if claim.ClusterID != cluster {
			c.addf(placeShard(shard.ID), "is on a database of the cluster %s, while that of shard %d belongs to the cluster %s",
				quote(claim.ClusterID), whose, quote(cluster))
		}
	}
	return c.problems()
}

func checkEntry(t *Topology, entry RegistryEntry) (fault string) {
	shard, listed := t.Shard(entry.ShardID)
	switch {
	case !listed && entry.State != StateRetired:
		return fmt.Sprintf("is not listed, but is %s in the registry; only a retired shard may be left out", entry.State)
	case listed && entry.State == StateRetired && shard.State != StateRetired:
		return "is retired in the registry; the id of a retired shard is never used again"
	case listed && slices.Index(allStates(), shard.State) < slices.Index(allStates(), entry.State):
		return fmt.Sprintf("is %s in the registry and cannot go back to %s", entry.State, shard.State)
	default:
		return ""
	}
}

// claimedCluster is the cluster that every claim must name, and the shard whose claim says so.
func claimedCluster(t *Topology, claims map[int]Claim) (cluster string, whose int) {
	home := t.Home().ID
	if claim, ok := claims[home]; ok {
		return claim.ClusterID, home
	}
	for _, shard := range t.Shards {
		if claim, ok := claims[shard.ID]; ok {
			return claim.ClusterID, shard.ID
		}
	}
	return "", home
}
