package api

import (
	"context"
	"sync"

	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	"github.com/wiggle-run/wiggle/services/router/internal/backends"
	"github.com/wiggle-run/wiggle/services/router/internal/route"
)

// PollTasks implements wigglev1connect.WorkerServiceHandler.
func (s *Services) PollTasks(ctx context.Context, req *wigglev1.PollTasksRequest) (*wigglev1.PollTasksResponse, error) {
	return s.poller.Poll(ctx, req)
}

// ReportSteps implements wigglev1connect.WorkerServiceHandler.
func (s *Services) ReportSteps(
	ctx context.Context, req *wigglev1.ReportStepsRequest,
) (*wigglev1.ReportStepsResponse, error) {
	next := continuation{of: req.GetNext(), left: int(req.GetNext().GetMaxTasks())}
	if next.left == 0 {
		next.left = len(req.GetReports())
	}
	outcomes := scatter(ctx, req.GetReports(),
		func(r *wigglev1.StepReport) (int, error) {
			return s.task(r.GetTaskId(), r.GetResult())
		},
		func(shard int, group []*wigglev1.StepReport) ([]*wigglev1.TaskOutcome, error) {
			part := &wigglev1.ReportStepsRequest{Worker: req.GetWorker(), Reports: group, Next: next.share(len(group))}
			c := route.Call{Shard: shard, Method: "ReportSteps", Timeout: s.cfg.CallTimeout}
			for _, r := range group {
				c.Bytes += len(r.GetResult().GetData())
			}
			res, err := route.Do(ctx, s.forward, c,
				func(ctx context.Context, c backends.Client) (*wigglev1.ReportStepsResponse, error) {
					return c.Workers.ReportSteps(ctx, part)
				})
			next.add(res)
			return res.GetOutcomes(), err
		},
		func(r *wigglev1.StepReport, err error) *wigglev1.TaskOutcome {
			return &wigglev1.TaskOutcome{TaskId: r.GetTaskId(), Fault: s.fault(ctx, err)}
		})
	return &wigglev1.ReportStepsResponse{Outcomes: outcomes, Tasks: next.tasks, BaseContexts: next.bases}, nil
}

// continuation shares a worker's room for further tasks among the shards that its reports go to, and gathers what they
// bring.
type continuation struct {
	of *wigglev1.Continuation // nil: none is asked for

	mu    sync.Mutex
	left  int
	tasks []*wigglev1.Task
	bases []*wigglev1.Payload
}

// share is the room for a shard that gets so many reports: each brings one task at most.
func (c *continuation) share(reports int) *wigglev1.Continuation {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := min(reports, c.left)
	if c.of == nil || n == 0 {
		return nil
	}
	c.left -= n
	return &wigglev1.Continuation{
		Namespace: c.of.GetNamespace(), Queues: c.of.GetQueues(), Workflows: c.of.GetWorkflows(), Lease: c.of.GetLease(),
		MaxTasks: int32(n), ShareBaseContexts: c.of.GetShareBaseContexts(), //nolint:gosec // at most the number of reports
	}
}

// add gathers one shard's tasks. Their base_index counts within its answer.
func (c *continuation) add(res *wigglev1.ReportStepsResponse) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, t := range res.GetTasks() {
		if t.GetBaseIndex() > 0 {
			t.BaseIndex += int32(len(c.bases)) //nolint:gosec // at most the number of tasks
		}
	}
	c.tasks = append(c.tasks, res.GetTasks()...)
	c.bases = append(c.bases, res.GetBaseContexts()...)
}

// FailTask implements wigglev1connect.WorkerServiceHandler.
func (s *Services) FailTask(ctx context.Context, req *wigglev1.FailTaskRequest) (*wigglev1.FailTaskResponse, error) {
	shard, err := s.cluster().Task(req.GetTaskId())
	if err != nil {
		return nil, err
	}
	return call(ctx, s, shard, "FailTask",
		func(ctx context.Context, c backends.Client) (*wigglev1.FailTaskResponse, error) {
			return c.Workers.FailTask(ctx, req)
		})
}

// Heartbeat implements wigglev1connect.WorkerServiceHandler.
func (s *Services) Heartbeat(ctx context.Context, req *wigglev1.HeartbeatRequest) (*wigglev1.HeartbeatResponse, error) {
	outcomes := scatter(ctx, req.GetBeats(),
		func(b *wigglev1.Beat) (int, error) {
			return s.task(b.GetTaskId(), b.GetProgress())
		},
		func(shard int, group []*wigglev1.Beat) ([]*wigglev1.BeatOutcome, error) {
			part := &wigglev1.HeartbeatRequest{Worker: req.GetWorker(), Beats: group}
			res, err := call(ctx, s, shard, "Heartbeat",
				func(ctx context.Context, c backends.Client) (*wigglev1.HeartbeatResponse, error) {
					return c.Workers.Heartbeat(ctx, part)
				})
			return res.GetOutcomes(), err
		},
		func(b *wigglev1.Beat, err error) *wigglev1.BeatOutcome {
			return &wigglev1.BeatOutcome{TaskId: b.GetTaskId(), Fault: s.fault(ctx, err)}
		})
	return &wigglev1.HeartbeatResponse{Outcomes: outcomes}, nil
}

// ReleaseTasks implements wigglev1connect.WorkerServiceHandler.
func (s *Services) ReleaseTasks(
	ctx context.Context, req *wigglev1.ReleaseTasksRequest,
) (*wigglev1.ReleaseTasksResponse, error) {
	outcomes := scatter(ctx, req.GetTasks(),
		func(t *wigglev1.TaskLease) (int, error) { return s.cluster().Task(t.GetTaskId()) },
		func(shard int, group []*wigglev1.TaskLease) ([]*wigglev1.TaskOutcome, error) {
			part := &wigglev1.ReleaseTasksRequest{Worker: req.GetWorker(), Tasks: group}
			res, err := call(ctx, s, shard, "ReleaseTasks",
				func(ctx context.Context, c backends.Client) (*wigglev1.ReleaseTasksResponse, error) {
					return c.Workers.ReleaseTasks(ctx, part)
				})
			return res.GetOutcomes(), err
		},
		func(t *wigglev1.TaskLease, err error) *wigglev1.TaskOutcome {
			return &wigglev1.TaskOutcome{TaskId: t.GetTaskId(), Fault: s.fault(ctx, err)}
		})
	return &wigglev1.ReleaseTasksResponse{Outcomes: outcomes}, nil
}

// task is the shard of a task about which a payload is sent.
func (s *Services) task(id string, payload *wigglev1.Payload) (int, error) {
	if err := s.checkPayload(payload); err != nil {
		return 0, err
	}
	return s.cluster().Task(id)
}
