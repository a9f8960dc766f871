package rpc

import (
	"context"
	"errors"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/wiggle-run/wiggle/pkg/faults"
	"github.com/wiggle-run/wiggle/proto/definition"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	"github.com/wiggle-run/wiggle/services/instances/internal/dispatch"
	"github.com/wiggle-run/wiggle/services/instances/internal/machine"
	"github.com/wiggle-run/wiggle/services/instances/internal/store"
)

// What bounds leases and polls.
const (
	defaultLease   = 30 * time.Second
	minLease       = time.Second
	maxLease       = time.Hour
	maxPollWait    = time.Minute
	maxTasks       = 1000
	maxQueueBytes  = 128
	maxWorkerBytes = 256
	maxRetryDelay  = 365 * 24 * time.Hour
	maxFailure     = 64 << 10
)

// PollTasks leases tasks of the shard that the caller names.
func (s *Server) PollTasks(ctx context.Context, req *wigglev1.PollTasksRequest) (*wigglev1.PollTasksResponse, error) {
	shard, err := s.named(ctx)
	if err != nil {
		return nil, err
	}
	claim, err := claimOf(req)
	if err != nil {
		return nil, err
	}
	wait, err := span("wait", req.GetWait(), 0, 0, maxPollWait)
	if err != nil {
		return nil, err
	}
	claimed, err := shard.Claim(ctx, claim, wait)
	if overload, ok := errors.AsType[*dispatch.OverloadError](err); ok {
		return &wigglev1.PollTasksResponse{RetryAfter: durationpb.New(overload.RetryAfter)}, nil
	}
	if err != nil {
		return nil, fault(shard.ID(), err)
	}
	list := taskList{share: req.GetShareBaseContexts()}
	for _, c := range claimed {
		if err := list.add(ctx, shard, c); err != nil {
			shard.HandBack(claimed)
			return nil, fault(shard.ID(), err)
		}
	}
	return &wigglev1.PollTasksResponse{Tasks: list.tasks, BaseContexts: list.bases}, nil
}

// taskList gathers the tasks of an answer and, where the worker asks for it, the
// contexts around them once.
type taskList struct {
	share bool
	tasks []*wigglev1.Task
	bases []*wigglev1.Payload
	index map[machine.ID]int32 // by parent, from 1
}

func (l *taskList) add(ctx context.Context, shard *dispatch.Shard, c store.Claimed) error {
	task, err := taskProto(ctx, shard, c)
	if err != nil {
		return err
	}
	l.tasks = append(l.tasks, task)
	if !l.share || task.GetBaseContext() == nil {
		return nil
	}
	if l.index == nil {
		l.index = make(map[machine.ID]int32)
	}
	at := l.index[c.Token.Parent]
	if at == 0 {
		l.bases = append(l.bases, task.GetBaseContext())
		at = int32(len(l.bases)) //nolint:gosec // at most the number of tasks
		l.index[c.Token.Parent] = at
	}
	task.BaseContext, task.BaseIndex = nil, at
	return nil
}

func claimOf(req *wigglev1.PollTasksRequest) (store.Claim, error) {
	lease, err := span("lease", req.GetLease(), defaultLease, minLease, maxLease)
	if err != nil {
		return store.Claim{}, err
	}
	c := store.Claim{
		Namespace: namespace(req.GetNamespace()), Queues: req.GetQueues(), Worker: req.GetWorker(),
		Lease: lease, Max: min(max(int(req.GetMaxTasks()), 1), maxTasks), SharedBases: req.GetShareBaseContexts(),
	}
	if len(c.Queues) == 0 {
		c.Queues = []string{definition.DefaultQueue}
	}
	if err := clean("worker", c.Worker, maxWorkerBytes); err != nil {
		return store.Claim{}, err
	}
	if err := clean("namespace", c.Namespace, maxNamespaceBytes); err != nil {
		return store.Claim{}, err
	}
	for _, q := range c.Queues {
		if err := clean("queue", q, maxQueueBytes); err != nil {
			return store.Claim{}, err
		}
	}
	for _, b := range req.GetWorkflows() {
		if err := clean("workflow", b.GetWorkflow(), maxWorkflowBytes); err != nil {
			return store.Claim{}, err
		}
		c.Workflows = append(c.Workflows, store.Binding{Workflow: b.GetWorkflow(), Version: b.GetVersion()})
	}
	return c, nil
}

