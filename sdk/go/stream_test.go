package wiggle_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"connectrpc.com/connect"

	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	wiggle "github.com/wiggle-run/wiggle/sdk/go"
)

const effect = wigglev1.TaskKind_TASK_KIND_EFFECT

// handleSleep has steps named work sleep for as many milliseconds as their context
// says.
func handleSleep(w *wiggle.Worker) {
	wiggle.HandleEffect(w, "work", func(ctx context.Context, ms int) error {
		select {
		case <-time.After(time.Duration(ms) * time.Millisecond):
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	})
}

func work(id string, d time.Duration) *wigglev1.Task {
	return &wigglev1.Task{Id: id, Step: "work", Kind: effect, Context: data(fmt.Sprint(d.Milliseconds()))}
}

// TestCreditComesWithTheReport checks that the message with a report has the credit
// for the step that follows, which so may be leased by the transaction of the report.
func TestCreditComesWithTheReport(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		w := newWorker(t, f, wiggle.WorkerOptions{Concurrency: 4})
		handleSleep(w)
		stop := start(t, w)
		for i := range 20 {
			f.push(work(fmt.Sprint(i), 10*time.Millisecond))
			f.pass(20 * time.Millisecond)
		}
		for i, m := range f.messages {
			if want := len(m.GetReports()); i > 0 && (want == 0 || int(m.GetCredits()) != want) {
				t.Errorf("message %d: %v", i, m)
			}
		}
		if len(f.messages) != 21 || f.messages[20].GetReceived() != 20 {
			t.Errorf("%d messages, the last %v", len(f.messages), f.messages[20])
		}
		stop()
	})
}

// TestReceiptIsConfirmed checks that the server is told within a second which tasks
// came, also by a worker that has nothing else to say.
func TestReceiptIsConfirmed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		w := newWorker(t, f, wiggle.WorkerOptions{})
		handleSleep(w)
		stop := start(t, w)
		f.push(work("1", time.Minute), work("2", time.Minute))
		f.pass(time.Second)
		if n := len(f.messages); n != 2 || f.messages[1].GetReceived() != 2 {
			t.Errorf("messages %v", f.messages)
		}
		f.pass(5 * time.Second)
		if n := len(f.messages); n != 2 {
			t.Errorf("it is told again: %v", f.messages[2:])
		}
		f.pass(time.Minute)
		stop()
	})
}

// TestTaskSentTwice checks that a task that the server sends again is run once.
func TestTaskSentTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		w := newWorker(t, f, wiggle.WorkerOptions{})
		handleSleep(w)
		stop := start(t, w)
		f.push(work("1", time.Second))
		synctest.Wait()
		for st := range f.streams {
			for _, sent := range f.sent {
				if err := st.send(&wigglev1.WorkResponse{Tasks: []*wigglev1.Task{sent.task}}); err != nil {
					t.Fatal(err)
				}
			}
		}
		f.pass(5 * time.Second)
		if len(f.reports) != 1 || len(f.batches) != 1 || f.messages[len(f.messages)-1].GetReceived() != 2 {
			t.Errorf("reports %v, messages %v", f.batches, f.messages)
		}
		stop()
	})
}

// TestBreakWithUnansweredReports cuts the connection when a report has been applied
// and before it is answered: it is sent again, and the hello holds the task (WRK-5).
func TestBreakWithUnansweredReports(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		w := newWorker(t, f, wiggle.WorkerOptions{Concurrency: 8})
		handleSleep(w)
		cuts := 0
		f.onReport = func(*wigglev1.StepReport) *wigglev1.Fault {
			// The first of the eight that take two seconds: the others may come with it or later, and none was answered.
			if cuts++; cuts == 2 {
				f.network.cut()
			}
			return nil
		}
		stop := start(t, w)
		for i := range 8 {
			f.push(work(fmt.Sprint(i), 2*time.Second))
		}
		f.push(work("more", 0))
		f.pass(10 * time.Second)
		if len(f.reports) != 9 || len(f.fails)+len(f.released) != 0 || len(f.hellos) != 2 {
			t.Errorf("%d reports, failures %v, released %v, %d streams", len(f.reports), f.fails, f.released, len(f.hellos))
		}
		if held := f.hellos[1].GetHeld(); len(held) != 8 {
			t.Errorf("the second stream holds %v", held)
		}
		if took := stop(); took > 0 {
			t.Errorf("took %s to stop", took)
		}
	})
}

