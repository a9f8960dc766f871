package topology

import (
	"strconv"
	"time"

	"github.com/wiggle-run/wiggle/pkg/placement"
	"github.com/wiggle-run/wiggle/pkg/shardid"
)

// Parse reads, resolves and checks a document, with env for the variables in it. The error is a *Problems that lists
// everything that is wrong with it, except what needs more than the document to tell: that is for Check.
func Parse(doc []byte, env Environment) (*Topology, error) {
	c := &collector{}
	t := parse(c, doc, env)
	if p := c.problems(); p != nil {
		return nil, p
	}
	return t, nil
}

func parse(c *collector, doc []byte, env Environment) *Topology {
	root, err := readTree(doc)
	if err != nil {
		c.addf(placeDocument(), "%s", err)
		return nil
	}
	return resolve(c, reader{c, env}.source(&root))
}

// source is what a document (or the settings for a single database) says, before anything is inherited. The flags tell
// which parts could not be read and have had their problem already.
type source struct {
	defaults       Settings
	generations    []sourceGeneration
	shards         []sourceShard
	badGenerations bool
	badShards      bool
}

type sourceGeneration struct {
	at place
	DocumentGeneration
	badID, badActiveFrom, badWeights bool
}

type sourceShard struct {
	at    place
	id    int
	state State
	roles Roles
	Settings
	primary    *sourceMember
	replicas   []sourceMember
	badID      bool
	badState   bool
	badRoles   bool
	badPrimary bool
}

type sourceMember struct {
	at place
	DocumentMember
	badURL bool
}

func (r reader) source(root *node) source {
	var s source
	if !r.object(root, placeDocument(), "defaults", "generations", "shards") {
		return source{badGenerations: true, badShards: true}
	}
	if defaults := root.get("defaults"); defaults != nil && r.object(defaults, placeDefaults(), settingNames()...) {
		s.defaults = r.settings(defaults, placeDefaults())
	}
	generations, ok := r.list(root, placeDocument(), "generations")
	s.badGenerations = !ok
	for i := range generations {
		s.generations = append(s.generations, r.generation(&generations[i], i))
	}
	shards, ok := r.list(root, placeDocument(), "shards")
	s.badShards = !ok
	for i := range shards {
		s.shards = append(s.shards, r.shard(&shards[i], i))
	}
	return s
}

func settingNames(more ...string) []string {
	return append(more, "user", "password", "pool", "replicaPool", "maxReplicaLagMillis", "replicaFallback", "commit")
}

func (r reader) settings(n *node, at place) Settings {
	var s Settings
	s.User, _ = r.text(n, at, "user")
	password, _ := r.text(n, at, "password")
	s.Password = NewCredential(password)
	s.Pool, _ = r.whole(n, at, "pool", 1, MaxPool)
	s.ReplicaPool, _ = r.whole(n, at, "replicaPool", 1, MaxPool)
	s.MaxReplicaLagMillis, _ = r.whole(n, at, "maxReplicaLagMillis", 1, MaxLagMillis)
	s.ReplicaFallback, _ = word(r, n, at, "replicaFallback", allFallbacks())
	s.Commit, _ = word(r, n, at, "commit", allCommits())
	return s
}

func (r reader) generation(n *node, index int) sourceGeneration {
	g := sourceGeneration{at: placeEntry(rankGeneration, "generations", index)}
	if id, ok := quietID(n, 1); ok {
		g.at = placeGeneration(id)
	}
	if !r.object(n, g.at, "id", "activeFrom", "weights") {
		g.badID, g.badActiveFrom, g.badWeights = true, true, true
		return g
	}
	g.ID, g.badID = r.id(n, g.at, 1)
	g.ActiveFrom, g.badActiveFrom = r.instant(n, g.at)
	g.Weights, g.badWeights = r.weights(n, g.at)
	return g
}

// quietID is the id of an entry if it has a usable one: it names the entry's problems before these are looked for.
func quietID(n *node, least int) (id int, ok bool) {
	return reader{collector: &collector{}}.whole(n, place{}, "id", least, shardid.MaxShard)
}

