package wiggle

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

const (
	// interruptTime is how long handlers may take to return once their contexts are
	// cancelled, and their reports to go out. It is also how long the server may take
	// to give back the credits of a worker that stops.
	interruptTime = time.Second
	// releaseTime bounds the call that hands the rest back.
	releaseTime = 2 * time.Second
)

// run serves until ctx is done and stops in order.
func (s *session) run(ctx context.Context) {
	if s.w.opts.Unary {
		s.runCalls(ctx)
	} else {
		s.runStream(ctx)
	}
}

func (s *session) runStream(ctx context.Context) {
	// Handlers and loops outlive ctx: they are what the stop waits for.
	handlers := context.WithoutCancel(ctx)
	work, end := context.WithCancel(handlers)
	defer end()
	var loops sync.WaitGroup
	loops.Go(func() { s.streamLoop(work, handlers) })
	loops.Go(func() { s.sendLoop(work) })
	loops.Go(func() { s.beatLoop(work, s.renew) })
	<-ctx.Done()

	begin := time.Now()
	s.stopping.Store(true)
	wake(s.out)
	s.await(interruptTime, s.noCredits)
	s.finish(s.w.opts.Grace - time.Since(begin))
	s.part()
	s.await(releaseTime, s.parted)
	end()
	loops.Wait()
	if n := len(s.releases); n > 0 {
		s.notReleased(ctx, n, errSilent)
	}
}

func (s *session) runCalls(ctx context.Context) {
	handlers := context.WithoutCancel(ctx)
	work, end := context.WithCancel(handlers)
	defer end()
	var loops sync.WaitGroup
	loops.Go(func() { s.reportLoop(work, handlers) })
	loops.Go(func() { s.failLoop(work) })
	health := s.health("heartbeat")
	loops.Go(func() {
		s.beatLoop(work, func(ctx context.Context, tasks []*held) { s.heartbeat(ctx, health, tasks) })
	})

	// A poll must not carry a deadline of ctx: the server would answer it with an
	// error when the worker is only to stop.
	polls, stopPolls := context.WithCancel(handlers)
	defer stopPolls()
	defer context.AfterFunc(ctx, stopPolls)()
	s.pollLoop(polls, handlers)
	s.stopping.Store(true)
	s.finish(s.w.opts.Grace)
	end()
	loops.Wait()
	s.release(handlers)
}

// finish lets handlers finish within the grace, and interrupts the others.
func (s *session) finish(grace time.Duration) {
	idle := func() bool { return len(s.held) == 0 }
	if !s.await(grace, idle) {
		s.interrupt()
		s.await(interruptTime, idle)
	}
}

// await waits until something holds, for so long. done is called with mu held.
func (s *session) await(limit time.Duration, done func() bool) bool {
	t := time.NewTimer(limit)
	defer t.Stop()
	for {
		s.mu.Lock()
		ok := done()
		s.mu.Unlock()
		if ok {
			return true
		}
		select {
		case <-s.changed:
		case <-t.C:
			return false
		}
	}
}

// noCredits tells that no more tasks can come. It is called with mu held.
func (s *session) noCredits() bool {
	for st := range s.streams {
		if st.credits > 0 {
			return false
		}
	}
	return true
}

// part hands back what is still held, without spending an attempt, and ends the
// streams. A handler that does not heed its context may go on; what it returns is
// dropped.
func (s *session) part() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for key, h := range s.held {
		s.drop(h)
		s.releases[key] = nil
	}
	s.parting = true
	wake(s.out)
}

// parted tells that there is nothing left to say or hear. It is called with mu held.
func (s *session) parted() bool { return s.parting && len(s.releases) == 0 && s.current == nil }

func (s *session) notReleased(ctx context.Context, tasks int, err error) {
	s.w.logger.LogAttrs(ctx, slog.LevelWarn, "wiggle: tasks could not be handed back; they wait until their leases run out",
		slog.Int("tasks", tasks), slog.Any("error", err))
}

// interrupt cancels the contexts of the handlers that still run.
func (s *session) interrupt() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, h := range s.held {
		h.cancel(ErrWorkerStopped)
	}
}
