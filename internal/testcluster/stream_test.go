package testcluster_test

import (
	"errors"
	"io"
	"math/rand/v2"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/wiggle-run/wiggle/internal/testcluster"
	"github.com/wiggle-run/wiggle/pkg/faults"
	"github.com/wiggle-run/wiggle/pkg/rpc"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
)

// soon is when something comes that does not wait for a lease to run out.
const soon = 10 * time.Second

// TestStreamRunsChains: a worker on a stream runs chains over one and two shards (WRK-1),
// never gets more tasks than it has granted credits, and ends its stream in good order.
func TestStreamRunsChains(t *testing.T) {
	t.Parallel()
	for _, shards := range []int{1, 2} {
		s := play(t, testcluster.Config{}, shards)
		s.chain(4)
		var ids []string
		for shard := range shards {
			ids = append(ids, s.startOn(shard, 50)...)
		}
		st := s.open(&wigglev1.WorkHello{Worker: "w"})
		st.send(&wigglev1.WorkRequest{Credits: 10})
		st.work(4 * len(ids))
		s.await(ids...)
		if err := st.inner.CloseRequest(); err != nil {
			t.Fatal(err)
		}
		if err := st.end(); !errors.Is(err, io.EOF) {
			t.Errorf("the stream ended with %v", err)
		}
	}
}

// TestStreamBringsTheNextStep: the answer to a report and the step that follows come in one
// message, and the stream's history is that of calls, and of both mixed (WRK-5, WRK-11).
func TestStreamBringsTheNextStep(t *testing.T) {
	t.Parallel()
	s := play(t, testcluster.Config{}, 1)
	s.chain(3)
	st := s.open(&wigglev1.WorkHello{Worker: "w"})
	byStream := s.startOn(0, 1)[0]
	st.send(&wigglev1.WorkRequest{Credits: 1})
	task := st.take(1)[0]
	for range 2 {
		st.send(&wigglev1.WorkRequest{Reports: []*wigglev1.StepReport{reportOf(task)}, Credits: 1})
		res := st.next()
		if len(res.GetReported()) != 1 || len(res.GetTasks()) != 1 || res.GetReported()[0].GetFault() != nil {
			t.Fatalf("got %v", res)
		}
		task = res.GetTasks()[0]
	}
	st.send(&wigglev1.WorkRequest{Reports: []*wigglev1.StepReport{reportOf(task)}})
	st.next()
	s.await(byStream)

	byCalls := s.startOn(0, 1)[0]
	for range 3 {
		s.call(s.poll())
	}
	s.await(byCalls)
	mixed := s.startOn(0, 1)[0]
	task = s.poll()
	st.send(&wigglev1.WorkRequest{Reports: []*wigglev1.StepReport{reportOf(task)}, Credits: 1})
	task = st.take(1)[0]
	st.send(&wigglev1.WorkRequest{Revoke: 1}) // there is none: the call gets the last step
	s.call(task)
	s.call(s.poll())
	s.await(mixed)
	want := s.history(byStream)
	if got := s.history(byCalls); got != want {
		t.Errorf("by calls:\n%s\nby the stream:\n%s", got, want)
	}
	if got := s.history(mixed); got != want {
		t.Errorf("by both:\n%s\nby the stream:\n%s", got, want)
	}
}

// poll takes a task by a call.
func (s *scene) poll() *wigglev1.Task {
	s.Helper()
	res, err := s.workers.PollTasks(s.ctx, &wigglev1.PollTasksRequest{Worker: "w", Wait: durationpb.New(soon)})
	if err != nil || len(res.GetTasks()) != 1 {
		s.Fatalf("poll: %v, %v", res, err)
	}
	return res.GetTasks()[0]
}

// call reports a task by a call.
func (s *scene) call(t *wigglev1.Task) {
	s.Helper()
	res, err := s.workers.ReportSteps(s.ctx, &wigglev1.ReportStepsRequest{Worker: "w", Reports: []*wigglev1.StepReport{reportOf(t)}})
	if err != nil || res.GetOutcomes()[0].GetFault() != nil {
		s.Fatalf("report: %v, %v", res, err)
	}
}

