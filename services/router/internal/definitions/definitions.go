// Package definitions registers workflow definitions and brings them to every shard.
//
// A definition is durable once home has it; home numbers it with a revision. It is then written to every other shard that
// is not retired, and a shard that could not take it is behind (WF-13): the answer says so, a loop brings it what it
// missed as soon as it can, and a start that is about to go to a shard that is known to be behind brings it first. All of
// it is safe to repeat, so routers need not know of each other.
//
// How far a shard is comes with its status. What we wrote ourselves counts for a few seconds on top, until the status has
// caught up; after that the status alone, so that a shard which was restored from a backup is noticed.
package definitions

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/wiggle-run/wiggle/pkg/faults"
	"github.com/wiggle-run/wiggle/pkg/lifecycle"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	wiggleinternalv1 "github.com/wiggle-run/wiggle/proto/gen/wiggleinternal/v1"
	"github.com/wiggle-run/wiggle/services/router/internal/backends"
	"github.com/wiggle-run/wiggle/services/router/internal/route"
)

const (
	// pageSize is how many definitions are brought at a time.
	pageSize = 100
	// trustFor is how long our own word on a shard's revision counts.
	trustFor = 3 * time.Second
	// interval is how often shards that are behind are looked for. It costs nothing while there are none.
	interval = time.Second
	// bringTimeout bounds one round of bringing definitions to a shard.
	bringTimeout = 10 * time.Second
)

// Config bounds the calls.
type Config struct {
	// RegisterTimeout bounds the registration on home.
	RegisterTimeout time.Duration
	// PutTimeout is how long a registration waits for the other shards.
	PutTimeout time.Duration
}

// Keeper brings definitions to shards.
type Keeper struct {
	cfg     Config
	forward *route.Forwarder
	cluster func() *route.Cluster
	logger  *slog.Logger
	waker   *lifecycle.Waker

	mu     sync.Mutex
	home   int64 // the highest revision of home that was heard of
	wrote  map[int]written
	active map[int]chan struct{} // one token for each shard: who holds it brings definitions to the shard
}

// written is our own word on a shard's revision.
type written struct {
	revision int64
	at       time.Time
}

// New makes a keeper.
func New(cfg Config, forward *route.Forwarder, cluster func() *route.Cluster, logger *slog.Logger) *Keeper {
	return &Keeper{
		cfg: cfg, forward: forward, cluster: cluster, logger: logger, waker: lifecycle.NewWaker(),
		wrote: make(map[int]written), active: make(map[int]chan struct{}),
	}
}

// Run brings definitions to shards that are behind, until ctx is done.
func (k *Keeper) Run(ctx context.Context) error {
	return lifecycle.Loop{
		Interval: interval, Timeout: bringTimeout, Waker: k.waker, RunOnce: k.runOnce,
		OnError: func(err error) {
			k.logger.WarnContext(ctx, "a shard is behind with workflow definitions", slog.Any("error", err))
		},
	}.Run(ctx)
}

