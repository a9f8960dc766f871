package wiggle

import (
	"context"
	"log/slog"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/wiggle-run/wiggle/proto/definition"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
)

// Batched lets a worker run the steps that follow one another by itself and report
// them together, as far as they wait in its queues and it has their handlers. That
// costs the server a fraction of what single reports cost. What it gives up: after a
// crash every step that was not reported is run again, also those that were done, and
// nobody else sees a step before its batch is reported. The bounds of a batch are in
// [WorkerOptions]; [Checkpoint] ends one early.
//
// A combine, the branches of a fan-out, and what follows a sleep or a join are handed
// out as ever, and so is a step that may not be run twice: one with a single attempt
// ([Retry] of 1) is neither run within a batch nor begins one.
func Batched() FlowOption {
	return func(d *wigglev1.Definition) { defaults(d).Mode = wigglev1.Mode_MODE_BATCHED }
}

// Checkpoint has the step of this handler reported, with those of its batch that were
// run before it, before the next step is run. So no crash of this worker that comes
// later runs it again. It does not wait. In a workflow that is not [Batched], whose
// every step is a checkpoint, and outside of a handler it does nothing.
func Checkpoint(ctx context.Context) {
	if h := heldFrom(ctx); h != nil {
		h.checkpoint.Store(true)
	}
}

const (
	defaultBatchSteps = 100
	maxBatchSteps     = 1000
	defaultBatchBytes = 256 << 10
	defaultBatchTime  = 5 * time.Second
)

// batchDefaults fills in the bounds of batches.
func (o *WorkerOptions) batchDefaults() {
	if o.BatchSteps <= 0 {
		o.BatchSteps = defaultBatchSteps
	}
	o.BatchSteps = min(o.BatchSteps, maxBatchSteps)
	if o.BatchBytes <= 0 {
		o.BatchBytes = defaultBatchBytes
	}
	if o.BatchTime <= 0 {
		o.BatchTime = defaultBatchTime
	}
}

// batch is a task that was handed out and the steps that are run after it.
//
// The server knows of the first alone: its lease is the batch's, and where its attempt
// has a deadline the report must be there by then. So no step is begun once half of
// that time is over, and one that runs is interrupted after three quarters.
type batch struct {
	session *session
	first   *held
	graph   *definition.Graph
	report  *wigglev1.StepReport
	// next is the node behind the last step that is done, view the context there.
	next   string
	view   *wigglev1.Payload
	bytes  int       // of results
	ends   bool      // a handler asked for it
	until  time.Time // when no step is begun any more
	cutoff time.Time // when one that runs is interrupted; zero: never
}

// goOn stamps the report of a task that is done and, in a batched workflow, runs the
// steps that follow and adds them to it. ctx is the task's, without the deadline of its
// attempt. A step that fails is left out: the server hands it out by itself.
func (s *session) goOn(ctx context.Context, h *held, rep *wigglev1.StepReport, started time.Time) {
	rep.StartedAt, rep.FinishedAt = timestamppb.New(started), timestamppb.Now()
	if !h.task.GetBatched() || h.checkpoint.Load() {
		return
	}
	b := s.newBatch(ctx, h, rep, started)
	if b == nil {
		return
	}
	if !b.cutoff.IsZero() {
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, b.cutoff)
		defer cancel()
	}
	for !b.full() && ctx.Err() == nil && !s.stopping.Load() {
		node := graphStep(b.graph, b.next)
		if node == nil || !s.w.runsInBatch(b.graph.Name, node) || !b.run(ctx, node) {
			return
		}
	}
}

// newBatch begins a batch; nil if the task is not to begin one.
func (s *session) newBatch(ctx context.Context, h *held, rep *wigglev1.StepReport, started time.Time) *batch {
	t := h.task
	graph := s.w.graphs.get(ctx, s.w, t.GetWorkflow(), int(t.GetVersion()))
	if graph == nil {
		return nil
	}
	node := graphStep(graph, t.GetNode())
	if node == nil || !mayRepeat(node.Step.Retry, t.GetAttempt()) {
		return nil
	}
	b := &batch{session: s, first: h, graph: graph, report: rep, view: t.GetContext(), until: started.Add(s.w.opts.BatchTime)}
	if t.GetDeadline() != nil && t.GetDispatchedAt() != nil {
		left := t.GetDeadline().AsTime().Sub(t.GetDispatchedAt().AsTime())
		b.until, b.cutoff = minTime(b.until, h.received.Add(left/2)), h.received.Add(left/4*3)
	}
	b.done(node, rep)
	return b
}

func (b *batch) full() bool {
	opts := &b.session.w.opts
	return b.ends || len(b.report.GetFollowedBy())+1 >= opts.BatchSteps || b.bytes >= opts.BatchBytes || !time.Now().Before(b.until)
}

// done takes note of what came out of a step.
func (b *batch) done(node *definition.Node, out *wigglev1.StepReport) {
	if result := out.GetResult(); result != nil && !node.Effect {
		b.view = result
		b.bytes += len(result.GetData())
	}
	b.bytes += emittedBytes(out.GetEvents())
	switch {
	case node.Kind == definition.KindGate && !out.GetGate():
		b.next = node.Otherwise
	case node.Kind == definition.KindChoose:
		b.next = node.Follows(out.GetChoice())
	default:
		b.next = node.Next
	}
}