// TestStreamWithFewerCreditsThanShards: one credit serves two shards.
func TestStreamWithFewerCreditsThanShards(t *testing.T) {
	t.Parallel()
	s := play(t, testcluster.Config{}, 2)
	s.chain(2)
	st := s.open(&wigglev1.WorkHello{Worker: "w"})
	st.send(&wigglev1.WorkRequest{Credits: 1})
	for round := range 6 {
		ids := s.startOn(round%2, 1)
		begin := time.Now()
		st.work(2)
		s.await(ids...)
		if took := time.Since(begin); took > soon {
			t.Errorf("round %d took %s", round, took)
		}
	}
	ids := append(s.startOn(0, 20), s.startOn(1, 20)...)
	st.work(80)
	s.await(ids...)
}

// TestStreamBreaks: what was sent on a stream that broke and never came is handed out
// again at once; what the worker holds is its own (docs/stream.md).
func TestStreamBreaks(t *testing.T) {
	t.Parallel()
	s := play(t, testcluster.Config{}, 2)
	s.chain(1)
	ids := append(s.startOn(0, 4), s.startOn(1, 4)...)
	st := s.open(&wigglev1.WorkHello{Worker: "w"})
	st.send(&wigglev1.WorkRequest{Credits: 8})
	tasks := st.take(8)
	st.leave()
	<-st.ended
	hello := &wigglev1.WorkHello{Worker: "w"}
	for _, task := range tasks[:3] {
		hello.Held = append(hello.Held, &wigglev1.TaskLease{TaskId: task.GetId(), Lease: task.GetLease()})
	}
	begin := time.Now()
	st = s.open(hello)
	st.send(&wigglev1.WorkRequest{Credits: 8})
	again := st.take(5)
	if took := time.Since(begin); took > soon {
		t.Errorf("tasks that never came were handed out again after %s", took)
	}
	req := &wigglev1.WorkRequest{}
	for _, task := range append(again, tasks[:3]...) {
		if task.GetAttempt() != 1 {
			t.Errorf("task %s is in attempt %d", task.GetId(), task.GetAttempt())
		}
		req.Reports = append(req.Reports, reportOf(task))
	}
	st.send(req)
	for n := 0; n < 8; {
		for _, o := range st.next().GetReported() {
			if n++; o.GetFault() != nil {
				t.Errorf("report: %v", o)
			}
		}
	}
	s.await(ids...)
}

// worker is a worker that connects again whenever its stream ends, with what it holds,
// and sends reports until they are answered.
type worker struct {
	*scene

	held    map[string]*wigglev1.Task // by id and lease
	done    int
	streams int
	at      int // how many reports are answered when strike is called
	strike  func()
}

// run works until n reports are answered.
func (w *worker) run(n, credits int) {
	w.Helper()
	for w.done < n {
		w.streams++
		w.session(n, credits)
	}
}

// session works on one stream until it ends.
func (w *worker) session(n, credits int) {
	w.Helper()
	// What a process that is killed had leased and not sent comes back as its lease ends.
	hello := &wigglev1.WorkHello{Worker: "w", Lease: durationpb.New(2 * time.Second)}
	again := &wigglev1.WorkRequest{Credits: int32(credits - len(w.held))}
	for _, t := range w.held {
		hello.Held = append(hello.Held, &wigglev1.TaskLease{TaskId: t.GetId(), Lease: t.GetLease()})
		again.Reports = append(again.Reports, reportOf(t))
	}
	st := w.open(nil)
	for _, req := range []*wigglev1.WorkRequest{{Hello: hello}, again} {
		if st.try(req) != nil {
			<-st.ended
			return
		}
	}
	for w.done < n {
		var res *wigglev1.WorkResponse
		select {
		case res = <-st.in:
		case <-st.ended:
			return
		case <-w.ctx.Done():
			w.Fatalf("%d of %d reports are answered", w.done, n)
		}
		req := &wigglev1.WorkRequest{}
		for _, t := range res.GetTasks() {
			w.held[t.GetId()+t.GetLease()] = t
			req.Reports = append(req.Reports, reportOf(t))
		}
		for _, o := range res.GetReported() {
			t := w.held[o.GetTaskId()+o.GetLease()]
			switch f := faults.FromProto(o.GetFault()); {
			case t == nil: // answered before
			case o.GetFault() == nil:
				if w.done++; w.done == w.at {
					w.strike()
				}
				req.Credits++
				delete(w.held, t.GetId()+t.GetLease())
			case errors.Is(f, faults.ErrUnavailable):
				req.Reports = append(req.Reports, reportOf(t))
			case errors.Is(f, faults.ErrLeaseLost):
				req.Credits++
				delete(w.held, t.GetId()+t.GetLease())
			default:
				w.Fatalf("report: %v", f)
			}
		}
		if len(req.GetReports()) > 0 || req.GetCredits() > 0 {
			_ = st.try(req) // if it is over, receive tells
		}
	}
	st.leave()
	<-st.ended
}

