package sweep_test

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/oklog/ulid/v2"
	"go.opentelemetry.io/otel/metric/noop"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/wiggle-run/wiggle/pkg/clock"
	"github.com/wiggle-run/wiggle/proto/definition"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	"github.com/wiggle-run/wiggle/services/instances/internal/dispatch"
	"github.com/wiggle-run/wiggle/services/instances/internal/machine"
	"github.com/wiggle-run/wiggle/services/instances/internal/store"
	"github.com/wiggle-run/wiggle/services/instances/internal/store/memstore"
	"github.com/wiggle-run/wiggle/services/instances/internal/sweep"
)

// nap sleeps an hour before its one task, which has two attempts.
func nap() *wigglev1.Definition {
	return &wigglev1.Definition{Name: "nap", Version: 1, Start: "sleep", Nodes: map[string]*wigglev1.Node{
		"sleep": {Kind: &wigglev1.Node_Sleep{Sleep: &wigglev1.SleepNode{
			Until: &wigglev1.SleepNode_Duration{Duration: durationpb.New(time.Hour)}, Next: "task",
		}}},
		"task": {Kind: &wigglev1.Node_Task{Task: &wigglev1.TaskNode{Next: "end", Step: &wigglev1.Step{
			Retry: &wigglev1.RetryPolicy{MaxAttempts: 2, InitialBackoff: durationpb.New(time.Minute)},
		}}}},
		"end": {Kind: &wigglev1.Node_End{End: &wigglev1.EndNode{}}},
	}}
}

// process is one process that sweeps a shard.
type process struct {
	*dispatch.Shard
	stop func()
}

// counted counts ticks, makes looks take a while, and loses answers.
type counted struct {
	store.Store
	takes time.Duration
	lost  bool

	mu    sync.Mutex
	ticks int
	looks time.Duration // all of them together
}

func (c *counted) Tick(ctx context.Context, holder string, term time.Duration, look bool) (store.Tick, error) {
	c.mu.Lock()
	c.ticks++
	takes, lost := c.takes, c.lost
	if look {
		c.looks += takes
	}
	c.mu.Unlock()
	if look && takes > 0 {
		<-time.After(takes) // by the time of the bubble
	}
	tick, err := c.Store.Tick(ctx, holder, term, look)
	if lost && err == nil {
		err = errors.New("the answer is lost")
	}
	return tick, err
}

// inBubble gives a test a shard in memory that goes by the bubble's time.
func inBubble(t *testing.T, test func(t *testing.T, st *counted, start func(name string) *process)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		st := &counted{Store: memstore.New(time.Now)}
		def := nap()
		if _, _, err := st.Register(t.Context(), "default", "nap", func([]store.Definition) (store.Definition, error) {
			return store.Definition{Namespace: "default", Workflow: "nap", Version: 1, Fingerprint: definition.Fingerprint(def), Graph: def}, nil
		}); err != nil {
			t.Fatal(err)
		}
		test(t, st, func(name string) *process { return startProcess(t, st, name) })
	})
}

func startProcess(t *testing.T, st store.Store, name string) *process {
	t.Helper()
	metrics, err := dispatch.NewMetrics(noop.Meter{})
	if err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.DiscardHandler)
	p := &process{Shard: dispatch.New(0, st, clock.Real{}, dispatch.DefaultConfig(), metrics, log)}
	s := sweep.New(p.Shard, clock.Real{}, name, log)
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = p.Run(ctx) })
	running.Go(func() { _ = s.Run(ctx) })
	p.stop = sync.OnceFunc(func() { cancel(); running.Wait() })
	t.Cleanup(p.stop)
	return p
}

func begin(t *testing.T, p *process) machine.ID {
	t.Helper()
	id := machine.ID(ulid.Make())
	if s := p.Start([]dispatch.StartItem{{Workflow: "nap", Event: machine.Start{ID: id, Namespace: "default"}}})[0]; s.Err != nil {
		t.Fatal(s.Err)
	}
	return id
}

