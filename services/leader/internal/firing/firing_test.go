package firing_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/oklog/ulid/v2"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/wiggle-run/wiggle/pkg/faults"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	"github.com/wiggle-run/wiggle/services/leader/internal/election"
	"github.com/wiggle-run/wiggle/services/leader/internal/schedule"
)

func ulidTime(t *testing.T, text string) time.Time {
	t.Helper()
	u, err := ulid.ParseStrict(strings.ToUpper(text))
	if err != nil {
		t.Fatal(err)
	}
	return ulid.Time(u.Time())
}

// minutely is due each minute.
func minutely(id string, overlap wigglev1.OverlapPolicy) *wigglev1.Schedule {
	return &wigglev1.Schedule{
		Id: id, Namespace: "default", Workflow: "w", Overlap: overlap, CatchUp: durationpb.New(10 * time.Minute),
		When: &wigglev1.Schedule_Interval{Interval: &wigglev1.IntervalTimes{Every: durationpb.New(time.Minute)}},
	}
}

const (
	skip   = wigglev1.OverlapPolicy_OVERLAP_POLICY_SKIP
	queue  = wigglev1.OverlapPolicy_OVERLAP_POLICY_QUEUE_ONE
	allow  = wigglev1.OverlapPolicy_OVERLAP_POLICY_ALLOW
	cancel = wigglev1.OverlapPolicy_OVERLAP_POLICY_CANCEL_RUNNING
)

// TestFires: a schedule starts what it says at its due time, and not before (EVT-8).
func TestFires(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	p := minutely("s", allow)
	priority := int32(7)
	p.Version, p.Input, p.Priority = 3, &wigglev1.Payload{Data: []byte(`{"a":1}`)}, &priority
	s.put(p)
	l := s.leader(1, nil)
	s.at(59 * time.Second)
	if more, wait, err := l.Pass(t.Context(), 1); more || wait != time.Second || err != nil {
		t.Fatalf("a second before: more %t, wait %v, %v", more, wait, err)
	}
	s.at(61 * time.Second)
	l.settle()
	due := noon.Add(time.Minute)
	id := schedule.ULID("default", "s", due)
	got := s.router.requests[id]
	if got.GetWorkflow() != "w" || got.GetVersion() != 3 || got.GetPriority() != 7 || string(got.GetInput().GetData()) != `{"a":1}` ||
		got.GetNamespace() != "default" {
		t.Errorf("started %v", got)
	}
	s.counts("s", 1, 0, 0)
	st := s.status("s")
	if !st.GetLastAt().AsTime().Equal(due) || st.GetLastInstanceId() != "wfi.s0."+id || !st.GetNextAt().AsTime().Equal(due.Add(time.Minute)) {
		t.Errorf("status %v", st)
	}
}

// TestOverlap: what a due time does while the instance before still runs (EVT-8).
func TestOverlap(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		policy wigglev1.OverlapPolicy
		// After four due times, the first instance running; and after its end and one more due time.
		first, then               string
		fired, skipped, cancelled int
	}{
		"unspecified":    {0, "1m0s", "1m0s 5m0s", 2, 3, 0},
		"skip":           {skip, "1m0s", "1m0s 5m0s", 2, 3, 0},
		"queue one":      {queue, "1m0s", "1m0s 2m0s", 2, 2, 0},
		"allow":          {allow, "1m0s 2m0s 3m0s 4m0s", "1m0s 2m0s 3m0s 4m0s 5m0s", 5, 0, 0},
		"cancel running": {cancel, "1m0s 2m0s 3m0s 4m0s", "1m0s 2m0s 3m0s 4m0s 5m0s", 5, 0, 3},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newScene(t)
			s.put(minutely("s", c.policy))
			l := s.leader(1, nil)
			for minute := 1; minute <= 4; minute++ {
				s.at(time.Duration(minute) * time.Minute)
				l.settle()
			}
			if got := s.router.startedAt(t); got != c.first {
				t.Errorf("started %s, want %s", got, c.first)
			}
			if queued := s.status("s").GetQueuedAt(); (queued != nil) != (c.policy == queue) {
				t.Errorf("queued: %v", queued)
			}
			s.router.end()
			s.at(5 * time.Minute)
			l.settle()
			if got := s.router.startedAt(t); got != c.then {
				t.Errorf("then started %s, want %s", got, c.then)
			}
			st := s.status("s")
			if int(st.GetFired()) != c.fired || int(st.GetSkipped()) != c.skipped || len(s.router.cancelled) != c.cancelled {
				t.Errorf("%v, cancelled %v", st, s.router.cancelled)
			}
		})
	}
}

