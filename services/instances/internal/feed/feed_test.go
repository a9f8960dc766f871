package feed_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/wiggle-run/wiggle/pkg/eventcursor"
	"github.com/wiggle-run/wiggle/pkg/faults"
	"github.com/wiggle-run/wiggle/pkg/lifecycle"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	"github.com/wiggle-run/wiggle/services/instances/internal/feed"
	"github.com/wiggle-run/wiggle/services/instances/internal/store"
)

const (
	unspecified = wigglev1.EventStart_EVENT_START_UNSPECIFIED
	tail        = wigglev1.EventStart_EVENT_START_TAIL
	earliest    = wigglev1.EventStart_EVENT_START_EARLIEST
)

// Where a poll begins: behind what is acknowledged or read, else where the request says, else nowhere (EVT-5).
func TestWhereAPollBegins(t *testing.T) {
	t.Parallel()
	play(t, func(s *scene) {
		s.write("default", "w", "a", "b", "c")
		all := []string{"1 a", "2 b", "3 c"}
		s.expect("from the earliest", 3, all, from(earliest))
		s.expect("from the tail", 3, nil, from(tail))
		s.expect("from nowhere", -1, nil, from(unspecified))
		s.expect("behind a cursor", 3, all[1:], from(unspecified), after(1))
		s.expect("behind the end", 3, nil, after(77))

		s.expect("a consumer from nowhere", -1, nil, consumer("c"), from(unspecified))
		s.expect("a new consumer", 3, all, consumer("c"), from(earliest))
		s.expect("it has acknowledged nothing", 3, all, consumer("c"), from(tail))
		s.expect("and goes on behind what it was given", 3, all[2:], consumer("c"), after(2))
		s.ack("c", 2)
		s.expect("behind what is acknowledged", 3, all[2:], consumer("c"), from(unspecified))
		s.expect("whatever it names before", 3, all[2:], consumer("c"), after(1))
		s.ack("c", 1)
		s.expect("never back", 3, all[2:], consumer("c"))

		s.expect("a consumer at the tail", 3, nil, consumer("t"), from(tail))
		s.expect("one that was forgotten, with a cursor", 3, all[1:], consumer("f"), from(unspecified), after(1))
		s.expect("and again without one", 3, all[1:], consumer("f"), from(unspecified))
		s.write("default", "w", "d")
		s.expect("what came since", 4, []string{"4 d"}, consumer("t"))
	})
}

func (s *scene) ack(name string, seq int64) {
	s.Helper()
	_, err := s.client.AckEvents(s.ctx(), &wigglev1.AckEventsRequest{Consumer: name, Cursor: eventcursor.Encode(eventcursor.Cursor{shard: seq, 9: 99})})
	if err != nil {
		s.Fatal(err)
	}
}

func TestFilter(t *testing.T) {
	t.Parallel()
	play(t, func(s *scene) {
		s.write("default", "order", "wf.started", "order.paid", "orders")
		s.write("default", "mail", "wf.started", "order.sent")
		s.write("other", "order", "wf.started")
		for _, test := range []struct {
			filter *wigglev1.EventFilter
			want   []string
		}{
			{nil, []string{"1 wf.started", "2 order.paid", "3 orders", "4 wf.started", "5 order.sent"}},
			{&wigglev1.EventFilter{Namespace: "other"}, []string{"6 wf.started"}},
			{&wigglev1.EventFilter{Workflows: []string{"mail", "none"}}, []string{"4 wf.started", "5 order.sent"}},
			{&wigglev1.EventFilter{Types: []string{"order.*"}}, []string{"2 order.paid", "5 order.sent"}},
			{&wigglev1.EventFilter{Types: []string{"order.paid", "wf.*"}, Workflows: []string{"order"}}, []string{"1 wf.started", "2 order.paid"}},
			{&wigglev1.EventFilter{Types: []string{"order"}}, nil},
		} {
			s.expect(fmt.Sprint(test.filter), 6, test.want, only(test.filter))
		}
		s.expect("with a bound", 4, []string{"2 order.paid"}, only(&wigglev1.EventFilter{Types: []string{"order.*"}}), most(1))
		for _, kind := range []string{"*", "order*", "*.paid", "or*.paid", "order.**"} {
			if _, err := s.client.PollEvents(s.ctx(), request(only(&wigglev1.EventFilter{Types: []string{kind}}))); !errors.Is(err, faults.ErrInvalidArgument) {
				t.Errorf("the type %q: %v", kind, err)
			}
		}
	})
}

