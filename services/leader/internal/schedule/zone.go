package schedule

import (
	"fmt"
	"sync"
	"time"
	_ "time/tzdata" // a schedule's zone is known wherever the process runs
)

// Zones finds time zones by their IANA names and keeps them, as each is read from a file. It is safe for concurrent use.
type Zones struct {
	mu    sync.Mutex
	known map[string]*time.Location
}

// NewZones returns a Zones that has read none.
func NewZones() *Zones { return &Zones{known: map[string]*time.Location{}} }

// Find finds a zone. Empty means UTC.
func (z *Zones) Find(name string) (*time.Location, error) {
	if name == "" || name == "UTC" {
		return time.UTC, nil
	}
	z.mu.Lock()
	defer z.mu.Unlock()
	if zone := z.known[name]; zone != nil {
		return zone, nil
	}
	if name == "Local" { // Go's word for that of the process
		return nil, fmt.Errorf("there is no time zone %q", name)
	}
	zone, err := time.LoadLocation(name)
	if err != nil {
		return nil, fmt.Errorf("there is no time zone %q: %w", name, err)
	}
	z.known[name] = zone
	return zone, nil
}

// wallOf is what a clock on the wall shows at an instant in its zone, written as if it hung in UTC.
func wallOf(t time.Time) time.Time {
	year, month, day := t.Date()
	return time.Date(year, month, day, t.Hour(), t.Minute(), t.Second(), t.Nanosecond(), time.UTC)
}

// instant is when the clock on a wall shows a time for the first time; if it skips the time, when it has moved on.
func instant(wall time.Time, zone *time.Location) time.Time {
	year, month, day := wall.Date()
	t := time.Date(year, month, day, wall.Hour(), wall.Minute(), wall.Second(), 0, zone)
	switch shown := wallOf(t); {
	case shown.After(wall): // t lies behind the skip
		start, _ := t.ZoneBounds()
		return start
	case shown.Before(wall): // t lies before it
		_, end := t.ZoneBounds()
		return end
	}
	for {
		start, _ := t.ZoneBounds()
		if start.IsZero() {
			return t
		}
		_, offset := start.Add(-time.Second).Zone() // as it was before the clock was set
		earlier := time.Unix(wall.Unix()-int64(offset), 0).In(zone)
		if !earlier.Before(start) || !wallOf(earlier).Equal(wall) {
			return t
		}
		t = earlier
	}
}
