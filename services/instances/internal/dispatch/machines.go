package dispatch

import (
	"context"
	"fmt"
	"sync"

	"github.com/wiggle-run/wiggle/proto/definition"
	"github.com/wiggle-run/wiggle/services/instances/internal/machine"
	"github.com/wiggle-run/wiggle/services/instances/internal/store"
)

// machineKey names a definition.
type machineKey struct {
	namespace, workflow string
	version             int32
}

// machines keeps the machine of each definition that was used. A definition never
// changes once it is registered, so nothing is ever dropped for being old.
type machines struct {
	load func(ctx context.Context, namespace, workflow string, version int32) (store.Definition, error)
	// looked is told of lookups that found a machine, and that did not.
	looked func(hits, misses int)

	mu    sync.RWMutex
	known map[machineKey]*machine.Machine
}

// get finds a machine; store.ErrNotFound if the shard does not have the version.
func (c *machines) get(ctx context.Context, key machineKey) (*machine.Machine, error) {
	c.mu.RLock()
	m := c.known[key]
	c.mu.RUnlock()
	if m != nil {
		c.looked(1, 0)
		return m, nil
	}
	c.looked(0, 1)
	d, err := c.load(ctx, key.namespace, key.workflow, key.version)
	if err != nil {
		return nil, fmt.Errorf("definition of %s version %d: %w", key.workflow, key.version, err)
	}
	graph, problems := definition.Analyze(d.Graph)
	if problems != nil {
		return nil, fmt.Errorf("stored definition of %s version %d: %w", key.workflow, key.version, problems)
	}
	graph.Version = d.Version
	m = machine.New(graph)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.known == nil {
		c.known = make(map[machineKey]*machine.Machine)
	}
	c.known[key] = m
	return m, nil
}

// graph is the graph of a definition that was used; nil if it was not.
func (c *machines) graph(key machineKey) *definition.Graph {
	c.mu.RLock()
	defer c.mu.RUnlock()
	if m := c.known[key]; m != nil {
		return m.Graph()
	}
	return nil
}

// of finds the machine that an instance runs on.
func (c *machines) of(ctx context.Context, in *machine.Instance) (*machine.Machine, error) {
	return c.get(ctx, machineKey{in.Namespace, in.Workflow, in.Version})
}

// Machine finds the machine of a version that the shard has.
func (s *Shard) Machine(ctx context.Context, namespace, workflow string, version int32) (*machine.Machine, error) {
	return s.machines.get(ctx, machineKey{namespace, workflow, version})
}