// An event tells all there is to know of it (EVT-2).
func TestEvent(t *testing.T) {
	t.Parallel()
	play(t, func(s *scene) {
		s.write("default", "w", "x")
		res, err := s.client.PollEvents(s.ctx(), request())
		if err != nil || len(res.GetEvents()) != 1 {
			t.Fatalf("%v, %v", res, err)
		}
		e := res.GetEvents()[0]
		if e.GetShard() != shard || e.GetSeq() != 1 || !strings.HasPrefix(e.GetInstanceId(), "wfi.s3.") || e.GetNamespace() != "default" ||
			e.GetWorkflow() != "w" || e.GetVersion() != 2 || e.GetRevision() != 7 || !e.GetTime().AsTime().Equal(time.Now()) ||
			e.GetPayload() != nil || e.GetCursor() != res.GetCursor() {
			t.Errorf("the event is %v", e)
		}
	})
}

// A poll that waits is answered within the moment of a commit of this process, and within a second of another's.
func TestWaits(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		told bool
		most time.Duration
	}{"by this process": {true, 10 * time.Millisecond}, "by another": {false, time.Second}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			play(t, func(s *scene) {
				done := make(chan time.Time, 3)
				for range cap(done) {
					go func() {
						s.expect("what was written", 1, []string{"1 x"}, waits(time.Minute), after(0))
						done <- time.Now()
					}()
				}
				time.Sleep(30 * time.Second) // of the bubble
				written := time.Now()
				s.write("default", "w", "x")
				if test.told {
					s.feed.Logged()
				}
				for range cap(done) {
					if d := (<-done).Sub(written); d > test.most {
						t.Errorf("it took %s", d)
					}
				}
			})
		})
	}
}

// What the filter leaves out does not end a wait, and is not read again.
func TestWaitsForWhatIsWanted(t *testing.T) {
	t.Parallel()
	play(t, func(s *scene) {
		began := time.Now()
		time.AfterFunc(time.Second, func() {
			s.write("default", "w", "no", "no")
			s.feed.Logged()
		})
		s.expect("nothing that is wanted", 2, nil, waits(10*time.Second), after(0), only(&wigglev1.EventFilter{Types: []string{"yes"}}))
		if d := time.Since(began); d != 10*time.Second {
			t.Errorf("it waited %s", d)
		}
		if n := s.log.reads.Load(); n > 3 {
			t.Errorf("the log was read %d times", n)
		}
	})
}

// Nobody who waits, no look; many who wait, one look for all.
func TestLooks(t *testing.T) {
	t.Parallel()
	play(t, func(s *scene) {
		s.write("default", "w", "x")
		s.feed.Logged()
		time.Sleep(time.Hour)
		if n := s.log.looks.Load(); n != 0 {
			t.Errorf("with nobody waiting the log was looked at %d times", n)
		}
		for range 20 {
			go s.poll(waits(time.Minute), after(1))
		}
		time.Sleep(50 * time.Second)
		if n := s.log.looks.Load(); n < 45 || n > 65 {
			t.Errorf("in 50 s the log was looked at %d times", n)
		}
		time.Sleep(time.Minute)
		looks := s.log.looks.Load()
		time.Sleep(time.Hour)
		if n := s.log.looks.Load() - looks; n > 1 {
			t.Errorf("after all have gone the log was looked at %d times", n)
		}
		if n := s.log.reads.Load(); n > 20*3 {
			t.Errorf("the log was read %d times", n)
		}
	})
}

// While transactions hold the log back it is looked at often: they end soon.
func TestLooksAgainSoon(t *testing.T) {
	t.Parallel()
	play(t, func(s *scene) {
		s.log.open.Store(true)
		go s.poll(waits(time.Minute), after(0))
		time.Sleep(10 * time.Second)
		if n := s.log.looks.Load(); n < 190 || n > 260 {
			t.Errorf("in 10 s the log was looked at %d times", n)
		}
		s.log.open.Store(false)
		time.Sleep(time.Minute)
	})
}

// Those who wait are sent home, with what they have, when the process goes down.
func TestDrains(t *testing.T) {
	t.Parallel()
	play(t, func(s *scene) {
		done := make(chan struct{})
		go func() {
			s.expect("nothing", 0, nil, waits(time.Minute), after(0))
			close(done)
		}()
		synctest.Wait()
		began := time.Now()
		close(s.drain)
		<-done
		if d := time.Since(began); d > 0 {
			t.Errorf("it took %s", d)
		}
	})
}

