package conformance

import (
	"slices"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
)

// PollOption changes a poll.
type PollOption func(*wigglev1.PollTasksRequest)

// As polls as another worker.
func As(worker string) PollOption { return func(q *wigglev1.PollTasksRequest) { q.Worker = worker } }

// For leases for a time.
func For(d time.Duration) PollOption {
	return func(q *wigglev1.PollTasksRequest) { q.Lease = durationpb.New(d) }
}

// From takes from queues.
func From(queues ...string) PollOption {
	return func(q *wigglev1.PollTasksRequest) { q.Queues = queues }
}

// Room takes so many tasks at most.
func Room(n int32) PollOption { return func(q *wigglev1.PollTasksRequest) { q.MaxTasks = n } }

// Bound serves one version of the workflow only.
func Bound(version int32) PollOption {
	return func(q *wigglev1.PollTasksRequest) {
		for _, b := range q.GetWorkflows() {
			b.Version = version
		}
	}
}

// Poll asks once for tasks of the scenario's workflow.
func (r *Run) Poll(change ...PollOption) []*wigglev1.Task {
	r.Helper()
	req := &wigglev1.PollTasksRequest{
		Worker: "worker", MaxTasks: batchMax, Wait: durationpb.New(moment << r.starved), Lease: durationpb.New(r.lease),
		Workflows: []*wigglev1.WorkflowBinding{{Workflow: r.Workflow}}, ShareBaseContexts: true,
	}
	for _, c := range change {
		c(req)
	}
	began := time.Now()
	res, err := r.Workers.PollTasks(r.ctx, req)
	if err != nil {
		r.Fatalf("poll: %v", err)
	}
	if time.Since(began) > 10*moment+moment<<r.starved {
		r.starved = wary
	} else {
		r.starved = max(r.starved-1, 0)
	}
	for _, t := range res.GetTasks() { // as if each had brought its own
		if i := t.GetBaseIndex(); i > 0 {
			t.BaseContext = res.GetBaseContexts()[i-1]
		}
	}
	return res.GetTasks()
}

// pass lets time pass after a poll that brought nothing, unless one of the last took so
// long that its tasks may be on their way back: they would run out meanwhile.
func (r *Run) pass() {
	if r.starved == 0 {
		r.server.Pass()
	}
}

// Task waits for a task of a step, letting time pass. Others that come are kept.
func (r *Run) Task(step string, change ...PollOption) *wigglev1.Task {
	r.Helper()
	return r.Tasks(step, 1, change...)[0]
}

// Tasks waits for so many tasks of a step, in the order in which they came.
func (r *Run) Tasks(step string, n int, change ...PollOption) []*wigglev1.Task {
	r.Helper()
	var got []*wigglev1.Task
	for {
		r.held = slices.DeleteFunc(r.held, func(t *wigglev1.Task) bool {
			if t.GetStep() != step || len(got) == n {
				return false
			}
			got = append(got, t)
			return true
		})
		if len(got) == n {
			return got
		}
		tasks := r.Poll(change...)
		r.held = append(r.held, tasks...)
		if r.ctx.Err() != nil || (len(tasks) == 0 && r.Ended()) {
			r.Fatalf("%d of %d tasks of step %q came; the instance is %v", len(got), n, step, r.Get())
		}
		if len(tasks) == 0 {
			r.pass()
		}
	}
}

// None sees that there is no task to be had now.
func (r *Run) None(change ...PollOption) {
	r.Helper()
	if tasks := slices.Concat(r.held, r.Poll(change...)); len(tasks) > 0 {
		r.Errorf("want no task, got %v", tasks)
	}
}

// reportOf addresses a reply to a task.
func reportOf(t *wigglev1.Task, reply Reply) *wigglev1.StepReport {
	report := proto.CloneOf(reply.Report)
	report.TaskId, report.Lease = t.GetId(), t.GetLease()
	return report
}

// ReportAll reports in one call and returns the fault of each.
func (r *Run) ReportAll(reports ...*wigglev1.StepReport) []*wigglev1.Fault {
	r.Helper()
	res, err := r.Workers.ReportSteps(r.ctx, &wigglev1.ReportStepsRequest{Worker: "worker", Reports: reports})
	if err != nil {
		r.Fatalf("report: %v", err)
	}
	if len(res.GetOutcomes()) != len(reports) {
		r.Fatalf("%d reports have %d outcomes", len(reports), len(res.GetOutcomes()))
	}
	faults := make([]*wigglev1.Fault, len(reports))
	for i, report := range reports {
		o := res.GetOutcomes()[i]
		if o.GetTaskId() != report.GetTaskId() {
			r.Errorf("outcome %d is of task %s, want %s", i, o.GetTaskId(), report.GetTaskId())
		}
		faults[i] = o.GetFault()
	}
	return faults
}

