package topology

import (
	"errors"
	"io/fs"
	"slices"
	"strconv"
	"strings"
	"time"
)

// The environment variables that Load reads. One that is empty counts as not set. Those of a single database are also
// accepted under their older names, see OlderName.
const (
	EnvTopology            = "WIGGLE_STORAGE_TOPOLOGY"       // path of the document, or the document itself
	EnvDatabaseURL         = "WIGGLE_DATABASE_URL"           // the single database
	EnvReplicaURLs         = "WIGGLE_REPLICA_URLS"           // its replicas, with commas or spaces between them
	EnvReplicaPoolSize     = "WIGGLE_REPLICA_POOL_SIZE"      // DefaultReplicaPool
	EnvMaxReplicaLagMillis = "WIGGLE_MAX_REPLICA_LAG_MILLIS" // DefaultMaxLagMillis
	EnvReplicaFallback     = "WIGGLE_REPLICA_FALLBACK"       // FallbackPrimary
)

// OlderName is the older name of one of the variables of a single database: WIGGLE_JDBC_URL for EnvDatabaseURL, and
// WIGGLE_JDBC_REPLICA_URLS and so on for the others.
func OlderName(name string) string {
	if name == EnvDatabaseURL {
		return "WIGGLE_JDBC_URL"
	}
	return "WIGGLE_JDBC_" + strings.TrimPrefix(name, "WIGGLE_")
}

// Load makes the topology that the environment asks for: that of the document in EnvTopology, or else of the single
// database in EnvDatabaseURL (SHD-10, SHD-14). readFile is as os.ReadFile. It refuses both together, and what RemovedSettings
// refuses, as far as it can look these up by name. The error is a *Problems.
func Load(env Environment, readFile func(path string) ([]byte, error)) (*Topology, error) {
	c := &collector{}
	removedSettings(c, func(name string) bool { return lookup(env, name) != "" })
	single := readSingle(c, env)
	document := lookup(env, EnvTopology)
	var t *Topology
	switch {
	case document != "":
		for _, name := range single.set {
			c.addf(placeSetting(name), "cannot be set together with %s, which replaces it: unset one of the two", EnvTopology)
		}
		if doc, ok := readDocument(c, document, readFile); ok {
			t = parse(c, doc, env)
		}
	case single.database.text == "":
		c.addf(placeSetting(EnvDatabaseURL), "is not set, and neither is %s; set one of the two", EnvTopology)
	default:
		t = resolve(c, single.source(c))
	}
	if p := c.problems(); p != nil {
		return nil, p
	}
	return t, nil
}

func lookup(env Environment, name string) string {
	text, _ := env(name)
	return strings.TrimSpace(text)
}

// readDocument returns the document that the setting is or names.
func readDocument(c *collector, setting string, readFile func(string) ([]byte, error)) (doc []byte, ok bool) {
	if strings.HasPrefix(setting, "{") {
		return []byte(setting), true
	}
	doc, err := readFile(setting)
	if err == nil {
		return doc, true
	}
	// What is not a path may be a document or URL by mistake, with a password in it, and the error repeats it.
	reason := "it cannot be read"
	if pathError, ok := errors.AsType[*fs.PathError](err); ok {
		reason = pathError.Err.Error()
	}
	name := "the file that it names"
	if consistsOf(setting, "/") {
		name = strconv.Quote(setting)
	}
	c.addf(placeSetting(EnvTopology), "must be a document, which starts with {, or the path of one; reading %s: %s", name, reason)
	return nil, false
}

// setting is an environment variable under the name by which it was set.
type setting struct{ name, text string }

// singleSettings are the variables of SHD-14.
type singleSettings struct {
	database, replicas, replicaPool, maxLag, fallback setting
	// set has the names of those that are set.
	set []string
}

func readSingle(c *collector, env Environment) singleSettings {
	var s singleSettings
	read := func(name string) setting {
		older := OlderName(name)
		now, before := lookup(env, name), lookup(env, older)
		if now != "" {
			s.set = append(s.set, name)
		}
		if before != "" {
			s.set = append(s.set, older)
		}
		if now != "" && before != "" && now != before {
			c.addf(placeSetting(older), "is the older name of %s, which is set to something else: unset it", name)
		}
		if now == "" && before != "" {
			return setting{older, before}
		}
		return setting{name, now}
	}
	s.database = read(EnvDatabaseURL)
	s.replicas = read(EnvReplicaURLs)
	s.replicaPool = read(EnvReplicaPoolSize)
	s.maxLag = read(EnvMaxReplicaLagMillis)
	s.fallback = read(EnvReplicaFallback)
	return s
}