// A shard whose database goes away is told to who waits there.
func TestFails(t *testing.T) {
	t.Parallel()
	play(t, func(s *scene) {
		done := make(chan error, 1)
		go func() {
			_, err := s.client.PollEvents(s.ctx(), request(waits(time.Minute), after(0)))
			done <- err
		}()
		time.Sleep(5 * time.Second)
		began, failure := time.Now(), errors.New("gone")
		s.log.fails.Store(&failure)
		if err := <-done; err == nil || time.Since(began) > 2*time.Second {
			t.Errorf("after %s: %v", time.Since(began), err)
		}
	})
}

// A consumer whose filter leaves out thousands gets on all the same.
func TestLongWayToWhatIsWanted(t *testing.T) {
	t.Parallel()
	play(t, func(s *scene) {
		kinds := make([]string, 12_000)
		for i := range kinds {
			kinds[i] = "no"
		}
		s.write("default", "w", kinds...)
		s.write("default", "w", "yes")
		wanted := only(&wigglev1.EventFilter{Types: []string{"yes"}})
		s.expect("one that does not wait, so far", 10_000, nil, wanted)
		s.expect("and on from there", 12_001, []string{"12001 yes"}, wanted, after(10_000))
		s.expect("one that waits, at once", 12_001, []string{"12001 yes"}, wanted, waits(time.Minute))
	})
}

func TestConsumers(t *testing.T) {
	t.Parallel()
	play(t, func(s *scene) {
		s.write("default", "w", "a", "b", "c")
		s.ack("b", 1)
		s.ack("a", 3)
		list, err := s.client.ListEventConsumers(s.ctx(), &wigglev1.ListEventConsumersRequest{})
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, c := range list.GetConsumers() {
			p := c.GetPositions()[0]
			got = append(got, fmt.Sprintf("%s %d: %d, %d behind", c.GetName(), p.GetShard(), p.GetSeq(), p.GetBehind()))
		}
		if text := strings.Join(got, "; "); text != "a 3: 3, 0 behind; b 3: 1, 2 behind" {
			t.Errorf("consumers: %s", text)
		}
		for range 2 {
			if _, err := s.client.DeleteEventConsumer(s.ctx(), &wigglev1.DeleteEventConsumerRequest{Consumer: "a"}); err != nil {
				t.Error(err)
			}
		}
		s.expect("a consumer that was deleted", -1, nil, consumer("a"), from(unspecified))

		reserved := "wiggle.relay"
		_, errs := s.client.PollEvents(s.ctx(), request(consumer(reserved)))
		_, erra := s.client.AckEvents(s.ctx(), &wigglev1.AckEventsRequest{Consumer: reserved, Cursor: eventcursor.Encode(nil)})
		_, errd := s.client.DeleteEventConsumer(s.ctx(), &wigglev1.DeleteEventConsumerRequest{Consumer: reserved})
		_, errm := s.client.AckEvents(s.ctx(), &wigglev1.AckEventsRequest{Consumer: "a", Cursor: "made up"})
		for _, err := range []error{errs, erra, errd, errm} {
			if !errors.Is(err, faults.ErrInvalidArgument) {
				t.Errorf("got %v", err)
			}
		}
	})
}

// Of the processes that serve a shard the one trims that sweeps, batch after batch (EVT-6).
func TestTrimmer(t *testing.T) {
	t.Parallel()
	play(t, func(s *scene) {
		kinds := make([]string, 2500)
		for i := range kinds {
			kinds[i] = "x"
		}
		s.write("default", "w", kinds...)
		sweeps := false
		const day = 24 * time.Hour
		trimmer := feed.NewTrimmer(s.store, func() bool { return sweeps }, day, 30*day, nil)
		left := func() int {
			t.Helper()
			page, err := s.store.ReadEvents(t.Context(), 0, 10_000)
			if err != nil {
				t.Fatal(err)
			}
			return len(page.Events)
		}
		run := func(want error, n int) {
			t.Helper()
			if err := trimmer.RunOnce(t.Context()); !errors.Is(err, want) || left() != n {
				t.Errorf("%v, %d are left, want %v, %d", err, left(), want, n)
			}
		}
		time.Sleep(2 * day)
		run(nil, 2500)
		sweeps = true
		s.ack("behind", 1)
		run(nil, 2499)
		s.ack("behind", 2500)
		s.write("default", "w", "young")
		run(lifecycle.ErrMore, 1500)
		run(lifecycle.ErrMore, 500)
		run(nil, 1)
	})
}

var _ store.Events = (*watched)(nil)
