package wiggle

// The loops of a worker that talks by calls ([WorkerOptions.Unary]).

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
)

const (
	// reportTimeout bounds one attempt to report: a connection that hangs must not
	// hold all reports for long.
	reportTimeout = 10 * time.Second
	// maxFailCalls is how many failed attempts are reported at the same time.
	maxFailCalls = 16
	// pollMargin is what the answer to a poll may take beyond its wait.
	pollMargin = 15 * time.Second
	// A server that answers before quickAnswer with nothing to say, though it was
	// asked to wait, is asked again only after a quickPause.
	quickAnswer = time.Second
	quickPause  = 100 * time.Millisecond
)

// pollLoop polls while there is room, until ctx is done. Tasks live on in work.
func (s *session) pollLoop(ctx, work context.Context) {
	opts := s.w.opts
	req := &wigglev1.PollTasksRequest{
		Namespace: s.w.client.namespace, Worker: opts.Name, Queues: opts.Queues, Workflows: s.w.bindings(),
		Lease: durationpb.New(opts.Lease), Wait: durationpb.New(opts.PollWait), ShareBaseContexts: true,
	}
	health := s.health("poll")
	for failures := 0; ; {
		room := s.awaitRoom(ctx)
		if room == 0 {
			return
		}
		req.MaxTasks = toInt32(room)
		pause, err := s.poll(ctx, work, req)
		if ctx.Err() != nil {
			return
		}
		health.note(ctx, err)
		if err != nil {
			failures++
			pause = max(pause, pollRetries.pause(failures))
		} else {
			failures = 0
		}
		if pause > 0 && sleep(ctx, pause) != nil {
			return
		}
	}
}

// poll makes one poll and returns how long to wait before the next.
func (s *session) poll(ctx, work context.Context, req *wigglev1.PollTasksRequest) (time.Duration, error) {
	begin := time.Now()
	res, err := once(ctx, s.w.opts.PollWait+pollMargin, s.w.client.workers.PollTasks, req)
	if err != nil {
		err = toError("poll", err)
		var e *Error
		errors.As(err, &e)
		return jittered(e.RetryAfter), err
	}
	s.acceptAll(work, nil, res.GetTasks(), res.GetBaseContexts())
	if after := res.GetRetryAfter().AsDuration(); after > 0 {
		return jittered(after), nil
	}
	if len(res.GetTasks()) == 0 && time.Since(begin) < quickAnswer {
		return jittered(quickPause), nil
	}
	return 0, nil
}

// awaitRoom waits until there is room for a task, 0 when ctx is done.
func (s *session) awaitRoom(ctx context.Context) int {
	for {
		if ctx.Err() != nil {
			return 0
		}
		s.mu.Lock()
		room := s.room()
		s.mu.Unlock()
		if room > 0 {
			return room
		}
		select {
		case <-s.changed:
		case <-ctx.Done():
		}
	}
}

// reportLoop sends the steps that are done: at once where nothing is under way, else
// together with all that came up meanwhile. The answer brings the steps that follow,
// which live on in work.
func (s *session) reportLoop(ctx, work context.Context) {
	next := &wigglev1.Continuation{
		Namespace: s.w.client.namespace, Queues: s.w.opts.Queues, Workflows: s.w.bindings(), Lease: durationpb.New(s.w.opts.Lease),
		ShareBaseContexts: true,
	}
	health := s.health("report")
	for {
		batch := s.live(s.reports.take(ctx, maxBatch))
		if ctx.Err() != nil {
			return
		}
		if len(batch) == 0 {
			continue
		}
		req := &wigglev1.ReportStepsRequest{Worker: s.w.opts.Name}
		for _, it := range batch {
			req.Reports = append(req.Reports, it.report)
		}
		if !s.stopping.Load() {
			req.Next = next
		}
		res, err := once(ctx, reportTimeout, s.w.client.workers.ReportSteps, req)
		if ctx.Err() == nil {
			health.note(ctx, toError("report", err))
		}
		s.acceptAll(work, nil, res.GetTasks(), res.GetBaseContexts())
		for i, it := range batch {
			switch {
			case err != nil:
				s.reportFailed(it, err, len(batch))
			case i >= len(res.GetOutcomes()):
				s.retry(it, missingOutcome("report"))
			default:
				s.answered(it, faultError("report", res.GetOutcomes()[i].GetFault()))
			}
		}
	}
}