// TestHandlersOutlastAStream checks that tasks go on while no server is there, and
// that their leases are kept over the next stream.
func TestHandlersOutlastAStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		w := newWorker(t, f, wiggle.WorkerOptions{})
		handleSleep(w)
		stop := start(t, w)
		f.push(work("1", 75*time.Second))
		f.pass(8 * time.Second)
		for range 3 {
			f.fail(errDown)
			f.pass(5 * time.Second)
			f.fail(nil)
			f.pass(15 * time.Second)
		}
		f.pass(20 * time.Second)
		if len(f.reports) != 1 || len(f.beats) < 4 || len(f.hellos) != 4 {
			t.Errorf("reports %v, %d beats, %d streams", f.reports, len(f.beats), len(f.hellos))
		}
		for _, h := range f.hellos[1:] {
			if len(h.GetHeld()) != 1 {
				t.Errorf("hello %v", h)
			}
		}
		stop()
	})
}

// TestDraining checks that a worker whose server goes away goes on over another
// stream, on another connection, and ends the first when it is answered.
func TestDraining(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		n := newNetwork()
		n.serve(t, f.handler())
		w := wiggle.NewWorker(dial(t, wiggle.WithHTTPClient(wiggle.StreamClient(n.DialContext))),
			wiggle.WorkerOptions{Name: "w1", SkipCheck: true, Concurrency: 4})
		handleSleep(w)
		stop := start(t, w)
		f.push(work("1", 3*time.Second), work("2", time.Minute))
		f.pass(2 * time.Second)
		if err := f.drain(); err != nil {
			t.Fatal(err)
		}
		f.pass(500 * time.Millisecond)
		if len(f.hellos) != 2 || len(f.hellos[1].GetHeld()) != 2 || len(f.streams) != 1 || n.dials() != 2 {
			t.Errorf("hellos %v, %d streams, %d connections", f.hellos, len(f.streams), n.dials())
		}
		f.push(work("3", 0), work("4", 0), work("5", 0))
		f.pass(2 * time.Minute)
		if len(f.reports) != 5 || len(f.fails) != 0 || len(f.beats) == 0 || len(f.hellos) != 2 {
			t.Errorf("%d reports, failures %v, %d beats, %d streams", len(f.reports), f.fails, len(f.beats), len(f.hellos))
		}
		stop()
	})
}

// TestStopRevokes checks that a worker that stops takes its credits back first, hands
// back what does not end in time, and ends its stream.
func TestStopRevokes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		w := newWorker(t, f, wiggle.WorkerOptions{Concurrency: 5, Grace: 3 * time.Second})
		handleSleep(w)
		stop := start(t, w)
		f.push(work("1", 2*time.Second), work("2", time.Hour))
		f.pass(10 * time.Millisecond)
		begin := len(f.messages)
		took := stop()
		f.push(work("3", 0))
		synctest.Wait()
		if f.messages[begin].GetRevoke() != 3 || took > 5*time.Second {
			t.Errorf("took %s, messages %v", took, f.messages[begin:])
		}
		for _, m := range f.messages[begin:] {
			if m.GetCredits() > 0 {
				t.Errorf("a worker that stops grants credits: %v", m)
			}
		}
		if len(f.reports) != 1 || len(f.released) != 1 || f.released[0].GetTaskId() != "2" || len(f.queue) != 1 || len(f.streams) != 0 {
			t.Errorf("reports %v, released %v, waiting %v, %d streams", f.reports, f.released, f.queue, len(f.streams))
		}
	})
}

// TestStopWithoutAServer checks that a worker whose stream is broken stops in time,
// and says what it could not hand back.
func TestStopWithoutAServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		log := &syncBuffer{}
		w := newWorker(t, f, wiggle.WorkerOptions{Grace: time.Second, Logger: slog.New(slog.NewTextHandler(log, nil))})
		handleSleep(w)
		stop := start(t, w)
		f.push(work("1", time.Hour))
		f.pass(2 * time.Second)
		f.fail(errDown)
		if took := stop(); took > 5*time.Second {
			t.Errorf("took %s", took)
		}
		if !strings.Contains(log.String(), "could not be handed back") {
			t.Errorf("log:\n%s", log)
		}
	})
}