// TestStreamNeverSendsMoreThanGranted: whatever a worker grants, takes back, reports, fails
// and hands back, and however often its stream breaks, it never gets a task for which it
// has granted no credit (open checks that), and all is done in the end.
func TestStreamNeverSendsMoreThanGranted(t *testing.T) {
	t.Parallel()
	s := play(t, testcluster.Config{}, 2)
	s.chain(2)
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	ids := append(s.startOn(0, 60), s.startOn(1, 60)...)
	held, left := map[string]*wigglev1.Task{}, ids
	for round := range 8 {
		hello := &wigglev1.WorkHello{Worker: "w"}
		for _, task := range held {
			hello.Held = append(hello.Held, &wigglev1.TaskLease{TaskId: task.GetId(), Lease: task.GetLease()})
		}
		st := s.open(hello)
		st.send(&wigglev1.WorkRequest{Credits: int32(1 + r.IntN(9))})
		for step := 0; step < 60 || round == 7 && len(left) > 0; step++ {
			select {
			case res := <-st.in:
				for _, task := range res.GetTasks() {
					held[task.GetId()+task.GetLease()] = task
				}
			case <-time.After(100 * time.Millisecond): // it has no credits, or nothing is left
				left = s.running(left)
				st.send(&wigglev1.WorkRequest{Credits: 5})
			case <-st.ended:
				t.Fatal(st.err)
			}
			st.send(randomMessage(r, held))
		}
		st.leave()
		<-st.ended
	}
	s.await(ids...)
}

// running are those of some instances that have not ended.
func (s *scene) running(ids []string) []string {
	s.Helper()
	var left []string
	for _, id := range ids {
		res, err := s.instances.GetInstance(s.ctx, &wigglev1.GetInstanceRequest{InstanceId: id})
		if err != nil {
			s.Fatal(err)
		}
		if res.GetInstance().GetState() == wigglev1.InstanceState_INSTANCE_STATE_RUNNING {
			left = append(left, id)
		}
	}
	return left
}

// randomMessage settles some of the tasks that are held, and grants or takes back credits.
func randomMessage(r *rand.Rand, held map[string]*wigglev1.Task) *wigglev1.WorkRequest {
	req := &wigglev1.WorkRequest{}
	for key, task := range held {
		switch r.IntN(12) {
		case 0, 1: // kept for another time
			continue
		case 2:
			req.Releases = append(req.Releases, &wigglev1.TaskLease{TaskId: task.GetId(), Lease: task.GetLease()})
		case 3:
			req.Failures = append(req.Failures, &wigglev1.FailTaskRequest{
				Worker: "w", TaskId: task.GetId(), Lease: task.GetLease(), Failure: &wigglev1.Failure{Message: "no"},
				RetryDelay: durationpb.New(time.Millisecond),
			})
		default:
			req.Reports = append(req.Reports, reportOf(task))
		}
		delete(held, key)
	}
	if n := len(req.GetReports()); r.IntN(3) > 0 {
		req.Credits = int32(n + r.IntN(2))
	}
	if r.IntN(4) == 0 {
		req.Revoke = int32(r.IntN(5))
	}
	req.Look = r.IntN(10) == 0
	return req
}

