package wiggle

import (
	"context"
	"errors"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
)

// progressEvery is the least time between two messages with progress of one task.
const progressEvery = time.Second

// beatTimeout bounds one heartbeat call: another must fit into the lease.
const beatTimeout = 10 * time.Second

// beatLoop renews leases at a third of their length, those that are due together
// in one call.
func (s *session) beatLoop(ctx context.Context) {
	health := health{logger: s.w.logger, what: "heartbeat"}
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
		beats, tasks := s.dueBeats(time.Now())
		if len(beats) == 0 {
			continue
		}
		sent := time.Now()
		timeout := min(beatTimeout, tasks[0].lease/4)
		res, err := once(ctx, timeout, s.w.client.workers.Heartbeat, &wigglev1.HeartbeatRequest{Worker: s.w.opts.Name, Beats: beats})
		if ctx.Err() != nil {
			return
		}
		health.note(ctx, toError("heartbeat", err))
		for i, h := range tasks {
			var e *Error
			switch {
			case err != nil:
				errors.As(toError("heartbeat", err), &e)
			case i >= len(res.GetOutcomes()):
				e = missingOutcome("heartbeat")
			default:
				e = faultError("heartbeat", res.GetOutcomes()[i].GetFault())
			}
			s.beaten(h, beats[i], sent, e)
		}
	}
}

// idleBeat is how long the loop sleeps when nothing is held; new tasks wake it.
const idleBeat = time.Hour

func (s *session) nextBeat(now time.Time) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	next := now.Add(idleBeat)
	for h := range s.held {
		if h.beatAt.Before(next) {
			next = h.beatAt
		}
	}
	s.beatWake = next
	return max(next.Sub(now), 0)
}

// dueBeats are the beats to send now. What is due soon goes along.
func (s *session) dueBeats(now time.Time) ([]*wigglev1.Beat, []*held) {
	s.mu.Lock()
	defer s.mu.Unlock()
	due := false
	for h := range s.held {
		due = due || !h.beatAt.After(now)
	}
	if !due {
		return nil, nil
	}
	var beats []*wigglev1.Beat
	var tasks []*held
	for h := range s.held {
		if len(beats) == maxBatch {
			break
		}
		if h.beatAt.After(now.Add(h.lease / 12)) {
			continue
		}
		beats = append(beats, &wigglev1.Beat{
			TaskId: h.task.GetId(), Lease: h.task.GetLease(), Extend: durationpb.New(h.lease), Progress: h.progress,
		})
		tasks = append(tasks, h)
		if h.progress != nil {
			h.progress, h.beatSent = nil, now
		}
	}
	return beats, tasks
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
		return
	}
	h.beatAt = time.Now().Add(max(jittered(h.lease/20), jittered(e.RetryAfter)))
	if h.progress == nil {
		h.progress = beat.GetProgress()
	}
}

// expire interrupts the handlers of tasks whose lease has run out by the local
// clock: another worker may have them by now. They stay held, since a server that
// was away for as long may still know the lease; what a handler then returns is
// reported, and the server decides.
func (s *session) expire(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for h := range s.held {
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