func (s singleSettings) source(c *collector) source {
	single := Single{URL: NewCredential(s.database.text)}
	for _, u := range splitURLs(s.replicas.text) {
		single.ReplicaURLs = append(single.ReplicaURLs, NewCredential(u))
	}
	single.ReplicaPool = wholeSetting(c, s.replicaPool, MaxPool)
	single.MaxReplicaLagMillis = wholeSetting(c, s.maxLag, MaxLagMillis)
	if s.fallback.text != "" {
		var ok bool
		if single.ReplicaFallback, ok = match(s.fallback.text, allFallbacks()); !ok {
			c.addf(placeSetting(s.fallback.name), "%s", mismatch("value", s.fallback.text, allFallbacks()))
		}
	}
	return single.source(placeSetting(s.database.name), func(i int) place { return placeSetting(s.replicas.name).replica(i) })
}

// wholeSetting is 0 if the setting is not set or wrong.
func wholeSetting(c *collector, s setting, most int) int {
	if s.text == "" {
		return 0
	}
	number, err := strconv.Atoi(s.text)
	if err != nil || number < 1 || number > most {
		c.addf(placeSetting(s.name), "must be a whole number from 1 to %d", most)
		return 0
	}
	return number
}

// splitURLs splits at spaces, and at commas before another URL: other commas are between the hosts of one.
func splitURLs(text string) []string {
	var urls []string
	for part := range strings.FieldsFuncSeq(text, func(r rune) bool { return r == ',' || r <= ' ' }) {
		_, jdbc := cutPrefixFold(part, "jdbc:")
		_, scheme := cutScheme(part)
		if len(urls) == 0 || jdbc || scheme {
			urls = append(urls, part)
		} else {
			urls[len(urls)-1] += "," + part
		}
	}
	return urls
}

// Single describes a cluster that is one database with its replicas. Zero fields have the defaults.
type Single struct {
	URL         Credential
	ReplicaURLs []Credential
	// Pool and ReplicaPool are 1 to MaxPool, MaxReplicaLagMillis 1 to MaxLagMillis.
	Pool                int
	ReplicaPool         int
	MaxReplicaLagMillis int
	ReplicaFallback     Fallback
}

// FromSingle makes the topology of one database: shard 0, with every role, and one generation, in force since the Unix epoch
// (SHD-14). ${NAME} is not replaced. The error is a *Problems.
func FromSingle(s Single) (*Topology, error) {
	c := &collector{}
	at := placeShard(0)
	checkRange := func(name string, number, most int) {
		if number < 0 || number > most {
			c.addf(at, "%s must be a whole number from 1 to %d", name, most)
		}
	}
	checkRange("pool", s.Pool, MaxPool)
	checkRange("replicaPool", s.ReplicaPool, MaxPool)
	checkRange("maxReplicaLagMillis", s.MaxReplicaLagMillis, MaxLagMillis)
	if s.ReplicaFallback != "" && !slices.Contains(allFallbacks(), s.ReplicaFallback) {
		c.addf(at, "%s", mismatch("replicaFallback", string(s.ReplicaFallback), allFallbacks()))
	}
	t := resolve(c, s.source(at.primary(), at.replica))
	if p := c.problems(); p != nil {
		return nil, p
	}
	return t, nil
}

// source says in the terms of a document what s says; primary and replica name its parts in problems.
func (s Single) source(primary place, replica func(int) place) source {
	shard := sourceShard{
		at: placeShard(0), state: StateActive, roles: allRoles(),
		Settings: Settings{
			Pool: s.Pool, ReplicaPool: s.ReplicaPool,
			MaxReplicaLagMillis: s.MaxReplicaLagMillis, ReplicaFallback: s.ReplicaFallback,
		},
		primary: &sourceMember{at: primary, DocumentMember: DocumentMember{URL: s.URL}},
	}
	for i, u := range s.ReplicaURLs {
		shard.replicas = append(shard.replicas, sourceMember{at: replica(i), DocumentMember: DocumentMember{URL: u}})
	}
	first := DocumentGeneration{ID: 1, ActiveFrom: time.Unix(0, 0).UTC(), Weights: map[int]float64{0: 1}}
	return source{
		shards:      []sourceShard{shard},
		generations: []sourceGeneration{{at: placeGeneration(1), DocumentGeneration: first}},
	}
}