func claim(p *process, wait time.Duration) []store.Claimed {
	c, err := p.Claim(context.Background(), store.Claim{
		Namespace: "default", Queues: []string{"default"}, Worker: "w", Lease: 30 * time.Second, Max: 10,
	}, wait)
	if err != nil {
		panic(err)
	}
	return c
}

// TestTimersAreExact: a timer that this process set is woken at its time, not at
// the next tick (ENG-18).
func TestTimersAreExact(t *testing.T) {
	inBubble(t, func(t *testing.T, _ *counted, start func(string) *process) {
		p := start("one")
		begun := time.Now()
		begin(t, p)
		if c := claim(p, 2*time.Hour); len(c) != 1 {
			t.Fatalf("claimed %d tasks", len(c))
		}
		if late := time.Since(begun) - time.Hour; late < 0 || late > 10*time.Millisecond {
			t.Fatalf("the timer fired %s late", late)
		}
	})
}

// TestTimersOfADeadProcess: what no process remembers the sweep finds (ENG-19).
func TestTimersOfADeadProcess(t *testing.T) {
	inBubble(t, func(t *testing.T, _ *counted, start func(string) *process) {
		first := start("one")
		begin(t, first)
		<-time.After(time.Minute) // by the time of the bubble
		first.stop()
		second := start("two")
		begun := time.Now()
		if c := claim(second, 2*time.Hour); len(c) != 1 {
			t.Fatalf("claimed %d tasks", len(c))
		}
		if late := time.Since(begun) - 59*time.Minute; late < -time.Second || late > 20*time.Millisecond {
			t.Fatalf("the timer fired %s late", late)
		}
	})
}

// TestWhoGainsTheLeaseLooks: however long looks take, and however late the next one would be, who gets the sweep lease looks for
// timers that the holder before had in memory (ENG-19).
func TestWhoGainsTheLeaseLooks(t *testing.T) {
	inBubble(t, func(t *testing.T, st *counted, start func(string) *process) {
		st.takes = 20 * time.Minute
		first := start("one")
		<-time.After(time.Minute) // by the time of the bubble, as all below
		second := start("two")
		<-time.After(time.Hour) // both have looked, and will look again in more than half a day
		begin(t, first)
		begun := time.Now()
		<-time.After(10 * time.Minute)
		first.stop()
		if c := claim(second, 2*time.Hour); len(c) != 1 {
			t.Fatalf("claimed %d tasks", len(c))
		}
		if late := time.Since(begun) - time.Hour; late < -time.Second || late > 20*time.Millisecond {
			t.Fatalf("the timer fired %s late", late)
		}
	})
}

// TestSweepLeaseIsLeft: a process that stops leaves the lease to others, who need
// not wait for its term to end.
func TestSweepLeaseIsLeft(t *testing.T) {
	inBubble(t, func(t *testing.T, st *counted, start func(string) *process) {
		first := start("one")
		synctest.Wait()
		if tick, err := st.Tick(t.Context(), "two", sweep.Term, true); err != nil || tick.Holder {
			t.Fatalf("while the first process sweeps: %+v, %v", tick, err)
		}
		first.stop()
		if tick, err := st.Tick(t.Context(), "two", sweep.Term, true); err != nil || !tick.Holder {
			t.Fatalf("after it has stopped: %+v, %v", tick, err)
		}
	})
}

// TestUnknownSweepLeaseIsLeft: a process that does not know that it has got the lease, as the answer was lost, leaves it too.
func TestUnknownSweepLeaseIsLeft(t *testing.T) {
	inBubble(t, func(t *testing.T, st *counted, start func(string) *process) {
		st.lost = true
		first := start("one")
		synctest.Wait()
		if tick, err := st.Store.Tick(t.Context(), "two", sweep.Term, true); err != nil || tick.Holder {
			t.Fatalf("while the first process runs: %+v, %v", tick, err)
		}
		first.stop()
		if tick, err := st.Store.Tick(t.Context(), "two", sweep.Term, true); err != nil || !tick.Holder {
			t.Fatalf("after it has stopped: %+v, %v", tick, err)
		}
	})
}

