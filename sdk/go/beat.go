package wiggle

import (
	"context"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
)

// progressEvery is the least time between two messages with progress of one task.
const progressEvery = time.Second

// beatTimeout bounds the wait for the answer to a beat: another must fit into the
// lease.
const beatTimeout = 10 * time.Second

func beatPatience(lease time.Duration) time.Duration { return min(beatTimeout, lease/4) }

// beatLoop has leases renewed at a third of their length, those that are due
// together at once.
func (s *session) beatLoop(ctx context.Context, renew func(context.Context, []*held)) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		timer.Reset(s.nextBeat(time.Now()))
		select {
		case <-ctx.Done():
			return
		case <-s.beatNow:
		case <-timer.C:
		}
		s.expire(time.Now())
		if tasks := s.dueBeats(time.Now()); len(tasks) > 0 {
			renew(ctx, tasks)
		}
	}
}

// idleBeat is how long the loop sleeps when nothing is held; new tasks wake it.
const idleBeat = time.Hour

func (s *session) nextBeat(now time.Time) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	next := now.Add(idleBeat)
	for _, h := range s.held {
		next = minTime(next, h.beatAt)
		if h.expires.After(now) {
			next = minTime(next, h.expires)
		}
	}
	s.beatWake = next
	return max(next.Sub(now), 0)
}

// dueBeats are the tasks whose leases are to be renewed now. What is due soon goes
// along.
func (s *session) dueBeats(now time.Time) []*held {
	s.mu.Lock()
	defer s.mu.Unlock()
	due := false
	for _, h := range s.held {
		due = due || !h.beatAt.After(now)
	}
	if !due {
		return nil
	}
	var tasks []*held
	for _, h := range s.held {
		if len(tasks) == maxBatch {
			break
		}
		if !h.beatAt.After(now.Add(h.lease / 12)) {
			tasks = append(tasks, h)
		}
	}
	return tasks
}

// makeBeat is the message that renews the lease. It takes the progress along. It is
// called with session.mu held.
func (h *held) makeBeat(now time.Time) *wigglev1.Beat {
	beat := &wigglev1.Beat{TaskId: h.task.GetId(), Lease: h.task.GetLease(), Extend: durationpb.New(h.lease), Progress: h.progress}
	if h.progress != nil {
		h.progress, h.beatSent = nil, now
	}
	return beat
}

// beaten deals with the answer to one beat.
func (s *session) beaten(h *held, beat *wigglev1.Beat, sent time.Time, e *Error) {
	if e != nil && final(e) {
		s.mu.Lock()
		gone := h.gone
		s.mu.Unlock()
		// A task whose report was applied while the beat was under way has no lease
		// to lose.
		if !gone {
			s.lose(h, e)
		}
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if e == nil {
		h.expires = sent.Add(h.lease)
		h.beatAt = sent.Add(h.lease / 3)
		if h.progress != nil { // came while the beat was under way
			h.beatAt = minTime(h.beatAt, h.beatSent.Add(progressEvery))
		}
	} else {
		h.beatAt = time.Now().Add(max(jittered(h.lease/20), jittered(e.RetryAfter)))
		if h.progress == nil {
			h.progress = beat.GetProgress()
		}
	}
	if h.beatAt.Before(s.beatWake) {
		wake(s.beatNow)
	}
}

// expire interrupts the handlers of tasks whose lease has run out by the local
// clock: another worker may have them by now. They stay held, since a server that
// was away for as long may still know the lease; what a handler then returns is
// reported, and the server decides.
func (s *session) expire(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, h := range s.held {
		if !h.expires.After(now) {
			h.cancel(ErrLeaseLost)
		}
	}
}

// progress notes a handler's progress to go out with the next beat, which it makes
// due.
func (s *session) progress(h *held, p *wigglev1.Payload) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if h.gone {
		return
	}
	h.progress = p
	h.beatAt = minTime(h.beatAt, h.beatSent.Add(min(progressEvery, h.lease/3)))
	wake(s.beatNow)
}

func minTime(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}