// run runs one step and adds it to the report; false if it is not done.
func (b *batch) run(ctx context.Context, node *definition.Node) bool {
	s, started := b.session, time.Now()
	task := b.task(node, started)
	// What its handler sends with heartbeats would be taken for progress of the first
	// step, whose lease this is: gone says that nothing is sent.
	h := &held{session: s, task: task, received: started, gone: true}
	ctx = context.WithValue(ctx, heldKey{}, h)
	if node.Step.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, node.Step.Timeout)
		defer cancel()
	}
	out, err := s.w.runTraced(ctx, task)
	finished := time.Now()
	if err == nil && node.Step.Timeout > 0 && finished.Sub(started) >= node.Step.Timeout {
		err = context.DeadlineExceeded
	}
	if err != nil {
		s.w.logger.LogAttrs(ctx, slog.LevelInfo, "wiggle: a step failed within a batch and will be run again by itself",
			append(taskAttrs(task), slog.Any("error", err))...)
		return false
	}
	b.report.FollowedBy = append(b.report.FollowedBy, following(node.ID, out, started, finished))
	b.done(node, out)
	b.ends = h.checkpoint.Load()
	return true
}

// task is what the server would hand out for a step.
func (b *batch) task(node *definition.Node, now time.Time) *wigglev1.Task {
	first := b.first.task
	t := &wigglev1.Task{
		Id: first.GetId(), Lease: first.GetLease(), InstanceId: first.GetInstanceId(), Namespace: first.GetNamespace(),
		Workflow: first.GetWorkflow(), Version: first.GetVersion(), Node: node.ID, Step: node.Step.Name, Activity: node.Step.Activity,
		Kind: kindOf(node), Attempt: 1, Context: b.view, BaseContext: first.GetBaseContext(), Element: first.GetElement(),
		TraceContext: first.GetTraceContext(), Queue: node.Step.Queue, QueuedAt: timestamppb.New(now), DispatchedAt: timestamppb.New(now),
		Batched: true,
	}
	for _, c := range node.Cases {
		t.Cases = append(t.Cases, c.Name)
	}
	return t
}

// following is a step that is done as it is told behind the first.
func following(node string, out *wigglev1.StepReport, started, finished time.Time) *wigglev1.FollowingStep {
	f := &wigglev1.FollowingStep{
		Node: node, StartedAt: timestamppb.New(started), FinishedAt: timestamppb.New(finished), Events: out.GetEvents(),
	}
	switch o := out.GetOutcome().(type) {
	case *wigglev1.StepReport_Result:
		f.Outcome = &wigglev1.FollowingStep_Result{Result: o.Result}
	case *wigglev1.StepReport_Unchanged:
		f.Outcome = &wigglev1.FollowingStep_Unchanged{Unchanged: o.Unchanged}
	case *wigglev1.StepReport_Gate:
		f.Outcome = &wigglev1.FollowingStep_Gate{Gate: o.Gate}
	case *wigglev1.StepReport_Choice:
		f.Outcome = &wigglev1.FollowingStep_Choice{Choice: o.Choice}
	}
	return f
}

// graphStep is the step at a node; nil if workers do not run it.
func graphStep(g *definition.Graph, id string) *definition.Node {
	if n := g.Node(id); n != nil && n.Step != nil {
		return n
	}
	return nil
}

// runsInBatch tells whether a step may be run without asking the server for it.
func (w *Worker) runsInBatch(workflow string, node *definition.Node) bool {
	if !slices.Contains(w.opts.Queues, node.Step.Queue) || !mayRepeat(node.Step.Retry, 1) {
		return false
	}
	h, ok := w.handler(workflow, node.Step.Activity)
	return ok && h.kind == kindOf(node)
}

// mayRepeat tells whether a step may be run again when the worker of its attempt is
// gone, as the steps of a batch are: whether that leaves it another attempt.
func mayRepeat(p definition.Retry, attempt int32) bool {
	return (p.MaxAttempts == 0 || int(attempt) < p.MaxAttempts) && !slices.Contains(p.NonRetryable, typeLeaseExpired)
}

// typeLeaseExpired is how the server calls the failure of an attempt whose worker is
// gone.
const typeLeaseExpired = "wiggle.LeaseExpired"

// kindOf is the kind of a task at a node that is no combine. None follows by an edge: a
// join, which is the server's, is before it.
func kindOf(node *definition.Node) wigglev1.TaskKind {
	switch {
	case node.Kind == definition.KindGate:
		return wigglev1.TaskKind_TASK_KIND_GATE
	case node.Kind == definition.KindChoose:
		return wigglev1.TaskKind_TASK_KIND_CHOOSE
	case node.Effect:
		return wigglev1.TaskKind_TASK_KIND_EFFECT
	}
	return wigglev1.TaskKind_TASK_KIND_TASK
}

// reportBytes is how much of a message the results of a report take.
func reportBytes(r *wigglev1.StepReport) int {
	n := len(r.GetResult().GetData()) + emittedBytes(r.GetEvents())
	for _, f := range r.GetFollowedBy() {
		n += len(f.GetResult().GetData()) + emittedBytes(f.GetEvents())
	}
	return n
}

func emittedBytes(events []*wigglev1.EmittedEvent) int {
	n := 0
	for _, e := range events {
		n += len(e.GetType()) + len(e.GetPayload().GetData())
	}
	return n
}

// firstAlone sends the report of a batch that the server will never take without the
// steps that followed. They are handed out again, so that what is wrong with one of
// them shows as its own failure.
func (s *session) firstAlone(it *settlement, e *Error) {
	s.w.logger.LogAttrs(context.Background(), slog.LevelWarn,
		"wiggle: the server does not take a batch; the steps after its first will be run again",
		append(taskAttrs(it.held.task), slog.Int("steps", len(it.report.GetFollowedBy())+1), slog.Any("error", e))...)
	it.report.FollowedBy = nil
	s.reports.put(it)
}
