package wiggle_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	"github.com/wiggle-run/wiggle/proto/gen/wiggle/v1/wigglev1connect"
	wiggle "github.com/wiggle-run/wiggle/sdk/go"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fake is a scripted server: it hands out the tasks that a test queues and notes
// what comes back. It checks leases as the protocol says, and nothing else. Each
// on... function, where set, answers in its place.
type fake struct {
	wigglev1connect.UnimplementedWorkflowServiceHandler
	wigglev1connect.UnimplementedInstanceServiceHandler
	wigglev1connect.UnimplementedWorkerServiceHandler
	wigglev1connect.UnimplementedEventServiceHandler
	wigglev1connect.UnimplementedClusterServiceHandler

	unary   bool     // how workers of the test talk
	network *network // of the last client

	mu       sync.Mutex
	wake     chan struct{}
	streams  map[*fakeStream]struct{}
	hellos   []*wigglev1.WorkHello
	messages []*wigglev1.WorkRequest // all of all streams
	queue    []*wigglev1.Task
	leases   map[string]time.Time // end of the lease, by lease
	leased   int
	applied  map[string]bool     // reports that were, by lease
	sent     map[string]sentTask // over streams and not settled, by lease
	polls    []*wigglev1.PollTasksRequest
	batches  []*wigglev1.ReportStepsRequest
	reports  []*wigglev1.StepReport // applied
	fails    []*wigglev1.FailTaskRequest
	beats    []*wigglev1.Beat
	beatsAt  []time.Time
	released []*wigglev1.TaskLease
	defs     map[string]*wigglev1.Definition
	broken   error // answers every call

	onMessage    func(context.Context, *wigglev1.WorkRequest) error
	onReport     func(*wigglev1.StepReport) *wigglev1.Fault
	onBeat       func(*wigglev1.Beat) *wigglev1.Fault
	beforeBatch  func(context.Context, *wigglev1.ReportStepsRequest) error
	onStart      func(*wigglev1.StartInstanceRequest) (*wigglev1.StartInstanceResponse, error)
	onStarts     func(*wigglev1.StartInstancesRequest)
	onWait       func(context.Context, *wigglev1.WaitInstanceRequest) (*wigglev1.WaitInstanceResponse, error)
	onList       func(*wigglev1.ListInstancesRequest) (*wigglev1.ListInstancesResponse, error)
	onCount      func(*wigglev1.CountInstancesRequest) (*wigglev1.CountInstancesResponse, error)
	onRegister   func(*wigglev1.RegisterWorkflowRequest) (*wigglev1.RegisterWorkflowResponse, error)
	onHistory    func(*wigglev1.GetHistoryRequest) (*wigglev1.GetHistoryResponse, error)
	onPollEvents func(context.Context, *wigglev1.PollEventsRequest) (*wigglev1.PollEventsResponse, error)
	onCancel     func(*wigglev1.CancelInstanceRequest) (*wigglev1.CancelInstanceResponse, error)
}

func newFake() *fake {
	return &fake{
		wake: make(chan struct{}, 1), streams: map[*fakeStream]struct{}{},
		leases: map[string]time.Time{}, applied: map[string]bool{}, sent: map[string]sentTask{}, defs: map[string]*wigglev1.Definition{},
	}
}

// client is a client of the fake, without sockets between.
func (f *fake) client(t *testing.T, opts ...wiggle.ClientOption) *wiggle.Client {
	t.Helper()
	n := newNetwork()
	n.serve(t, f.handler())
	opts = append([]wiggle.ClientOption{
		wiggle.WithHTTPClient(n.httpClient(t, !f.unary)), wiggle.WithLogger(slog.New(slog.DiscardHandler)),
	}, opts...)
	c, err := wiggle.Dial("http://fake", opts...)
	if err != nil {
		t.Fatal(err)
	}
	f.network = n
	return c
}

func (f *fake) handler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle(wigglev1connect.NewWorkflowServiceHandler(f))
	mux.Handle(wigglev1connect.NewInstanceServiceHandler(f))
	mux.Handle(wigglev1connect.NewWorkerServiceHandler(f))
	mux.Handle(wigglev1connect.NewEventServiceHandler(f))
	mux.Handle(wigglev1connect.NewClusterServiceHandler(f))
	return mux
}

