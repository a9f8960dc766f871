package dispatch

import (
	"errors"
	"math/rand/v2"
	"slices"
	"time"
)

// ErrOverloaded: too much is waiting for the shard.
var ErrOverloaded = errors.New("too much is waiting for the shard")

// OverloadError is an [ErrOverloaded] that says when to come back.
type OverloadError struct {
	// Start tells that a start was refused, which only adds to the work; else it was
	// something that belongs to work under way.
	Start bool
	// RetryAfter is about how long it takes until there is room, spread so that not
	// all come back at once.
	RetryAfter time.Duration
}

func (e *OverloadError) Error() string { return ErrOverloaded.Error() }

// Is makes it an [ErrOverloaded].
func (e *OverloadError) Is(target error) bool { return target == ErrOverloaded } //nolint:err113 // a sentinel

// What bounds the pause that is asked of whoever is refused, and what it is for a poll.
const (
	leastRetryAfter = 100 * time.Millisecond
	mostRetryAfter  = 5 * time.Second
	pollRetryAfter  = time.Second
)

// comeBack is a pause around the one that is expected, half to one and a half of it.
func comeBack(wait time.Duration) time.Duration {
	wait = min(max(wait, leastRetryAfter), mostRetryAfter)
	return wait/2 + time.Duration(rand.Int64N(int64(wait))) //nolint:gosec // jitter
}

// line is operations that wait, the oldest first.
type line struct {
	ops   []*op
	bytes int
}

// push appends the first operations that are within the bounds, and returns the rest.
func (l *line) push(ops []*op, length, bytes int) (rest []*op) {
	for i, o := range ops {
		if len(l.ops) >= length || len(l.ops) > 0 && l.bytes+o.bytes > bytes {
			return ops[i:]
		}
		l.ops = append(l.ops, o)
		l.bytes += o.bytes
	}
	return nil
}

// take moves up to n operations to a batch that has room for so many bytes more. The
// first of a batch always fits.
func (l *line) take(batch []*op, n int, room *int) []*op {
	taken := 0
	for taken < min(n, len(l.ops)) && (l.ops[taken].bytes <= *room || len(batch) == 0) {
		o := l.ops[taken]
		l.ops[taken] = nil // let go of what is done
		l.bytes -= o.bytes
		*room -= o.bytes
		batch = append(batch, o)
		taken++
	}
	if l.ops = l.ops[taken:]; len(l.ops) == 0 {
		l.ops = nil
	}
	return batch
}

// queue is what waits for a lane, in two lines. What belongs to work under way
// (reports, failures, timers, what is handed back) is served first. Starts, which
// only make more of it, take what that leaves, as [pace] says. Both lines are
// bounded, by number and by bytes; that of starts so that none waits much longer
// than Config.StartWait (WRK-15).
type queue struct {
	underWay, starts line
	pace             pace
}

// push queues the operations of a call, which are all of a kind. It returns those
// that it does not take, and why.
func (q *queue) push(ops []*op, cfg *Config) (rest []*op, reason error) {
	if !ops[0].start {
		rest = q.underWay.push(ops, cfg.QueueLength, cfg.QueueBytes)
		return rest, &OverloadError{RetryAfter: comeBack(leastRetryAfter)}
	}
	// A full line is worked off in about StartWait: in half of that there is room.
	rest = q.starts.push(ops, q.pace.longest(cfg), cfg.QueueBytes/startBytesPart)
	return rest, &OverloadError{Start: true, RetryAfter: comeBack(cfg.StartWait / 2)}
}

const (
	// startBytesPart is the part of QueueBytes that starts may fill.
	startBytesPart = 4
	// smallPart is the part of a batch that is kept for starts.
	smallPart = 8
)

// take removes the next batch. If it is empty though starts wait, they have to for as
// long as it says.
func (q *queue) take(now time.Time, cfg *Config) (batch []*op, wait time.Duration) {
	// Where both lines are long starts get a small part of each batch, if they may have as many.
	starts := min(q.pace.allow(now), len(q.starts.ops), max(cfg.BatchSize-len(q.underWay.ops), cfg.BatchSize/smallPart, 1))
	room := cfg.BatchBytes
	batch = q.underWay.take(nil, max(cfg.BatchSize-starts, 1), &room)
	others := len(batch)
	batch = q.starts.take(batch, min(starts, cfg.BatchSize-others), &room)
	q.pace.took(now, len(batch)-others, len(q.starts.ops))
	if len(batch) == 0 && len(q.starts.ops) > 0 {
		wait = lookAgain
	}
	return batch, wait
}

// all empties the queue.
func (q *queue) all() []*op {
	rest := slices.Concat(q.underWay.ops, q.starts.ops)
	q.underWay, q.starts = line{}, line{}
	return rest
}