// taskProto describes a leased token to its worker (WRK-3).
func taskProto(ctx context.Context, shard *dispatch.Shard, c store.Claimed) (*wigglev1.Task, error) {
	t, in := c.Token, c.Instance
	m, err := shard.Machine(ctx, in.Namespace, in.Workflow, in.Version)
	if err != nil {
		return nil, err
	}
	node := m.Graph().Node(t.Node)
	task := &wigglev1.Task{
		Id: tokenID(shard.ID(), t.ID), Lease: leaseText(t), InstanceId: instanceID(shard.ID(), t.Instance),
		Namespace: in.Namespace, Workflow: in.Workflow, Version: in.Version,
		Node: t.Node, Step: node.Step.Name, Activity: node.Step.Activity, Kind: taskKind(node), Attempt: t.Attempt,
		LeaseExpiresAt: stamp(t.LeaseUntil), Deadline: stamp(t.Deadline),
		Context: payloadProto(t.View), BaseContext: payloadProto(c.Base), Progress: payloadProto(t.Progress),
		TraceContext: in.Trace, CausedBy: t.Trace, Queue: t.Queue, QueuedAt: stamp(t.QueuedAt), DispatchedAt: stamp(t.LeasedAt),
		Batched: m.Graph().Batched,
	}
	if !t.Parent.IsZero() {
		task.Element = &wigglev1.Element{Index: t.Index, Key: t.Key}
	}
	for _, c := range node.Cases {
		task.Cases = append(task.Cases, c.Name)
	}
	if node.Combines != "" {
		task.ByName = byName(m.Graph(), node)
	}
	for _, r := range c.Results {
		result := &wigglev1.BranchResult{Element: &wigglev1.Element{Index: r.Index, Key: r.Key}}
		if r.HasResult {
			result.Result = payloadProto(r.View)
		}
		task.Results = append(task.Results, result)
	}
	return task, nil
}

func taskKind(node *definition.Node) wigglev1.TaskKind {
	switch {
	case node.Kind == definition.KindGate:
		return wigglev1.TaskKind_TASK_KIND_GATE
	case node.Kind == definition.KindChoose:
		return wigglev1.TaskKind_TASK_KIND_CHOOSE
	case node.Combines != "":
		return wigglev1.TaskKind_TASK_KIND_COMBINE
	case node.Effect:
		return wigglev1.TaskKind_TASK_KIND_EFFECT
	}
	return wigglev1.TaskKind_TASK_KIND_TASK
}

// byName reports whether a combine's results belong to a fork.
func byName(g *definition.Graph, combine *definition.Node) bool {
	join := g.Node(combine.Combines)
	return join != nil && g.Node(join.FanOut).Kind == definition.KindFork
}

// onShards groups the items of a batch by shard, applies each group, and puts the
// answers in the order of the items.
func onShards[T any](
	n int, read func(i int) (*dispatch.Shard, T, error), apply func(shard *dispatch.Shard, items []T) []error,
) []error {
	type group struct {
		index []int
		items []T
	}
	errs := make([]error, n)
	groups := map[*dispatch.Shard]*group{}
	for i := range n {
		shard, item, err := read(i)
		if err != nil {
			errs[i] = err
			continue
		}
		g := groups[shard]
		if g == nil {
			g = &group{}
			groups[shard] = g
		}
		g.index, g.items = append(g.index, i), append(g.items, item)
	}
	for shard, g := range groups {
		for i, err := range apply(shard, g.items) {
			errs[g.index[i]] = err
		}
	}
	return errs
}

// lease reads which lease an item is about.
func (s *Server) lease(taskID, text string) (*dispatch.Shard, store.Lease, error) {
	shard, token, err := s.token(taskID)
	if err != nil {
		return nil, store.Lease{}, err
	}
	l, err := parseLease(token, text)
	return shard, l, err
}

// events applies events and tells what became of each.
func events(shard *dispatch.Shard, evs []dispatch.Event) []error {
	return outcomeErrors(shard, evs, shard.Apply(evs))
}

func outcomeErrors(shard *dispatch.Shard, evs []dispatch.Event, outcomes []dispatch.Outcome) []error {
	errs := make([]error, len(evs))
	for i, o := range outcomes {
		errs[i] = taskFault(shard.ID(), tokenID(shard.ID(), evs[i].Lease.Token), o.Err)
	}
	return errs
}

