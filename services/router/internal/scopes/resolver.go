package scopes

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/wiggle-run/wiggle/pkg/faults"
	wiggleinternalv1 "github.com/wiggle-run/wiggle/proto/gen/wiggleinternal/v1"
	"github.com/wiggle-run/wiggle/services/router/internal/backends"
	"github.com/wiggle-run/wiggle/services/router/internal/route"
	"github.com/wiggle-run/wiggle/services/router/internal/subject"
)

const (
	// maxBatch is how many ids one call may ask for.
	maxBatch = 1000
	// maxKept is how many instances are remembered: some 20 MB.
	maxKept = 100_000
)

// Resolver finds out what ids are about. It is safe for concurrent use.
type Resolver struct {
	forward *route.Forwarder
	cluster func() *route.Cluster
	timeout time.Duration
	kept    *cache
}

// New makes a resolver. The timeout bounds a call to one shard, all tries together.
func New(forward *route.Forwarder, cluster func() *route.Cluster, timeout time.Duration) *Resolver {
	return &Resolver{forward: forward, cluster: cluster, timeout: timeout, kept: newCache(maxKept)}
}

// Instances tells the namespaces and workflows of instances, in the order of their ids. An id that is none is one that does
// not exist. What one shard does not tell is an error of its own instances; if nothing at all is told it is the call's.
func (r *Resolver) Instances(ctx context.Context, ids []string) ([]subject.Subject, error) {
	known := make([]subject.Subject, len(ids))
	var asked []int // indexes of ids
	for i, id := range ids {
		var ok bool
		if known[i], ok = r.kept.get(id); !ok {
			asked = append(asked, i)
		}
	}
	err := r.resolve(ctx, known, asked, func(i int) (int, error) { return r.cluster().Instance(ids[i]) },
		func(shard int, part []int) ([]*wiggleinternalv1.Subject, error) {
			req := &wiggleinternalv1.ResolveInstancesRequest{Shard: route.Wire(shard), InstanceIds: make([]string, len(part))}
			for n, i := range part {
				req.InstanceIds[n] = ids[i]
			}
			res, err := route.Do(ctx, r.forward, route.Call{Shard: shard, Method: "ResolveInstances", Timeout: r.timeout},
				func(ctx context.Context, c backends.Client) (*wiggleinternalv1.ResolveInstancesResponse, error) {
					return c.Scopes.ResolveInstances(ctx, req)
				})
			return res.GetSubjects(), err
		})
	for _, i := range asked {
		if known[i].Found {
			r.kept.put(ids[i], known[i])
		}
	}
	return known, err
}

// Tasks tells the namespaces and queues of tasks, each an id or, better, what [subject.Task] makes of it and its lease. Errors
// are as those of [Resolver.Instances].
func (r *Resolver) Tasks(ctx context.Context, refs []string) ([]subject.Subject, error) {
	known, asked := make([]subject.Subject, len(refs)), make([]int, len(refs))
	tasks := make([]*wiggleinternalv1.TaskRef, len(refs))
	for i, ref := range refs {
		asked[i] = i
		id, lease := subject.SplitTask(ref)
		tasks[i] = &wiggleinternalv1.TaskRef{TaskId: id, Lease: lease}
	}
	err := r.resolve(ctx, known, asked, func(i int) (int, error) { return r.cluster().Task(tasks[i].GetTaskId()) },
		func(shard int, part []int) ([]*wiggleinternalv1.Subject, error) {
			req := &wiggleinternalv1.ResolveTasksRequest{Shard: route.Wire(shard), Tasks: make([]*wiggleinternalv1.TaskRef, len(part))}
			for n, i := range part {
				req.Tasks[n] = tasks[i]
			}
			res, err := route.Do(ctx, r.forward, route.Call{Shard: shard, Method: "ResolveTasks", Timeout: r.timeout},
				func(ctx context.Context, c backends.Client) (*wiggleinternalv1.ResolveTasksResponse, error) {
					return c.Scopes.ResolveTasks(ctx, req)
				})
			return res.GetSubjects(), err
		})
	return known, err
}

// resolve asks for some subjects, all shards at once and each in calls of at most [maxBatch], one after the other. Its error
// is that nothing is known of any, and why.
func (r *Resolver) resolve(
	ctx context.Context, known []subject.Subject, asked []int, shardOf func(i int) (int, error),
	ask func(shard int, part []int) ([]*wiggleinternalv1.Subject, error),
) error {
	groups := make(map[int][]int)
	for _, i := range asked {
		shard, err := shardOf(i)
		switch faults.CodeOf(err) {
		case faults.CodeOK:
			groups[shard] = append(groups[shard], i)
		case faults.CodeInvalidArgument, faults.CodeNotFound: // there is no such thing
		default:
			known[i].Err = err
		}
	}
	var wg sync.WaitGroup
	for shard, group := range groups {
		wg.Go(func() {
			for part := range slices.Chunk(group, maxBatch) {
				found, err := ask(shard, part)
				if err == nil && len(found) != len(part) {
					err = faults.Internal(fmt.Errorf("shard %d answered %d ids with %d subjects", shard, len(part), len(found)))
				}
				for n, i := range part {
					if err != nil {
						known[i].Err = err
						continue
					}
					known[i] = subject.Subject{Namespace: found[n].GetNamespace(), Name: found[n].GetName(), Found: found[n].GetFound()}
				}
			}
		})
	}
	wg.Wait()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	var first error
	for i := range known {
		if known[i].Err == nil {
			return nil
		}
		if first == nil {
			first = known[i].Err
		}
	}
	return first
}