// TestStreamOutlivesProcesses: instances processes are stopped, killed and started again
// under a worker's streams, and everything completes.
func TestStreamOutlivesProcesses(t *testing.T) {
	t.Parallel()
	s := play(t, testcluster.Config{Processes: 2}, 2)
	s.chain(4)
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	w := &worker{scene: s, held: map[string]*wigglev1.Task{}}
	total := 0
	for round := range 8 {
		var ids []string
		for shard := range 2 {
			ids = append(ids, s.startOn(shard, 10)...)
		}
		total += 4 * len(ids)
		name := testcluster.Process(round / 2 % 2)
		struck := make(chan error, 1)
		kill := round%2 == 0
		w.at = w.done + 1 + r.IntN(60)
		w.strike = func() {
			go func() {
				if kill {
					struck <- s.KillProcess(name)
				} else {
					struck <- s.StopProcess(name)
				}
			}()
		}
		w.run(total, 10)
		s.await(ids...)
		if err := <-struck; err != nil && !kill {
			t.Errorf("stop %s: %v", name, err)
		}
		if err := s.StartProcess(name); err != nil {
			t.Fatal(err)
		}
		if err := s.WaitReady(s.ctx); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("%d reports on %d streams", w.done, w.streams)
}

// TestStopsAreQuick: a stream that is open does not hold up a process or a router that
// is stopped, once its worker has left.
func TestStopsAreQuick(t *testing.T) {
	t.Parallel()
	s := play(t, testcluster.Config{Processes: 2}, 1)
	s.chain(1)
	st := s.open(&wigglev1.WorkHello{Worker: "w"})
	st.send(&wigglev1.WorkRequest{Credits: 3})
	ids := s.startOn(0, 1)
	st.work(1)
	s.await(ids...)
	for i := range 2 {
		begin := time.Now()
		if err := s.StopProcess(testcluster.Process(i)); err != nil {
			t.Errorf("stop: %v", err)
		}
		if took := time.Since(begin); took > 4*time.Second {
			t.Errorf("the process took %s to stop", took)
		}
	}
	stopped := make(chan error, 1)
	go func() { stopped <- s.StopRouter() }()
	for draining := false; !draining; {
		draining = st.next().GetDraining()
	}
	if err := st.inner.CloseRequest(); err != nil {
		t.Error(err)
	}
	if err := st.end(); !errors.Is(err, io.EOF) {
		t.Errorf("the stream ended with %v", err)
	}
	if err := <-stopped; err != nil {
		t.Errorf("stop the router: %v", err)
	}
}

// TestStreamSpeaksJSON: a worker may speak connect+json, with payloads as JSON.
func TestStreamSpeaksJSON(t *testing.T) {
	t.Parallel()
	s := play(t, testcluster.Config{}, 1, connect.WithCodec(rpc.NewClientJSONCodec(rpc.NewPayloads())))
	s.chain(2)
	ids := s.startOn(0, 3)
	st := s.open(&wigglev1.WorkHello{Worker: "w"})
	st.send(&wigglev1.WorkRequest{Credits: 2})
	st.work(6)
	s.await(ids...)
	if err := st.inner.CloseRequest(); err != nil {
		t.Error(err)
	}
	if err := st.end(); !errors.Is(err, io.EOF) {
		t.Errorf("the stream ended with %v", err)
	}
}

// TestStreamRefusals: a mistake that the router does not look for is found by the shard,
// and ends the stream with the shard's answer.
func TestStreamRefusals(t *testing.T) {
	t.Parallel()
	s := play(t, testcluster.Config{}, 1)
	s.chain(1)
	st := s.open(&wigglev1.WorkHello{Worker: "w", Lease: durationpb.New(48 * time.Hour)})
	if err := st.end(); !errors.Is(err, faults.ErrInvalidArgument) {
		t.Errorf("a lease of two days: %v", err)
	}
}
