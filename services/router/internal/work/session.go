package work

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	"github.com/wiggle-run/wiggle/pkg/faults"
	"github.com/wiggle-run/wiggle/pkg/lifecycle"
	"github.com/wiggle-run/wiggle/pkg/rpc"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	"github.com/wiggle-run/wiggle/services/router/internal/guard"
)

// Request and Response are the messages of a stream, as their bytes.
type (
	Request  = rpc.Raw[wigglev1.WorkRequest]
	Response = rpc.Raw[wigglev1.WorkResponse]
	// Stream is a worker's stream.
	Stream = connect.BidiStream[Request, Response]
)

const (
	// workerBytes bounds what waits to be sent to a worker.
	workerBytes = 4 << 20
	// patience is how long a worker's stream waits for a shard that does not take what
	// was sent to it. Then what comes for it is answered UNAVAILABLE.
	patience = time.Second
	// retryAfter is what a worker is told to wait for a shard: a failover takes about as
	// long.
	retryAfter = time.Second
	// reconnectAfter is when a worker whose stream the router ends should come back.
	reconnectAfter = 50 * time.Millisecond
	// maxRuns bounds what is kept of the order in which shards sent tasks.
	maxRuns = 100_000
)

// session is the stream of one worker.
type session struct {
	hub        *Hub
	ctx        context.Context //nolint:containedctx // a session is a call
	cancel     context.CancelCauseFunc
	hello      *wigglev1.WorkHello // without held
	held       []*wigglev1.TaskLease
	limits     *guard.Limits // nil: the worker may take tasks of every queue
	class      *class
	out        *queue // to the worker
	background sync.WaitGroup
	credits    atomic.Int64 // how many the worker has, for the choice among sessions

	mu       sync.Mutex
	judged   map[int][]*wigglev1.TaskLease // of held, what a limited worker may hold, by shard
	ledger   ledger
	slots    map[int]*slot
	links    map[*link]struct{} // that are not over
	runs     []run              // tasks that the worker has not confirmed, as they were sent
	received int64              // how many tasks came before those of runs
	ended    bool               // the worker has ended its side
	draining bool
	settling bool // the ledger will be settled again
}

// run is tasks that one shard sent in a row.
type run struct {
	link *link
	n    int64
}

// Serve serves the stream of a worker until it is over.
func (h *Hub) Serve(ctx context.Context, stream *Stream) error {
	first, err := h.begin(ctx, stream)
	if err != nil {
		return err
	}
	hello := &wigglev1.WorkHello{}
	if err := proto.Unmarshal(first.hello, hello); err != nil {
		return malformed("hello")
	}
	if err := h.cfg.Validate(hello); err != nil {
		return err
	}
	limits := guard.Of(ctx)
	if err := limited(ctx, limits, hello); err != nil {
		return err
	}
	held := hello.GetHeld()
	hello.Held = nil
	ctx, cancel := context.WithCancelCause(ctx)
	s := &session{
		hub: h, ctx: ctx, cancel: cancel, hello: hello, held: held, limits: limits, out: newQueue(workerBytes),
		judged: map[int][]*wigglev1.TaskLease{}, slots: map[int]*slot{}, links: map[*link]struct{}{}, ledger: ledger{now: time.Now},
	}
	if !h.join(s) {
		cancel(nil)
		return faults.Unavailable(retryAfter, "as many streams are open as this router takes; try again")
	}
	defer h.leave(s)
	defer s.stop()
	if err := stream.Send(&Response{}); err != nil { // the hello is accepted
		return rpc.StreamFault(ctx, err)
	}
	s.sync()
	select {
	case <-h.draining: // it began after we looked
		s.drain()
	default:
	}
	go s.read(stream, first)
	return s.write(stream)
}

// begin reads the first message.
func (h *Hub) begin(ctx context.Context, stream *Stream) (*request, error) {
	select {
	case <-h.draining:
		return nil, faults.Unavailable(reconnectAfter, "this router goes down; connect again, to another one")
	default:
	}
	msg, err := stream.Receive()
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, rpc.StreamFault(ctx, err)
	}
	first := &request{}
	if err == nil {
		if first, err = parseRequest(msg.Bytes); err != nil {
			return nil, err
		}
	}
	if first.hello == nil {
		return nil, faults.InvalidArgument("the first message of a stream must have a hello")
	}
	return first, nil
}

// read takes the worker's messages until it ends its side or the stream breaks.
func (s *session) read(stream *Stream, first *request) {
	err := lifecycle.Protect(s.ctx, func(context.Context) error {
		for req := first; ; {
			if err := s.fromWorker(req, req == first); err != nil {
				return err
			}
			if !s.out.room(s.ctx) {
				return s.ctx.Err()
			}
			msg, err := stream.Receive()
			if errors.Is(err, io.EOF) {
				return nil
			}
			if err != nil {
				return rpc.StreamFault(s.ctx, err)
			}
			if req, err = parseRequest(msg.Bytes); err != nil {
				return err
			}
		}
	})
	if err != nil {
		s.fail(err)
		return
	}
	s.end()
}

