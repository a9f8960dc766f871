package wiggle

import (
	"context"
	"time"

	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
)

// Shard tells how a shard is, as the router sees it.
type Shard struct {
	// Shard is its number.
	Shard int
	// State in the topology: active, draining, retired.
	State string
	// Roles in the topology: instances, home, auth, search.
	Roles []string
	// Ready is true if a process that serves it can use its primary, Reason why
	// not. Of shards with the role instances.
	Ready  bool
	Reason string
	// Processes is how many instances processes have it ready.
	Processes int
	// Replicas of it, as one of these processes sees them.
	Replicas []Replica
}

// Replica tells how a replica of a shard is, as a process sees it.
type Replica struct {
	// Index is its place in the topology, from 0, and Zone where it is.
	Index int
	Zone  string
	// Serving is true if reads that may lag go to it, Reason why not.
	Serving bool
	Reason  string
	// Lag behind its primary when it was probed last. Negative if it is not known.
	Lag time.Duration
	// Replayed is the position in the log up to which it has replayed, as PostgreSQL
	// writes it. Empty if it is not known.
	Replayed string
	// ProbedAt is when it was probed last. Zero if never.
	ProbedAt time.Time
	// Reads that it has served for the process.
	Reads int64
}

// Shards tells how every shard of the cluster is, and its replicas, by number. The
// router answers from what it was told last, a second ago at most.
func (c *Client) Shards(ctx context.Context) ([]Shard, error) {
	res, err := call(ctx, c, "list shards", callTimeout, c.cluster.ListShards, &wigglev1.ListShardsRequest{})
	if err != nil {
		return nil, err
	}
	shards := make([]Shard, 0, len(res.GetShards()))
	for _, s := range res.GetShards() {
		out := Shard{
			Shard: int(s.GetShard()), State: s.GetState(), Roles: s.GetRoles(), Ready: s.GetReady(), Reason: s.GetReason(),
			Processes: int(s.GetProcesses()),
		}
		for _, r := range s.GetReplicas() {
			out.Replicas = append(out.Replicas, replicaOf(r))
		}
		shards = append(shards, out)
	}
	return shards, nil
}

func replicaOf(r *wigglev1.Replica) Replica {
	out := Replica{
		Index: int(r.GetIndex()), Zone: r.GetZone(), Serving: r.GetServing(), Reason: r.GetReason(), Lag: -1,
		Replayed: r.GetReplayed(), ProbedAt: timeOf(r.GetProbedAt()), Reads: r.GetReads(),
	}
	if r.GetLag() != nil {
		out.Lag = r.GetLag().AsDuration()
	}
	return out
}