// TestDeadServer checks that a connection over which nothing comes is found out and
// replaced, well within a lease.
func TestDeadServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		n := newNetwork()
		n.serve(t, f.handler())
		w := wiggle.NewWorker(dial(t, wiggle.WithHTTPClient(wiggle.StreamClient(n.DialContext))),
			wiggle.WorkerOptions{Name: "w1", SkipCheck: true})
		handleSleep(w)
		stop := start(t, w)
		f.push(work("1", 50*time.Second))
		f.pass(5 * time.Second)
		n.lose(true)
		f.pass(16 * time.Second)
		n.lose(false)
		f.pass(time.Minute)
		if len(f.reports) != 1 || len(f.hellos) != 2 {
			t.Errorf("reports %v, %d streams", f.reports, len(f.hellos))
		}
		stop()
	})
}

// TestSilentServer checks that a server that takes messages and does not answer is
// left.
func TestSilentServer(t *testing.T) {
	hang := func(ctx context.Context) error {
		<-ctx.Done()
		return ctx.Err()
	}
	for name, silent := range map[string]func(*fake){
		"reports": func(f *fake) {
			f.beforeBatch = func(ctx context.Context, _ *wigglev1.ReportStepsRequest) error {
				if f.asked() > 1 {
					return nil
				}
				return hang(ctx)
			}
		},
		"hello": func(f *fake) {
			f.onMessage = func(ctx context.Context, _ *wigglev1.WorkRequest) error {
				if f.asked() > 1 {
					return nil
				}
				return hang(ctx)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFake()
				silent(f)
				w := newWorker(t, f, wiggle.WorkerOptions{})
				handleSleep(w)
				stop := start(t, w)
				f.push(work("1", 0))
				f.pass(25 * time.Second)
				if len(f.reports) != 1 || len(f.hellos) != 2 {
					t.Errorf("reports %v, %d streams", f.reports, len(f.hellos))
				}
				stop()
			})
		})
	}
}

// TestNoStream checks that a worker whose server or proxy takes no stream says so,
// and what to do, and does not fall back by itself.
func TestNoStream(t *testing.T) {
	t.Parallel()
	unimplemented := http.NotFoundHandler()
	status := func(code int) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(code) })
	}
	for name, server := range map[string]struct {
		http2   bool
		handler http.Handler
	}{
		"unknown call":        {true, unimplemented},
		"HTTP/1.1 alone":      {false, newFake().handler()},
		"version refused":     {true, status(http.StatusHTTPVersionNotSupported)},
		"content refused":     {true, status(http.StatusUnsupportedMediaType)},
		"proxy with HTTP/1.1": {true, proxy()},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			srv := httptest.NewUnstartedServer(server.handler)
			srv.Config.Protocols = new(http.Protocols)
			srv.Config.Protocols.SetHTTP1(true)
			srv.Config.Protocols.SetUnencryptedHTTP2(server.http2)
			srv.Start()
			defer srv.Close()
			c, err := wiggle.Dial(srv.URL)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			log := newLogWatch("WorkerOptions.Unary")
			w := wiggle.NewWorker(c, wiggle.WorkerOptions{SkipCheck: true, Logger: slog.New(slog.NewTextHandler(log, nil))})
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			done := make(chan error, 1)
			go func() { done <- w.Run(ctx) }()
			select {
			case <-log.seen:
			case <-ctx.Done():
				t.Errorf("it does not say what to do:\n%s", log)
			}
			cancel()
			if err := <-done; err != nil {
				t.Error(err)
			}
		})
	}
}

// proxy answers as one whose way to the server is HTTP/1.1.
func proxy() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/connect+proto")
		w.WriteHeader(http.StatusHTTPVersionNotSupported)
	})
}

// logWatch is a log that tells when a word is in it.
type logWatch struct {
	syncBuffer
	word string
	seen chan struct{}
	told atomic.Bool
}

func newLogWatch(word string) *logWatch { return &logWatch{word: word, seen: make(chan struct{})} }

func (l *logWatch) Write(p []byte) (int, error) {
	n, err := l.syncBuffer.Write(p)
	if strings.Contains(string(p), l.word) && l.told.CompareAndSwap(false, true) {
		close(l.seen)
	}
	return n, err
}

