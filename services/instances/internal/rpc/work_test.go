package rpc_test

import (
	"errors"
	"io"
	"testing"
	"time"

	"github.com/oklog/ulid/v2"

	"github.com/wiggle-run/wiggle/pkg/faults"
	"github.com/wiggle-run/wiggle/pkg/shardid"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	"github.com/wiggle-run/wiggle/services/instances/internal/dispatch"
)

// TestWorkBringsTheNextStep: tasks come up to the credits, and the step that follows a
// report comes with its answer (WRK-1, WRK-11).
func TestWorkBringsTheNextStep(t *testing.T) {
	t.Parallel()
	play(t, dispatch.DefaultConfig(), func(s *scene) {
		w := s.worker()
		s.start(5, 10)
		w.send(&wigglev1.WorkRequest{Credits: 2})
		got := w.got()
		if len(got.GetTasks()) != 2 {
			s.Fatalf("2 credits brought %d tasks", len(got.GetTasks()))
		}
		req := reports(got.GetTasks()[0])
		req.Credits = 1
		w.send(req)
		res := <-w.in
		if len(res.GetReported()) != 1 || len(res.GetTasks()) != 1 || res.GetTasks()[0].GetNode() != "b" ||
			res.GetReported()[0].GetLease() != got.GetTasks()[0].GetLease() {
			s.Errorf("one message should bring the answer and the next step, got %v", res)
		}
		w.send(reports(res.GetTasks()...))
		if got := w.got(); len(got.GetReported()) != 1 || got.GetReported()[0].GetFault() != nil || len(got.GetTasks()) > 0 {
			s.Errorf("got %v", got)
		}
		if err := w.inner.CloseRequest(); err != nil {
			s.Error(err)
		}
		if err := w.over(); !errors.Is(err, io.EOF) {
			s.Errorf("the stream ended with %v", err)
		}
	})
}

// TestWorkAnswersItems: failures, beats, releases and what is wrong with an item are
// answered item by item, with their leases.
func TestWorkAnswersItems(t *testing.T) {
	t.Parallel()
	play(t, dispatch.DefaultConfig(), func(s *scene) {
		w := s.worker()
		s.start(4, 1)
		w.send(&wigglev1.WorkRequest{Credits: 4})
		tasks := w.got().GetTasks()
		if len(tasks) != 4 {
			s.Fatalf("got %v", tasks)
		}
		other := shardid.NewToken(7, ulid.Make()).String()
		w.send(&wigglev1.WorkRequest{
			Failures: []*wigglev1.FailTaskRequest{
				{TaskId: tasks[0].GetId(), Lease: tasks[0].GetLease(), Failure: &wigglev1.Failure{Message: "no"}},
				{TaskId: tasks[1].GetId(), Lease: tasks[1].GetLease()},
			},
			Beats: []*wigglev1.Beat{
				{TaskId: tasks[1].GetId(), Lease: tasks[1].GetLease()},
				{TaskId: tasks[1].GetId(), Lease: "99." + tasks[1].GetLease()[2:]},
			},
			Releases: []*wigglev1.TaskLease{leaseOf(tasks[2]), {TaskId: other, Lease: "1.x"}},
			Reports:  []*wigglev1.StepReport{{TaskId: tasks[3].GetId(), Lease: tasks[3].GetLease()}, {TaskId: "x", Lease: "y"}},
		})
		got := w.got()
		if len(got.GetFailed()) != 2 || len(got.GetBeats()) != 2 || len(got.GetReleased()) != 2 || len(got.GetReported()) != 2 {
			s.Fatalf("got %v", got)
		}
		codes := map[string]faults.Code{}
		for _, f := range got.GetFailed() {
			codes["failure "+f.GetTaskId()+f.GetLease()] = faults.FromProto(f.GetFault()).Code()
		}
		for _, f := range got.GetBeats() {
			codes["beat "+f.GetTaskId()+f.GetLease()] = faults.FromProto(f.GetFault()).Code()
		}
		for _, f := range got.GetReleased() {
			codes["release "+f.GetTaskId()+f.GetLease()] = faults.FromProto(f.GetFault()).Code()
		}
		for _, f := range got.GetReported() {
			codes["report "+f.GetTaskId()+f.GetLease()] = faults.FromProto(f.GetFault()).Code()
		}
		for item, want := range map[string]faults.Code{
			"failure " + tasks[0].GetId() + tasks[0].GetLease():          0,
			"failure " + tasks[1].GetId() + tasks[1].GetLease():          faults.CodeInvalidArgument,
			"beat " + tasks[1].GetId() + tasks[1].GetLease():             0,
			"beat " + tasks[1].GetId() + "99." + tasks[1].GetLease()[2:]: faults.CodeAborted,
			"release " + tasks[2].GetId() + tasks[2].GetLease():          0,
			"release " + other + "1.x":                                   faults.CodeUnavailable,
			"report " + tasks[3].GetId() + tasks[3].GetLease():           faults.CodeInvalidArgument,
			"report xy": faults.CodeInvalidArgument,
		} {
			if code, ok := codes[item]; !ok || code != want {
				s.Errorf("%s: code %v, %v, want %v", item, code, ok, want)
			}
		}
	})
}

