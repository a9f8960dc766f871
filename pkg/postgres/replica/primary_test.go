package replica

import (
	"testing"
	"time"

	"github.com/wiggle-run/wiggle/pkg/clock"
)

// epoch is when this process's clock begins in tests; the primary's is an hour ahead of it.
var epoch = time.Date(2026, 10, 2, 12, 0, 0, 0, time.UTC)

const ahead = time.Hour

// looked is a primary that was looked at once a second, from 0 to 9 s, when it had the beats 100 to 109, each stamped so
// long before. A look takes 10 ms.
func looked(stamped time.Duration) *primary {
	p := &primary{clock: clock.NewManual(epoch)}
	for i := range 10 {
		at := epoch.Add(time.Duration(i) * time.Second)
		p.take(reading{
			beat: int64(100 + i), beatenAt: at.Add(ahead - stamped), clock: at.Add(ahead), systemID: "7", timeline: 1,
			began: at, ended: at.Add(10 * time.Millisecond),
		})
	}
	return p
}

// TestAge: the age of a beat is told by the primary's clock, unless that does not fit what was seen of it (REP-1).
func TestAge(t *testing.T) {
	t.Parallel()
	const ms = time.Millisecond
	now := epoch.Add(9200 * ms)
	for name, test := range map[string]struct {
		stamped time.Duration // how long before a look its beat is stamped
		beat    int64
		want    age
	}{
		"newest":              {300 * ms, 109, age{lag: 500 * ms, known: true}},
		"some beats behind":   {300 * ms, 105, age{lag: 4500 * ms, known: true}},
		"before all that was": {300 * ms, 90, age{lag: 19500 * ms, known: true}},
		"not seen yet":        {300 * ms, 110, age{lag: 0, known: true}},
		// Stamped by a clock that is an hour ahead: what was seen counts, at most.
		"from the future":           {-time.Hour, 109, age{lag: 1200 * ms, known: true, skew: 200*ms - time.Hour - 190*ms}},
		"from the future, behind":   {-time.Hour, 105, age{lag: 5200 * ms, known: true, skew: 4200*ms - time.Hour - 4190*ms}},
		"from the future, not seen": {-2 * time.Hour, 112, age{lag: 200 * ms, known: true, skew: -2*time.Hour - 2800*ms}},
		"from the future, before":   {-2 * time.Hour, 90, age{known: false, skew: 19200*ms - 2*time.Hour - 9190*ms}},
		// Stamped by one that is behind.
		"too old": {time.Hour, 107, age{lag: 3200 * ms, known: true, skew: time.Hour + 2200*ms - 3200*ms}},
		// The least that is known is all that there is: the clock may be right.
		"too old, before all": {time.Hour, 100, age{lag: time.Hour + 9200*ms, known: true}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			beatenAt := epoch.Add(time.Duration(test.beat-100)*time.Second + ahead - test.stamped)
			if got := looked(test.stamped).age(test.beat, beatenAt, now); got != test.want {
				t.Errorf("got %+v, want %+v", got, test.want)
			}
		})
	}
	if got := (&primary{}).age(1, epoch, epoch); got != (age{}) {
		t.Errorf("before the first look: %+v", got)
	}
}

// TestSeen: of another history is what shows another beat under a number that was seen.
func TestSeen(t *testing.T) {
	t.Parallel()
	p := looked(0)
	at := epoch.Add(5*time.Second + ahead)
	for _, test := range []struct {
		beat        int64
		at          time.Time
		here, other bool
	}{
		{105, at, true, false},
		{105, at.Add(time.Microsecond), false, true},
		{100, epoch.Add(ahead), false, false}, // may be of the timeline before
		{99, at, false, false},
		{110, at, false, false},
	} {
		if here, other := p.seen(test.beat, test.at); here != test.here || other != test.other {
			t.Errorf("%d at %v: here %v, other %v", test.beat, test.at, here, other)
		}
	}
	changed := p.take(reading{beat: 110, beatenAt: at, systemID: "7", timeline: 2})
	if here, other := p.seen(105, at); changed || here || other {
		t.Error("beats of another timeline are kept")
	}
	if changed := p.take(reading{beat: 111, systemID: "8", timeline: 1}); !changed {
		t.Error("another server is the same primary")
	}
}

// TestSightingsAreBounded: what is kept of beats does not grow.
func TestSightingsAreBounded(t *testing.T) {
	t.Parallel()
	p := &primary{}
	for i := range 3 * maxSightings {
		p.take(reading{beat: int64(i), systemID: "7", timeline: 1})
	}
	if len(p.sightings) != maxSightings || p.sightings[0].beat != 2*maxSightings {
		t.Errorf("%d are kept, from %d", len(p.sightings), p.sightings[0].beat)
	}
}
