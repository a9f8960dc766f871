package router_test

import (
	"context"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/wiggle-run/wiggle/pkg/faults"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
)

func (p *process) PollTasks(
	ctx context.Context, req *wigglev1.PollTasksRequest,
) (*wigglev1.PollTasksResponse, error) {
	d, err := p.enter(ctx, "PollTasks")
	if err != nil {
		return nil, err
	}
	if req.GetWait() != nil {
		return nil, faults.InvalidArgument("the router must not have shards wait")
	}
	res := &wigglev1.PollTasksResponse{}
	if p.turnAway.Load() {
		res.RetryAfter = durationpb.New(time.Second)
		return res, nil
	}
	d.update(func() {
		for _, queue := range req.GetQueues() {
			for len(d.ready[queue]) > 0 && len(res.GetTasks()) < int(req.GetMaxTasks()) {
				task := d.ready[queue][0]
				d.ready[queue] = d.ready[queue][1:]
				task.Lease = req.GetWorker()
				d.leased[task.GetId()] = task
				res.Tasks = append(res.Tasks, task)
			}
		}
	})
	return res, nil
}

func (d *database) settle(id, lease, verb string) *wigglev1.TaskOutcome {
	task := d.leased[id]
	if task == nil || task.GetLease() != lease {
		return &wigglev1.TaskOutcome{TaskId: id, Fault: faults.LeaseLost(id).ToProto()}
	}
	d.reports = append(d.reports, verb+" "+id)
	return &wigglev1.TaskOutcome{TaskId: id}
}

func (p *process) ReportSteps(
	ctx context.Context, req *wigglev1.ReportStepsRequest,
) (*wigglev1.ReportStepsResponse, error) {
	d, err := p.enter(ctx, "ReportSteps")
	if err != nil {
		return nil, err
	}
	res := &wigglev1.ReportStepsResponse{}
	d.update(func() {
		for _, r := range req.GetReports() {
			res.Outcomes = append(res.Outcomes, d.settle(r.GetTaskId(), r.GetLease(), "report"))
		}
	})
	return res, nil
}

func (p *process) FailTask(ctx context.Context, req *wigglev1.FailTaskRequest) (*wigglev1.FailTaskResponse, error) {
	d, err := p.enter(ctx, "FailTask")
	if err != nil {
		return nil, err
	}
	var out *wigglev1.TaskOutcome
	d.update(func() { out = d.settle(req.GetTaskId(), req.GetLease(), "fail") })
	if out.GetFault() != nil {
		return nil, faults.FromProto(out.GetFault())
	}
	return &wigglev1.FailTaskResponse{WillRetry: true}, nil
}

func (p *process) Heartbeat(ctx context.Context, req *wigglev1.HeartbeatRequest) (*wigglev1.HeartbeatResponse, error) {
	d, err := p.enter(ctx, "Heartbeat")
	if err != nil {
		return nil, err
	}
	res := &wigglev1.HeartbeatResponse{}
	d.update(func() {
		for _, b := range req.GetBeats() {
			out := d.settle(b.GetTaskId(), b.GetLease(), "beat")
			res.Outcomes = append(res.Outcomes, &wigglev1.BeatOutcome{
				TaskId: out.GetTaskId(), Fault: out.GetFault(), LeaseExpiresAt: timestamppb.Now(),
			})
		}
	})
	return res, nil
}

func (p *process) ReleaseTasks(
	ctx context.Context, req *wigglev1.ReleaseTasksRequest,
) (*wigglev1.ReleaseTasksResponse, error) {
	d, err := p.enter(ctx, "ReleaseTasks")
	if err != nil {
		return nil, err
	}
	res := &wigglev1.ReleaseTasksResponse{}
	d.update(func() {
		for _, t := range req.GetTasks() {
			out := d.settle(t.GetTaskId(), t.GetLease(), "release")
			if out.GetFault() == nil {
				task := d.leased[t.GetTaskId()]
				delete(d.leased, t.GetTaskId())
				d.ready[task.GetQueue()] = append(d.ready[task.GetQueue()], task)
			}
			res.Outcomes = append(res.Outcomes, out)
		}
	})
	return res, nil
}
