package api

import (
	"context"
	"slices"

	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	"github.com/wiggle-run/wiggle/services/router/internal/backends"
	"github.com/wiggle-run/wiggle/services/router/internal/route"
)

const (
	noProcess = "no process serves it"
	notServed = "no process that serves the shard tells of it"
)

// ListShards implements wigglev1connect.ClusterServiceHandler: what the topology says, with what the processes told when
// they were last asked how they are. It asks nobody.
func (s *Services) ListShards(context.Context, *wigglev1.ListShardsRequest) (*wigglev1.ListShardsResponse, error) {
	res := &wigglev1.ListShardsResponse{}
	for _, shard := range s.cluster().Shards() {
		out := &wigglev1.Shard{Shard: route.Wire(shard.ID), State: shard.State, Roles: shard.Roles}
		if shard.Instances {
			tell(out, shard, s.forward.Set().Shard(shard.ID))
		}
		res.Shards = append(res.Shards, out)
	}
	return res, nil
}

// tell fills in what the processes say.
func tell(out *wigglev1.Shard, shard route.Shard, served backends.Shard) {
	out.Processes = int32(len(served.Processes)) //nolint:gosec // a handful
	switch out.Ready = len(served.Processes) > 0; {
	case out.GetReady():
	case served.Served:
		out.Reason = served.Reason
	default:
		out.Reason = noProcess
	}
	// A process may have another topology than this router, for a while.
	out.Replicas = slices.Clip(served.Replicas)
	for i := len(out.GetReplicas()); i < len(shard.Zones); i++ {
		out.Replicas = append(out.GetReplicas(), &wigglev1.Replica{
			Index: int32(i), Zone: shard.Zones[i], Reason: notServed, //nolint:gosec // an index
		})
	}
}
