package registry

import (
	"context"
	"fmt"
	"time"
)

// readEvery bounds how often the database is asked for the revision.
const readEvery = 10 * time.Second

// Revision is the number of home's registration up to which the copy was complete
// when this process last heard of it. It asks nobody.
func (c *Copy) Revision() int64 {
	c.revisionMu.Lock()
	defer c.revisionMu.Unlock()
	return c.revision
}

// ReadRevision looks, once in ten seconds at most, for what other processes have
// written to the copy.
func (c *Copy) ReadRevision(ctx context.Context) error {
	c.revisionMu.Lock()
	now := c.now()
	wait := now.Before(c.readAt)
	if !wait {
		c.readAt = now.Add(readEvery)
	}
	c.revisionMu.Unlock()
	if wait {
		return nil
	}
	revision, err := c.shard.Revision(ctx)
	if err != nil {
		return fmt.Errorf("read the revision of the definitions: %w", err)
	}
	c.revisionMu.Lock()
	defer c.revisionMu.Unlock()
	c.revision = revision // less than before, if the shard was restored from a backup
	return nil
}

// Note takes note of a revision that the copy has reached.
func (c *Copy) Note(revision int64) {
	c.revisionMu.Lock()
	defer c.revisionMu.Unlock()
	c.revision = max(c.revision, revision)
}