// TestQueueOne: the queued due time is started soon after the instance has ended, and the due time that came at the same moment is
// queued behind it.
func TestQueueOne(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	s.put(minutely("s", queue))
	l := s.leader(1, nil)
	for _, at := range []time.Duration{time.Minute, 2 * time.Minute} {
		s.at(at)
		l.settle()
	}
	s.at(2*time.Minute + 3*time.Second)
	l.settle()
	if got := s.router.startedAt(t); got != "1m0s" {
		t.Fatalf("started %s while the first runs", got)
	}
	s.router.end()
	s.at(2*time.Minute + 6*time.Second)
	l.settle()
	if got := s.router.startedAt(t); got != "1m0s 2m0s" {
		t.Errorf("started %s after the end of the first", got)
	}
	s.at(3 * time.Minute)
	l.settle()
	if queued := s.status("s").GetQueuedAt().AsTime(); !queued.Equal(noon.Add(3 * time.Minute)) {
		t.Errorf("%v is queued", queued)
	}
	s.counts("s", 2, 0, 0)
	// A pause gives up what is queued.
	if _, err := s.api.PauseSchedule(t.Context(), &wigglev1.PauseScheduleRequest{Id: "s", Paused: true}); err != nil {
		t.Fatal(err)
	}
	s.router.end()
	s.at(9 * time.Minute)
	l.settle()
	s.counts("s", 2, 1, 0)
}

// TestCatchUp: with nobody to fire them, due times within the window are made up for, one after the other, and those before
// are missed (EVT-8).
func TestCatchUp(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	s.put(minutely("s", allow))
	s.put(minutely("skips", skip))
	s.at(time.Hour + 30*time.Second)
	s.leader(1, nil).settle()
	s.counts("s", 10, 0, 50)
	s.counts("skips", 1, 9, 50)
}

// TestProblem: a due time that cannot be fired is tried again until its window is over; why is told meanwhile, and after.
func TestProblem(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	p := minutely("s", allow)
	p.When = &wigglev1.Schedule_Interval{Interval: &wigglev1.IntervalTimes{Every: durationpb.New(time.Hour)}}
	s.put(p)
	l := s.leader(1, nil)
	s.router.refuse = func(r *wigglev1.StartInstanceRequest) *faults.Error {
		return faults.NotFound("workflow", r.GetWorkflow())
	}
	tries := 0
	for at := time.Hour; at <= time.Hour+11*time.Minute; at += time.Second {
		s.at(at)
		calls := s.router.calls
		l.settle()
		tries += s.router.calls - calls
		if st := s.status("s"); !strings.Contains(st.GetProblem(), `workflow "w" does not exist`) {
			t.Fatalf("%v: %v", at, st)
		}
	}
	if tries < 10 || tries > 60 {
		t.Errorf("%d tries in ten minutes", tries)
	}
	s.counts("s", 0, 0, 1)
	s.at(2 * time.Hour)
	l.settle()
	s.router.refuse = nil
	s.at(2*time.Hour + 5*time.Second)
	l.settle()
	s.counts("s", 1, 0, 1)
	if st := s.status("s"); st.GetProblem() != "" || s.router.startedAt(t) != "2h0m0s" {
		t.Errorf("%v, started %s", st, s.router.startedAt(t))
	}
}

// TestQueuedProblem: a queued due time that cannot be started gives way when the next is due.
func TestQueuedProblem(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	s.put(minutely("s", queue))
	l := s.leader(1, nil)
	for _, at := range []time.Duration{time.Minute, 2 * time.Minute} {
		s.at(at)
		l.settle()
	}
	s.router.end()
	s.router.refuse = func(*wigglev1.StartInstanceRequest) *faults.Error { return faults.NotFound("workflow", "w") }
	s.at(2*time.Minute + 10*time.Second)
	l.settle()
	if st := s.status("s"); st.GetProblem() == "" || st.GetQueuedAt() == nil {
		t.Errorf("%v", st)
	}
	s.at(3 * time.Minute)
	l.settle()
	s.router.refuse = nil
	s.at(3*time.Minute + 10*time.Second)
	l.settle()
	s.counts("s", 2, 0, 1)
	if got := s.router.startedAt(t); got != "1m0s 3m0s" {
		t.Errorf("started %s", got)
	}
}

