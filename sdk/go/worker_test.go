package wiggle_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	wiggle "github.com/wiggle-run/wiggle/sdk/go"
)

// inBothWays runs a test in a bubble of its own twice: with workers that talk by a
// stream, and by calls.
func inBothWays(t *testing.T, run func(t *testing.T, f *fake)) {
	t.Helper()
	for name, unary := range map[string]bool{"stream": false, "unary": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFake()
				f.unary = unary
				run(t, f)
			})
		})
	}
}

// start runs a worker and returns a function that stops it and tells how long that
// took.
func start(t *testing.T, w *wiggle.Worker) (stop func() time.Duration) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	synctest.Wait()
	return func() time.Duration {
		t.Helper()
		synctest.Wait()
		begin := time.Now()
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
		took := time.Since(begin)
		synctest.Wait()
		return took
	}
}

// pass lets time pass, and what it brings about happen. The lock orders what the
// test has read before what comes now, for the race detector.
func (f *fake) pass(d time.Duration) {
	f.locked(func() {})
	time.Sleep(d)
	synctest.Wait()
}

func newWorker(t *testing.T, f *fake, opts wiggle.WorkerOptions) *wiggle.Worker {
	t.Helper()
	opts.SkipCheck, opts.Unary = true, f.unary
	if opts.Name == "" {
		opts.Name = "w1"
	}
	return wiggle.NewWorker(f.client(t), opts)
}

func data(s string) *wigglev1.Payload { return &wigglev1.Payload{Data: []byte(s)} }

// TestHandlerKinds runs a handler of each kind.
// TestFailures checks what each way to fail looks like to the server.
// TestConcurrency checks that no more handlers run than the worker may, and that it
// asks for no more than there is room.
func TestConcurrency(t *testing.T) {
	inBothWays(t, func(t *testing.T, f *fake) {
		w := newWorker(t, f, wiggle.WorkerOptions{Concurrency: 3, Queues: []string{"a", "b"}})
		var running, most, done atomic.Int32
		wiggle.HandleEffect(w.Workflow("flow", 2, 3), "work", func(context.Context, any) error {
			most.Store(max(most.Load(), running.Add(1)))
			time.Sleep(time.Second)
			running.Add(-1)
			done.Add(1)
			return nil
		})
		for i := range 10 {
			f.push(&wigglev1.Task{Id: fmt.Sprint(i), Step: "work", Kind: wigglev1.TaskKind_TASK_KIND_EFFECT})
		}
		stop := start(t, w)
		f.pass(5 * time.Second)
		stop()
		if done.Load() != 10 || most.Load() != 3 || len(f.reports) != 10 {
			t.Errorf("%d done, %d at a time, %d reports", done.Load(), most.Load(), len(f.reports))
		}
		if !f.unary {
			h, m := f.hellos[0], f.messages[0]
			if m.GetCredits() != 3 || h.GetWorker() != "w1" || fmt.Sprint(h.GetQueues()) != "[a b]" || len(h.GetWorkflows()) != 2 ||
				h.GetWorkflows()[1].GetVersion() != 3 || h.GetLease().AsDuration() != 30*time.Second || len(h.GetHeld()) != 0 {
				t.Errorf("first message %v", m)
			}
			return
		}
		p := f.polls[0]
		if p.GetMaxTasks() != 3 || p.GetWorker() != "w1" || fmt.Sprint(p.GetQueues()) != "[a b]" || len(p.GetWorkflows()) != 2 ||
			p.GetWorkflows()[1].GetVersion() != 3 || p.GetLease().AsDuration() != 30*time.Second || p.GetWait().AsDuration() != 30*time.Second {
			t.Errorf("poll %v", p)
		}
	})
}

// TestIdle checks that an idle worker costs one message, or one poll per wait, and
// nothing else.
func TestIdle(t *testing.T) {
	inBothWays(t, func(t *testing.T, f *fake) {
		stop := start(t, newWorker(t, f, wiggle.WorkerOptions{PollWait: 10 * time.Second}))
		f.pass(time.Hour)
		if took := stop(); took > 0 {
			t.Errorf("an idle worker took %s to stop", took)
		}
		if n := len(f.polls); f.unary && (n < 360 || n > 361) || len(f.beats) != 0 {
			t.Errorf("%d polls, %d beats", n, len(f.beats))
		}
		if n := len(f.messages); !f.unary && n != 2 { // the hello, and the credits back
			t.Errorf("messages %v", f.messages)
		}
	})
}

// TestReportsCoalesce checks that a report goes out at once, and what comes up while
// it is under way goes together.
// TestReportsFitAMessage checks that large results do not go together into a message
// that no server takes.
// TestReportIsRepeated checks that a report is sent until it is answered, with the
// lease kept meanwhile and not after.
// TestReportRefused checks that one report that the server will never take neither
// holds others back nor is lost without a word.
// TestLeaseIsKept runs a handler for many leases.
// TestBeatsGoTogether checks that the leases of many tasks cost one call.
// TestLeaseLost checks that a handler is interrupted when the server says that the
// lease is lost or the instance has ended, and that nothing is reported then.
// TestLeaseRunsOut checks that a worker that can not reach the server gives its
// tasks up when their leases have run out by its own clock.
// TestProgress checks that progress goes out at once, then at a bounded rate, and
// that the latest is not lost.
// TestTaskInfo reads what a handler can know.
// TestStopWaits checks that a stop lets handlers finish within the grace and takes
// nothing new.
// TestStopReleases checks what becomes of handlers that outlast the grace: one
// that heeds its context, one that saves its work when told, one that heeds nothing.
// TestServerDown checks that a worker stops in time when nobody answers, and logs
// once that it can not poll and once that it can again.
type syncBuffer struct {
	mu sync.Mutex
	b  strings.Builder
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

func TestRegistrationPanics(t *testing.T) {
	t.Parallel()
	effect := func(context.Context, any) error { return nil }
	for name, do := range map[string]func(*wiggle.Worker){
		"twice": func(w *wiggle.Worker) { wiggle.HandleEffect(w, "a", effect); wiggle.HandleEffect(w, "a", effect) },
		"twice in scope": func(w *wiggle.Worker) {
			wiggle.HandleEffect(w.Workflow("f"), "a", effect)
			wiggle.HandleEffect(w.Workflow("f"), "a", effect)
		},
		"no name": func(w *wiggle.Worker) { wiggle.HandleEffect(w, "", effect) },
		"after the start": func(w *wiggle.Worker) {
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			if err := w.Run(ctx); err != nil {
				t.Error(err)
			}
			if err := w.Run(ctx); err == nil {
				t.Error("a worker ran twice")
			}
			wiggle.HandleEffect(w, "a", effect)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			defer func() {
				if recover() == nil {
					t.Error("no panic")
				}
			}()
			do(newWorker(t, newFake(), wiggle.WorkerOptions{}))
		})
	}
}