// TestWorkKeepsTheOrderOfItems: what a message says of one task counts in the order of
// its fields, though reports have a faster way than what is handed back.
func TestWorkKeepsTheOrderOfItems(t *testing.T) {
	t.Parallel()
	play(t, dispatch.DefaultConfig(), func(s *scene) {
		const n = 100
		w := s.worker()
		s.start(n, 1)
		w.send(&wigglev1.WorkRequest{Credits: n})
		tasks := w.got().GetTasks()
		for _, task := range tasks {
			req := reports(task)
			req.Releases = []*wigglev1.TaskLease{leaseOf(task)}
			w.send(req)
		}
		got := w.got()
		if len(tasks) != n || len(got.GetReported()) != n || len(got.GetReleased()) != n {
			s.Fatalf("got %d tasks, %d and %d answers", len(tasks), len(got.GetReported()), len(got.GetReleased()))
		}
		for i := range n {
			if reported, released := got.GetReported()[i].GetFault(), got.GetReleased()[i].GetFault(); reported != nil || released.GetLeaseLost() == nil {
				s.Fatalf("reported: %v, and then released: %v", reported, released)
			}
		}
	})
}

// TestWorkHandsBackWhatNeverCame: what a broken stream sent and the worker did not get
// is another's at once when the worker is back; what it holds stays its own.
func TestWorkHandsBackWhatNeverCame(t *testing.T) {
	t.Parallel()
	play(t, dispatch.DefaultConfig(), func(s *scene) {
		w := s.worker()
		s.start(4, 1)
		w.send(&wigglev1.WorkRequest{Credits: 4})
		tasks := w.got().GetTasks()
		w.send(&wigglev1.WorkRequest{Received: 1})
		w.leave()
		if err := w.over(); err == nil {
			s.Error("the stream goes on")
		}
		if n := s.ready(); n != 0 {
			s.Errorf("%d tasks were handed back before the worker had said what it holds", n)
		}
		w = s.worker(leaseOf(tasks[0]), leaseOf(tasks[2]))
		if n := s.ready(); n != 2 {
			s.Errorf("%d tasks were handed back, 2 never came", n)
		}
		w.send(reports(tasks[0], tasks[2]))
		if got := w.got(); len(got.GetReported()) != 2 || got.GetReported()[0].GetFault() != nil || got.GetReported()[1].GetFault() != nil {
			s.Errorf("got %v", got)
		}
	})
}

// TestWorkBeforeTheOldStreamEnds: the worker may be back before its old stream is known
// to be broken.
func TestWorkBeforeTheOldStreamEnds(t *testing.T) {
	t.Parallel()
	play(t, dispatch.DefaultConfig(), func(s *scene) {
		old := s.worker()
		s.start(2, 1)
		old.send(&wigglev1.WorkRequest{Credits: 2})
		tasks := old.got().GetTasks()
		s.worker(leaseOf(tasks[1]))
		if n := s.ready(); n != 0 {
			s.Errorf("%d tasks of a stream that is open were handed back", n)
		}
		old.leave()
		_ = old.over()
		if n := s.ready(); n != 1 {
			s.Errorf("%d tasks were handed back, 1 never came", n)
		}
	})
}

// TestWorkForgets: after a minute it is too late to tell what never came.
func TestWorkForgets(t *testing.T) {
	t.Parallel()
	play(t, dispatch.DefaultConfig(), func(s *scene) {
		w := s.worker()
		s.start(1, 1)
		w.send(&wigglev1.WorkRequest{Credits: 1})
		if n := len(w.got().GetTasks()); n != 1 {
			s.Fatalf("%d tasks", n)
		}
		w.leave()
		_ = w.over()
		time.Sleep(2 * time.Minute)
		s.worker()
		if n := s.ready(); n != 0 {
			s.Errorf("%d tasks were handed back", n)
		}
	})
}

