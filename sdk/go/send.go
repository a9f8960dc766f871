package wiggle

import (
	"context"
	"runtime"
	"slices"
	"time"

	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
)

const (
	// While maxUnanswered messages are not answered, what comes up gathers for the
	// next, but for no longer than gatherTime: a message costs both sides as much as
	// several reports. One that finds fewer under way goes at once.
	maxUnanswered = 2
	gatherTime    = time.Millisecond
	// confirmTime is when the server is told at the latest that tasks have come.
	confirmTime = time.Second
)

// sendLoop sends what waits on the current stream, all that there is in one message.
// What comes up while one is sent makes the next.
func (s *session) sendLoop(ctx context.Context) {
	due, gather := time.NewTimer(0), time.NewTimer(0)
	defer due.Stop()
	defer gather.Stop()
	for {
		select {
		case <-s.out:
		case <-due.C:
		case <-ctx.Done():
			return
		}
		// Let handlers that are about to end do so: their outcomes go along. Without it
		// BenchmarkWorker sends ten times as many messages.
		runtime.Gosched()
		s.gather(ctx, gather)
		for {
			st, req, wait := s.nextMessage(time.Now())
			if st == nil {
				if wait > 0 {
					due.Reset(wait)
				}
				break
			}
			if req != nil {
				st.send(req)
			} else {
				_ = st.conn.CloseRequest()
			}
		}
	}
}

// gather waits while there is reason to expect that more will soon have to be sent.
func (s *session) gather(ctx context.Context, timer *time.Timer) {
	if !s.full() {
		return
	}
	timer.Reset(gatherTime)
	for s.full() {
		select {
		case <-s.answers:
		case <-timer.C:
			return
		case <-ctx.Done():
			return
		}
	}
}

func (s *session) full() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.current != nil && s.current.open >= maxUnanswered
}

// nextMessage is what to send next and where; without a message, the end of a
// stream. If there is nothing, it tells when to look again, 0: not before there is
// word.
func (s *session) nextMessage(now time.Time) (*stream, *wigglev1.WorkRequest, time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for st := range s.streams {
		if st.leaving && !st.closed {
			return st, s.lastMessage(st), 0
		}
	}
	st := s.current
	if st == nil || st.closed {
		return nil, nil, 0
	}
	req, msg := &wigglev1.WorkRequest{}, &message{stream: st}
	bytes, wait := s.addSettled(req, msg, now)
	s.addBeats(req, msg, now, bytes)
	s.addReleases(req, st)
	req.Credits = s.grant(st)
	if s.stopping.Load() && st.credits > 0 && !st.revoking {
		st.revoking = true
		req.Revoke = toInt32(st.credits)
	}
	if msg.open == 0 && len(req.GetReleases()) == 0 && req.GetCredits() == 0 && req.GetRevoke() == 0 {
		if s.parting {
			st.leaving = true
			return st, s.lastMessage(st), 0
		}
		if left := st.confirmAt.Sub(now); st.received == st.confirmed || left > 0 {
			if st.received > st.confirmed && (wait == 0 || left < wait) {
				wait = left
			}
			return nil, nil, wait
		}
	}
	req.Received, st.confirmed = st.received, st.received
	return st, req, 0
}

// lastMessage is what is left to say on a stream that is left, nil if that is
// nothing but its end.
func (s *session) lastMessage(st *stream) *wigglev1.WorkRequest {
	if st.received > st.confirmed {
		st.confirmed = st.received
		return &wigglev1.WorkRequest{Received: st.received}
	}
	st.closed = true
	return nil
}

// addSettled adds steps that are done and attempts that failed, and tells how many
// bytes they have and when the next may be sent.
func (s *session) addSettled(req *wigglev1.WorkRequest, msg *message, now time.Time) (bytes int, wait time.Duration) {
	st := msg.stream
	if st.alone {
		return 0, 0
	}
	for len(req.GetReports())+len(req.GetFailures()) == 0 {
		batch, next := s.reports.ready(now, maxBatch, st.settling == 0 && !st.heard.IsZero())
		if wait = next; len(batch) == 0 {
			break
		}
		for _, it := range batch {
			switch {
			case it.held.gone:
				continue
			case it.fail != nil:
				req.Failures = append(req.Failures, it.fail)
			default:
				req.Reports = append(req.Reports, it.report)
			}
			bytes += it.size()
			msg.add(now)
			it.sent = msg
			st.settling++
			st.alone = it.alone
		}
	}
	return bytes, wait
}

// renew has the leases of tasks renewed by the next message.
func (s *session) renew(_ context.Context, tasks []*held) {
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, h := range tasks {
		h.beatAt = now.Add(beatPatience(h.lease))
		if b := &h.beat; b.sent != nil && now.Sub(b.at) < beatPatience(h.lease) {
			h.beatAt = b.at.Add(beatPatience(h.lease)) // its answer may yet come
		} else if !b.queued && !h.gone {
			b.queued = true
			s.beats = append(s.beats, h)
		}
	}
	wake(s.out)
}

// addBeats adds beats to a message that has so many bytes.
func (s *session) addBeats(req *wigglev1.WorkRequest, msg *message, now time.Time, bytes int) {
	s.beats = slices.DeleteFunc(s.beats, func(h *held) bool {
		if h.gone {
			return true
		}
		bytes += len(h.progress.GetData())
		if n := msg.open; n > 0 && bytes > maxBatchBytes || len(req.GetBeats()) == maxBatch {
			return false
		}
		b := &h.beat
		if b.sent == nil {
			b.at = now
		} // else the answer that comes may be the first one's
		b.noLonger()
		b.queued, b.beat, b.sent = false, h.makeBeat(now), msg
		msg.add(now)
		req.Beats = append(req.Beats, b.beat)
		return true
	})
}

// addReleases adds tasks to hand back.
func (s *session) addReleases(req *wigglev1.WorkRequest, st *stream) {
	for key, told := range s.releases {
		if told == nil && len(req.GetReleases()) < maxBatch {
			s.releases[key] = st
			req.Releases = append(req.Releases, &wigglev1.TaskLease{TaskId: key.id, Lease: key.lease})
		}
	}
}
