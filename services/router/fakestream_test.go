package router_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	"github.com/wiggle-run/wiggle/pkg/faults"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
)

// fakeWork is a worker's stream on one shard of a process. It claims when it is given
// credits or told to look, as one does whose process knows of no tasks.
type fakeWork struct {
	d       *database
	stream  *connect.BidiStream[wigglev1.WorkRequest, wigglev1.WorkResponse]
	worker  string
	queues  []string
	held    []*wigglev1.TaskLease
	credits int
	got     []string // what the router said, in words
	leaving bool
	offer   chan struct{}
}

// streams are the worker streams of a process.
type streams struct {
	mu   sync.Mutex
	all  []*fakeWork
	kick chan struct{} // closed and replaced: drain
	pad  int           // bytes of context that each task carries
}

// words lists what the streams of a process were told since the last time, by shard.
func (p *process) words(shard int) string {
	p.streams.mu.Lock()
	defer p.streams.mu.Unlock()
	var out []string
	for _, w := range p.streams.all {
		if w.d.shard == shard {
			out = append(out, w.got...)
			w.got = nil
		}
	}
	return strings.Join(out, " ")
}

// made tells the streams of a process that a shard has tasks: those without credits have
// the process give a hint.
func (p *process) made(shard int) {
	p.streams.mu.Lock()
	defer p.streams.mu.Unlock()
	for _, w := range p.streams.all {
		if w.d.shard == shard {
			w.offer <- struct{}{}
		}
	}
}

// drain has the process say that it goes down.
func (p *process) drain() {
	p.mu.Lock()
	p.draining = true
	p.mu.Unlock()
	p.streams.mu.Lock()
	defer p.streams.mu.Unlock()
	close(p.streams.kick)
	p.streams.kick = make(chan struct{})
}

func (p *process) Work(
	ctx context.Context, stream *connect.BidiStream[wigglev1.WorkRequest, wigglev1.WorkResponse],
) error {
	d, err := p.enter(ctx, "Work")
	if err != nil {
		return err
	}
	p.mu.Lock()
	draining := p.draining
	p.mu.Unlock()
	if draining {
		return faults.ShardUnavailable(d.shard, time.Second)
	}
	first, err := stream.Receive()
	if err != nil || first.GetHello() == nil {
		return faults.InvalidArgument("no hello: %v", err)
	}
	w := &fakeWork{
		d: d, stream: stream, worker: first.GetHello().GetWorker(), queues: first.GetHello().GetQueues(),
		held: first.GetHello().GetHeld(), offer: make(chan struct{}, 100),
	}
	p.streams.mu.Lock()
	p.streams.all = append(p.streams.all, w)
	kick := p.streams.kick
	p.streams.mu.Unlock()
	if err := stream.Send(&wigglev1.WorkResponse{}); err != nil {
		return err
	}
	return p.converse(ctx, w, kick)
}

func (p *process) converse(ctx context.Context, w *fakeWork, kick chan struct{}) error {
	in, failed := make(chan *wigglev1.WorkRequest), make(chan error, 1)
	go func() {
		for {
			req, err := w.stream.Receive()
			if err != nil {
				failed <- err
				return
			}
			select {
			case in <- req:
			case <-ctx.Done():
				return
			}
		}
	}()
	for {
		select {
		case req := <-in:
			if err := p.heard(w, req); err != nil {
				return err
			}
		case <-w.offer:
			if w.credits == 0 {
				go p.hint(w.d.shard, "q")
				continue
			}
			res := &wigglev1.WorkResponse{}
			if w.claim(p, res); res.GetTasks() == nil {
				continue
			}
			if err := w.stream.Send(res); err != nil {
				return err
			}
		case <-kick:
			kick = nil
			w.leaving = true
			res := &wigglev1.WorkResponse{Draining: true, Revoked: int32(w.credits)}
			w.credits = 0
			if err := w.stream.Send(res); err != nil {
				return err
			}
		case err := <-failed:
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// heard acts upon one message.
func (p *process) heard(w *fakeWork, req *wigglev1.WorkRequest) error {
	w.note(p, req)
	res := &wigglev1.WorkResponse{}
	w.d.update(func() {
		for _, r := range req.GetReports() {
			out := w.d.settle(r.GetTaskId(), r.GetLease(), "report")
			out.Lease = r.GetLease()
			res.Reported = append(res.Reported, out)
		}
		for _, b := range req.GetBeats() {
			out := w.d.settle(b.GetTaskId(), b.GetLease(), "beat")
			res.Beats = append(res.Beats, &wigglev1.BeatOutcome{TaskId: b.GetTaskId(), Lease: b.GetLease(), Fault: out.GetFault()})
		}
		for _, f := range req.GetFailures() {
			out := w.d.settle(f.GetTaskId(), f.GetLease(), "fail")
			res.Failed = append(res.Failed, &wigglev1.FailureOutcome{TaskId: f.GetTaskId(), Lease: f.GetLease(), Fault: out.GetFault()})
		}
		for _, r := range req.GetReleases() {
			out := w.d.settle(r.GetTaskId(), r.GetLease(), "release")
			out.Lease = r.GetLease()
			res.Released = append(res.Released, out)
		}
	})
	w.credits += int(req.GetCredits())
	if req.GetCredits() > 0 || req.GetLook() {
		w.claim(p, res)
	}
	if proto.Size(res) > 0 {
		if err := w.stream.Send(res); err != nil {
			return err
		}
	}
	switch {
	case w.leaving && w.credits > 0, req.GetRevoke() > 0:
		n := min(int(req.GetRevoke()), w.credits)
		if w.leaving {
			n = w.credits
		}
		w.credits -= n
		return w.stream.Send(&wigglev1.WorkResponse{Revoked: int32(n)})
	}
	return nil
}

func (w *fakeWork) note(p *process, req *wigglev1.WorkRequest) {
	p.streams.mu.Lock()
	defer p.streams.mu.Unlock()
	for _, word := range []struct {
		text string
		n    int
	}{
		{"reports", len(req.GetReports())},
		{"beats", len(req.GetBeats())},
		{"credits", int(req.GetCredits())},
		{"revoke", int(req.GetRevoke())},
		{"received", int(req.GetReceived())},
	} {
		if word.n > 0 {
			w.got = append(w.got, fmt.Sprintf("%s=%d", word.text, word.n))
		}
	}
	if req.GetLook() {
		w.got = append(w.got, "look")
	}
}

// claim takes what is ready, as far as the credits go.
func (w *fakeWork) claim(p *process, res *wigglev1.WorkResponse) {
	p.streams.mu.Lock()
	pad := p.streams.pad
	p.streams.mu.Unlock()
	w.d.update(func() {
		for _, queue := range w.queues {
			for len(w.d.ready[queue]) > 0 && w.credits > 0 && !w.leaving {
				task := w.d.ready[queue][0]
				w.d.ready[queue] = w.d.ready[queue][1:]
				task.Lease = w.worker
				if pad > 0 {
					task.Context = &wigglev1.Payload{Data: make([]byte, pad)}
				}
				w.d.leased[task.GetId()] = task
				res.Tasks = append(res.Tasks, task)
				w.credits--
			}
		}
	})
}
