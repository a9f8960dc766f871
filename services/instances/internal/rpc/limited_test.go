package rpc_test

import (
	"context"
	"errors"
	"log/slog"
	"testing"

	"connectrpc.com/connect"
	"github.com/oklog/ulid/v2"

	"github.com/wiggle-run/wiggle/pkg/faults"
	"github.com/wiggle-run/wiggle/pkg/identity"
	wirerpc "github.com/wiggle-run/wiggle/pkg/rpc"
	"github.com/wiggle-run/wiggle/pkg/shardid"
	"github.com/wiggle-run/wiggle/proto/definition"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	internalv1 "github.com/wiggle-run/wiggle/proto/gen/wiggleinternal/v1"
	"github.com/wiggle-run/wiggle/services/instances/internal/dispatch"
	"github.com/wiggle-run/wiggle/services/instances/internal/machine"
	"github.com/wiggle-run/wiggle/services/instances/internal/rpc"
	"github.com/wiggle-run/wiggle/services/instances/internal/store"
)

// startMixed starts an instance of a batched workflow whose first step is of the queue default and whose second is of gpu.
func (s *scene) startMixed() machine.ID {
	s.Helper()
	def := twoSteps()
	def.Name, def.Defaults = "mixed", &wigglev1.Defaults{Mode: wigglev1.Mode_MODE_BATCHED}
	def.Nodes["b"].GetTask().Step = &wigglev1.Step{Queue: "gpu"}
	if _, _, err := s.store.Register(s.Context(), "default", "mixed", func(have []store.Definition) (store.Definition, error) {
		if len(have) > 0 {
			return have[0], nil
		}
		return store.Definition{Namespace: "default", Workflow: "mixed", Version: 1, Fingerprint: definition.Fingerprint(def), Graph: def}, nil
	}); err != nil {
		s.Fatal(err)
	}
	id := machine.ID(ulid.Make())
	for _, r := range s.shard.Start([]dispatch.StartItem{{Workflow: "mixed", Event: machine.Start{
		ID: id, Namespace: "default", Priority: 5, Input: machine.Payload{Data: []byte("1")},
	}}}) {
		if r.Err != nil {
			s.Fatal(r.Err)
		}
	}
	return id
}