// TestUnknownState: nothing is decided while nobody can tell whether the instance before still runs.
func TestUnknownState(t *testing.T) {
	t.Parallel()
	for name, policy := range map[string]wigglev1.OverlapPolicy{"skip": skip, "cancel": cancel} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newScene(t)
			s.put(minutely("s", policy))
			l := s.leader(1, nil)
			s.at(time.Minute)
			l.settle()
			s.router.unknown = faults.ShardUnavailable(0, time.Second)
			s.at(2 * time.Minute)
			l.settle()
			s.counts("s", 1, 0, 0)
			if st := s.status("s"); !strings.Contains(st.GetProblem(), "shard 0 does not answer") {
				t.Errorf("%v", st)
			}
			s.router.unknown = nil
			s.router.end()
			s.at(2*time.Minute + 5*time.Second)
			l.settle()
			s.counts("s", 2, 0, 0)
			s.router.set(func() { clear(s.router.states) }) // and one that is gone has ended
			s.at(3 * time.Minute)
			l.settle()
			s.counts("s", 3, 0, 0)
		})
	}
}

// TestPause: nothing fires while a schedule is paused, and what was due meanwhile is not made up for.
func TestPause(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	s.put(minutely("s", allow))
	l := s.leader(1, nil)
	pause := func(paused bool) {
		t.Helper()
		if _, err := s.api.PauseSchedule(t.Context(), &wigglev1.PauseScheduleRequest{Id: "s", Paused: paused}); err != nil {
			t.Fatal(err)
		}
	}
	s.at(time.Minute)
	l.settle()
	pause(true)
	if st := s.status("s"); st.GetNextAt() != nil {
		t.Errorf("paused, and next is %v", st.GetNextAt())
	}
	s.at(5*time.Minute + time.Second)
	l.settle()
	pause(false)
	pause(false)
	l.settle()
	s.at(6 * time.Minute)
	l.settle()
	if got := s.router.startedAt(t); got != "1m0s 6m0s" {
		t.Errorf("started %s", got)
	}
	s.counts("s", 2, 0, 0)
}

// TestPutWhileFiring changes the schedule, in each way, between the moment that it was read as due and the moment that its firing
// is recorded. What was started counts, and the rest is as the change says.
func TestPutWhileFiring(t *testing.T) {
	t.Parallel()
	hourly := minutely("s", allow)
	hourly.When = &wigglev1.Schedule_Interval{Interval: &wigglev1.IntervalTimes{Every: durationpb.New(time.Hour)}}
	other := minutely("s", allow)
	other.Workflow = "another"
	paused := minutely("s", allow)
	paused.Paused = true
	for name, c := range map[string]struct {
		change func(s *scene)
		next   time.Duration // after noon, 0: none
	}{
		"other times":    {func(s *scene) { s.put(hourly) }, time.Hour},
		"other workflow": {func(s *scene) { s.put(other) }, 2 * time.Minute},
		"paused":         {func(s *scene) { s.put(paused) }, 0},
		"paused and resumed": {func(s *scene) {
			s.put(paused)
			s.put(minutely("s", allow))
		}, 2 * time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newScene(t)
			s.put(minutely("s", allow))
			changed := false
			store := &flaky{Store: s.store, beforeRecord: func() error {
				if !changed {
					changed = true
					c.change(s)
				}
				return nil
			}}
			s.at(time.Minute + time.Second)
			s.leader(1, store).settle()
			s.counts("s", 1, 0, 0)
			st := s.status("s")
			if got := s.router.startedAt(t); got != "1m0s" || !st.GetLastAt().AsTime().Equal(noon.Add(time.Minute)) {
				t.Errorf("started %s, %v", got, st)
			}
			if c.next == 0 && st.GetNextAt() != nil || c.next > 0 && !st.GetNextAt().AsTime().Equal(noon.Add(c.next)) {
				t.Errorf("next is %v, want %v", st.GetNextAt().AsTime(), c.next)
			}
		})
	}
	t.Run("deleted", func(t *testing.T) {
		t.Parallel()
		s := newScene(t)
		s.put(minutely("s", allow))
		store := &flaky{Store: s.store, beforeRecord: func() error {
			_, err := s.api.DeleteSchedule(t.Context(), &wigglev1.DeleteScheduleRequest{Id: "s"})
			return err
		}}
		s.at(time.Minute)
		s.leader(1, store).settle()
		if _, err := s.api.GetSchedule(t.Context(), &wigglev1.GetScheduleRequest{Id: "s"}); !errors.Is(err, faults.ErrNotFound) {
			t.Errorf("a schedule that was deleted is %v", err)
		}
	})
}