func (r reader) id(n *node, at place, least int) (id int, bad bool) {
	if n.get("id") == nil {
		r.addf(at, "has no id")
		return 0, true
	}
	id, ok := r.whole(n, at, "id", least, shardid.MaxShard)
	return id, !ok
}

func (r reader) instant(n *node, at place) (instant time.Time, bad bool) {
	const name = "activeFrom"
	if n.get(name) == nil {
		r.addf(at, "has no %s", name)
		return instant, true
	}
	text, ok := r.text(n, at, name)
	if !ok {
		return instant, true
	}
	instant, err := time.Parse(time.RFC3339, text)
	if err != nil {
		r.addf(at, "%s must be a time such as 2026-10-01T00:00:00Z (RFC 3339)", name)
		return instant, true
	}
	return instant.UTC(), false
}

func (r reader) weights(n *node, at place) (weights map[int]float64, bad bool) {
	value := n.get("weights")
	if value == nil {
		r.addf(at, "has no weights")
		return nil, true
	}
	if value.kind != kindObject {
		r.addf(at, "weights must be an object of shard ids and numbers, not %s", value.kind)
		return nil, true
	}
	weights = map[int]float64{}
	for _, f := range value.fields {
		shard, err := strconv.Atoi(f.name)
		if err != nil || shard < 0 || shard > shardid.MaxShard || strconv.Itoa(shard) != f.name {
			r.addf(at, "weights has the key %s, which is not the id of a shard", quote(f.name))
			bad = true
			continue
		}
		if f.repeated {
			r.addf(at, "weights shard %d more than once", shard)
			bad = true
		}
		weight, err := strconv.ParseFloat(f.value.text, 64)
		if f.value.kind != kindNumber || err != nil || !placement.ValidWeight(weight) {
			r.addf(at, "the weight of shard %d must be a number from 0 to %g", shard, float64(placement.MaxWeight))
			bad = true
			continue
		}
		weights[shard] = weight
	}
	return weights, bad
}

func (r reader) shard(n *node, index int) sourceShard {
	s := sourceShard{at: placeEntry(rankShard, "shards", index)}
	if id, ok := quietID(n, 0); ok {
		s.at = placeShard(id)
	}
	if !r.object(n, s.at, settingNames("id", "state", "roles", "primary", "replicas")...) {
		s.badID, s.badState, s.badRoles, s.badPrimary = true, true, true, true
		return s
	}
	s.id, s.badID = r.id(n, s.at, 0)
	s.state, s.badState = r.state(n, s.at)
	s.roles, s.badRoles = r.roles(n, s.at)
	s.Settings = r.settings(n, s.at)
	if primary := n.get("primary"); primary != nil {
		m, ok := r.member(primary, s.at.primary())
		s.primary, s.badPrimary = &m, !ok
	}
	replicas, _ := r.list(n, s.at, "replicas")
	for i := range replicas {
		m, _ := r.member(&replicas[i], s.at.replica(i))
		s.replicas = append(s.replicas, m)
	}
	return s
}

func (r reader) state(n *node, at place) (state State, bad bool) {
	if n.get("state") == nil {
		r.addf(at, "has no state, which is one of %s", join(allStates(), ", "))
		return "", true
	}
	state, ok := word(r, n, at, "state", allStates())
	return state, !ok
}

func (r reader) roles(n *node, at place) (roles Roles, bad bool) {
	items, ok := r.list(n, at, "roles")
	if !ok {
		return nil, true
	}
	if len(items) == 0 {
		r.addf(at, "has no roles, which are some of %s", join(allRoles(), ", "))
		return nil, true
	}
	for i := range items {
		role, ok := wordOf(r, &items[i], at, "role", allRoles())
		if !ok {
			bad = true
			continue
		}
		roles = append(roles, role)
	}
	return roles, bad
}

func (r reader) member(n *node, at place) (m sourceMember, ok bool) {
	m = sourceMember{at: at, badURL: true}
	if !r.object(n, at, settingNames("url", "zone")...) {
		return m, false
	}
	m.Settings = r.settings(n, at)
	m.Zone, _ = r.text(n, at, "zone")
	if n.get("url") == nil {
		r.addf(at, "has no url")
		return m, true
	}
	text, ok := r.text(n, at, "url")
	m.URL, m.badURL = NewCredential(text), !ok
	return m, true
}