func (f *fake) PollEvents(ctx context.Context, req *wigglev1.PollEventsRequest) (*wigglev1.PollEventsResponse, error) {
	return f.onPollEvents(ctx, req)
}

// push queues tasks. What a test leaves out is filled.
func (f *fake) push(tasks ...*wigglev1.Task) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, t := range tasks {
		t.Activity = cmp(t.GetActivity(), t.GetStep())
		t.Node = cmp(t.GetNode(), t.GetStep())
		t.Workflow = cmp(t.GetWorkflow(), "flow")
		t.InstanceId = cmp(t.GetInstanceId(), "wfi.s0.x")
		t.Attempt = max(t.GetAttempt(), 1)
		if t.GetKind() == 0 {
			t.Kind = wigglev1.TaskKind_TASK_KIND_TASK
		}
		f.queue = append(f.queue, t)
	}
	f.wakeAll()
}

// wakeAll is called with the lock held.
func (f *fake) wakeAll() {
	for st := range f.streams {
		wake(st.wake)
	}
	wake(f.wake)
}

func wake(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

func cmp(a, b string) string {
	if a != "" {
		return a
	}
	return b
}

// fail answers every call with an error, nil for no longer. Streams end with it.
func (f *fake) fail(err error) {
	f.locked(func() {
		f.broken = err
		f.wakeAll()
	})
}

func (f *fake) locked(do func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	do()
}

// asked is how often a worker has begun to ask for tasks.
func (f *fake) asked() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.polls) + len(f.hellos)
}

func (f *fake) down() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.broken
}

var errDown = connect.NewError(connect.CodeUnavailable, fmt.Errorf("down"))