// TestLeasesRunOut: an expired lease spends an attempt and the step comes back
// after its backoff (ENG-14).
func TestLeasesRunOut(t *testing.T) {
	inBubble(t, func(t *testing.T, st *counted, start func(string) *process) {
		p := start("one")
		id := begin(t, p)
		claim(p, 2*time.Hour)
		leased := time.Now()
		again := claim(p, time.Hour)
		if len(again) != 1 || again[0].Token.Attempt != 2 || again[0].Token.Failure.GetType() != machine.FailureLeaseExpired {
			t.Fatalf("after the lease ran out: %+v", again)
		}
		// 30 s of lease, then a minute of backoff with a jitter of a fifth.
		if after := time.Since(leased); after < 78*time.Second || after > 103*time.Second {
			t.Fatalf("the second attempt came after %s", after)
		}
		if in, err := p.WaitEnd(t.Context(), id); err != nil || in.State != machine.Failed {
			t.Fatalf("after the second lease ran out: %+v, %v", in, err)
		}
		if view, err := st.Instance(t.Context(), id, 10); err != nil || view.Active != 0 || string(view.Instance.Context.Data) != "null" {
			t.Fatalf("a failed instance keeps its context and no token: %+v, %v", view, err)
		}
	})
}

// TestIdleCostsOneTickInTwoSeconds: an idle shard sees at most one statement a
// second (WRK-13).
func TestIdleCostsOneTickInTwoSeconds(t *testing.T) {
	inBubble(t, func(_ *testing.T, st *counted, start func(string) *process) {
		p := start("one")
		go claim(p, time.Hour)
		<-time.After(10 * time.Minute) // by the time of the bubble
		st.mu.Lock()
		defer st.mu.Unlock()
		if st.ticks > 600 {
			panic("more than one tick a second")
		}
		p.Drain()
	})
}

// TestLooksAreBounded: looks that take long, as there are many leases, or much that is not vacuumed, take no more than a
// fiftieth of the time. The sweep lease is renewed all the same, and leases that ran out are found (WRK-17).
func TestLooksAreBounded(t *testing.T) {
	inBubble(t, func(t *testing.T, st *counted, start func(string) *process) {
		p := start("one")
		begin(t, p)
		claim(p, 2*time.Hour)
		st.mu.Lock()
		st.takes = 200 * time.Millisecond
		st.mu.Unlock()
		leased := time.Now()
		for time.Since(leased) < 25*time.Second {
			if tick, err := st.Store.Tick(t.Context(), "two", sweep.Term, false); err != nil || tick.Holder {
				t.Fatalf("the sweep lease is lost after %v: %v", time.Since(leased), err)
			}
			<-time.After(time.Second)
		}
		// 30 s of lease, a minute of backoff with a jitter of a fifth, and ten seconds between looks.
		if again := claim(p, time.Hour); len(again) != 1 || again[0].Token.Attempt != 2 {
			t.Fatalf("after the lease ran out: %+v", again)
		}
		if after := time.Since(leased); after > 116*time.Second {
			t.Errorf("the second attempt came after %s", after)
		}
		st.mu.Lock()
		defer st.mu.Unlock()
		if all := time.Since(leased); st.looks > all/40 {
			t.Errorf("looks took %v of %v", st.looks, all)
		}
	})
}

// TestWaitSeesAnEndMadeElsewhere: another process ends the instance.
func TestWaitSeesAnEndMadeElsewhere(t *testing.T) {
	inBubble(t, func(t *testing.T, _ *counted, start func(string) *process) {
		here, there := start("one"), start("two")
		id := begin(t, here)
		ended := make(chan *machine.Instance, 1)
		go func() {
			in, _ := here.WaitEnd(context.Background(), id)
			ended <- in
		}()
		synctest.Wait()
		if state, err := there.Cancel(t.Context(), id, "elsewhere"); err != nil || state != machine.Cancelled {
			t.Fatal(state, err)
		}
		begun := time.Now()
		if in := <-ended; in.State != machine.Cancelled || time.Since(begun) > 3*time.Second {
			t.Fatalf("saw %s after %s", in.State, time.Since(begun))
		}
	})
}
