package schedule

import (
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
)

// TestLook: what is due, what is too old, and what was fired already (EVT-8).
func TestLook(t *testing.T) {
	t.Parallel()
	noon := utc(t, "2026-01-01T12:00:00Z")
	at := func(minutes float64) time.Time { return noon.Add(time.Duration(minutes * float64(time.Minute))) }
	s := byInterval(time.Minute, 0)
	s.CatchUp = durationpb.New(3 * time.Minute)
	times := compile(t, s)
	for name, c := range map[string]struct {
		state State
		now   time.Time
		want  Look
	}{
		"nothing is to come":          {State{}, at(0), Look{}},
		"not yet":                     {State{Next: at(1)}, at(0.5), Look{Next: at(1)}},
		"due":                         {State{Next: at(1)}, at(1), Look{Due: at(1), Next: at(2)}},
		"the oldest first":            {State{Next: at(1)}, at(3.5), Look{Due: at(1), Next: at(2)}},
		"too old":                     {State{Next: at(1)}, at(6.5), Look{Missed: 3, Due: at(4), Next: at(5)}},
		"just in time":                {State{Next: at(1)}, at(4), Look{Due: at(1), Next: at(2)}},
		"fired already":               {State{Next: at(1), Last: at(1)}, at(1.5), Look{Next: at(2)}},
		"fired already, and due more": {State{Next: at(1), Last: at(1)}, at(2.5), Look{Due: at(2), Next: at(3)}},
		"the times are others since":  {State{Next: at(0.25), From: at(2.5)}, at(2.75), Look{Due: at(0.25), Next: at(3)}},
	} {
		if got := times.Look(c.state, c.now); got != c.want {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
}

// TestLookIsBounded: a schedule whose times have passed by the million is gone over in parts.
func TestLookIsBounded(t *testing.T) {
	t.Parallel()
	times := compile(t, byInterval(time.Second, 0))
	from := utc(t, "2026-01-01T00:00:00Z")
	now := from.Add(25_000 * time.Second)
	state, looks, missed := State{Next: from}, 0, int64(0)
	for ; !state.Next.After(now); looks++ {
		l := times.Look(state, now)
		missed += l.Missed
		if state.Next = l.Next; !l.Due.IsZero() {
			break
		}
	}
	if want := int64(25_000 - 60); looks != 2 || missed != want {
		t.Errorf("%d looks have missed %d, want %d", looks+1, missed, want)
	}
}

// TestLife: how a schedule begins, changes, stops and goes on.
func TestLife(t *testing.T) {
	t.Parallel()
	noon := utc(t, "2026-01-01T12:00:00Z")
	minutes, hours := compile(t, byInterval(time.Minute, 0)), compile(t, byInterval(time.Hour, 0))
	s := minutes.Begin(noon)
	if want := (State{Next: noon.Add(time.Minute), From: noon}); s != want {
		t.Errorf("begins as %+v", s)
	}
	// Other times, before any was due: they count from then.
	if got := hours.Change(s, noon.Add(30*time.Second)); !got.Next.Equal(noon.Add(time.Hour)) {
		t.Errorf("changed before it was due: %+v", got)
	}
	// Other times, when one was due: it stays so, and those follow that come after the change.
	changed := hours.Change(s, noon.Add(90*time.Minute))
	if !changed.Next.Equal(s.Next) {
		t.Errorf("changed when it was due: %+v", changed)
	}
	if l := hours.Look(changed, noon.Add(90*time.Minute)); l.Missed != 1 || !l.Next.Equal(noon.Add(2*time.Hour)) {
		t.Errorf("after a change: %+v", l)
	}
	s.Queued = noon.Add(-time.Minute)
	if got := s.Waits(); !got.Equal(s.Queued) {
		t.Errorf("with one queued it waits for %v", got)
	}
	p := s.Pause()
	if !p.Next.IsZero() || !p.Queued.IsZero() || !p.Waits().IsZero() {
		t.Errorf("paused: %+v", p)
	}
	if got := minutes.Resume(p, noon.Add(time.Hour)); !got.Next.Equal(noon.Add(61 * time.Minute)) {
		t.Errorf("resumed: %+v", got)
	}
}

// TestRetry: tries become rarer, and one comes just after the window is over.
func TestRetry(t *testing.T) {
	t.Parallel()
	times, due := compile(t, byInterval(time.Hour, 0)), utc(t, "2026-01-01T12:00:00Z")
	tries := 0
	for now := due; ; tries++ {
		if times.Look(State{Next: due}, now).Missed > 0 {
			if late := now.Sub(due); late > times.CatchUp()+time.Second {
				t.Errorf("missed is found out after %v", late)
			}
			break
		}
		next := times.Retry(due, now)
		if !next.After(now) {
			t.Fatalf("again at %v after %v", next, now)
		}
		now = next
	}
	if tries < 5 || tries > 15 {
		t.Errorf("%d tries in a minute", tries)
	}
}