// write sends what there is for the worker until the stream is over.
func (s *session) write(stream *Stream) error {
	for {
		frame, ok := s.out.take(s.ctx)
		if !ok {
			return context.Cause(s.ctx)
		}
		if err := stream.Send(&Response{Bytes: frame}); err != nil {
			return rpc.StreamFault(s.ctx, err)
		}
	}
}

// stop ends everything that belongs to the session.
func (s *session) stop() {
	s.cancel(nil)
	s.mu.Lock()
	s.ended = true
	for _, at := range s.slots {
		if at.retry != nil {
			at.retry.Stop()
		}
	}
	s.mu.Unlock()
	s.background.Wait()
}

// fail ends the stream.
func (s *session) fail(err error) { s.cancel(err) }

// end takes note that the worker has ended its side: so do we.
func (s *session) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = true
	for _, at := range s.slots {
		if at.link != nil {
			s.leave(at.link)
		}
	}
	if len(s.links) == 0 {
		s.out.close()
	}
}

// sync opens links to the shards that there are, and leaves those that are no more.
func (s *session) sync() {
	s.mu.Lock()
	defer s.mu.Unlock()
	wanted := map[int]bool{}
	for _, shard := range s.hub.cluster().Instances() {
		wanted[shard] = true
		if s.slots[shard] == nil {
			s.slots[shard] = &slot{shard: shard}
		}
		s.connect(s.slots[shard], nil)
	}
	for shard, at := range s.slots {
		if wanted[shard] {
			continue
		}
		if at.link != nil {
			s.leave(at.link)
		}
		delete(s.slots, shard)
	}
	s.flush()
}

// ready says that a shard can be used from now on, or that hints of it may have been
// missed.
func (s *session) ready(shard int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if at := s.slots[shard]; at != nil && at.link == nil {
		at.tries = 0
		s.connect(at, nil)
	}
}

// move leaves a shard's link if it is not to the process that is preferred now.
func (s *session) move(shard int, preferred string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	at := s.slots[shard]
	if at == nil || at.link == nil || !at.link.open || at.link.process.Name() == preferred {
		return
	}
	s.replace(at.link)
	s.flush()
}

// hint says that shards may have tasks for the worker. from is the process that says so,
// which knows of them; empty if none does.
func (s *session) hint(from string, shards ...int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, shard := range shards {
		at := s.slots[shard]
		if at == nil || at.link == nil || !at.link.open {
			continue
		}
		l := at.link
		l.look = l.look || l.process.Name() != from
		s.ledger.want(l.share)
	}
	s.flush()
}

// drain tells the worker to go elsewhere: no more tasks, and its credits back.
func (s *session) drain() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.draining {
		return
	}
	s.draining = true
	s.out.put(told(0, true))
	s.ledger.close()
	s.flush()
}

// flush tells everyone what follows from the ledger. The mutex is held.
func (s *session) flush() {
	s.ledger.settle()
	for l := range s.links {
		if c := l.orders(); c != (controls{}) {
			l.out.put(c.message())
		}
	}
	if n, ok := s.ledger.answer(); ok {
		s.out.put(told(n, false))
	}
	s.credits.Store(int64(s.ledger.total()))
	if s.ledger.later && !s.settling && !s.ended {
		s.settling = true
		time.AfterFunc(chance, func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.settling = false
			s.flush()
		})
	}
}

// orders is what is to be told to a link's shard.
func (l *link) orders() controls {
	var c controls
	if !l.open || l.leaving {
		return c
	}
	c.credits, c.revoke = l.share.orders()
	if l.look && l.share.unused > 0 {
		c.look, l.look = true, false
	}
	return c
}

// brokenLink is why a stream ends when that of a shard does.
func brokenLink(shard int, err error) error {
	if mistake := rejected(err); mistake != nil {
		return mistake
	}
	if err == nil {
		err = errors.New("the process ended the stream")
	}
	return faults.Unavailable(reconnectAfter, "the stream to shard %d broke; connect again", shard).
		WithCause(fmt.Errorf("shard %d: %w", shard, err))
}

// rejected is the error of a shard that found a mistake of the worker's, or nil.
func rejected(err error) error {
	if err == nil {
		return nil
	}
	switch faults.CodeOf(err) {
	case faults.CodeInvalidArgument, faults.CodePermissionDenied, faults.CodeUnauthenticated:
		return err
	default:
		return nil
	}
}

// fault is an error as the outcome of an item.
func (s *session) fault(err error) *wigglev1.Fault {
	fault := faults.FromError(err)
	if fault.Code() == faults.CodeInternal {
		s.hub.logger.WarnContext(s.ctx, "an item of a stream failed", slog.Any("fault", fault))
	}
	return fault.ToProto()
}
