package poll

import (
	"context"
	"log/slog"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/wiggle-run/wiggle/pkg/faults"
	"github.com/wiggle-run/wiggle/pkg/wake"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	"github.com/wiggle-run/wiggle/services/router/internal/backends"
	"github.com/wiggle-run/wiggle/services/router/internal/route"
)

// session is one poll. It belongs to the caller's goroutine; claims run in others and answer over results.
type session struct {
	p      *Poller
	ctx    context.Context //nolint:containedctx // a session is a call
	req    *wigglev1.PollTasksRequest
	class  *class
	waiter *wake.Waiter[key]

	tasks      []*wigglev1.Task
	bases      []*wigglev1.Payload // contexts that tasks name by their base_index
	retryAfter time.Duration
	pending    map[int]bool // shards with a claim under way
	results    chan claimed
}

// claimed is what came of a claim.
type claimed struct {
	shard, asked int
	res          *wigglev1.PollTasksResponse
	err          error
}

func newSession(ctx context.Context, p *Poller, req *wigglev1.PollTasksRequest) *session {
	s := &session{p: p, ctx: ctx, req: req, pending: make(map[int]bool), results: make(chan claimed)}
	s.class, s.waiter = p.join(req)
	return s
}

func (s *session) room() int { return int(s.req.GetMaxTasks()) - len(s.tasks) }

// sweep tries all shards once, unless the class knows that they have nothing; then it tries what is due.
func (s *session) sweep(force bool) error {
	began := time.Now()
	order, needed := s.p.sweepOrder(s.class, began, force)
	if !needed {
		return s.tryDue()
	}
	complete := true
	for _, shard := range order {
		if s.room() <= 0 {
			return nil
		}
		answered, err := s.try(shard)
		if err != nil {
			return err
		}
		complete = complete && answered
	}
	if complete && len(s.tasks) == 0 {
		s.p.sweptEmpty(s.class, began)
	}
	return nil
}

// tryDue tries the shards that the class should try, as long as there is room.
func (s *session) tryDue() error {
	for s.room() > 0 {
		shard, ok := s.p.nextDue(s.class)
		if !ok {
			return nil
		}
		if _, err := s.try(shard); err != nil {
			return err
		}
	}
	return nil
}

// wait waits for tasks until the time is over, the router drains, or there are some.
func (s *session) wait(d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	for {
		select {
		case <-s.waiter.C():
			s.waiter.Rearm() // before trying: what comes now wakes again
			if err := s.tryDue(); err != nil {
				return err
			}
		case r := <-s.results:
			if err := s.take(r); err != nil {
				return err
			}
		case <-timer.C:
			return nil
		case <-s.p.draining:
			s.retryAfter = comeBackDraining
			return nil
		case <-s.ctx.Done():
			return s.ctx.Err()
		}
		if len(s.tasks) > 0 {
			return nil
		}
	}
}

// awaitLate waits for claims that are under way when the poll has nothing to answer. Were their tasks handed back, the
// next poll would wait in vain for the same again; under load it would go on like that for ever. Claims are bounded.
func (s *session) awaitLate() error {
	for len(s.tasks) == 0 && len(s.pending) > 0 {
		select {
		case r := <-s.results:
			if err := s.take(r); err != nil {
				return err
			}
		case <-s.p.draining:
			s.retryAfter = comeBackDraining
			return nil
		case <-s.ctx.Done():
			return s.ctx.Err()
		}
	}
	return nil
}

// try claims on one shard. It tells whether the shard answered in time, and fails only if the poll as a whole must.
func (s *session) try(shard int) (answered bool, err error) {
	if s.pending[shard] {
		return false, nil
	}
	s.p.trying(s.class, shard)
	if len(s.p.forward.Set().Shard(shard).Accepting) == 0 {
		return true, nil // nothing to get; when it is back, Ready says so
	}
	s.pending[shard] = true
	asked := s.room()
	s.p.background.Go(func() { s.claim(shard, asked) })

	limit := patience
	if len(s.tasks) > 0 {
		limit = shortPatience
	}
	timer := time.NewTimer(limit)
	defer timer.Stop()
	for s.pending[shard] {
		select {
		case r := <-s.results:
			if err := s.take(r); err != nil {
				return false, err
			}
			// One that is turned away does not know whether there is something.
			answered = r.shard == shard && r.err == nil && (len(r.res.GetTasks()) > 0 || r.res.GetRetryAfter() == nil)
		case <-timer.C:
			s.p.markSlow(shard, time.Now())
			return false, nil // it goes on; its result comes later
		case <-s.ctx.Done():
			return false, s.ctx.Err()
		}
	}
	return answered, nil
}

