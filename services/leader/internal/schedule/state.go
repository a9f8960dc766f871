package schedule

import "time"

// maxPassed bounds how many due times one look passes over. The next look goes on.
const maxPassed = 10_000

// State is where a schedule stands. Zero times mean that there is none.
type State struct {
	// Next is the due time that is to be dealt with next. It is past where nobody has done so yet.
	Next time.Time
	// Queued is a due time that waits until the last instance has ended.
	Queued time.Time
	// Last is the last due time that was fired, and LastInstance what it started.
	Last         time.Time
	LastInstance string
	// From is since when the schedule has its present times: no due time before counts.
	From time.Time
}

// Waits is the time at which somebody has to look at the schedule.
func (s State) Waits() time.Time {
	if s.Next.IsZero() || !s.Queued.IsZero() && s.Queued.Before(s.Next) {
		return s.Queued
	}
	return s.Next
}

// Begin is the state of a schedule that is new.
func (t *Times) Begin(now time.Time) State { return State{Next: t.Next(now), From: now} }

// Change is the state of a schedule whose times are others from now on. A due time that has come before stays: it was due
// when its time came, and may be half fired.
func (t *Times) Change(s State, now time.Time) State {
	s.From = now
	if s.Next.IsZero() || s.Next.After(now) {
		s.Next = t.Next(now)
	}
	return s
}

// Resume is the state of a schedule that goes on after it was paused. What was due meanwhile is not made up for.
func (t *Times) Resume(s State, now time.Time) State {
	s.From, s.Next = now, t.Next(now)
	return s
}

// Pause is the state of a schedule that stops. A due time that was queued is given up.
func (s State) Pause() State {
	s.Next, s.Queued = time.Time{}, time.Time{}
	return s
}

// Look is what there is to do about a schedule at a time.
type Look struct {
	// Missed is how many due times have become too old.
	Missed int64
	// Due is the oldest due time that is to be fired. Zero: none.
	Due time.Time
	// Next is the due time after it.
	Next time.Time
}

// Look finds what is due. Where too many due times have passed to be counted at once, Next lies in the past still.
func (t *Times) Look(s State, now time.Time) Look {
	l := Look{Next: s.Next}
	for range maxPassed {
		if l.Next.IsZero() || l.Next.After(now) {
			break
		}
		due := l.Next
		l.Next = t.Next(later(due, s.From))
		switch {
		case !due.After(s.Last): // fired, and noted as such alone: the schedule was changed meanwhile
		case now.Sub(due) > t.catchUp:
			l.Missed++
		default:
			l.Due = due
			return l
		}
	}
	return l
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// Pauses between tries to fire a due time. They grow with its age, so that nobody has to remember how often it was tried.
const (
	firstRetry = time.Second
	lastRetry  = 30 * time.Second
)

// Retry is when to try again to fire a due time that could not be fired. The last try comes when its window is over, and
// finds it missed.
func (t *Times) Retry(due, now time.Time) time.Time {
	again := now.Add(min(max(now.Sub(due)/2, firstRetry), lastRetry))
	if over := due.Add(t.catchUp + time.Millisecond); over.After(now) && over.Before(again) {
		return over
	}
	return again
}
