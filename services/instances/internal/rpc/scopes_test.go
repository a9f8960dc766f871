package rpc_test

import (
	"errors"
	"fmt"
	"log/slog"
	"testing"

	"github.com/oklog/ulid/v2"

	"github.com/wiggle-run/wiggle/pkg/faults"
	"github.com/wiggle-run/wiggle/pkg/identity"
	wirerpc "github.com/wiggle-run/wiggle/pkg/rpc"
	"github.com/wiggle-run/wiggle/pkg/shardid"
	"github.com/wiggle-run/wiggle/proto/definition"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	internalv1 "github.com/wiggle-run/wiggle/proto/gen/wiggleinternal/v1"
	"github.com/wiggle-run/wiggle/services/instances/internal/dispatch"
	"github.com/wiggle-run/wiggle/services/instances/internal/rpc"
)

// A router is told what ids are about: instances for good, and tasks as they go on, by their leases (AUT-4).
func TestResolve(t *testing.T) {
	t.Parallel()
	play(t, dispatch.DefaultConfig(), func(s *scene) {
		s.start(1, 1)
		api := rpc.New(readable{oneShard{s.shard}}, definition.DefaultLimits(), slog.New(slog.DiscardHandler))
		ctx := wirerpc.WithShard(s.Context(), home)
		claim := func() *wigglev1.Task {
			s.Helper()
			res, err := s.workers.PollTasks(ctx, &wigglev1.PollTasksRequest{Worker: "w", MaxTasks: 1})
			if err != nil || len(res.GetTasks()) != 1 {
				s.Fatalf("%v, %v", res, err)
			}
			return res.GetTasks()[0]
		}
		task := claim()
		none := shardid.NewInstance(home, ulid.Make()).String()
		got, err := api.ResolveInstances(ctx, &internalv1.ResolveInstancesRequest{Shard: home, InstanceIds: []string{none, task.GetInstanceId(), "wfi_old"}})
		if err != nil || fmt.Sprint(got.GetSubjects()[1]) != fmt.Sprint(&internalv1.Subject{Namespace: "default", Name: "two", Found: true}) ||
			got.GetSubjects()[0].GetFound() {
			t.Errorf("instances: %v, %v", got, err)
		}
		queue := func(lease string) string {
			s.Helper()
			res, err := api.ResolveTasks(ctx, &internalv1.ResolveTasksRequest{
				Shard: home, Tasks: []*internalv1.TaskRef{{TaskId: task.GetId(), Lease: lease}},
			})
			if err != nil {
				s.Fatal(err)
			}
			return res.GetSubjects()[0].GetNamespace() + "/" + res.GetSubjects()[0].GetName()
		}
		for range 2 {
			for _, lease := range []string{task.GetLease(), "", "nonsense"} {
				if got := queue(lease); got != "default/default" {
					t.Errorf("under the lease %q the task is of %s", lease, got)
				}
			}
			_, err := s.workers.ReportSteps(ctx, &wigglev1.ReportStepsRequest{Reports: []*wigglev1.StepReport{{
				TaskId: task.GetId(), Lease: task.GetLease(), Outcome: &wigglev1.StepReport_Unchanged{Unchanged: &wigglev1.Unchanged{}},
			}}})
			if err != nil {
				s.Fatal(err)
			}
			if got := queue(task.GetLease()); got != "default/default" { // as its history says: it is settled
				t.Errorf("once settled the task is of %s", got)
			}
			if task.GetNode() == "a" {
				task = claim()
			}
		}
		for _, id := range []string{"nonsense", shardid.NewInstance(home+1, ulid.Make()).String()} {
			_, err := api.ResolveInstances(ctx, &internalv1.ResolveInstancesRequest{Shard: home, InstanceIds: []string{id}})
			if !errors.Is(err, faults.ErrInvalidArgument) {
				t.Errorf("instance %s: %v", id, err)
			}
		}
	})
}

// Scans are for services: whoever is limited gets none.
func TestScanOfTheLimited(t *testing.T) {
	t.Parallel()
	play(t, dispatch.DefaultConfig(), func(s *scene) {
		api := rpc.New(readable{oneShard{s.shard}}, definition.DefaultLimits(), slog.New(slog.DiscardHandler))
		p, err := identity.New(&internalv1.Principal{Name: "alice", Permissions: []string{"instance.read:default/two"}})
		if err != nil {
			s.Fatal(err)
		}
		_, err = api.ScanInstances(identity.With(s.Context(), p), &internalv1.ScanInstancesRequest{Shard: home})
		if !errors.Is(err, faults.ErrPermissionMissing) {
			t.Errorf("got %v", err)
		}
	})
}
