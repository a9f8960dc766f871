package rpc

import (
	"context"
	"errors"
	"io"
	"sync"
	"time"

	"connectrpc.com/connect"

	"github.com/wiggle-run/wiggle/pkg/faults"
	"github.com/wiggle-run/wiggle/pkg/lifecycle"
	wirerpc "github.com/wiggle-run/wiggle/pkg/rpc"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	"github.com/wiggle-run/wiggle/services/instances/internal/dispatch"
	"github.com/wiggle-run/wiggle/services/instances/internal/store"
)

// What bounds a worker's stream.
const (
	maxCredits = 100_000
	// maxUnsent is how many bytes of tasks and answers may wait to be sent. Beyond it the
	// stream reads nothing and takes no tasks until half of it is gone.
	maxUnsent = 4 << 20
	// maxApplying is how many bytes of reports may be under way.
	maxApplying = 8 << 20
	// itemBytes is what a task, a report or an answer counts beside its payload.
	itemBytes = 256
)

// work is the stream of one worker on one shard (WRK-1, docs/stream.md).
type work struct {
	s        *Server
	ctx      context.Context //nolint:containedctx // a stream is a call
	shard    *dispatch.Shard
	worker   string
	present  *attendance
	consumer *dispatch.Consumer
	wake     chan struct{} // there is something to send, or the end
	room     chan struct{} // the reader may go on

	mu       sync.Mutex
	credits  int // granted, and neither used nor taken back
	kept     int // of these: with reports that are being applied
	withheld int // of these: taken from the consumer while too much is unsent
	holding  bool
	closed   bool // takes no more tasks
	ended    bool // the worker has ended its side, or the stream is over
	over     bool // the reader has ended
	failure  error
	out      outbox
	applying int // bytes
	beats    []*wigglev1.Beat
	beating  bool
	sent     sentTasks
}

// Work serves the stream of one worker on the shard that the caller names.
func (s *Server) Work(ctx context.Context, stream *connect.BidiStream[wigglev1.WorkRequest, wigglev1.WorkResponse]) error {
	shard, err := s.named(ctx)
	if err != nil {
		return err
	}
	select {
	case <-wirerpc.Draining(ctx):
		return faults.ShardUnavailable(shard.ID(), retryAfter)
	default:
	}
	first, err := stream.Receive()
	if errors.Is(err, io.EOF) || err == nil && first.GetHello() == nil {
		return faults.InvalidArgument("the first message of a stream must have a hello")
	}
	if err != nil {
		return wirerpc.StreamFault(ctx, err)
	}
	w, err := s.newWork(ctx, shard, first.GetHello())
	if err != nil {
		return err
	}
	defer w.close()
	first.Hello = nil
	if err := stream.Send(&wigglev1.WorkResponse{}); err != nil { // the hello is accepted
		return wirerpc.StreamFault(ctx, err)
	}
	go w.read(stream, first)
	return w.write(stream)
}

func (s *Server) newWork(ctx context.Context, shard *dispatch.Shard, hello *wigglev1.WorkHello) (*work, error) {
	claim, err := claimOf(&wigglev1.PollTasksRequest{
		Namespace: hello.GetNamespace(), Worker: hello.GetWorker(), Queues: hello.GetQueues(), Workflows: hello.GetWorkflows(),
		Lease: hello.GetLease(), ShareBaseContexts: true,
	})
	if err == nil && claim.Worker == "" {
		err = faults.InvalidArgument("the hello names no worker")
	}
	if err != nil {
		return nil, err
	}
	held := make(map[store.Lease]struct{}, len(hello.GetHeld()))
	for _, h := range hello.GetHeld() {
		of, token, err := s.token(h.GetTaskId())
		if errors.Is(err, faults.ErrShardUnknown) || errors.Is(err, faults.ErrShardUnavailable) || err == nil && of != shard {
			continue // of another shard
		}
		if err != nil {
			return nil, err
		}
		l, err := parseLease(token, h.GetLease())
		if err != nil {
			return nil, err
		}
		held[l] = struct{}{}
	}
	w := &work{
		s: s, ctx: ctx, shard: shard, worker: claim.Worker,
		wake: make(chan struct{}, 1), room: make(chan struct{}, 1),
	}
	var lost []store.Lease
	w.present, lost = s.unconfirmed.join(keyOf(shard.ID(), &claim), held, time.Now())
	w.release(lost)
	w.consumer = shard.Consume(claim, w.deliver)
	return w, nil
}

// release hands back tasks that the worker never got.
func (w *work) release(leases []store.Lease) {
	events := make([]dispatch.Event, len(leases))
	for i, l := range leases {
		events[i] = dispatch.Release(l)
	}
	w.shard.Apply(events) // one that was lost meanwhile is no matter
}

