package wiggle_test

import (
	"context"
	"errors"
	"io"
	"sync"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
)

// fakeStream is one Work stream of the fake.
type fakeStream struct {
	fake   *fake
	stream *connect.BidiStream[wigglev1.WorkRequest, wigglev1.WorkResponse]
	hello  *wigglev1.WorkHello
	wake   chan struct{}
	kill   chan error // ends it with an error

	sending sync.Mutex

	// Guarded by fake.mu.
	credits  int
	tasks    int64 // sent
	received int64 // of those, confirmed
	draining bool
}

// sentTask is a task that went over a stream, the nth on it.
type sentTask struct {
	task   *wigglev1.Task
	stream *fakeStream
	n      int64
}

// Work answers what comes in the order of its fields and sends tasks as credits
// allow.
func (f *fake) Work(ctx context.Context, stream *connect.BidiStream[wigglev1.WorkRequest, wigglev1.WorkResponse]) error {
	if err := f.down(); err != nil {
		return err
	}
	st := &fakeStream{fake: f, stream: stream, wake: make(chan struct{}, 1), kill: make(chan error, 1)}
	f.locked(func() { f.streams[st] = struct{}{} })
	defer f.locked(func() { delete(f.streams, st) })
	incoming, ended, done := make(chan *wigglev1.WorkRequest), make(chan error, 1), make(chan struct{})
	defer close(done)
	go func() {
		for {
			req, err := stream.Receive()
			if err != nil {
				ended <- err
				return
			}
			select {
			case incoming <- req:
			case <-done:
				return
			}
		}
	}()
	for {
		if err := f.down(); err != nil {
			return err
		}
		if err := st.sendTasks(); err != nil {
			return err
		}
		select {
		case <-st.wake:
		case req := <-incoming:
			if err := st.receive(ctx, req); err != nil {
				return err
			}
		case err := <-st.kill:
			return err
		case err := <-ended:
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (st *fakeStream) receive(ctx context.Context, req *wigglev1.WorkRequest) error {
	f := st.fake
	if (req.GetHello() != nil) != (st.hello == nil) {
		return connect.NewError(connect.CodeInvalidArgument, errors.New("hello comes first and once"))
	}
	f.locked(func() {
		f.messages = append(f.messages, proto.CloneOf(req))
		if req.GetHello() != nil {
			st.hello = req.GetHello()
			f.hellos = append(f.hellos, req.GetHello())
			f.takeBack(req.GetHello().GetHeld())
		}
		st.received = max(st.received, req.GetReceived())
	})
	if f.onMessage != nil {
		if err := f.onMessage(ctx, req); err != nil {
			return err
		}
	}
	if req.GetHello() != nil { // it is accepted
		if err := st.send(&wigglev1.WorkResponse{}); err != nil {
			return err
		}
	}
	res := &wigglev1.WorkResponse{}
	if len(req.GetReports()) > 0 {
		batch := &wigglev1.ReportStepsRequest{Worker: st.hello.GetWorker(), Reports: req.GetReports()}
		if f.beforeBatch != nil {
			if err := f.beforeBatch(ctx, batch); err != nil {
				return err
			}
		}
		f.locked(func() { f.batches = append(f.batches, batch) })
	}
	if err := f.down(); err != nil {
		return err
	}
	for _, r := range req.GetReports() {
		res.Reported = append(res.Reported, f.report(r))
	}
	for _, r := range req.GetFailures() {
		res.Failed = append(res.Failed, f.failure(r))
	}
	for _, b := range req.GetBeats() {
		res.Beats = append(res.Beats, f.beat(b))
	}
	for _, t := range req.GetReleases() {
		res.Released = append(res.Released, f.release(t))
	}
	f.locked(func() {
		st.credits += int(req.GetCredits())
		if n := min(int(req.GetRevoke()), st.credits); n > 0 {
			st.credits -= n
			res.Revoked = int32(n)
		}
	})
	if proto.Size(res) == 0 {
		return nil
	}
	return st.send(res)
}

// takeBack queues the tasks that were sent and never confirmed, and that the worker
// does not hold. It is called with the lock held.
func (f *fake) takeBack(held []*wigglev1.TaskLease) {
	kept := map[string]bool{}
	for _, h := range held {
		kept[h.GetLease()] = true
	}
	for lease, sent := range f.sent {
		if !kept[lease] && sent.n > sent.stream.received {
			f.settled(lease)
			f.queue = append(f.queue, proto.CloneOf(sent.task))
		}
	}
}

func (st *fakeStream) send(res *wigglev1.WorkResponse) error {
	st.sending.Lock()
	defer st.sending.Unlock()
	return st.stream.Send(res)
}

func (st *fakeStream) sendTasks() error {
	f := st.fake
	room := 0
	f.locked(func() {
		if st.hello != nil && !st.draining {
			room = st.credits
		}
	})
	if room == 0 {
		return nil
	}
	tasks := f.lease(room, st.hello.GetLease().AsDuration())
	if len(tasks) == 0 {
		return nil
	}
	f.locked(func() {
		st.credits -= len(tasks)
		for _, t := range tasks {
			st.tasks++
			f.sent[t.GetLease()] = sentTask{t, st, st.tasks}
		}
	})
	return st.send(&wigglev1.WorkResponse{Tasks: tasks})
}

// drain tells every worker that the server goes away, and gives back its credits.
func (f *fake) drain() error {
	var all []*fakeStream
	var revoked []int
	f.locked(func() {
		for st := range f.streams {
			all, revoked = append(all, st), append(revoked, st.credits)
			st.credits, st.draining = 0, true
		}
	})
	for i, st := range all {
		if err := st.send(&wigglev1.WorkResponse{Draining: true, Revoked: int32(revoked[i])}); err != nil {
			return err
		}
	}
	return nil
}
