// Package registry keeps the workflow definitions of shards: it gives new ones
// their version on the home shard and brings the copies that the other shards
// hold up to it (WF-10 to WF-13).
//
// Home numbers its registrations without gaps. A shard's copy is complete up to
// the number of its last definition, because definitions are only ever written to
// it in that order and without gaps. A copy that may have missed something (the
// process has just started, or the shard's database was away) is brought up from
// home before it serves a start. With home out of reach starts go on with what
// the copy has (ARC-1).
package registry

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/wiggle-run/wiggle/pkg/faults"
	"github.com/wiggle-run/wiggle/proto/definition"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	"github.com/wiggle-run/wiggle/services/instances/internal/store"
)

const (
	// readPage is how many definitions are copied at a time.
	readPage = 50
	// pause keeps a home that is out of reach, and starts of workflows that do
	// not exist, from costing a look at home each.
	pause = time.Second
	// timeout bounds one look at home.
	timeout = 2 * time.Second
)

// Copy is one shard's copy of home's definitions.
type Copy struct {
	shard, home store.Definitions
	failures    func() uint64
	now         func() time.Time
	log         *slog.Logger

	mu       sync.Mutex
	synced   bool
	failedAt uint64 // failures when it was synced
	next     time.Time

	revisionMu sync.Mutex
	revision   int64
	readAt     time.Time
}

// NewCopy makes the copy of a shard. home is nil for the home shard itself, whose
// definitions are complete by themselves. failures counts how often the shard's
// database did not answer: what came meanwhile may be missing.
func NewCopy(shard, home store.Definitions, failures func() uint64, log *slog.Logger) *Copy {
	return &Copy{shard: shard, home: home, failures: failures, now: time.Now, log: log}
}

// Ensure brings the copy up if it may have missed something.
func (c *Copy) Ensure(ctx context.Context) {
	if c.home == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	failures := c.failures()
	if (c.synced && c.failedAt == failures) || c.now().Before(c.next) {
		return
	}
	c.sync(ctx, failures)
}

// Refresh looks at home for something that the copy does not have. It reports
// whether it did; it does so once a second at most.
func (c *Copy) Refresh(ctx context.Context) bool {
	if c.home == nil {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.now().Before(c.next) {
		return false
	}
	return c.sync(ctx, c.failures())
}

// sync copies what is missing. The caller holds the lock.
func (c *Copy) sync(ctx context.Context, failures uint64) bool {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), timeout)
	defer cancel()
	c.next = c.now().Add(pause)
	if err := c.copyMissing(ctx); err != nil {
		c.log.Warn("definitions may be behind the home shard's; starts go on with those that are here", "error", err)
		return false
	}
	c.synced, c.failedAt = true, failures
	return true
}

func (c *Copy) copyMissing(ctx context.Context) error {
	after, err := c.shard.Revision(ctx)
	if err != nil {
		return fmt.Errorf("read the shard's revision: %w", err)
	}
	defer func() { c.Note(after) }()
	for {
		missing, err := c.home.ListDefinitions(ctx, store.DefinitionQuery{AfterRevision: after, Limit: readPage})
		if err != nil {
			return fmt.Errorf("read definitions of home: %w", err)
		}
		if len(missing) == 0 {
			return nil
		}
		if _, err := c.shard.PutDefinitions(ctx, missing); err != nil {
			return fmt.Errorf("write definitions: %w", err)
		}
		after = missing[len(missing)-1].Revision
	}
}

// Put writes definitions that a router brings. Where they leave a gap the copy is
// brought up from home instead. It answers the revision up to which the copy is
// complete.
func (c *Copy) Put(ctx context.Context, ds []store.Definition) (int64, error) {
	have, err := c.shard.Revision(ctx)
	if err != nil || len(ds) == 0 {
		return have, err
	}
	if ds[0].Revision <= have+1 {
		revision, err := c.shard.PutDefinitions(ctx, ds)
		c.Note(revision)
		return revision, err
	}
	if c.home == nil {
		return have, nil
	}
	if err := c.copyMissing(ctx); err != nil {
		return have, err
	}
	return c.shard.Revision(ctx)
}

// Register gives a definition its version on home (WF-11).
func Register(
	ctx context.Context, home store.Definitions, limits definition.Limits, namespace string, d *wigglev1.Definition,
) (store.Definition, bool, error) {
	if problems := definition.Validate(d, limits); problems != nil {
		return store.Definition{}, false, faults.Invalid(problems.List...)
	}
	fingerprint := definition.Fingerprint(d)
	stored, created, err := home.Register(ctx, namespace, d.GetName(), func(versions []store.Definition) (store.Definition, error) {
		return choose(versions, namespace, d, fingerprint)
	})
	if err != nil {
		if f, ok := errors.AsType[*faults.Error](err); ok {
			return store.Definition{}, false, f
		}
		return store.Definition{}, false, fmt.Errorf("register %s: %w", d.GetName(), err)
	}
	return stored, created, nil
}

// choose picks the version that holds the graph, or gives it a new one.
func choose(versions []store.Definition, namespace string, d *wigglev1.Definition, fingerprint [32]byte) (store.Definition, error) {
	var latest store.Definition
	for _, v := range versions {
		if v.Version > latest.Version {
			latest = v
		}
		if v.Version != d.GetVersion() {
			continue
		}
		if v.Fingerprint == fingerprint {
			return v, nil
		}
		return store.Definition{}, faults.DefinitionConflict(d.GetName(), int(v.Version), definition.Diff(v.Graph, d)...)
	}
	version := d.GetVersion()
	if version == 0 {
		if latest.Version > 0 && latest.Fingerprint == fingerprint {
			return latest, nil
		}
		version = latest.Version + 1
	}
	graph := proto.CloneOf(d)
	graph.Version = version
	return store.Definition{
		Namespace: namespace, Workflow: d.GetName(), Version: version, Fingerprint: fingerprint, Graph: graph,
	}, nil
}
