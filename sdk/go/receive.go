package wiggle

import (
	"context"
	"time"

	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
)

// receive deals with one message of the server.
func (s *session) receive(ctx, work context.Context, st *stream, res *wigglev1.WorkResponse) {
	s.note(st, res)
	for _, o := range res.GetReported() {
		if o.GetFault() != nil {
			if it := s.outcomeOf(st, taskKey{o.GetTaskId(), o.GetLease()}); it != nil {
				s.answered(it, faultError("report", o.GetFault()))
			}
		}
	}
	for _, o := range res.GetFailed() {
		if it := s.outcomeOf(st, taskKey{o.GetTaskId(), o.GetLease()}); it != nil {
			if o.GetFault() == nil {
				s.logFailure(ctx, it, o.GetWillRetry())
			}
			s.answered(it, faultError("fail", o.GetFault()))
		}
	}
	for _, o := range res.GetBeats() {
		s.beatAnswered(st, o)
	}
	s.acceptAll(work, st, res.GetTasks(), res.GetBaseContexts())
	wake(s.answers)
	wake(s.out)
	wake(s.changed)
}

// note takes in what concerns the stream, and the reports that were taken, which are
// most of what comes.
func (s *session) note(st *stream, res *wigglev1.WorkResponse) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if st.heard.IsZero() {
		close(st.first)
	}
	st.heard = time.Now()
	st.credits = max(st.credits-int(res.GetRevoked()), 0)
	if res.GetDraining() && !st.draining {
		st.draining = true
		close(st.drains)
	}
	for _, o := range res.GetReported() {
		if h := s.held[taskKey{o.GetTaskId(), o.GetLease()}]; h != nil && o.GetFault() == nil && h.outcome.sentOn(st) {
			s.drop(h)
		}
	}
	for _, o := range res.GetReleased() {
		delete(s.releases, taskKey{o.GetTaskId(), o.GetLease()})
	}
}

func (s *settlement) sentOn(st *stream) bool { return s.sent != nil && s.sent.stream == st }

// outcomeOf finds the settlement that an answer is about, nil for one that is not
// waited for on this stream.
func (s *session) outcomeOf(st *stream, key taskKey) *settlement {
	s.mu.Lock()
	defer s.mu.Unlock()
	h := s.held[key]
	if h == nil || !h.outcome.sentOn(st) {
		return nil
	}
	h.outcome.noLonger()
	return &h.outcome
}

func (s *session) beatAnswered(st *stream, o *wigglev1.BeatOutcome) {
	s.mu.Lock()
	h := s.held[taskKey{o.GetTaskId(), o.GetLease()}]
	if h == nil || h.beat.sent == nil || h.beat.sent.stream != st {
		s.mu.Unlock()
		return
	}
	beat, at := h.beat.beat, h.beat.at
	h.beat.noLonger()
	s.mu.Unlock()
	s.beaten(h, beat, at, faultError("heartbeat", o.GetFault()))
}