// TestStreamProtocols runs a step over a real socket with each protocol, by the
// client's own connections.
func TestStreamProtocols(t *testing.T) {
	t.Parallel()
	for name, opts := range map[string][]wiggle.ClientOption{"connect": nil, "grpc": {wiggle.WithGRPC()}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFake()
			reported := make(chan struct{})
			f.onReport = func(*wigglev1.StepReport) *wigglev1.Fault { close(reported); return nil }
			srv := httptest.NewUnstartedServer(f.handler())
			srv.Config.Protocols = new(http.Protocols)
			srv.Config.Protocols.SetHTTP1(true)
			srv.Config.Protocols.SetUnencryptedHTTP2(true)
			srv.Start()
			defer srv.Close()
			c, err := wiggle.Dial(srv.URL, opts...)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			w := wiggle.NewWorker(c, wiggle.WorkerOptions{SkipCheck: true})
			handleSleep(w)
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error, 1)
			go func() { done <- w.Run(ctx) }()
			f.push(work("1", 0))
			<-reported
			cancel()
			if err := <-done; err != nil {
				t.Error(err)
			}
		})
	}
}

// TestCreditsStayWithinCapacity runs tasks over a server that breaks, drains, fails
// and refuses at random: what a worker has in hand and what it was granted credits
// for is never more than it has room for, and nothing is lost.
func TestCreditsStayWithinCapacity(t *testing.T) {
	for seed := range uint64(20) {
		t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { creditsStayWithinCapacity(t, rand.New(rand.NewPCG(seed, 1))) })
		})
	}
}

func creditsStayWithinCapacity(t *testing.T, random *rand.Rand) {
	const concurrency, tasks = 5, 300
	f := newFake()
	roll := func(n int) (rolled int) {
		f.locked(func() { rolled = random.IntN(n) })
		return rolled
	}
	w := newWorker(t, f, wiggle.WorkerOptions{Concurrency: concurrency, Grace: time.Minute})
	ended := map[string]int{} // handlers, by task
	wiggle.HandleEffect(w, "work", func(ctx context.Context, ms int) error {
		id := wiggle.TaskFrom(ctx).ID
		time.Sleep(time.Duration(ms) * time.Millisecond)
		f.locked(func() { ended[id]++ })
		if ms%17 == 3 {
			return errors.New("odd")
		}
		return nil
	})
	f.onMessage = func(_ context.Context, m *wigglev1.WorkRequest) error {
		f.locked(func() {
			running, credits := 0, int(m.GetCredits())
			for _, sent := range f.sent {
				if ended[sent.task.GetId()] == 0 {
					running++
				}
			}
			for st := range f.streams {
				credits += st.credits
			}
			if running+credits > concurrency || len(f.sent)+credits > 2*concurrency {
				t.Errorf("%d tasks run, %d are in hand, %d credits", running, len(f.sent), credits)
			}
		})
		return nil
	}
	f.onReport = func(*wigglev1.StepReport) *wigglev1.Fault {
		switch roll(20) {
		case 0:
			return &wigglev1.Fault{Code: int32(connect.CodeUnavailable), Kind: &wigglev1.Fault_ShardUnavailable{}}
		case 1:
			return &wigglev1.Fault{Code: int32(connect.CodeInternal), Message: "internal"}
		}
		return nil
	}
	stop := start(t, w)
	for i := range tasks {
		f.push(work(fmt.Sprint(i), time.Duration(roll(50))*time.Millisecond))
		f.pass(time.Duration(roll(20)) * time.Millisecond)
		switch roll(60) {
		case 0:
			f.network.cut()
		case 1:
			if err := f.drain(); err != nil {
				t.Error(err)
			}
		case 2:
			f.fail(errDown)
			f.pass(time.Duration(roll(500)) * time.Millisecond)
			f.fail(nil)
		}
	}
	f.pass(2 * time.Minute)
	for id, n := range ended {
		if n != 1 {
			t.Errorf("task %s ran %d times", id, n)
		}
	}
	if n := len(f.reports) + len(f.fails); n != tasks || len(f.sent) != 0 || len(f.queue) != 0 {
		t.Errorf("%d of %d tasks are settled, %d are out, %d wait", n, tasks, len(f.sent), len(f.queue))
	}
	stop()
}

func dial(t *testing.T, opts ...wiggle.ClientOption) *wiggle.Client {
	t.Helper()
	c, err := wiggle.Dial("http://fake", append([]wiggle.ClientOption{wiggle.WithLogger(slog.New(slog.DiscardHandler))}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	return c
}