func limitedTo(t *testing.T, permissions ...string) *identity.Principal {
	t.Helper()
	p, err := identity.New(&internalv1.Principal{Name: "gpu", Permissions: permissions})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// as is a context whose calls name a principal, as a router's do of a caller that is limited.
func (s *scene) as(permissions ...string) context.Context {
	s.Helper()
	ctx, info := connect.NewClientContext(wirerpc.WithShard(s.Context(), home))
	limitedTo(s.T, permissions...).Write(info.RequestHeader())
	return ctx
}

func (s *scene) claimOne() *wigglev1.Task {
	s.Helper()
	res, err := s.workers.PollTasks(wirerpc.WithShard(s.Context(), home), &wigglev1.PollTasksRequest{Worker: "w"})
	if err != nil || len(res.GetTasks()) != 1 {
		s.Fatalf("%v, %v", res, err)
	}
	return res.GetTasks()[0]
}

// A worker that is limited to a queue reports no steps of others that followed its own (AUT-3).
func TestFollowingStepsOfOtherQueues(t *testing.T) {
	t.Parallel()
	play(t, dispatch.DefaultConfig(), func(s *scene) {
		s.startMixed()
		task := s.claimOne()
		unchanged := &wigglev1.StepReport_Unchanged{Unchanged: &wigglev1.Unchanged{}}
		report := &wigglev1.StepReport{TaskId: task.GetId(), Lease: task.GetLease(), Outcome: unchanged, FollowedBy: []*wigglev1.FollowingStep{
			{Node: "b", Outcome: &wigglev1.FollowingStep_Unchanged{Unchanged: &wigglev1.Unchanged{}}},
		}}
		try := func(want string, permissions ...string) {
			s.Helper()
			res, err := s.workers.ReportSteps(s.as(permissions...), &wigglev1.ReportStepsRequest{Reports: []*wigglev1.StepReport{report}})
			if err != nil || len(res.GetOutcomes()) != 1 {
				s.Fatalf("%v, %v", res, err)
			}
			if fault := res.GetOutcomes()[0].GetFault(); fault.GetPermissionMissing().GetPermission() != want || want == "" && fault != nil {
				s.Errorf("with %q: %v", permissions, fault)
			}
		}
		try("task.poll:default/gpu", "task.poll:*/default")
		stream, err := s.workers.Work(s.as("task.poll:*/default"))
		if err != nil {
			s.Fatal(err)
		}
		for _, req := range []*wigglev1.WorkRequest{{Hello: &wigglev1.WorkHello{Worker: "w"}}, {Reports: []*wigglev1.StepReport{report}}} {
			if err := stream.Send(req); err != nil {
				s.Fatal(err)
			}
		}
		if _, err := stream.Receive(); err != nil { // the hello is accepted
			s.Fatal(err)
		}
		res, err := stream.Receive()
		if err != nil || res.GetReported()[0].GetFault().GetPermissionMissing().GetPermission() != "task.poll:default/gpu" {
			s.Errorf("on a stream: %v, %v", res, err)
		}
		if err := stream.CloseRequest(); err != nil {
			s.Error(err)
		}
		try("", "task.poll:*/default", "task.poll:default/gpu")
	})
}

// A worker whose task is gone with its instance is told so if it may take every task of the workflow; else ids tell nothing.
func TestResolveWhatIsGone(t *testing.T) {
	t.Parallel()
	play(t, dispatch.DefaultConfig(), func(s *scene) {
		id := s.startMixed()
		task := s.claimOne()
		if _, err := s.shard.Cancel(s.Context(), id, "no use"); err != nil {
			s.Fatal(err)
		}
		api := rpc.New(readable{oneShard{s.shard}}, definition.DefaultLimits(), slog.New(slog.DiscardHandler))
		none := "7." + ulid.Make().String()
		for _, c := range []struct {
			permissions []string
			lease       string
			found       bool
		}{
			{[]string{"task.poll:default/*"}, task.GetLease(), true},
			{[]string{"task.poll:*/gpu", "task.poll:default/default"}, task.GetLease(), true},
			{[]string{"task.poll:*/gpu"}, task.GetLease(), false},
			{[]string{"task.poll:*/default"}, task.GetLease(), false},
			{[]string{"task.poll:other/*"}, task.GetLease(), false},
			{[]string{"task.poll:default/*"}, none, false},
			{nil, task.GetLease(), false},
		} {
			ctx := s.Context()
			if c.permissions != nil {
				ctx = identity.With(ctx, limitedTo(s.T, c.permissions...))
			}
			res, err := api.ResolveTasks(ctx, &internalv1.ResolveTasksRequest{Shard: home, Tasks: []*internalv1.TaskRef{
				{TaskId: task.GetId(), Lease: c.lease}, {TaskId: shardid.NewToken(home, ulid.Make()).String(), Lease: none},
			}})
			if err != nil {
				s.Fatal(err)
			}
			of := res.GetSubjects()[0]
			allowed := of.GetFound() && c.permissions != nil && identity.Allows(ctx, "task.poll", of.GetNamespace(), of.GetName())
			if allowed != c.found || !c.found && of.GetName()+of.GetNamespace() != "" || res.GetSubjects()[1].GetFound() {
				s.Errorf("%q under %q: %v", c.permissions, c.lease, res.GetSubjects())
			}
		}
		res, err := s.workers.ReportSteps(s.as("task.poll:default/*"), &wigglev1.ReportStepsRequest{Reports: []*wigglev1.StepReport{
			{TaskId: task.GetId(), Lease: task.GetLease(), Outcome: &wigglev1.StepReport_Gate{}},
		}})
		if err != nil || !errors.Is(faults.FromProto(res.GetOutcomes()[0].GetFault()), faults.ErrLeaseLost) {
			s.Errorf("%v, %v", res, err)
		}
	})
}

// What was sent to a worker is not handed back because of a stream of the same name that has other queues.
func TestWorkOfOtherQueuesOfTheSameName(t *testing.T) {
	t.Parallel()
	play(t, dispatch.DefaultConfig(), func(s *scene) {
		w := s.worker()
		s.start(3, 1)
		w.send(&wigglev1.WorkRequest{Credits: 3})
		tasks := w.got().GetTasks()
		other := s.open(&wigglev1.WorkHello{Worker: "w", Queues: []string{"gpu"}}).reading()
		w.leave()
		_ = w.over()
		s.open(&wigglev1.WorkHello{Worker: "w", Queues: []string{"gpu", "gpu"}}).reading()
		other.leave()
		if n := s.ready(); n != 0 {
			s.Errorf("%d tasks of another worker were handed back", n)
		}
		s.worker(leaseOf(tasks[0]))
		if n := s.ready(); n != 2 {
			s.Errorf("%d tasks were handed back, 2 never came", n)
		}
	})
}