// Report reports a task and returns its fault.
func (r *Run) Report(t *wigglev1.Task, answer Answer) *wigglev1.Fault {
	r.Helper()
	return r.ReportAll(reportOf(t, answer(t)))[0]
}

// FailTask fails a task.
func (r *Run) FailTask(t *wigglev1.Task, answer Answer) (*wigglev1.FailTaskResponse, error) {
	req := answer(t).Fail
	req.Worker, req.TaskId, req.Lease = "worker", t.GetId(), t.GetLease()
	return r.Workers.FailTask(r.ctx, req)
}

// Answer does with a task what an answer says. Without one a task changes nothing, a
// gate is open, a choose takes its first case and a combine gathers.
func (r *Run) Answer(t *wigglev1.Task, answer Answer) {
	r.Helper()
	if answer == nil {
		answer = leastOf(t)
	}
	reply := answer(t)
	switch {
	case reply.Silent:
	case reply.Fail != nil:
		if _, err := r.FailTask(t, answer); err != nil {
			r.Fatalf("fail %s: %v", t.GetStep(), err)
		}
	default:
		if f := r.ReportAll(reportOf(t, reply))[0]; f != nil {
			r.Fatalf("report %s: %v", t.GetStep(), f)
		}
	}
}

// Work answers tasks until the instance has ended.
func (r *Run) Work(answers map[string]Answer, change ...PollOption) {
	r.Helper()
	for {
		tasks := slices.Concat(r.held, r.Poll(change...))
		r.held = nil
		switch {
		case len(tasks) > 0:
			r.answerAll(tasks, answers)
		case r.Ended():
			return
		case r.ctx.Err() != nil:
			r.Fatalf("the instance did not end: %v", r.Get())
		default:
			r.pass()
		}
	}
}

// answerAll reports what can be reported in one call, and then fails what is failed.
// Once a failure has ended the instance the rest of it is refused.
func (r *Run) answerAll(tasks []*wigglev1.Task, answers map[string]Answer) {
	r.Helper()
	var reports []*wigglev1.StepReport
	var failing []*wigglev1.Task
	for _, t := range tasks {
		answer := answers[t.GetStep()]
		if answer == nil {
			answer = leastOf(t)
		}
		reply := answer(t)
		switch {
		case reply.Report != nil:
			reports = append(reports, reportOf(t, reply))
		case reply.Fail != nil:
			failing = append(failing, t)
		}
	}
	for batch := range slices.Chunk(reports, batchMax) {
		for i, f := range r.ReportAll(batch...) {
			if f != nil && !(f.GetLeaseLost() != nil && r.Ended()) {
				r.Fatalf("report %v: %v", batch[i], f)
			}
		}
	}
	for _, t := range failing {
		if _, err := r.FailTask(t, answers[t.GetStep()]); err != nil && !(lost(err) && r.Ended()) {
			r.Fatalf("fail %s: %v", t.GetStep(), err)
		}
	}
}

// Beat extends one lease.
func (r *Run) Beat(t *wigglev1.Task, extend time.Duration, progress *wigglev1.Payload) *wigglev1.BeatOutcome {
	r.Helper()
	beat := &wigglev1.Beat{TaskId: t.GetId(), Lease: t.GetLease(), Extend: durationpb.New(extend), Progress: progress}
	res, err := r.Workers.Heartbeat(r.ctx, &wigglev1.HeartbeatRequest{Worker: "worker", Beats: []*wigglev1.Beat{beat}})
	if err != nil {
		r.Fatalf("heartbeat: %v", err)
	}
	return res.GetOutcomes()[0]
}

// Release hands a task back.
func (r *Run) Release(t *wigglev1.Task) *wigglev1.Fault {
	r.Helper()
	lease := &wigglev1.TaskLease{TaskId: t.GetId(), Lease: t.GetLease()}
	res, err := r.Workers.ReleaseTasks(r.ctx, &wigglev1.ReleaseTasksRequest{Worker: "worker", Tasks: []*wigglev1.TaskLease{lease}})
	if err != nil {
		r.Fatalf("release: %v", err)
	}
	return res.GetOutcomes()[0].GetFault()
}

// Cancel ends the instance.
func (r *Run) Cancel(reason string) (*wigglev1.CancelInstanceResponse, error) {
	return r.Instances.CancelInstance(r.ctx, &wigglev1.CancelInstanceRequest{InstanceId: r.ID, Reason: reason})
}

// MustCancel ends the instance.
func (r *Run) MustCancel(reason string) {
	r.Helper()
	res, err := r.Cancel(reason)
	if err != nil {
		r.Fatalf("cancel: %v", err)
	}
	if res.GetState() != cancelled {
		r.Errorf("cancel answers %s", res.GetState())
	}
}