// claim claims apart from the caller, who may leave, and hands back what nobody is there to take.
func (s *session) claim(shard, asked int) {
	ctx := context.WithoutCancel(s.ctx)
	req := &wigglev1.PollTasksRequest{
		Namespace: s.req.GetNamespace(), Worker: s.req.GetWorker(), Queues: s.req.GetQueues(),
		Workflows: s.req.GetWorkflows(), MaxTasks: int32(asked), Lease: s.req.GetLease(), //nolint:gosec // at most what the poll asked
		ShareBaseContexts: s.req.GetShareBaseContexts(),
	}
	call := route.Call{Shard: shard, Method: "PollTasks", Timeout: s.p.cfg.ClaimTimeout, NewWork: true}
	res, err := route.Do(ctx, s.p.forward, call,
		func(ctx context.Context, c backends.Client) (*wigglev1.PollTasksResponse, error) {
			return c.Workers.PollTasks(ctx, req)
		})
	s.results <- claimed{shard: shard, asked: asked, res: res, err: err}
}

// take adds what a claim brought.
func (s *session) take(r claimed) error {
	delete(s.pending, r.shard)
	if r.err != nil {
		return s.judge(r)
	}
	for _, t := range r.res.GetTasks() {
		if t.GetBaseIndex() > 0 { // counted within one shard's answer
			t.BaseIndex += int32(len(s.bases)) //nolint:gosec // at most the number of tasks
		}
	}
	s.tasks = append(s.tasks, r.res.GetTasks()...)
	s.bases = append(s.bases, r.res.GetBaseContexts()...)
	s.retryAfter = max(s.retryAfter, r.res.GetRetryAfter().AsDuration())
	if len(r.res.GetTasks()) >= r.asked { // there may be more
		s.p.wakeClass(s.class, r.shard)
	}
	return nil
}

// judge tells whether an error of one shard is the poll's: a shard that is down is not, a request that is wrong is.
func (s *session) judge(r claimed) error {
	switch faults.CodeOf(r.err) {
	case faults.CodeUnavailable, faults.CodeDeadlineExceeded, faults.CodeCanceled, faults.CodeAborted,
		faults.CodeResourceExhausted:
		return nil
	case faults.CodeInternal, faults.CodeUnknown:
		s.p.logger.WarnContext(s.ctx, "claim failed", slog.Int("shard", r.shard), slog.Any("error", r.err))
		return nil
	default:
		return r.err
	}
}

// finish makes the answer. An error counts only if there are no tasks to lose over it.
func (s *session) finish(err error) (*wigglev1.PollTasksResponse, error) {
	if s.ctx.Err() != nil {
		return nil, s.ctx.Err() // close hands back what is left in tasks
	}
	if err != nil && len(s.tasks) == 0 {
		return nil, err
	}
	n := min(len(s.tasks), int(s.req.GetMaxTasks()))
	res := &wigglev1.PollTasksResponse{Tasks: s.tasks[:n:n]}
	s.tasks = s.tasks[n:]
	if n > 0 {
		res.BaseContexts = s.bases
	}
	if n == 0 && s.retryAfter > 0 {
		res.RetryAfter = durationpb.New(s.retryAfter)
	}
	return res, nil
}

// close ends the session. What is left in tasks and what is still being claimed has no taker and is handed back.
func (s *session) close() {
	class := s.class
	if len(s.pending) > 0 || len(s.tasks) > 0 {
		left := s.tasks
		s.p.background.Go(func() { s.handBack(class, left) })
	}
	s.p.leave(class, s.waiter)
}

func (s *session) handBack(c *class, tasks []*wigglev1.Task) {
	s.release(c, tasks)
	for len(s.pending) > 0 {
		r := <-s.results
		delete(s.pending, r.shard)
		s.release(c, r.res.GetTasks())
	}
}
