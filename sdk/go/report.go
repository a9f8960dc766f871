package wiggle

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"connectrpc.com/connect"

	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
)

// reportRetries paces reports that are not answered, until the lease is lost or the
// worker stops.
var reportRetries = retries{first: 50 * time.Millisecond, longest: 5 * time.Second}

// maxBroken is how often a report is sent that the server answers with an internal
// error. After that its lease is left to run out, so that the step is run again
// and what is wrong shows in the history.
const maxBroken = 10

// settlement is the outcome of one task on its way to the server: a report or a
// failure.
type settlement struct {
	held     *held
	report   *wigglev1.StepReport
	fail     *wigglev1.FailTaskRequest
	failures int       // times in vain
	alone    bool      // what it went with was refused as a whole
	after    time.Time // not before
	// The message of a stream that it went with and that is not answered. Guarded by
	// session.mu.
	sent *message
}

// size is about how many bytes it is in a message.
func (s *settlement) size() int {
	if s.fail != nil {
		return len(s.fail.GetFailure().GetMessage()) + len(s.fail.GetFailure().GetStack())
	}
	return reportBytes(s.report)
}

// outbox holds the settlements that wait to be sent.
type outbox struct {
	wake  chan struct{}
	mu    sync.Mutex
	items []*settlement
}

func newOutbox() *outbox { return &outbox{wake: make(chan struct{}, 1)} }

func (o *outbox) put(items ...*settlement) {
	o.mu.Lock()
	o.items = append(o.items, items...)
	o.mu.Unlock()
	wake(o.wake)
}

// take waits for settlements and returns up to limit of them, nil when ctx is done.
func (o *outbox) take(ctx context.Context, limit int) []*settlement {
	for {
		ready, wait := o.ready(time.Now(), limit, true)
		if len(ready) > 0 {
			return ready
		}
		if wait == 0 { // nothing waits for a time
			wait = time.Hour
		}
		due := time.NewTimer(wait)
		select {
		case <-o.wake:
		case <-due.C:
		case <-ctx.Done():
		}
		due.Stop()
		if ctx.Err() != nil {
			return nil
		}
	}
}

// ready takes what may be sent now, or tells how long until something may. What
// has to go alone is taken only if it can, and holds up what is behind it.
func (o *outbox) ready(now time.Time, limit int, canAlone bool) (ready []*settlement, wait time.Duration) {
	o.mu.Lock()
	defer o.mu.Unlock()
	bytes, closed := 0, false
	o.items = slices.DeleteFunc(o.items, func(s *settlement) bool {
		if s.after.After(now) {
			if d := s.after.Sub(now); wait == 0 || d < wait {
				wait = d
			}
			return false
		}
		full := len(ready) >= limit || bytes+s.size() > maxBatchBytes
		if closed || s.alone && !canAlone || len(ready) > 0 && (full || s.alone) {
			closed = true
			return false
		}
		ready, closed = append(ready, s), s.alone
		bytes += s.size()
		return true
	})
	return ready, wait
}

// settles tells whether an answer, though an error, is one about the task and not
// about the server.
func settles(err error) bool {
	var e *Error
	return err == nil || errors.As(err, &e) && final(e)
}

func (s *session) logFailure(ctx context.Context, it *settlement, willRetry bool) {
	level := slog.LevelWarn
	if !willRetry {
		level = slog.LevelError
	}
	f := it.fail.GetFailure()
	s.w.logger.LogAttrs(ctx, level, "wiggle: attempt failed", append(taskAttrs(it.held.task),
		slog.Bool("will_retry", willRetry), slog.String("type", f.GetType()), slog.String("error", f.GetMessage()))...)
}

// answered deals with the answer about one task.
func (s *session) answered(it *settlement, e *Error) {
	switch {
	case e == nil:
		s.settle(it.held)
	case final(e):
		s.lose(it.held, e)
	case refused(e) && len(it.report.GetFollowedBy()) > 0:
		s.firstAlone(it, e)
	case refused(e) && it.fail == nil:
		// The server will never take this result (too big, wrong kind). Told as a
		// failure it shows, and the retry policy decides.
		s.mu.Lock()
		s.fail(it.held, &wigglev1.FailTaskRequest{
			Failure:   &wigglev1.Failure{Type: typeRefused, Message: cut(e.Error(), maxFailureText)},
			StartedAt: it.report.GetStartedAt(), FinishedAt: it.report.GetFinishedAt(),
		})
		s.mu.Unlock()
	case refused(e):
		s.giveUp(it, e)
	case broken(e) && it.failures >= maxBroken:
		s.giveUp(it, e)
	default:
		s.retry(it, e)
	}
}

func (s *session) giveUp(it *settlement, e *Error) {
	s.w.logger.LogAttrs(context.Background(), slog.LevelError, "wiggle: the server does not take a report; the lease is left to run out",
		append(taskAttrs(it.held.task), slog.Any("error", e))...)
	s.settle(it.held)
}

func (s *session) retry(it *settlement, e *Error) {
	it.failures++
	it.after = time.Now().Add(max(reportRetries.pause(it.failures), jittered(e.RetryAfter)))
	if it.fail != nil {
		s.fails.put(it)
	} else {
		s.reports.put(it)
	}
}

// final tells whether the server no longer knows the lease: the token moved on, or
// the instance has ended.
func final(e *Error) bool {
	return e.fault.GetLeaseLost() != nil || e.fault.GetWrongState() != nil ||
		e.Code == connect.CodeNotFound || e.Code == connect.CodeAborted && !e.retryable()
}

// refused tells whether the same message will always be refused.
func refused(e *Error) bool {
	return !e.retryable() && (e.Code == connect.CodeInvalidArgument || e.Code == connect.CodeResourceExhausted ||
		e.Code == connect.CodeFailedPrecondition || e.Code == connect.CodeOutOfRange)
}

// broken tells of a fault of the server itself, which may pass.
func broken(e *Error) bool { return !e.retryable() && e.Code == connect.CodeInternal }