// runOnce brings definitions to every shard that is behind and can be reached.
func (k *Keeper) runOnce(ctx context.Context) error {
	var (
		wg   sync.WaitGroup
		mu   sync.Mutex
		errs []error
	)
	for _, shard := range k.Behind() {
		if !k.reachable(shard) || !k.reachable(k.cluster().Home()) {
			continue // when it is back, its status says how far it is
		}
		wg.Go(func() {
			if err := k.bring(ctx, shard); err != nil {
				mu.Lock()
				defer mu.Unlock()
				errs = append(errs, fmt.Errorf("shard %d: %w", shard, err))
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// Register registers a definition on home and then brings it to the other shards, which it does not wait for longer
// than the put timeout.
func (k *Keeper) Register(
	ctx context.Context, namespace string, definition *wigglev1.Definition,
) (*wigglev1.RegisterWorkflowResponse, error) {
	home := k.cluster().Home()
	req := &wiggleinternalv1.RegisterDefinitionRequest{Namespace: namespace, Definition: definition}
	call := route.Call{Shard: home, Method: "RegisterDefinition", Timeout: k.cfg.RegisterTimeout}
	res, err := route.Do(ctx, k.forward, call,
		func(ctx context.Context, c backends.Client) (*wiggleinternalv1.RegisterDefinitionResponse, error) {
			return c.Shards.RegisterDefinition(ctx, req)
		})
	if err != nil {
		return nil, err
	}
	stored := res.GetStored()
	k.noteHome(stored.GetRevision())
	return &wigglev1.RegisterWorkflowResponse{
		Version:      stored.GetDefinition().GetVersion(),
		Fingerprint:  hex.EncodeToString(stored.GetFingerprint()),
		Created:      res.GetCreated(),
		ShardsBehind: k.spread(ctx, stored),
	}, nil
}

// spread writes a definition to every shard but home and tells which are behind.
func (k *Keeper) spread(ctx context.Context, stored *wiggleinternalv1.StoredDefinition) []int32 {
	ctx, cancel := context.WithTimeout(ctx, k.cfg.PutTimeout)
	defer cancel()
	shards := k.cluster().Instances()
	late := make([]bool, len(shards))
	var wg sync.WaitGroup
	for i, shard := range shards {
		if k.revision(shard) >= stored.GetRevision() || shard == k.cluster().Home() {
			continue
		}
		wg.Go(func() {
			revision, err := k.put(ctx, shard, []*wiggleinternalv1.StoredDefinition{stored})
			if err == nil && revision < stored.GetRevision() { // it misses others
				err = k.bring(ctx, shard)
			}
			late[i] = err != nil
		})
	}
	wg.Wait()
	var behind []int32
	for i, shard := range shards {
		if late[i] {
			behind = append(behind, route.Wire(shard))
		}
	}
	if len(behind) > 0 {
		k.waker.Wake()
	}
	return behind
}

// Behind lists the shards that have not received every definition that home is known to have.
func (k *Keeper) Behind() []int {
	cluster := k.cluster()
	target := k.homeRevision()
	var behind []int
	for _, shard := range cluster.Instances() {
		if shard != cluster.Home() && k.revision(shard) < target {
			behind = append(behind, shard)
		}
	}
	return behind
}

// Ensure brings a shard what it misses, before a start goes there. It costs nothing if the shard is not behind. It is
// false if the shard is behind still: what it does not find may only not have arrived.
func (k *Keeper) Ensure(ctx context.Context, shard int) bool {
	home := k.cluster().Home()
	if shard == home || k.revision(shard) >= k.homeRevision() {
		return true
	}
	if !k.reachable(home) || !k.reachable(shard) {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, k.cfg.PutTimeout)
	defer cancel()
	return k.bring(ctx, shard) == nil
}

// bring copies from home what a shard misses. Callers for the same shard take turns; the later ones find nothing to do.
func (k *Keeper) bring(ctx context.Context, shard int) error {
	turn := k.turn(shard)
	select {
	case turn <- struct{}{}:
		defer func() { <-turn }()
	case <-ctx.Done():
		return ctx.Err()
	}
	for k.revision(shard) < k.homeRevision() {
		after := k.revision(shard)
		list, err := k.list(ctx, after)
		if err != nil {
			return fmt.Errorf("list the definitions of home: %w", err)
		}
		if len(list) == 0 {
			k.resetHome(after) // home has fewer than we heard of: it was restored from a backup
			return nil
		}
		revision, err := k.put(ctx, shard, list)
		if err != nil {
			return fmt.Errorf("put definitions: %w", err)
		}
		if revision <= after {
			return fmt.Errorf("put definitions from revision %d on: the shard stays at revision %d", after+1, revision)
		}
	}
	return nil
}

func (k *Keeper) list(ctx context.Context, after int64) ([]*wiggleinternalv1.StoredDefinition, error) {
	home := k.cluster().Home()
	req := &wiggleinternalv1.ListDefinitionsRequest{Shard: route.Wire(home), AfterRevision: after, Limit: pageSize}
	call := route.Call{Shard: home, Method: "ListDefinitions", Timeout: bringTimeout}
	res, err := route.Do(ctx, k.forward, call,
		func(ctx context.Context, c backends.Client) (*wiggleinternalv1.ListDefinitionsResponse, error) {
			return c.Shards.ListDefinitions(ctx, req)
		})
	return res.GetDefinitions(), err
}

func (k *Keeper) put(ctx context.Context, shard int, list []*wiggleinternalv1.StoredDefinition) (int64, error) {
	if !k.reachable(shard) {
		return 0, faults.ShardUnavailable(shard, interval)
	}
	req := &wiggleinternalv1.PutDefinitionsRequest{Shard: route.Wire(shard), Definitions: list}
	call := route.Call{Shard: shard, Method: "PutDefinitions", Timeout: bringTimeout}
	res, err := route.Do(ctx, k.forward, call,
		func(ctx context.Context, c backends.Client) (*wiggleinternalv1.PutDefinitionsResponse, error) {
			return c.Shards.PutDefinitions(ctx, req)
		})
	if err != nil {
		return 0, err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.wrote[shard] = written{revision: res.GetDefinitionsRevision(), at: time.Now()}
	return res.GetDefinitionsRevision(), nil
}

func (k *Keeper) reachable(shard int) bool { return len(k.forward.Set().Shard(shard).Processes) > 0 }

// revision is how far a shard is, as far as known.
func (k *Keeper) revision(shard int) int64 {
	revision := k.forward.Set().Shard(shard).Revision
	k.mu.Lock()
	defer k.mu.Unlock()
	if w, ok := k.wrote[shard]; ok && time.Since(w.at) < trustFor {
		revision = max(revision, w.revision)
	}
	return revision
}

// homeRevision is the highest revision of home that was heard of; while home is down, from before.
func (k *Keeper) homeRevision() int64 {
	revision := k.forward.Set().Shard(k.cluster().Home()).Revision
	k.noteHome(revision)
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.home
}

func (k *Keeper) noteHome(revision int64) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.home = max(k.home, revision)
}

func (k *Keeper) resetHome(revision int64) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.home = revision
}

func (k *Keeper) turn(shard int) chan struct{} {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.active[shard] == nil {
		k.active[shard] = make(chan struct{}, 1)
	}
	return k.active[shard]
}