// close ends the stream: what was not sent is handed back, what was sent and not
// confirmed is kept for the worker's next hello.
func (w *work) close() {
	w.takeNoMore()
	w.mu.Lock()
	w.ended = true
	unsent, sent := w.out.takeTasks(), w.sent.leases
	w.mu.Unlock()
	w.shard.HandBack(unsent)
	w.release(w.s.unconfirmed.leave(w.present, sent, time.Now()))
}

// takeNoMore closes the consumer.
func (w *work) takeNoMore() {
	w.mu.Lock()
	w.closed = true
	w.mu.Unlock()
	w.consumer.Close()
}

// read takes messages until the worker ends its side or the stream breaks.
func (w *work) read(stream *connect.BidiStream[wigglev1.WorkRequest, wigglev1.WorkResponse], first *wigglev1.WorkRequest) {
	err := lifecycle.Protect(w.ctx, func(context.Context) error {
		for req := first; ; {
			if err := w.take(req); err != nil {
				return err
			}
			if !w.awaitRoom() {
				return w.ctx.Err()
			}
			var err error
			if req, err = stream.Receive(); errors.Is(err, io.EOF) {
				return nil
			} else if err != nil {
				return wirerpc.StreamFault(w.ctx, err)
			}
		}
	})
	w.takeNoMore()
	w.mu.Lock()
	w.ended, w.over, w.failure = true, true, err
	unsent := w.out.takeTasks()
	w.mu.Unlock()
	w.shard.HandBack(unsent)
	poke(w.wake)
}

// awaitRoom waits until the worker may send more; false if the stream is over.
func (w *work) awaitRoom() bool {
	for {
		w.mu.Lock()
		ok := w.out.bytes <= maxUnsent && w.applying <= maxApplying
		w.mu.Unlock()
		if ok {
			return true
		}
		select {
		case <-w.room:
		case <-w.ctx.Done():
			return false
		}
	}
}

// write sends what there is to send until the stream is over.
func (w *work) write(stream *connect.BidiStream[wigglev1.WorkRequest, wigglev1.WorkResponse]) error {
	draining := wirerpc.Draining(w.ctx)
	for {
		for {
			batch, ok := w.next()
			if !ok {
				break
			}
			if err := stream.Send(w.frame(batch)); err != nil {
				return wirerpc.StreamFault(w.ctx, err)
			}
		}
		if over, err := w.done(); over {
			return err
		}
		select {
		case <-w.wake:
		case <-draining:
			draining = nil
			w.drain()
		case <-w.ctx.Done():
			return w.ctx.Err()
		}
	}
}

// done tells whether there is nothing more to come.
func (w *work) done() (bool, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.over || w.failure != nil {
		return w.over, w.failure
	}
	return w.applying == 0 && w.out.empty(), nil
}

// next is the next message's contents. With it, room is made.
func (w *work) next() (batch, bool) {
	w.mu.Lock()
	b, ok := w.out.next()
	for _, c := range b.tasks {
		w.sent.add(dispatch.Lease(c.Token))
	}
	grant := 0
	if w.holding && w.out.bytes <= maxUnsent/2 {
		w.holding = false
		grant, w.withheld = w.withheld, 0
	}
	w.mu.Unlock()
	w.consumer.Grant(grant)
	poke(w.room)
	return b, ok
}

// drain tells the worker to go elsewhere: no more tasks, and its credits back. What it
// sends is answered as before.
func (w *work) drain() {
	w.takeNoMore()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.out.draining = true
	w.takeBack(w.credits - w.kept)
}

// takeBack takes n credits from the worker. The mutex is held.
func (w *work) takeBack(n int) {
	w.credits -= n
	w.withheld = min(w.withheld, w.credits)
	w.out.revoked = append(w.out.revoked, n)
	poke(w.wake)
}

// deliver gets tasks from the shard. It does not block.
func (w *work) deliver(tasks []store.Claimed) {
	w.mu.Lock()
	closed := w.closed
	hold := false
	if !closed {
		w.credits -= len(tasks)
		w.out.addTasks(tasks)
		hold = !w.holding && w.out.bytes > maxUnsent
		w.holding = w.holding || hold
	}
	w.mu.Unlock()
	switch {
	case closed:
		go w.shard.HandBack(tasks) // it waits for a lane, which may be what calls
	case hold:
		go w.withhold()
	}
	poke(w.wake)
}

// withhold takes the consumer's credits while the worker does not read.
func (w *work) withhold() {
	n := w.consumer.Revoke(maxCredits)
	w.mu.Lock()
	if w.holding {
		w.withheld += n
		n = 0
	}
	w.mu.Unlock()
	w.consumer.Grant(n) // it has read meanwhile
}

func poke(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
