// Package clock is the time that timers are set by: the machine's in production,
// one that the test moves in tests.
//
// It decides when to look, never what is true: the time that is stored comes from
// the database.
package clock

import (
	"slices"
	"sync"
	"time"
)

// Clock tells the time and wakes at a time.
type Clock interface {
	// Now is the time.
	Now() time.Time
	// At returns a channel that is closed at the time (at once if it is over), and
	// a function that gives the timer up.
	At(t time.Time) (<-chan struct{}, func())
}

// Real is the machine's clock.
type Real struct{}

// Now is the machine's time.
func (Real) Now() time.Time { return time.Now() }

// At wakes by the machine's time. The wait is taken by the monotonic clock.
func (Real) At(t time.Time) (<-chan struct{}, func()) {
	done := make(chan struct{})
	timer := time.AfterFunc(time.Until(t), func() { close(done) })
	return done, func() { timer.Stop() }
}

// Manual is a clock that stands still until Advance moves it. Its zero value is
// not usable; see [NewManual].
type Manual struct {
	mu     sync.Mutex
	now    time.Time
	timers []*manualTimer
}

type manualTimer struct {
	at   time.Time
	done chan struct{}
}

// NewManual makes a clock that stands at the given time.
func NewManual(now time.Time) *Manual { return &Manual{now: now} }

// Now is the time to which the clock was moved last.
func (m *Manual) Now() time.Time {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.now
}

// At wakes when the clock is moved to the time or past it.
func (m *Manual) At(t time.Time) (<-chan struct{}, func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	timer := &manualTimer{at: t, done: make(chan struct{})}
	if !t.After(m.now) {
		close(timer.done)
		return timer.done, func() {}
	}
	m.timers = append(m.timers, timer)
	return timer.done, func() { m.drop(timer) }
}

func (m *Manual) drop(timer *manualTimer) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.timers = slices.DeleteFunc(m.timers, func(t *manualTimer) bool { return t == timer })
}

// Advance moves the clock and wakes whom it passes. The clock never goes back.
func (m *Manual) Advance(d time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if d > 0 {
		m.now = m.now.Add(d)
	}
	m.timers = slices.DeleteFunc(m.timers, func(t *manualTimer) bool {
		due := !t.at.After(m.now)
		if due {
			close(t.done)
		}
		return due
	})
}