// TestWorkCredits: credits that are not used can be taken back, there may not be too
// many, and a revoke is answered by a message of its own, be it with nothing.
func TestWorkCredits(t *testing.T) {
	t.Parallel()
	play(t, dispatch.DefaultConfig(), func(s *scene) {
		w := s.worker()
		w.send(&wigglev1.WorkRequest{Credits: 5, Revoke: 2})
		if got := w.got(); got.GetRevoked() != 2 {
			s.Errorf("got %v", got)
		}
		w.send(&wigglev1.WorkRequest{Revoke: 9})
		if got := w.got(); got.GetRevoked() != 3 {
			s.Errorf("got %v", got)
		}
		s.start(1, 1)
		w.send(&wigglev1.WorkRequest{Revoke: 1})
		select {
		case res := <-w.in:
			if len(res.GetTasks()) > 0 || res.GetRevoked() != 0 {
				s.Errorf("got %v", res)
			}
		default:
			s.Error("a revoke was not answered")
		}
		w.send(&wigglev1.WorkRequest{Credits: 100_000})
		if n := len(w.got().GetTasks()); n != 1 {
			s.Errorf("%d tasks came", n)
		}
		w.send(&wigglev1.WorkRequest{Credits: 2})
		if err := w.over(); !errors.Is(err, faults.ErrInvalidArgument) {
			s.Errorf("the stream ended with %v", err)
		}
	})
}

// TestWorkWhileDraining: the worker is told, gets its credits back and no more tasks; what
// it reports is answered until it leaves.
func TestWorkWhileDraining(t *testing.T) {
	t.Parallel()
	play(t, dispatch.DefaultConfig(), func(s *scene) {
		w := s.worker()
		s.start(1, 1)
		w.send(&wigglev1.WorkRequest{Credits: 8})
		task := w.got().GetTasks()[0]
		s.server.Drain()
		if got := w.got(); !got.GetDraining() || got.GetRevoked() != 7 {
			s.Errorf("got %v", got)
		}
		req := reports(task)
		req.Credits = 1
		w.send(req)
		if got := w.got(); len(got.GetReported()) != 1 || got.GetReported()[0].GetFault() != nil || got.GetRevoked() != 1 || len(got.GetTasks()) > 0 {
			s.Errorf("got %v", got)
		}
		if n := s.ready(); n != 1 {
			s.Errorf("%d tasks wait for another process, want the step that follows", n)
		}
		if err := w.inner.CloseRequest(); err != nil {
			s.Error(err)
		}
		if err := w.over(); !errors.Is(err, io.EOF) {
			s.Errorf("the stream ended with %v", err)
		}
		if err := s.worker().over(); !errors.Is(err, faults.ErrShardUnavailable) {
			s.Errorf("a new stream ended with %v", err)
		}
	})
}

// TestWorkDrainsWhileReportsAreApplied: credits that came with a report that is under way
// are given back when it is answered, unless the next step has used them.
func TestWorkDrainsWhileReportsAreApplied(t *testing.T) {
	t.Parallel()
	play(t, dispatch.DefaultConfig(), func(s *scene) {
		w := s.worker()
		s.start(2, 1)
		w.send(&wigglev1.WorkRequest{Credits: 4})
		tasks := w.got().GetTasks()
		hold := make(chan struct{})
		s.store.hook(func() { <-hold })
		req := reports(tasks...)
		req.Reports[1].TaskId = req.GetReports()[0].GetTaskId() // refused: its lease is another's
		req.Credits = 2
		w.send(req)
		s.server.Drain()
		if got := w.got(); got.GetRevoked() != 2 {
			s.Errorf("2 credits are not with a report, got %v", got)
		}
		s.store.hook(nil)
		close(hold)
		got := w.got()
		if len(got.GetReported()) != 2 || len(got.GetTasks())+int(got.GetRevoked()) != 2 {
			s.Errorf("2 credits were with reports; got %d tasks, %d back", len(got.GetTasks()), got.GetRevoked())
		}
	})
}

// TestWorkEndsItsSide: what is under way is answered, the rest is handed back.
func TestWorkEndsItsSide(t *testing.T) {
	t.Parallel()
	play(t, dispatch.DefaultConfig(), func(s *scene) {
		w := s.worker()
		s.start(1, 1)
		w.send(&wigglev1.WorkRequest{Credits: 3})
		tasks := w.got().GetTasks()
		hold := make(chan struct{})
		s.store.hook(func() { <-hold })
		req := reports(tasks...)
		req.Credits = 1
		w.send(req)
		if err := w.inner.CloseRequest(); err != nil {
			s.Error(err)
		}
		if got := w.got(); len(got.GetReported()) != 0 {
			s.Fatalf("got %v", got)
		}
		s.store.hook(nil)
		close(hold)
		got := w.got()
		if len(got.GetReported()) != 1 || len(got.GetTasks()) != 0 {
			s.Errorf("got %v", got)
		}
		if err := w.over(); !errors.Is(err, io.EOF) {
			s.Errorf("the stream ended with %v", err)
		}
		if n := s.ready(); n != 1 {
			s.Errorf("%d tasks wait for another worker, want the step that follows", n)
		}
	})
}

