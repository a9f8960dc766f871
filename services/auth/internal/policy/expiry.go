package policy

import "time"

const (
	// TouchEvery is how exactly the last use of a session or key is known: it is written no more often.
	TouchEvery = time.Minute
	// DefaultOverlap and MaxOverlap are for how long the secret before a rotation works on.
	DefaultOverlap = 24 * time.Hour
	MaxOverlap     = 30 * 24 * time.Hour
	// MaxSessions is how many sessions an account has at most; the one that was not used for longest makes room.
	MaxSessions = 100
)

// Sessions says how long sessions last.
type Sessions struct {
	// Idle ends a session that was not used for so long, Lifetime any.
	Idle, Lifetime time.Duration
}

// Expires is when a session ends at the latest.
func (s Sessions) Expires(created time.Time) time.Time { return created.Add(s.Lifetime) }

// End is when a session ends if it is not used again.
func (s Sessions) End(used, expires time.Time) time.Time {
	if idle := used.Add(s.Idle); idle.Before(expires) {
		return idle
	}
	return expires
}

// Over tells whether a thing that ends at a time, or never if that is zero, is over. It is so at that very instant.
func Over(end, now time.Time) bool { return !end.IsZero() && !now.Before(end) }

// Stale tells whether a use at now is to be written, the last one being known as used.
func Stale(used, now time.Time) bool { return now.Sub(used) >= TouchEvery }
