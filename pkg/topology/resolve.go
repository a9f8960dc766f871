package topology

import (
	"cmp"
	"slices"
	"time"

	"github.com/wiggle-run/wiggle/pkg/placement"
)

// resolve checks s and works out every setting. The result is for use only if c has no problems.
func resolve(c *collector, s source) *Topology {
	t := &Topology{}
	for i := range s.shards {
		t.Shards = append(t.Shards, resolveShard(c, s.defaults, &s.shards[i]))
	}
	for _, g := range s.generations {
		t.Generations = append(t.Generations, Generation(g.DocumentGeneration))
	}
	checkShards(c, &s)
	checkGenerations(c, &s)
	slices.SortStableFunc(t.Shards, func(a, b Shard) int { return cmp.Compare(a.ID, b.ID) })
	if len(c.found) > 0 {
		return nil
	}
	var err error
	if t.placement, err = placement.New(t.Generations); err != nil {
		c.addf(placeDocument(), "%s", err) // unless the checks here and there differ, this does not happen
	}
	return t
}

func resolveShard(c *collector, defaults Settings, s *sourceShard) Shard {
	shard := Shard{ID: s.id, State: s.state}
	for _, r := range allRoles() {
		if s.roles.Has(r) {
			shard.Roles = append(shard.Roles, r)
		}
	}
	inherited := overlay(defaults, s.Settings)
	if s.primary != nil {
		shard.Primary = resolveMember(c, inherited, s.primary, Member{Shard: s.id, Role: MemberPrimary})
	} else if s.state != StateRetired && !s.badState && !s.badPrimary {
		c.addf(s.at, "has no primary")
	}
	for i := range s.replicas {
		m := resolveMember(c, inherited, &s.replicas[i], Member{Shard: s.id, Role: MemberReplica, Index: i})
		shard.Replicas = append(shard.Replicas, m)
	}
	return shard
}

// overlay returns what holds where inner is inside outer.
func overlay(outer, inner Settings) Settings {
	s := Settings{
		User:                cmp.Or(inner.User, outer.User),
		Password:            inner.Password,
		Pool:                cmp.Or(inner.Pool, outer.Pool),
		ReplicaPool:         cmp.Or(inner.ReplicaPool, outer.ReplicaPool),
		MaxReplicaLagMillis: cmp.Or(inner.MaxReplicaLagMillis, outer.MaxReplicaLagMillis),
		ReplicaFallback:     cmp.Or(inner.ReplicaFallback, outer.ReplicaFallback),
		Commit:              cmp.Or(inner.Commit, outer.Commit),
	}
	if s.Password.IsZero() {
		s.Password = outer.Password
	}
	return s
}

// resolveMember completes m.
func resolveMember(c *collector, inherited Settings, s *sourceMember, m Member) Member {
	set := overlay(inherited, s.Settings)
	m.Zone = s.Zone
	m.Pool = cmp.Or(set.Pool, DefaultPool)
	if m.Role == MemberReplica {
		// A pool inside a replica can mean only that replica's.
		m.Pool = cmp.Or(s.ReplicaPool, s.Pool, set.ReplicaPool, DefaultReplicaPool)
	}
	m.MaxLag = time.Duration(cmp.Or(set.MaxReplicaLagMillis, DefaultMaxLagMillis)) * time.Millisecond
	m.Fallback = cmp.Or(set.ReplicaFallback, FallbackPrimary)
	m.Commit = cmp.Or(set.Commit, CommitLocal)
	if s.badURL {
		return m
	}
	u, fault := parseURL(s.URL.Reveal())
	if fault != "" {
		c.addf(s.at, "%s", fault)
		s.badURL = true
		return m
	}
	if m.Role == MemberPrimary {
		u.expectWriter()
	}
	u.user = cmp.Or(u.user, set.User)
	u.password = cmp.Or(u.password, set.Password.Reveal())
	m.User, m.URL, m.conn = u.user, u.display(), u.connString()
	return m
}
