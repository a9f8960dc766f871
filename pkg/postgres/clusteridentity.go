package postgres

import (
	"errors"
	"sync"
)

// ClusterIdentity is the id of the cluster as its databases tell it, shared by those of a process who open shards. The zero value
// is not ready: make it with NewClusterIdentity. It is safe for concurrent use.
type ClusterIdentity struct {
	mu    sync.Mutex
	id    string
	known chan struct{}
}

// NewClusterIdentity makes one that knows nothing yet.
func NewClusterIdentity() *ClusterIdentity { return &ClusterIdentity{known: make(chan struct{})} }

// Get returns the id, or "" while no database has told it.
func (c *ClusterIdentity) Get() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.id
}

// Known returns a channel that is closed when the id is known.
func (c *ClusterIdentity) Known() <-chan struct{} { return c.known }

// Learn takes note of what a shard's database says. Another cluster's is refused with a *ClaimError.
func (c *ClusterIdentity) Learn(shard int, id string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.id == "" {
		c.id = id
		close(c.known)
	}
	if c.id != id {
		return &ClaimError{WantShard: shard, WantCluster: c.id, HasShard: shard, HasCluster: id}
	}
	return nil
}

// Reason says why a database cannot be used, in safe words that stay the same while the reason does: the text of an [Error]
// has a new reference each time.
func Reason(err error) string {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Reason
	}
	return err.Error()
}