func (f *fake) PollTasks(ctx context.Context, req *wigglev1.PollTasksRequest) (*wigglev1.PollTasksResponse, error) {
	if err := f.down(); err != nil {
		return nil, err
	}
	f.locked(func() { f.polls = append(f.polls, proto.CloneOf(req)) })
	end := time.NewTimer(req.GetWait().AsDuration())
	defer end.Stop()
	for {
		if out := f.lease(int(max(req.GetMaxTasks(), 1)), req.GetLease().AsDuration()); len(out) > 0 {
			return &wigglev1.PollTasksResponse{Tasks: out}, nil
		}
		select {
		case <-f.wake:
		case <-end.C:
			return &wigglev1.PollTasksResponse{}, nil
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

func (f *fake) lease(room int, lease time.Duration) []*wigglev1.Task {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := min(len(f.queue), room)
	out := f.queue[:n]
	f.queue = f.queue[n:]
	for _, t := range out {
		f.leased++
		t.Lease = fmt.Sprintf("%s/%d/%d", t.GetId(), t.GetAttempt(), f.leased)
		end := time.Now().Add(lease)
		// The server's clock is an hour ahead: only differences may count.
		t.DispatchedAt, t.LeaseExpiresAt = timestamppb.New(time.Now().Add(time.Hour)), timestamppb.New(end.Add(time.Hour))
		f.leases[t.GetLease()] = end
	}
	return out
}

func (f *fake) lost(lease string) *wigglev1.Fault {
	f.mu.Lock()
	defer f.mu.Unlock()
	if end, ok := f.leases[lease]; ok && end.After(time.Now()) {
		return nil
	}
	return leaseLost()
}

func leaseLost() *wigglev1.Fault {
	return &wigglev1.Fault{Code: int32(connect.CodeAborted), Message: "the lease is lost", Kind: &wigglev1.Fault_LeaseLost{LeaseLost: &wigglev1.LeaseLost{}}}
}

// faultErr is a fault as a call's error.
func faultErr(f *wigglev1.Fault) error {
	err := connect.NewError(connect.Code(f.GetCode()), fmt.Errorf("%s", f.GetMessage()))
	d, derr := connect.NewErrorDetail(f)
	if derr != nil {
		panic(derr)
	}
	err.AddDetail(d)
	return err
}

func (f *fake) ReportSteps(ctx context.Context, req *wigglev1.ReportStepsRequest) (*wigglev1.ReportStepsResponse, error) {
	if f.beforeBatch != nil {
		if err := f.beforeBatch(ctx, req); err != nil {
			return nil, err
		}
	}
	if err := f.down(); err != nil {
		return nil, err
	}
	f.locked(func() { f.batches = append(f.batches, req) })
	res := &wigglev1.ReportStepsResponse{}
	for _, r := range req.GetReports() {
		res.Outcomes = append(res.Outcomes, f.report(r))
	}
	return res, nil
}

// report applies a report. One that is repeated is answered as the first was (WRK-5).
func (f *fake) report(r *wigglev1.StepReport) *wigglev1.TaskOutcome {
	var applied bool
	f.locked(func() { applied = f.applied[r.GetLease()] })
	if applied {
		return &wigglev1.TaskOutcome{TaskId: r.GetTaskId(), Lease: r.GetLease()}
	}
	fault := f.lost(r.GetLease())
	if fault == nil && f.onReport != nil {
		fault = f.onReport(r)
	}
	if fault == nil {
		f.locked(func() {
			f.reports = append(f.reports, r)
			f.applied[r.GetLease()] = true
			f.settled(r.GetLease())
		})
	}
	return &wigglev1.TaskOutcome{TaskId: r.GetTaskId(), Lease: r.GetLease(), Fault: fault}
}

// settled is called with the lock held.
func (f *fake) settled(lease string) {
	delete(f.leases, lease)
	delete(f.sent, lease)
}

func (f *fake) FailTask(_ context.Context, req *wigglev1.FailTaskRequest) (*wigglev1.FailTaskResponse, error) {
	if err := f.down(); err != nil {
		return nil, err
	}
	out := f.failure(req)
	if fault := out.GetFault(); fault != nil {
		return nil, faultErr(fault)
	}
	return &wigglev1.FailTaskResponse{WillRetry: out.GetWillRetry()}, nil
}

func (f *fake) failure(req *wigglev1.FailTaskRequest) *wigglev1.FailureOutcome {
	fault := f.lost(req.GetLease())
	if fault == nil {
		f.locked(func() { f.fails = append(f.fails, req); f.settled(req.GetLease()) })
	}
	return &wigglev1.FailureOutcome{
		TaskId: req.GetTaskId(), Lease: req.GetLease(), Fault: fault, WillRetry: fault == nil && !req.GetNonRetryable(),
	}
}

func (f *fake) Heartbeat(_ context.Context, req *wigglev1.HeartbeatRequest) (*wigglev1.HeartbeatResponse, error) {
	if err := f.down(); err != nil {
		return nil, err
	}
	res := &wigglev1.HeartbeatResponse{}
	for _, b := range req.GetBeats() {
		res.Outcomes = append(res.Outcomes, f.beat(b))
	}
	return res, nil
}

func (f *fake) beat(b *wigglev1.Beat) *wigglev1.BeatOutcome {
	fault := f.lost(b.GetLease())
	if fault == nil && f.onBeat != nil {
		fault = f.onBeat(b)
	}
	f.locked(func() {
		f.beats, f.beatsAt = append(f.beats, b), append(f.beatsAt, time.Now())
		if fault == nil {
			f.leases[b.GetLease()] = time.Now().Add(b.GetExtend().AsDuration())
		}
	})
	return &wigglev1.BeatOutcome{TaskId: b.GetTaskId(), Lease: b.GetLease(), Fault: fault}
}

func (f *fake) ReleaseTasks(_ context.Context, req *wigglev1.ReleaseTasksRequest) (*wigglev1.ReleaseTasksResponse, error) {
	if err := f.down(); err != nil {
		return nil, err
	}
	res := &wigglev1.ReleaseTasksResponse{}
	for _, t := range req.GetTasks() {
		res.Outcomes = append(res.Outcomes, f.release(t))
	}
	return res, nil
}

func (f *fake) release(t *wigglev1.TaskLease) *wigglev1.TaskOutcome {
	f.locked(func() { f.released = append(f.released, t); f.settled(t.GetLease()) })
	return &wigglev1.TaskOutcome{TaskId: t.GetTaskId(), Lease: t.GetLease()}
}

func (f *fake) RegisterWorkflow(_ context.Context, req *wigglev1.RegisterWorkflowRequest) (*wigglev1.RegisterWorkflowResponse, error) {
	if f.onRegister != nil {
		return f.onRegister(req)
	}
	f.locked(func() { f.defs[req.GetDefinition().GetName()] = req.GetDefinition() })
	return &wigglev1.RegisterWorkflowResponse{Version: 1, Fingerprint: "00", Created: true, ShardsBehind: []int32{2}}, nil
}

func (f *fake) GetWorkflow(_ context.Context, req *wigglev1.GetWorkflowRequest) (*wigglev1.GetWorkflowResponse, error) {
	if err := f.down(); err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	def, ok := f.defs[req.GetName()]
	if !ok {
		return nil, faultErr(&wigglev1.Fault{
			Code: int32(connect.CodeNotFound), Message: "no such workflow",
			Kind: &wigglev1.Fault_NotFound{NotFound: &wigglev1.NotFound{Thing: "workflow", Name: req.GetName()}},
		})
	}
	return &wigglev1.GetWorkflowResponse{Definition: def}, nil
}

// ListWorkflows gives one workflow a page, with two versions each.
func (f *fake) ListWorkflows(_ context.Context, req *wigglev1.ListWorkflowsRequest) (*wigglev1.ListWorkflowsResponse, error) {
	if err := f.down(); err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	names := make([]string, 0, len(f.defs))
	for n := range f.defs {
		names = append(names, n)
	}
	slices.Sort(names)
	res := &wigglev1.ListWorkflowsResponse{}
	for i, n := range names {
		if n <= req.GetPageToken() {
			continue
		}
		res.Workflows = []*wigglev1.WorkflowVersion{{Name: n, Version: 2, Nodes: int32(len(f.defs[n].GetNodes()))}, {Name: n, Version: 1}}
		if i < len(names)-1 {
			res.NextPageToken = n
		}
		break
	}
	return res, nil
}

func (f *fake) StartInstance(_ context.Context, req *wigglev1.StartInstanceRequest) (*wigglev1.StartInstanceResponse, error) {
	if f.onStart != nil {
		return f.onStart(req)
	}
	return &wigglev1.StartInstanceResponse{InstanceId: "wfi.s0." + req.GetUlid(), Version: 1, Created: true}, nil
}

func (f *fake) StartInstances(ctx context.Context, req *wigglev1.StartInstancesRequest) (*wigglev1.StartInstancesResponse, error) {
	if f.onStarts != nil {
		f.onStarts(req)
	}
	res := &wigglev1.StartInstancesResponse{}
	for _, s := range req.GetStarts() {
		started, err := f.StartInstance(ctx, s)
		out := &wigglev1.StartOutcome{Outcome: &wigglev1.StartOutcome_Started{Started: started}}
		if err != nil {
			out.Outcome = &wigglev1.StartOutcome_Fault{Fault: &wigglev1.Fault{Code: int32(connect.CodeOf(err)), Message: err.Error()}}
		}
		res.Outcomes = append(res.Outcomes, out)
	}
	return res, nil
}

func (f *fake) WaitInstance(ctx context.Context, req *wigglev1.WaitInstanceRequest) (*wigglev1.WaitInstanceResponse, error) {
	return f.onWait(ctx, req)
}

func (f *fake) GetInstance(ctx context.Context, req *wigglev1.GetInstanceRequest) (*wigglev1.GetInstanceResponse, error) {
	res, err := f.onWait(ctx, &wigglev1.WaitInstanceRequest{InstanceId: req.GetInstanceId()})
	return &wigglev1.GetInstanceResponse{Instance: res.GetInstance()}, err
}

func (f *fake) GetHistory(_ context.Context, req *wigglev1.GetHistoryRequest) (*wigglev1.GetHistoryResponse, error) {
	return f.onHistory(req)
}

func (f *fake) ListInstances(_ context.Context, req *wigglev1.ListInstancesRequest) (*wigglev1.ListInstancesResponse, error) {
	return f.onList(req)
}

func (f *fake) CountInstances(_ context.Context, req *wigglev1.CountInstancesRequest) (*wigglev1.CountInstancesResponse, error) {
	return f.onCount(req)
}

func (f *fake) CancelInstance(_ context.Context, req *wigglev1.CancelInstanceRequest) (*wigglev1.CancelInstanceResponse, error) {
	return f.onCancel(req)
}
