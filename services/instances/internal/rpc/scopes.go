package rpc

import (
	"context"
	"errors"

	"github.com/wiggle-run/wiggle/pkg/faults"
	"github.com/wiggle-run/wiggle/pkg/identity"
	"github.com/wiggle-run/wiggle/pkg/shardid"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	internalv1 "github.com/wiggle-run/wiggle/proto/gen/wiggleinternal/v1"
	"github.com/wiggle-run/wiggle/proto/gen/wiggleinternal/v1/wiggleinternalv1connect"
	"github.com/wiggle-run/wiggle/services/instances/internal/dispatch"
	"github.com/wiggle-run/wiggle/services/instances/internal/machine"
	"github.com/wiggle-run/wiggle/services/instances/internal/reads"
	"github.com/wiggle-run/wiggle/services/instances/internal/store"
)

// The actions of the calls that are narrowed here, as their protos have them. A call must ask for its own: the router sends a
// caller along only if the permission for that one is limited.
const (
	actionRead      = "instance.read"
	actionCancel    = "instance.cancel"
	actionWorkflows = "workflow.read"
	actionTasks     = "task.poll"
)

// check refuses a call about an instance that the caller may not do it to. The router has checked that before; this is the
// second line. An instance that does not exist is refused in the same words, so that ids cannot be tried.
func (s *Server) check(ctx context.Context, shard *dispatch.Shard, id machine.ID, action string) error {
	if identity.FromContext(ctx) == nil {
		return nil
	}
	subjects, err := s.subjects(ctx, shard.ID(), []machine.ID{id})
	if err != nil {
		return fault(shard.ID(), err)
	}
	if of := subjects[0]; of.Workflow == "" || !identity.Allows(ctx, action, of.Namespace, of.Workflow) {
		return identity.Denied(ctx, action, "instance", instanceID(shard.ID(), id))
	}
	return nil
}

// hidden tells whether an instance that was read in a batch is kept from the caller. nil is one that does not exist.
func hidden(ctx context.Context, in *machine.Instance) bool {
	if in == nil {
		return identity.FromContext(ctx) != nil
	}
	return !identity.Allows(ctx, actionRead, in.Namespace, in.Workflow)
}

// visible is a filter as the caller's: what it may not see does not match.
func visible(ctx context.Context, f *wigglev1.InstanceFilter) store.Filter {
	out := filter(f)
	out.Only = identity.Within(ctx, actionRead, out.Namespace)
	return out
}

func (s *Server) subjects(ctx context.Context, shard int, ids []machine.ID) ([]store.Subject, error) {
	c := reads.Call{Procedure: wiggleinternalv1connect.ScopeServiceResolveInstancesProcedure}
	subjects, _, err := read(ctx, s, shard, c, func(ctx context.Context, r store.Reader) ([]store.Subject, error) {
		return r.InstanceSubjects(ctx, ids)
	})
	return subjects, err
}

// ResolveInstances tells what instances of a shard are of. An id from before sharding is not found: none is stored.
func (s *Server) ResolveInstances(
	ctx context.Context, req *internalv1.ResolveInstancesRequest,
) (*internalv1.ResolveInstancesResponse, error) {
	shard, err := s.shards.Serving(int(req.GetShard()))
	if err != nil {
		return nil, err
	}
	ids := make([]machine.ID, len(req.GetInstanceIds()))
	for i, text := range req.GetInstanceIds() {
		id, err := shardid.ParseInstance(text)
		if ids[i], err = s.of(shard, id, err); err != nil {
			return nil, err
		}
	}
	subjects, err := s.subjects(ctx, shard.ID(), ids)
	if err != nil {
		return nil, fault(shard.ID(), err)
	}
	res := &internalv1.ResolveInstancesResponse{Subjects: make([]*internalv1.Subject, len(subjects))}
	for i, of := range subjects {
		res.Subjects[i] = &internalv1.Subject{Namespace: of.Namespace, Name: of.Workflow, Found: of != store.Subject{}}
	}
	return res, nil
}