func (s *Server) outcomes(ctx context.Context, errs []error, taskID func(i int) string) []*wigglev1.TaskOutcome {
	out := make([]*wigglev1.TaskOutcome, len(errs))
	for i, err := range errs {
		out[i] = &wigglev1.TaskOutcome{TaskId: taskID(i), Fault: s.item(ctx, err)}
	}
	return out
}

// ReportSteps applies reports, each on its own.
func (s *Server) ReportSteps(ctx context.Context, req *wigglev1.ReportStepsRequest) (*wigglev1.ReportStepsResponse, error) {
	reports := req.GetReports()
	next, err := nextOf(req)
	if err != nil {
		return nil, err
	}
	res := &wigglev1.ReportStepsResponse{}
	list := taskList{share: req.GetNext().GetShareBaseContexts()}
	errs := onShards(len(reports), func(i int) (*dispatch.Shard, dispatch.Event, error) {
		shard, lease, err := s.lease(reports[i].GetTaskId(), reports[i].GetLease())
		if err != nil {
			return nil, dispatch.Event{}, err
		}
		ev, err := reportEvent(ctx, req.GetWorker(), lease, reports[i])
		return shard, ev, err
	}, func(shard *dispatch.Shard, evs []dispatch.Event) []error {
		outcomes := shard.ApplyAndClaim(evs, next)
		before := len(list.tasks)
		s.addNext(ctx, shard, outcomes, &list)
		if next != nil {
			next.Max -= len(list.tasks) - before // what is left for the other shards
		}
		return outcomeErrors(shard, evs, outcomes)
	})
	res.Tasks, res.BaseContexts = list.tasks, list.bases
	res.Outcomes = s.outcomes(ctx, errs, func(i int) string { return reports[i].GetTaskId() })
	return res, nil
}

// nextOf reads what a worker that goes on takes; nil if it does not.
func nextOf(req *wigglev1.ReportStepsRequest) (*store.Claim, error) {
	next := req.GetNext()
	if next == nil {
		return nil, nil //nolint:nilnil // nothing is asked for
	}
	claim, err := claimOf(&wigglev1.PollTasksRequest{
		Namespace: next.GetNamespace(), Worker: req.GetWorker(), Queues: next.GetQueues(), Workflows: next.GetWorkflows(),
		MaxTasks: next.GetMaxTasks(), Lease: next.GetLease(),
	})
	if next.GetMaxTasks() == 0 {
		claim.Max = len(req.GetReports())
	}
	return &claim, err
}

// addNext describes the tasks that were leased with their reports. One that cannot
// be described is handed back: the reports are applied all the same.
func (s *Server) addNext(ctx context.Context, shard *dispatch.Shard, outcomes []dispatch.Outcome, list *taskList) {
	for _, o := range outcomes {
		if o.Next == nil {
			continue
		}
		if err := list.add(ctx, shard, *o.Next); err != nil {
			s.log.ErrorContext(ctx, "a task that follows a report cannot be described", "shard", shard.ID(), "error", err)
			shard.HandBack([]store.Claimed{*o.Next})
		}
	}
}

func reportOf(worker string, r *wigglev1.StepReport) (machine.Report, error) {
	out := machine.Report{Worker: worker, StartedAt: moment(r.GetStartedAt()), FinishedAt: moment(r.GetFinishedAt())}
	for _, e := range r.GetEvents() {
		out.Events = append(out.Events, machine.Emitted{Type: e.GetType(), Payload: payload(e.GetPayload())})
	}
	switch o := r.GetOutcome().(type) {
	case *wigglev1.StepReport_Result:
		out.Kind, out.Result = machine.OutcomeResult, payload(o.Result)
		return out, clean("content type", out.Result.ContentType, maxContentType)
	case *wigglev1.StepReport_Unchanged:
		out.Kind = machine.OutcomeUnchanged
	case *wigglev1.StepReport_Gate:
		out.Kind, out.Gate = machine.OutcomeGate, o.Gate
	case *wigglev1.StepReport_Choice:
		out.Kind, out.Choice = machine.OutcomeChoice, o.Choice
	default:
		return out, faults.InvalidArgument("the report of task %s has no outcome: set result, unchanged, gate or choice", r.GetTaskId())
	}
	return out, nil
}

