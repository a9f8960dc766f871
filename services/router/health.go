package router

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/wiggle-run/wiggle/pkg/rpc"
)

// startTime is how long a router that has just started waits for every shard before it calls itself ready.
const startTime = 5 * time.Second

// Missing tells what /readyz says is missing. A router is ready when every shard has a process that has it ready; one that has
// run for a few seconds also while some have not, because taking it out of service would turn the loss of one shard
// into the loss of all. /readyz/shards and gRPC health tell about each shard.
func (r *Router) Missing(context.Context) []string {
	shards := r.cluster.Load().Instances()
	var missing []string
	for _, shard := range shards {
		if s := r.shardState(shard); !s.Ready {
			missing = append(missing, fmt.Sprintf("shard %d: %s", shard, s.Reason))
		}
	}
	if len(missing) < len(shards) && time.Since(r.started) > startTime {
		return nil
	}
	return missing
}

// shardState is a shard as /readyz/shards tells of it.
type shardState struct {
	Shard     int    `json:"shard"`
	Ready     bool   `json:"ready"`
	Reason    string `json:"reason,omitempty"`
	Processes int    `json:"processes"`
}

func (r *Router) shardState(shard int) shardState {
	s := r.set.Shard(shard)
	state := shardState{Shard: shard, Ready: len(s.Processes) > 0, Processes: len(s.Processes)}
	switch {
	case state.Ready:
	case s.Served:
		state.Reason = s.Reason
	default:
		state.Reason = "no process serves it"
	}
	return state
}

func (r *Router) serveShards(w http.ResponseWriter, _ *http.Request) {
	shards := r.cluster.Load().Instances()
	states := make([]shardState, 0, len(shards))
	for _, shard := range shards {
		states = append(states, r.shardState(shard))
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	_ = json.NewEncoder(w).Encode(states) // the peer is gone, and nobody is left to tell
}

// reportHealth keeps gRPC health up to date with the shards until ctx is done.
func (r *Router) reportHealth(ctx context.Context) {
	var reported []int
	for {
		changed := r.set.Changed()
		shards := r.cluster.Load().Instances()
		for _, shard := range shards {
			r.server.Health().Set(rpc.HealthOfShard(shard), len(r.set.Shard(shard).Processes) > 0)
		}
		for _, shard := range reported {
			if !slices.Contains(shards, shard) {
				r.server.Health().Remove(rpc.HealthOfShard(shard))
			}
		}
		reported = shards
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}
