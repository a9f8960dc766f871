package dispatch

import (
	"math"
	"testing"
	"time"
)

// lanes are what a lane and a load do to each other, in steps of a batch.
type simulated struct {
	pace                    pace
	now                     time.Time
	started, ended, others  int
	perStart, perOther, own time.Duration // what each takes, and every batch
}

const simulatedBatch = 256

// batch runs a batch of up to so many starts and others, and tells how many starts it took.
func (s *simulated) batch(starts, others, ended int) int {
	others = min(others, simulatedBatch-min(starts, simulatedBatch/smallPart))
	starts = min(starts, s.pace.allow(s.now), simulatedBatch-others)
	s.pace.took(s.now, starts, math.MaxInt)
	took := s.own + time.Duration(starts)*s.perStart + time.Duration(others)*s.perOther
	s.now = s.now.Add(took)
	s.pace.settle(s.now, took, starts, others, ended, simulatedBatch)
	s.started, s.others, s.ended = s.started+starts, s.others+others, s.ended+ended
	return starts
}

func newSimulated() *simulated {
	return &simulated{now: time.Unix(1000, 0), perStart: 100 * time.Microsecond, perOther: 50 * time.Microsecond, own: time.Millisecond}
}

// TestStartsAloneAreNotHeldUp: where nothing else is to be done, a lane takes starts as fast as it can.
func TestStartsAloneAreNotHeldUp(t *testing.T) {
	t.Parallel()
	s := newSimulated()
	for i := range 1000 {
		if n := s.batch(10_000, 0, 0); n != simulatedBatch {
			t.Fatalf("batch %d takes %d starts", i, n)
		}
	}
}

// TestStartsYield: where work under way takes all of the time, starts get no further ahead of what ends than a bit (WRK-15).
func TestStartsYield(t *testing.T) {
	t.Parallel()
	s := newSimulated()
	// A chain of eight steps, and starts without end.
	for range 50 {
		s.batch(10_000, 224, 28) // until it knows
	}
	s.started, s.ended, s.others = 0, 0, 0
	for range 1000 {
		s.batch(10_000, 224, 28)
	}
	if least, most := forEnds*float64(s.ended), (forEnds+8*forOthers)*float64(s.ended); float64(s.started) < least || float64(s.started) > most+1 {
		t.Fatalf("%d starts beside %d ends, want %.0f to %.0f", s.started, s.ended, least, most)
	}
}

// TestStartsAreNotStarved: beside instances that do not end, starts get on.
func TestStartsAreNotStarved(t *testing.T) {
	t.Parallel()
	s := newSimulated()
	for range 1000 {
		s.batch(10_000, simulatedBatch, 0)
	}
	if want := int(forOthers*float64(s.others)) - 1; s.started < want {
		t.Fatalf("%d starts beside %d others, want %d", s.started, s.others, want)
	}
}

// TestStartsBesideALittle: work under way that takes a tenth of the time leaves half of it to starts.
func TestStartsBesideALittle(t *testing.T) {
	t.Parallel()
	s := newSimulated()
	began := s.now
	for s.now.Sub(began) < 20*time.Second {
		due := int(s.now.Sub(began)/(10*s.perOther)) - s.others
		if s.batch(10_000, due, 0) == 0 {
			s.now = s.now.Add(lookAgain)
		}
	}
	if part := float64(time.Duration(s.started)*s.perStart) / float64(s.now.Sub(began)); part < 0.5 {
		t.Fatalf("starts got %.2f of the time", part)
	}
}

// TestLoadThatEndsIsNotHeldUp: a closed loop of single steps, half of whose work is starts, runs as if there were no pace.
func TestLoadThatEndsIsNotHeldUp(t *testing.T) {
	t.Parallel()
	s := newSimulated()
	waiting, running := 1000, 0
	began := s.now
	for s.now.Sub(began) < 10*time.Second {
		reports := min(running, simulatedBatch)
		taken := s.batch(waiting, reports, reports)
		if taken == 0 && reports == 0 {
			s.now = s.now.Add(lookAgain)
		}
		reports = min(reports, simulatedBatch-min(waiting, simulatedBatch/smallPart))
		waiting, running = waiting-taken+reports, running+taken-reports
	}
	// What a lane does that is never idle.
	perSecond := float64(s.ended) / s.now.Sub(began).Seconds()
	if best := 1 / (s.perStart + s.perOther + 2*s.own/simulatedBatch).Seconds(); perSecond < 0.9*best {
		t.Fatalf("%.0f instances a second, of %.0f", perSecond, best)
	}
}

// TestWaitIsBounded: as many starts may wait as are taken in Config.StartWait.
func TestWaitIsBounded(t *testing.T) {
	t.Parallel()
	s, cfg := newSimulated(), DefaultConfig()
	if got := s.pace.longest(&cfg); got != firstRate {
		t.Errorf("before anything is known %d may wait", got)
	}
	for range 500 {
		s.batch(10_000, 0, 0)
	}
	perSecond := simulatedBatch / (s.own + simulatedBatch*s.perStart).Seconds()
	if got := float64(s.pace.longest(&cfg)); math.Abs(got-perSecond) > perSecond/20 {
		t.Errorf("%.0f may wait where %.0f are taken in a second", got, perSecond)
	}
	s.perStart = 50 * time.Millisecond // the database is slow now
	for range 10 {
		s.batch(10_000, 0, 0)
	}
	if got := s.pace.longest(&cfg); got != cfg.BatchSize/leastPart {
		t.Errorf("%d may wait where hardly any are taken, want a part of a batch", got)
	}
}
