package topology

import "time"

// Document is the JSON document of SHD-10, for code that writes one: json.Marshal makes what Parse reads, with
// credentials in clear. It is not resolved: nothing is inherited, and ${NAME} stands as it is. Note that Parse replaces
// ${NAME} in every string, also in a password that happens to contain it.
type Document struct {
	Defaults    Settings             `json:"defaults,omitzero"`
	Generations []DocumentGeneration `json:"generations"`
	Shards      []DocumentShard      `json:"shards"`
}

// Settings are those that cascade (SHD-11): what the defaults say holds unless the shard says otherwise, and that unless
// its primary or replica does. A zero field says nothing.
type Settings struct {
	// User and Password sign in to the database. Those in a URL take precedence.
	User     string     `json:"user,omitempty"`
	Password Credential `json:"password,omitzero"`
	// Pool is how many connections a process opens to the primary: 1 to MaxPool, DefaultPool if not set. Given in a
	// replica, it is that replica's replicaPool.
	Pool int `json:"pool,omitempty"`
	// ReplicaPool is how many connections a process opens to each replica: 1 to MaxPool, DefaultReplicaPool if not set.
	ReplicaPool int `json:"replicaPool,omitempty"`
	// MaxReplicaLagMillis is by how much a replica may lag and still be read from: 1 to MaxLagMillis, DefaultMaxLagMillis
	// if not set.
	MaxReplicaLagMillis int `json:"maxReplicaLagMillis,omitempty"`
	// ReplicaFallback is for when no replica is healthy; FallbackPrimary if not set. It is the primary's that counts.
	ReplicaFallback Fallback `json:"replicaFallback,omitempty"`
	// Commit is the commit level of the shard; CommitLocal if not set. It is the primary's that counts.
	Commit Commit `json:"commit,omitempty"`
}

// DocumentGeneration is a generation in a Document.
type DocumentGeneration struct {
	ID         int             `json:"id"`
	ActiveFrom time.Time       `json:"activeFrom"`
	Weights    map[int]float64 `json:"weights"`
}

// DocumentShard is a shard in a Document.
type DocumentShard struct {
	ID    int   `json:"id"`
	State State `json:"state"`
	Roles Roles `json:"roles"`
	Settings
	// Primary may be left out of a retired shard.
	Primary  *DocumentMember  `json:"primary,omitempty"`
	Replicas []DocumentMember `json:"replicas,omitempty"`
}

// DocumentMember is a primary or replica in a Document.
type DocumentMember struct {
	URL  Credential `json:"url"`
	Zone string     `json:"zone,omitempty"`
	Settings
}
