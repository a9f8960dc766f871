package wiggle

import (
	"context"
	"log/slog"
	"sync"
	"time"

	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
)

const (
	// interruptTime is how long handlers may take to return once their contexts are
	// cancelled, and their reports to go out.
	interruptTime = time.Second
	// releaseTime bounds the call that hands the rest back.
	releaseTime = 2 * time.Second
)

// run serves until ctx is done and stops in order.
func (s *session) run(ctx context.Context) {
	// Handlers and loops outlive ctx: they are what the stop waits for.
	work, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	var loops sync.WaitGroup
	loops.Go(func() { s.reportLoop(work, context.WithoutCancel(ctx)) })
	loops.Go(func() { s.failLoop(work) })
	loops.Go(func() { s.beatLoop(work) })

	// A poll must not carry a deadline of ctx: the server would answer it with an
	// error when the worker is only to stop.
	polls, stopPolls := context.WithCancel(context.WithoutCancel(ctx))
	defer stopPolls()
	defer context.AfterFunc(ctx, stopPolls)()
	s.pollLoop(polls, context.WithoutCancel(ctx))
	s.stopping.Store(true)
	if !s.drained(s.w.opts.Grace) {
		s.interrupt()
		s.drained(interruptTime)
	}
	end()
	loops.Wait()
	s.release(context.WithoutCancel(ctx))
}

// drained waits until no task is held, for so long.
func (s *session) drained(limit time.Duration) bool {
	t := time.NewTimer(limit)
	defer t.Stop()
	for s.holding() > 0 {
		select {
		case <-s.changed:
		case <-t.C:
			return false
		}
	}
	return true
}

// interrupt cancels the contexts of the handlers that still run.
func (s *session) interrupt() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for h := range s.held {
		h.cancel(ErrWorkerStopped)
	}
}

// release hands back what is still held, without spending an attempt. A handler
// that does not heed its context may go on; what it returns is dropped.
func (s *session) release(ctx context.Context) {
	s.mu.Lock()
	req := &wigglev1.ReleaseTasksRequest{Worker: s.w.opts.Name}
	for h := range s.held {
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
			s.w.logger.LogAttrs(ctx, slog.LevelWarn, "wiggle: tasks could not be handed back; they wait until their leases run out",
				slog.Int("tasks", len(req.GetTasks())+len(tasks)), slog.Any("error", err))
			return
		}
	}
}