// reportFailed deals with a batch that failed as a whole. One bad report must not
// hold the others back, so those of a batch that was refused go again alone.
func (s *session) reportFailed(it *settlement, err error, batch int) {
	var e *Error
	errors.As(toError("report", err), &e)
	if batch == 1 {
		s.answered(it, e)
		return
	}
	it.alone = refused(e) || broken(e)
	s.retry(it, e)
}

// failLoop sends the attempts that failed.
func (s *session) failLoop(ctx context.Context) {
	health := s.health("fail")
	for {
		batch := s.live(s.fails.take(ctx, maxFailCalls))
		if ctx.Err() != nil {
			return
		}
		errs := make([]error, len(batch))
		var wg sync.WaitGroup
		for i, it := range batch {
			wg.Go(func() {
				res, err := once(ctx, reportTimeout, s.w.client.workers.FailTask, it.fail)
				var e *Error
				if errors.As(toError("fail", err), &e) {
					errs[i] = e
				} else {
					s.logFailure(ctx, it, res.GetWillRetry())
				}
				s.answered(it, e)
			})
		}
		wg.Wait()
		if ctx.Err() == nil && len(batch) > 0 {
			health.note(ctx, errors.Join(slices.DeleteFunc(errs, settles)...))
		}
	}
}

// live leaves out the tasks that are no longer ours.
func (s *session) live(batch []*settlement) []*settlement {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.DeleteFunc(batch, func(it *settlement) bool { return it.held.gone })
}

// heartbeat renews the leases of tasks in one call.
func (s *session) heartbeat(ctx context.Context, health *health, tasks []*held) {
	sent := time.Now()
	req := &wigglev1.HeartbeatRequest{Worker: s.w.opts.Name}
	s.mu.Lock()
	for _, h := range tasks {
		req.Beats = append(req.Beats, h.makeBeat(sent))
	}
	s.mu.Unlock()
	res, err := once(ctx, beatPatience(tasks[0].lease), s.w.client.workers.Heartbeat, req)
	if ctx.Err() != nil {
		return
	}
	health.note(ctx, toError("heartbeat", err))
	for i, h := range tasks {
		var e *Error
		switch {
		case err != nil:
			errors.As(toError("heartbeat", err), &e)
		case i >= len(res.GetOutcomes()):
			e = missingOutcome("heartbeat")
		default:
			e = faultError("heartbeat", res.GetOutcomes()[i].GetFault())
		}
		s.beaten(h, req.GetBeats()[i], sent, e)
	}
}

// release hands back what is still held, without spending an attempt. A handler
// that does not heed its context may go on; what it returns is dropped.
func (s *session) release(ctx context.Context) {
	s.mu.Lock()
	req := &wigglev1.ReleaseTasksRequest{Worker: s.w.opts.Name}
	for _, h := range s.held {
		h.gone = true
		req.Tasks = append(req.Tasks, &wigglev1.TaskLease{TaskId: h.task.GetId(), Lease: h.task.GetLease()})
	}
	clear(s.held)
	s.mu.Unlock()
	if len(req.GetTasks()) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, releaseTime)
	defer cancel()
	for tasks := req.GetTasks(); len(tasks) > 0; {
		n := min(len(tasks), maxBatch)
		req.Tasks, tasks = tasks[:n], tasks[n:]
		if _, err := call(ctx, s.w.client, "release", 0, s.w.client.workers.ReleaseTasks, req); err != nil {
			s.notReleased(ctx, len(req.GetTasks())+len(tasks), err)
			return
		}
	}
}