// of is what a parsed id of the shard has as its ulid, zero if it has none.
func (s *Server) of(shard *dispatch.Shard, id shardid.ID, err error) (machine.ID, error) {
	if err != nil {
		return machine.ID{}, faults.InvalidArgument("%v", err)
	}
	if at := id.Route(s.shards.Home()); at != shard.ID() {
		return machine.ID{}, faults.InvalidArgument("%s is of shard %d, and the call is about shard %d", id, at, shard.ID())
	}
	u, _ := id.ULID()
	return machine.ID(u), nil
}

// ResolveTasks tells the queues of tasks of a shard.
func (s *Server) ResolveTasks(ctx context.Context, req *internalv1.ResolveTasksRequest) (*internalv1.ResolveTasksResponse, error) {
	shard, err := s.shards.Serving(int(req.GetShard()))
	if err != nil {
		return nil, err
	}
	tasks := make([]store.Lease, len(req.GetTasks()))
	for i, ref := range req.GetTasks() {
		if tasks[i], err = s.task(shard, ref); err != nil {
			return nil, err
		}
	}
	c := reads.Call{Procedure: wiggleinternalv1connect.ScopeServiceResolveTasksProcedure}
	steps, _, err := read(ctx, s, shard.ID(), c, func(ctx context.Context, r store.Reader) ([]store.TaskStep, error) {
		return r.TaskSteps(ctx, tasks)
	})
	if err != nil {
		return nil, fault(shard.ID(), err)
	}
	res := &internalv1.ResolveTasksResponse{Subjects: make([]*internalv1.Subject, len(steps))}
	for i, step := range steps {
		if res.Subjects[i], err = queueOf(ctx, shard, step); err != nil {
			return nil, fault(shard.ID(), err)
		}
	}
	return res, nil
}

// task reads what a reference names. Without a lease the token may be an instance's first, whose ids are the same. A lease
// that cannot be read is as none: what is done with the task refuses it, in its own words.
func (s *Server) task(shard *dispatch.Shard, ref *internalv1.TaskRef) (store.Lease, error) {
	id, err := shardid.ParseToken(ref.GetTaskId())
	token, err := s.of(shard, id, err)
	if err != nil {
		return store.Lease{}, err
	}
	if lease, err := parseLease(token, ref.GetLease()); err == nil {
		return lease, nil
	}
	return store.Lease{Instance: token, Token: token}, nil
}

// queueOf is the queue of a step: where only history knows of it, that of its node in the definition. Where nothing knows of it
// the caller may be told of the instance only if it may take every task of it; it is one of its queues then.
func queueOf(ctx context.Context, shard *dispatch.Shard, step store.TaskStep) (*internalv1.Subject, error) {
	out := &internalv1.Subject{Namespace: step.Namespace, Name: step.Queue, Found: true}
	switch {
	case step == store.TaskStep{}:
		return &internalv1.Subject{}, nil
	case step.Queue != "":
		return out, nil
	}
	m, err := shard.Machine(ctx, step.Namespace, step.Workflow, step.Version)
	if errors.Is(err, store.ErrNotFound) {
		return &internalv1.Subject{}, nil
	}
	if err != nil {
		return nil, err
	}
	node := m.Graph().Node(step.Node)
	if step.Node == "" && identity.FromContext(ctx) != nil {
		for i := range m.Graph().Nodes {
			n := &m.Graph().Nodes[i]
			if !n.Kind.WorkerRun() {
				continue
			}
			if node = n; !identity.Allows(ctx, actionTasks, step.Namespace, n.Step.Queue) {
				return &internalv1.Subject{}, nil
			}
		}
	}
	if node == nil || !node.Kind.WorkerRun() {
		return &internalv1.Subject{}, nil
	}
	out.Name = node.Step.Queue
	return out, nil
}
