package wiggle

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
)

// session is one run of a worker: the tasks that it holds and the loops that serve
// them. A task is held from the message that brought it until its report is answered
// (or its lease is lost); its lease is kept for just as long.
//
//	received --> running --> reporting --> settled
//	     \           \            \
//	      +-----------+------------+--> lost (lease), or released (stop)
type session struct {
	w       *Worker
	access  *access
	reports *outbox // steps that are done
	fails   *outbox // attempts that failed; on a stream the same as reports
	beatNow chan struct{}
	changed chan struct{} // a task left, or a stream changed; one waiter at a time
	slots   chan struct{} // one for each handler that runs
	// stopping tells that no more tasks are asked for.
	stopping atomic.Bool

	mu       sync.Mutex
	held     map[taskKey]*held
	running  int
	beatWake time.Time // when the beat loop looks next by itself

	line // of a worker that talks by a stream
}

// health follows the calls of one loop.
func (s *session) health(call string) *health {
	return &health{logger: s.w.logger, what: call, access: s.access}
}

// taskKey names a task in the worker's hands, and what the server says about it.
type taskKey struct{ id, lease string }

// held is one task in the worker's hands.
type held struct {
	session  *session
	task     *wigglev1.Task
	received time.Time
	lease    time.Duration
	cancel   context.CancelCauseFunc
	// checkpoint is set by the handler that asks for one.
	checkpoint atomic.Bool

	// traceparent is the span of its step, if that is sampled.
	traceparent string

	emitMu  sync.Mutex
	emitted []*wigglev1.EmittedEvent // by the handler, so far

	// Guarded by session.mu.
	outcome  settlement // once its handler has ended
	expires  time.Time  // by the local clock
	beatAt   time.Time  // when the lease is to be renewed
	beatSent time.Time  // when progress was last sent
	progress *wigglev1.Payload
	beat     sentBeat // on a stream
	gone     bool     // settled, lost or released: nothing more is sent for it
}

func (h *held) key() taskKey { return taskKey{h.task.GetId(), h.task.GetLease()} }

func newSession(w *Worker) *session {
	s := &session{
		w: w, access: newAccess(w.logger, w.client.keyed),
		reports: newOutbox(), fails: newOutbox(),
		beatNow: make(chan struct{}, 1), changed: make(chan struct{}, 1), slots: make(chan struct{}, w.opts.Concurrency),
		held: map[taskKey]*held{},
	}
	if !w.opts.Unary {
		s.fails, s.line = s.reports, newLine(s.reports.wake)
	}
	return s
}

// acceptAll takes the tasks of an answer, whose contexts around branches came once
// for all that have the same. st is the stream that brought them, if one did.
func (s *session) acceptAll(ctx context.Context, st *stream, tasks []*wigglev1.Task, bases []*wigglev1.Payload) {
	for _, t := range tasks {
		if i := int(t.GetBaseIndex()); i > 0 && i <= len(bases) {
			t.BaseContext = bases[i-1]
		}
		s.accept(ctx, st, t)
	}
}

// accept takes a task into the worker's hands and starts its handler once a slot is
// free. There may be more tasks than slots for a moment: a poll and an answer to a
// report may both bring some.
func (s *session) accept(ctx context.Context, st *stream, t *wigglev1.Task) {
	now := time.Now()
	h := &held{session: s, task: t, received: now, lease: s.leaseOf(t)}
	h.expires, h.beatAt = now.Add(h.lease), now.Add(h.lease/3)

	hctx, cancel := context.WithCancelCause(context.WithValue(ctx, heldKey{}, h))
	h.cancel = cancel
	s.mu.Lock()
	fresh := s.take(st, h, now)
	early := fresh && h.beatAt.Before(s.beatWake)
	s.mu.Unlock()
	if !fresh {
		cancel(nil)
		return
	}
	if early {
		wake(s.beatNow)
	}
	go s.serve(hctx, h)
}

// serve runs the handler of a task once a slot is free.
func (s *session) serve(ctx context.Context, h *held) {
	select {
	case s.slots <- struct{}{}: // most often; it spares the channel of ctx
	default:
		select {
		case s.slots <- struct{}{}:
		case <-ctx.Done():
			s.executed(ctx, h, nil, context.Cause(ctx), h.received)
			return
		}
	}
	defer func() { <-s.slots }()
	s.execute(ctx, h)
}

// take notes a task that has come. It is false for one that is in hand already (a
// server may send it again that does not know whether it came) or that comes when
// all is handed back. It is called with mu held.
func (s *session) take(st *stream, h *held, now time.Time) bool {
	if st != nil {
		st.delivered(now)
	}
	key := h.key()
	if _, ok := s.held[key]; ok {
		return false
	}
	if s.parting {
		s.releases[key] = nil
		return false
	}
	s.held[key] = h
	s.running++
	return true
}

// leaseOf is how long the lease holds from now. Only the difference of the server's
// times is used: the clocks of server and worker need not agree.
func (s *session) leaseOf(t *wigglev1.Task) time.Duration {
	if t.GetLeaseExpiresAt() == nil || t.GetDispatchedAt() == nil {
		return s.w.opts.Lease
	}
	return max(t.GetLeaseExpiresAt().AsTime().Sub(t.GetDispatchedAt().AsTime()), time.Second)
}