func failOf(req *wigglev1.FailTaskRequest) (machine.Fail, error) {
	delay, err := span("retry_delay", req.GetRetryDelay(), 0, 0, maxRetryDelay)
	if err != nil {
		return machine.Fail{}, err
	}
	f := req.GetFailure()
	return machine.Fail{
		Worker: req.GetWorker(),
		Type:   cut(f.GetType(), maxWorkerBytes), Message: cut(f.GetMessage(), maxFailure), Stack: cut(f.GetStack(), maxFailure),
		NonRetryable: req.GetNonRetryable(), RetryDelay: delay, HasRetryDelay: req.GetRetryDelay() != nil,
		StartedAt: moment(req.GetStartedAt()), FinishedAt: moment(req.GetFinishedAt()),
	}, nil
}

// FailTask applies a failed attempt.
func (s *Server) FailTask(_ context.Context, req *wigglev1.FailTaskRequest) (*wigglev1.FailTaskResponse, error) {
	shard, lease, err := s.lease(req.GetTaskId(), req.GetLease())
	if err != nil {
		return nil, err
	}
	fail, err := failOf(req)
	if err != nil {
		return nil, err
	}
	ev := dispatch.Fail(lease, fail)
	ev.Traceparent = req.GetTraceparent()
	o := shard.Apply([]dispatch.Event{ev})[0]
	if o.Err != nil {
		return nil, taskFault(shard.ID(), req.GetTaskId(), o.Err)
	}
	retryAt := o.Changes.RetryAt
	return &wigglev1.FailTaskResponse{WillRetry: !retryAt.IsZero(), RetryAt: stamp(retryAt)}, nil
}

func cut(text string, most int) string {
	if len(text) > most {
		text = text[:most]
	}
	return text
}

// beat is one beat with its place.
type beat struct {
	store.Beat
	index int
}

// Heartbeat extends leases, each on its own.
func (s *Server) Heartbeat(ctx context.Context, req *wigglev1.HeartbeatRequest) (*wigglev1.HeartbeatResponse, error) {
	return &wigglev1.HeartbeatResponse{Outcomes: s.heartbeat(ctx, req.GetBeats())}, nil
}

func (s *Server) heartbeat(ctx context.Context, beats []*wigglev1.Beat) []*wigglev1.BeatOutcome {
	outcomes := make([]*wigglev1.BeatOutcome, len(beats))
	for i, b := range beats {
		outcomes[i] = &wigglev1.BeatOutcome{TaskId: b.GetTaskId()}
	}
	errs := onShards(len(beats), func(i int) (*dispatch.Shard, beat, error) {
		shard, lease, err := s.lease(beats[i].GetTaskId(), beats[i].GetLease())
		if err != nil {
			return nil, beat{}, err
		}
		extend, err := span("extend", beats[i].GetExtend(), defaultLease, minLease, maxLease)
		b := store.Beat{Token: lease.Token, Fence: lease.Fence, Extend: extend, Progress: payload(beats[i].GetProgress())}
		return shard, beat{Beat: b, index: i}, err
	}, func(shard *dispatch.Shard, items []beat) []error {
		return s.beat(ctx, shard, items, outcomes)
	})
	for i, err := range errs {
		outcomes[i].Fault = s.item(ctx, err)
	}
	return outcomes
}

func (s *Server) beat(ctx context.Context, shard *dispatch.Shard, items []beat, outcomes []*wigglev1.BeatOutcome) []error {
	errs := make([]error, len(items))
	beats := make([]store.Beat, len(items))
	for i, b := range items {
		beats[i] = b.Beat
	}
	results, err := shard.Beat(ctx, beats)
	for i, b := range items {
		taskID := outcomes[b.index].GetTaskId()
		switch {
		case err != nil:
			errs[i] = taskFault(shard.ID(), taskID, err)
		case results[i].LeaseUntil.IsZero():
			errs[i] = faults.LeaseLost(taskID)
		default:
			outcomes[b.index].LeaseExpiresAt = stamp(results[i].LeaseUntil)
		}
	}
	return errs
}

// ReleaseTasks hands tasks back, each on its own.
func (s *Server) ReleaseTasks(ctx context.Context, req *wigglev1.ReleaseTasksRequest) (*wigglev1.ReleaseTasksResponse, error) {
	tasks := req.GetTasks()
	errs := onShards(len(tasks), func(i int) (*dispatch.Shard, dispatch.Event, error) {
		shard, lease, err := s.lease(tasks[i].GetTaskId(), tasks[i].GetLease())
		return shard, dispatch.Release(lease), err
	}, events)
	return &wigglev1.ReleaseTasksResponse{
		Outcomes: s.outcomes(ctx, errs, func(i int) string { return tasks[i].GetTaskId() }),
	}, nil
}