// TestWorkOverload: what a shard has no room for is answered UNAVAILABLE, with the time
// to come back (WRK-15).
func TestWorkOverload(t *testing.T) {
	t.Parallel()
	cfg := dispatch.DefaultConfig()
	cfg.QueueLength = 2
	play(t, cfg, func(s *scene) {
		w := s.worker()
		for range 4 {
			s.start(2, 1)
		}
		w.send(&wigglev1.WorkRequest{Credits: 8})
		tasks := w.got().GetTasks()
		hold := make(chan struct{})
		s.store.hook(func() { <-hold })
		for _, task := range tasks {
			w.send(reports(task))
		}
		got := w.got()
		if len(got.GetReported()) == 0 {
			s.Fatal("nothing was refused")
		}
		for _, o := range got.GetReported() {
			if f := faults.FromProto(o.GetFault()); !errors.Is(f, faults.ErrUnavailable) || f.ToProto().GetRetryAfter() == nil {
				s.Errorf("got %v", o)
			}
		}
		s.store.hook(nil)
		close(hold)
		if n := len(got.GetReported()) + len(w.got().GetReported()); n != 8 {
			s.Errorf("%d of 8 reports were answered", n)
		}
	})
}

// TestWorkOfASilentReader: while a worker does not read, a bounded number of bytes is
// leased to it, and it gets the rest when it does.
func TestWorkOfASilentReader(t *testing.T) {
	t.Parallel()
	play(t, dispatch.DefaultConfig(), func(s *scene) {
		w := s.open(&wigglev1.WorkHello{Worker: "w"})
		w.send(&wigglev1.WorkRequest{Credits: 100})
		for range 60 {
			s.start(1, 1<<20)
		}
		if n := s.ready(); n < 1 {
			s.Error("everything was leased to a worker that does not read")
		}
		w.reading()
		n := 0
		for range 100 {
			time.Sleep(100 * time.Millisecond)
			n += len(w.got().GetTasks())
			w.send(&wigglev1.WorkRequest{Look: true})
		}
		if n != 60 {
			s.Errorf("%d of 60 tasks came in the end", n)
		}
	})
}

// TestWorkIdles: a stream without work asks the store for nothing (WRK-13).
func TestWorkIdles(t *testing.T) {
	t.Parallel()
	play(t, dispatch.DefaultConfig(), func(s *scene) {
		for range 20 {
			s.open(&wigglev1.WorkHello{Worker: "w"}).reading().send(&wigglev1.WorkRequest{Credits: 10})
		}
		s.store.mu.Lock()
		before := s.store.claims
		s.store.mu.Unlock()
		time.Sleep(time.Hour)
		if after := s.store.claims; before != after || before > 2 {
			s.Errorf("20 idle streams claimed %d times at first, %d times in an hour", before, after-before)
		}
	})
}

// TestWorkRefusals: what breaks the rules ends the stream with INVALID_ARGUMENT.
func TestWorkRefusals(t *testing.T) {
	t.Parallel()
	hello := &wigglev1.WorkHello{Worker: "w"}
	many := &wigglev1.WorkRequest{}
	for range 1001 {
		many.Releases = append(many.Releases, &wigglev1.TaskLease{})
	}
	for name, messages := range map[string][]*wigglev1.WorkRequest{
		"no hello":      {{Credits: 1}},
		"nameless":      {{Hello: &wigglev1.WorkHello{}}},
		"held":          {{Hello: &wigglev1.WorkHello{Worker: "w", Held: []*wigglev1.TaskLease{{TaskId: "nonsense"}}}}},
		"hello twice":   {{Hello: hello}, {Hello: hello}},
		"minus":         {{Hello: hello}, {Revoke: -1}},
		"many items":    {{Hello: hello}, many},
		"received more": {{Hello: hello}, {Received: 1}},
	} {
		play(t, dispatch.DefaultConfig(), func(s *scene) {
			w := s.open(nil).reading()
			for _, req := range messages {
				w.send(req)
			}
			if err := w.over(); !errors.Is(err, faults.ErrInvalidArgument) {
				s.Errorf("%s: the stream ended with %v", name, err)
			}
		})
	}
}
