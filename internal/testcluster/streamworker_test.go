package testcluster_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/oklog/ulid/v2"

	"github.com/wiggle-run/wiggle/internal/pgtest"
	"github.com/wiggle-run/wiggle/internal/testcluster"
	"github.com/wiggle-run/wiggle/pkg/placement"
	"github.com/wiggle-run/wiggle/pkg/rpc"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	"github.com/wiggle-run/wiggle/proto/gen/wiggle/v1/wigglev1connect"
	wiggle "github.com/wiggle-run/wiggle/sdk/go"
)

// patience bounds what a test waits for on a loaded machine.
const patience = 60 * time.Second

func TestMain(m *testing.M) { pgtest.Main(m) }

// scene is a cluster on PostgreSQL with clients.
type scene struct {
	*testing.T
	*testcluster.Cluster

	ctx       context.Context
	workflows wigglev1connect.WorkflowServiceClient
	instances wigglev1connect.InstanceServiceClient
	workers   wigglev1connect.WorkerServiceClient
}

// play starts a cluster of some shards and registers a chain of n steps.
func play(t *testing.T, cfg testcluster.Config, shards int, options ...connect.ClientOption) *scene {
	t.Helper()
	for range shards {
		cfg.DatabaseURLs = append(cfg.DatabaseURLs, pgtest.NewDatabase(t))
	}
	c, err := testcluster.Start(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Errorf("stop the cluster: %v", err)
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	if err := c.WaitReady(ctx); err != nil {
		t.Fatal(err)
	}
	s := &scene{T: t, Cluster: c, ctx: ctx}
	plain, err := rpc.NewClientOptions(rpc.ClientConfig{})
	if err != nil {
		t.Fatal(err)
	}
	s.workflows = wigglev1connect.NewWorkflowServiceClient(c.HTTPClient(), c.URL(), plain...)
	s.instances = wigglev1connect.NewInstanceServiceClient(c.HTTPClient(), c.URL(), plain...)
	s.workers = wigglev1connect.NewWorkerServiceClient(c.HTTPClient(), c.URL(), append(plain, options...)...)
	return s
}

// chain registers a workflow of n tasks.
func (s *scene) chain(n int) string {
	s.Helper()
	def := wiggle.Define("chain", func(f *wiggle.Flow) {
		for i := range n {
			f.Task(fmt.Sprintf("step%d", i), wiggle.Retry(0, time.Millisecond))
		}
	})
	if _, err := s.workflows.RegisterWorkflow(s.ctx, &wigglev1.RegisterWorkflowRequest{Definition: def.Proto()}); err != nil {
		s.Fatal(err)
	}
	return "chain"
}

// startOn starts n instances on a shard.
func (s *scene) startOn(shard, n int) []string {
	s.Helper()
	req := &wigglev1.StartInstancesRequest{}
	for len(req.GetStarts()) < n {
		id := ulid.Make()
		if placement.Place(s.Topology().Placement(), id) == shard {
			req.Starts = append(req.Starts, &wigglev1.StartInstanceRequest{
				Workflow: "chain", Ulid: strings.ToLower(id.String()), Input: &wigglev1.Payload{Data: []byte(`{"n":1}`)},
			})
		}
	}
	res, err := s.instances.StartInstances(s.ctx, req)
	if err != nil {
		s.Fatal(err)
	}
	ids := make([]string, n)
	for i, o := range res.GetOutcomes() {
		if ids[i] = o.GetStarted().GetInstanceId(); ids[i] == "" {
			s.Fatalf("start: %v", o)
		}
	}
	return ids
}

// await waits until every instance is completed.
func (s *scene) await(ids ...string) {
	s.Helper()
	for _, id := range ids {
		for {
			res, err := s.instances.WaitInstance(s.ctx, &wigglev1.WaitInstanceRequest{InstanceId: id})
			if err != nil {
				s.Fatalf("wait for %s: %v", id, err)
			}
			if res.GetEnded() {
				if got := res.GetInstance().GetState(); got != wigglev1.InstanceState_INSTANCE_STATE_COMPLETED {
					s.Fatalf("%s is %v", id, got)
				}
				break
			}
		}
	}
}

// history tells what happened to an instance: which steps were done, in order, in which
// attempt.
func (s *scene) history(id string) string {
	s.Helper()
	var lines []string
	res, err := s.instances.GetHistory(s.ctx, &wigglev1.GetHistoryRequest{InstanceId: id, PageSize: 1000})
	if err != nil {
		s.Fatal(err)
	}
	for _, e := range res.GetEntries() {
		lines = append(lines, fmt.Sprintf("%v %s %d %s", e.GetKind(), e.GetStep(), e.GetAttempt(), e.GetOutput().GetData()))
	}
	return strings.Join(lines, "\n")
}

// stream is a worker's stream as a test holds it.
type stream struct {
	*scene

	inner interface {
		Send(*wigglev1.WorkRequest) error
		Receive() (*wigglev1.WorkResponse, error)
		CloseRequest() error
	}
	leave context.CancelFunc
	in    chan *wigglev1.WorkResponse
	ended chan struct{}

	mu       sync.Mutex
	err      error
	granted  int // credits granted, less those that were taken back
	tasks    int // that came
	over     []string
	received int64
}

// open opens a stream for a worker.
func (s *scene) open(hello *wigglev1.WorkHello) *stream {
	s.Helper()
	ctx, leave := context.WithCancel(s.ctx)
	inner, err := s.workers.Work(ctx)
	if err != nil {
		leave()
		s.Fatal(err)
	}
	// The transport sees that ctx is done when it has something to send.
	context.AfterFunc(ctx, func() { _ = inner.CloseRequest() })
	st := &stream{
		scene: s, inner: inner, leave: leave, in: make(chan *wigglev1.WorkResponse, 100_000), ended: make(chan struct{}),
	}
	go st.receive()
	s.Cleanup(func() {
		leave()
		<-st.ended
		for _, o := range st.over {
			s.Error(o)
		}
	})
	if hello != nil {
		st.send(&wigglev1.WorkRequest{Hello: hello})
	}
	return st
}

func (st *stream) receive() {
	defer close(st.ended)
	for {
		res, err := st.inner.Receive()
		st.mu.Lock()
		if err != nil {
			st.err = err
			st.mu.Unlock()
			return
		}
		st.tasks += len(res.GetTasks())
		st.received += int64(len(res.GetTasks()))
		st.granted -= int(res.GetRevoked())
		if st.tasks > st.granted {
			st.over = append(st.over, fmt.Sprintf("%d tasks came for %d credits", st.tasks, st.granted))
		}
		st.mu.Unlock()
		st.in <- res
	}
}

// try sends a message. Credits are counted before.
func (st *stream) try(req *wigglev1.WorkRequest) error {
	st.mu.Lock()
	st.granted += int(req.GetCredits())
	st.mu.Unlock()
	return st.inner.Send(req)
}

// send is try on a stream that must not have ended.
func (st *stream) send(req *wigglev1.WorkRequest) {
	st.Helper()
	if err := st.try(req); err != nil {
		<-st.ended
		st.Fatalf("send: %v, the stream ended with %v", err, st.err)
	}
}

// next waits for the next message that says something.
func (st *stream) next() *wigglev1.WorkResponse {
	st.Helper()
	for {
		select {
		case res := <-st.in:
			if res.GetTasks() != nil || res.GetReported() != nil || res.GetFailed() != nil || res.GetBeats() != nil ||
				res.GetReleased() != nil || res.GetRevoked() > 0 || res.GetDraining() {
				return res
			}
		case <-st.ended:
			st.Fatalf("the stream ended with %v", st.err)
		case <-st.ctx.Done():
			st.Fatalf("nothing came: %v", context.Cause(st.ctx))
		}
	}
}

// take waits for n tasks.
func (st *stream) take(n int) []*wigglev1.Task {
	st.Helper()
	var tasks []*wigglev1.Task
	for len(tasks) < n {
		tasks = append(tasks, st.next().GetTasks()...)
	}
	return tasks
}

// end waits for the end of the stream and returns its error.
func (st *stream) end() error {
	st.Helper()
	select {
	case <-st.ended:
	case <-st.ctx.Done():
		st.Fatal("the stream does not end")
	}
	return st.err
}

func reportOf(t *wigglev1.Task) *wigglev1.StepReport {
	return &wigglev1.StepReport{
		TaskId: t.GetId(), Lease: t.GetLease(),
		Outcome: &wigglev1.StepReport_Result{Result: &wigglev1.Payload{Data: []byte(`{"n":2}`)}},
	}
}

// work answers tasks until n reports are answered, granting a credit with each.
func (st *stream) work(n int) {
	st.Helper()
	for n > 0 {
		res := st.next()
		st.mu.Lock()
		req := &wigglev1.WorkRequest{Received: st.received}
		st.mu.Unlock()
		for _, t := range res.GetTasks() {
			req.Reports = append(req.Reports, reportOf(t))
		}
		for _, o := range res.GetReported() {
			if n--; o.GetFault() != nil {
				st.Fatalf("report: %v", o)
			}
		}
		if req.Credits = int32(len(req.GetReports())); req.GetCredits() > 0 {
			st.send(req)
		}
	}
}