// TestCrash: a leader is cut off at every point of a pass, and another takes over. Each due time is fired once, also when the first
// wakes up again (EVT-8).
func TestCrash(t *testing.T) {
	t.Parallel()
	fail := func() error { return errCut }
	for name, cut := range map[string]func(s *scene, f *flaky){
		"before it reads":    func(_ *scene, f *flaky) { f.beforeDue = fail },
		"before the start":   func(s *scene, _ *flaky) { s.router.before = failStart },
		"after the start":    func(s *scene, _ *flaky) { s.router.after = failStart },
		"before the record":  func(_ *scene, f *flaky) { f.beforeRecord = fail },
		"after the record":   func(_ *scene, f *flaky) { f.afterRecord = fail },
		"at a later instant": func(*scene, *flaky) {},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newScene(t)
			policies := []wigglev1.OverlapPolicy{skip, queue, allow, cancel}
			for i, policy := range policies {
				s.put(minutely(fmt.Sprint("s", i), policy))
			}
			store := &flaky{Store: s.store}
			first := s.leader(1, store)
			for minute := 1; minute <= 3; minute++ {
				s.router.end()
				s.at(time.Duration(minute) * time.Minute)
				term := int64(minute)
				cut(s, store)
				_, _, _ = first.Pass(t.Context(), term)
				*store = flaky{Store: s.store}
				s.router.set(func() { s.router.before, s.router.after = nil, nil })
				s.at(time.Duration(minute)*time.Minute + 2*time.Second)
				second := s.leader(term+1, nil)
				second.settle()
				if _, _, err := first.Pass(t.Context(), term); fencedBy(err) != term+1 && err != nil {
					t.Errorf("the first wakes up: %v", err)
				}
				second.settle()
			}
			for i := range policies {
				s.counts(fmt.Sprint("s", i), 3, 0, 0)
			}
			if got := len(s.router.order); got != 3*len(policies) {
				t.Errorf("%d instances: %s", got, s.router.startedAt(t))
			}
		})
	}
}

func failStart(*wigglev1.StartInstancesRequest) error {
	return faults.Unavailable(time.Second, "cut off")
}

func fencedBy(err error) int64 {
	if fenced, ok := errors.AsType[*election.FencedError](err); ok {
		return fenced.Term
	}
	return 0
}

// TestReplaced: a leader that does not know that it was replaced starts what is due, which is the same start, and records nothing.
func TestReplaced(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	s.put(minutely("s", allow))
	old := s.leader(1, nil)
	next := s.leader(2, nil)
	s.at(time.Minute)
	if _, _, err := old.Pass(t.Context(), 1); fencedBy(err) != 2 {
		t.Fatalf("the leader that was replaced: %v", err)
	}
	s.counts("s", 0, 0, 0)
	next.settle()
	s.counts("s", 1, 0, 0)
	if got := s.router.startedAt(t); got != "1m0s" {
		t.Errorf("started %s", got)
	}
	if err := old.Run(t.Context(), 1); fencedBy(err) != 2 {
		t.Errorf("it runs on: %v", err)
	}
}

// TestTwoLeaders compete, each stopped at random points by turns, and a user changes schedules meanwhile. Each due time is fired once
// (EVT-8).
func TestTwoLeaders(t *testing.T) {
	t.Parallel()
	const schedules, minutes = 40, 6
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	s := newScene(t)
	for i := range schedules {
		s.put(minutely(fmt.Sprint("s", i), allow))
	}
	var mu sync.Mutex
	random := rand.New(rand.NewPCG(seed, 0))
	maybe := func() error {
		mu.Lock()
		defer mu.Unlock()
		if random.IntN(4) == 0 {
			return errCut
		}
		return nil
	}
	start := func(*wigglev1.StartInstancesRequest) error {
		if maybe() != nil {
			return faults.Unavailable(time.Second, "cut off")
		}
		return nil
	}
	s.router.before, s.router.after = start, start
	term := int64(0)
	for minute := 1; minute <= minutes; minute++ {
		for second := range 20 {
			s.at(time.Duration(minute)*time.Minute + time.Duration(second)*time.Second)
			a := s.leader(term+1, &flaky{Store: s.store, beforeRecord: maybe, afterRecord: maybe})
			b := s.leader(term+2, &flaky{Store: s.store, beforeRecord: maybe, afterRecord: maybe})
			term += 2
			var wg sync.WaitGroup
			for _, l := range []*leader{a, b} {
				wg.Go(func() { _, _, _ = l.Pass(t.Context(), l.term) })
			}
			wg.Go(func() {
				p := minutely(fmt.Sprint("s", second), allow)
				p.Version = int32(minute)
				_, _ = s.api.PutSchedule(t.Context(), &wigglev1.PutScheduleRequest{Schedule: p})
			})
			wg.Wait()
		}
		s.router.set(func() { s.router.before, s.router.after = nil, nil })
		s.at(time.Duration(minute)*time.Minute + 55*time.Second)
		term++
		s.leader(term, nil).settle()
		s.router.set(func() { s.router.before, s.router.after = start, start })
	}
	for i := range schedules {
		s.counts(fmt.Sprint("s", i), minutes, 0, 0)
	}
	if got := len(s.router.order); got != schedules*minutes {
		t.Errorf("%d instances, want %d", got, schedules*minutes)
	}
}