// errGoexit stands for the outcome of a handler that ended its goroutine, as a
// test's FailNow does.
var errGoexit = errors.New("the handler ended its goroutine (runtime.Goexit)")

// execute runs the handler of a task and hands its outcome to a reporter.
func (s *session) execute(ctx context.Context, h *held) {
	whole := ctx
	if t := h.task; t.GetDeadline() != nil && t.GetDispatchedAt() != nil {
		var cancel context.CancelFunc
		left := t.GetDeadline().AsTime().Sub(t.GetDispatchedAt().AsTime())
		ctx, cancel = context.WithDeadline(ctx, h.received.Add(left))
		defer cancel()
	}
	var rep *wigglev1.StepReport
	err, started := errGoexit, time.Now()
	defer func() { s.executed(ctx, h, rep, err, started) }()
	if rep, err = s.w.runTraced(ctx, h.task); err == nil {
		s.goOn(whole, h, rep, started)
	}
}

// executed deals with the outcome of a handler. The place that it leaves and the
// outcome become known at once, so that the message with the report has a credit for
// the step that follows.
func (s *session) executed(ctx context.Context, h *held, rep *wigglev1.StepReport, err error, started time.Time) {
	finished := time.Now()
	cause := context.Cause(ctx)
	h.cancel(nil)
	defer wake(s.changed)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.running--
	switch {
	case h.gone:
	case err == nil:
		rep.TaskId, rep.Lease, rep.Traceparent = h.task.GetId(), h.task.GetLease(), h.traceparent
		h.outcome = settlement{held: h, report: rep}
		s.reports.put(&h.outcome)
		return
	case errors.Is(cause, ErrWorkerStopped):
		// What a handler says that was interrupted is no failure of the step. The
		// task stays held: the end of the session hands it back.
	case errors.Is(cause, ErrLeaseLost):
		s.drop(h)
	default:
		req := failRequest(err)
		req.StartedAt, req.FinishedAt = timestamppb.New(started), timestamppb.New(finished)
		s.fail(h, req)
		return
	}
	wake(s.reports.wake) // there is room
}

// fail makes a failed attempt of what a task came to. It is called with mu held.
func (s *session) fail(h *held, req *wigglev1.FailTaskRequest) {
	req.Worker, req.TaskId, req.Lease = s.w.opts.Name, h.task.GetId(), h.task.GetLease()
	req.Traceparent = h.traceparent
	h.outcome = settlement{held: h, fail: req}
	s.fails.put(&h.outcome)
}

// runHandler runs the handler of a task. A panic is an error.
func (w *Worker) runHandler(ctx context.Context, t *wigglev1.Task) (rep *wigglev1.StepReport, err error) {
	h, ok := w.handler(t.GetWorkflow(), t.GetActivity())
	if !ok {
		return nil, ErrorType(typeNoHandler, fmt.Errorf("worker %s has no handler %q for workflow %q",
			w.opts.Name, t.GetActivity(), t.GetWorkflow()))
	}
	if h.kind != t.GetKind() || h.kind == wigglev1.TaskKind_TASK_KIND_COMBINE && h.byName != t.GetByName() {
		return nil, ErrorType(typeWrongKind, fmt.Errorf("step %q is %s, but handler %q is for %s: register it with %s",
			t.GetStep(), kindName(t.GetKind(), t.GetByName()), t.GetActivity(), kindName(h.kind, h.byName),
			registerWith(t.GetKind(), t.GetByName())))
	}
	defer func() {
		if v := recover(); v != nil {
			rep, err = nil, &panicError{value: v, stack: string(debug.Stack())}
		}
	}()
	if rep, err = h.run(ctx, t); err == nil {
		rep.Events = takeEmitted(ctx)
	}
	return rep, err
}

// settle takes a task out of the worker's hands: nothing more is sent for it.
func (s *session) settle(h *held) {
	s.mu.Lock()
	s.drop(h)
	s.mu.Unlock()
	wake(s.changed)
}

// drop is settle with mu held.
func (s *session) drop(h *held) {
	if h.gone {
		return
	}
	h.gone = true
	delete(s.held, h.key())
	h.outcome.noLonger()
	h.beat.noLonger()
}

// lose settles a task whose lease the server no longer knows.
func (s *session) lose(h *held, why error) {
	s.w.logger.LogAttrs(context.Background(), slog.LevelWarn, "wiggle: lease lost", append(taskAttrs(h.task), slog.Any("error", why))...)
	s.settle(h)
	h.cancel(fmt.Errorf("%w: %w", ErrLeaseLost, why))
}

// room is how many tasks may be asked for. Besides what runs, as many again may
// wait for their reports; beyond that a server that takes no reports gets no more
// work from us, which bounds memory. It is called with mu held.
func (s *session) room() int {
	limit := s.w.opts.Concurrency
	return min(limit-s.running, 2*limit-len(s.held))
}

func taskAttrs(t *wigglev1.Task) []slog.Attr {
	return append([]slog.Attr{
		slog.String("instance", t.GetInstanceId()), slog.String("workflow", t.GetWorkflow()),
		slog.String("step", t.GetStep()), slog.Int("attempt", int(t.GetAttempt())),
	}, traceAttrs(t)...)
}

// wake tells a loop that there is something to look at; one that has been told
// already need not be told again.
func wake(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
