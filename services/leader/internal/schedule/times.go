package schedule

import (
	"crypto/sha256"
	"encoding/binary"
	"strings"
	"time"

	"github.com/oklog/ulid/v2"
)

// lastYear is the last whose times messages can hold.
const lastYear = 9999

// Times are the due times of a schedule. Make them with [Compile].
type Times struct {
	namespace, id string
	named         named
	jitter        time.Duration
	start, end    time.Time // zero: no bound
	catchUp       time.Duration
}

// named finds the first time after another that a cron expression or an interval names.
type named interface {
	after(at time.Time) (time.Time, bool)
}

// cronTimes are those of a cron expression in a zone.
type cronTimes struct {
	cron *cron
	zone *time.Location
}

func (t cronTimes) after(at time.Time) (time.Time, bool) {
	wall := wallOf(at.In(t.zone)).Truncate(time.Minute)
	for {
		next, ok := t.cron.next(wall)
		if !ok {
			return time.Time{}, false
		}
		// Times on the wall rise with instants but where the clock is set back, and those were due the first time.
		if due := instant(next, t.zone); due.After(at) {
			return due, true
		}
		wall = next.Add(time.Minute)
	}
}

// intervalTimes are those at whole distances, in milliseconds.
type intervalTimes struct{ every, offset int64 }

func (t intervalTimes) after(at time.Time) (time.Time, bool) {
	since := at.UnixMilli() - t.offset
	n := since / t.every
	if since%t.every < 0 {
		n--
	}
	return time.UnixMilli(t.offset + (n+1)*t.every), true
}

// CatchUp is how late a due time may be fired.
func (t *Times) CatchUp() time.Duration { return t.catchUp }

// Next is the first due time after another time, zero if there is none.
func (t *Times) Next(after time.Time) time.Time {
	if nominal, ok := t.latest(after); ok {
		if due := t.putOff(nominal); due.After(after) {
			return due
		}
	}
	nominal, ok := t.nominal(after)
	if !ok {
		return time.Time{}
	}
	return t.putOff(nominal)
}

// Upcoming are the next due times, at most n, the first of which is given.
func (t *Times) Upcoming(first time.Time, n int) []time.Time {
	var list []time.Time
	for due := first; !due.IsZero() && len(list) < n; due = t.Next(due) {
		list = append(list, due)
	}
	return list
}

// nominal is the first nominal time after another.
func (t *Times) nominal(after time.Time) (time.Time, bool) {
	if after.Before(t.start) {
		after = t.start.Add(-1)
	}
	nominal, ok := t.named.after(after)
	if !ok || nominal.Year() > lastYear || !t.end.IsZero() && !nominal.Before(t.end) {
		return time.Time{}, false
	}
	return nominal.UTC(), true
}

// latest is the last nominal time up to another, if its jitter may reach beyond that.
func (t *Times) latest(at time.Time) (time.Time, bool) {
	// No more nominal times are walked over than lie in twice the distance to the last.
	for back := min(time.Minute, t.jitter); back > 0; back = min(2*back, t.jitter) {
		nominal, ok := t.nominal(at.Add(-back))
		if ok && !nominal.After(at) {
			for {
				next, ok := t.nominal(nominal)
				if !ok || next.After(at) {
					return nominal, true
				}
				nominal = next
			}
		}
		if back == t.jitter {
			break
		}
	}
	return time.Time{}, false
}

// putOff adds the jitter of a nominal time: whole milliseconds, less than there are to the next nominal time and to the end.
func (t *Times) putOff(nominal time.Time) time.Time {
	width := t.jitter
	if width == 0 {
		return nominal
	}
	if next, ok := t.named.after(nominal); ok {
		width = min(width, next.Sub(nominal))
	}
	if !t.end.IsZero() {
		width = min(width, t.end.Sub(nominal))
	}
	if width < time.Millisecond {
		return nominal
	}
	sum := digest("jitter", t.namespace, t.id, nominal)
	part := binary.BigEndian.Uint64(sum[:]) % uint64(width.Milliseconds()) //nolint:gosec // at least 1
	return nominal.Add(time.Duration(part) * time.Millisecond)             //nolint:gosec // less than width
}

// ULID is that of the instance which a due time starts, in lower case. Its time is the due time and the rest a hash, so that
// whoever starts the due time starts the same instance.
func ULID(namespace, id string, due time.Time) string {
	var u ulid.ULID
	sum := digest("instance", namespace, id, due)
	_ = u.SetTime(uint64(max(due.UnixMilli(), 0))) // a due time is below the year 10889
	_ = u.SetEntropy(sum[:10])                     // the length is right
	return strings.ToLower(u.String())
}

// digest is a hash of a schedule's time for a purpose.
func digest(purpose, namespace, id string, at time.Time) [sha256.Size]byte {
	text := []byte("wiggle schedule\x00" + purpose + "\x00" + namespace + "\x00" + id + "\x00")
	return sha256.Sum256(binary.BigEndian.AppendUint64(text, uint64(at.UnixMilli())))
}
