package wiggle

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"

	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
)

// reportRetries paces reports that are not answered, until the lease is lost or the
// worker stops.
var reportRetries = retries{first: 50 * time.Millisecond, longest: 5 * time.Second}

// maxBroken is how often a report is sent that the server answers with an internal
// error. After that its lease is left to run out, so that the step is run again
// and what is wrong shows in the history.
const maxBroken = 10

// reportTimeout bounds one attempt to report: a connection that hangs must not hold
// all reports for long.
const reportTimeout = 10 * time.Second

// maxFailCalls is how many failed attempts are reported at the same time.
const maxFailCalls = 16

// settlement is the outcome of one task on its way to the server: a report or a
// failure.
type settlement struct {
	held     *held
	report   *wigglev1.StepReport
	fail     *wigglev1.FailTaskRequest
	failures int       // calls in vain
	alone    bool      // a batch with it was refused as a whole
	after    time.Time // not before
}

func (s *settlement) size() int { return len(s.report.GetResult().GetData()) }

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
		ready, wait := o.ready(time.Now(), limit)
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

// ready takes what may be sent now, or tells how long until something may.
func (o *outbox) ready(now time.Time, limit int) (ready []*settlement, wait time.Duration) {
	o.mu.Lock()
	defer o.mu.Unlock()
	bytes := 0
	o.items = slices.DeleteFunc(o.items, func(s *settlement) bool {
		if s.after.After(now) {
			if d := s.after.Sub(now); wait == 0 || d < wait {
				wait = d
			}
			return false
		}
		full := len(ready) >= limit || bytes+s.size() > maxBatchBytes
		if len(ready) > 0 && (full || s.alone || ready[0].alone) {
			return false
		}
		ready = append(ready, s)
		bytes += s.size()
		return true
	})
	return ready, wait
}

// reportLoop sends the steps that are done: at once where nothing is under way, else
// together with all that came up meanwhile. The answer brings the steps that follow,
// which live on in work.
func (s *session) reportLoop(ctx, work context.Context) {
	next := &wigglev1.Continuation{
		Namespace: s.w.client.namespace, Queues: s.w.opts.Queues, Workflows: s.w.bindings(), Lease: durationpb.New(s.w.opts.Lease),
		ShareBaseContexts: true,
	}
	health := health{logger: s.w.logger, what: "report"}
	for {
		batch := s.live(s.reports.take(ctx, maxBatch))
		if ctx.Err() != nil {
			return
		}
		if len(batch) == 0 {
			continue
		}
		req := &wigglev1.ReportStepsRequest{Worker: s.w.opts.Name}
		for _, it := range batch {
			req.Reports = append(req.Reports, it.report)
		}
		if !s.stopping.Load() {
			req.Next = next
		}
		res, err := once(ctx, reportTimeout, s.w.client.workers.ReportSteps, req)
		if ctx.Err() == nil {
			health.note(ctx, toError("report", err))
		}
		s.acceptAll(work, res.GetTasks(), res.GetBaseContexts())
		for i, it := range batch {
			switch {
			case err != nil:
				s.reportFailed(it, err, len(batch))
			case i >= len(res.GetOutcomes()):
				s.retry(s.reports, it, missingOutcome("report"))
			default:
				s.answered(s.reports, it, faultError("report", res.GetOutcomes()[i].GetFault()))
			}
		}
	}
}

// reportFailed deals with a batch that failed as a whole. One bad report must not
// hold the others back, so those of a batch that was refused go again alone.
func (s *session) reportFailed(it *settlement, err error, batch int) {
	var e *Error
	errors.As(toError("report", err), &e)
	if batch == 1 {
		s.answered(s.reports, it, e)
		return
	}
	it.alone = refused(e) || broken(e)
	s.retry(s.reports, it, e)
}

// failLoop sends the attempts that failed.
func (s *session) failLoop(ctx context.Context) {
	health := health{logger: s.w.logger, what: "fail"}
	for {
		batch := s.live(s.fails.take(ctx, maxFailCalls))
		if ctx.Err() != nil {
			return
		}
		errs := make([]error, len(batch))
		var wg sync.WaitGroup
		for i, it := range batch {
			wg.Go(func() {
				res, err := once(ctx, reportTimeout, s.w.client.workers.FailTask, it.fail)
				var e *Error
				if errors.As(toError("fail", err), &e) {
					errs[i] = e
				} else {
					s.logFailure(ctx, it, res)
				}
				s.answered(s.fails, it, e)
			})
		}
		wg.Wait()
		if ctx.Err() == nil && len(batch) > 0 {
			health.note(ctx, errors.Join(slices.DeleteFunc(errs, settles)...))
		}
	}
}

// settles tells whether an answer, though an error, is one about the task and not
// about the server.
func settles(err error) bool {
	var e *Error
	return err == nil || errors.As(err, &e) && final(e)
}

func (s *session) logFailure(ctx context.Context, it *settlement, res *wigglev1.FailTaskResponse) {
	level := slog.LevelWarn
	if !res.GetWillRetry() {
		level = slog.LevelError
	}
	f := it.fail.GetFailure()
	s.w.logger.LogAttrs(ctx, level, "wiggle: attempt failed", append(taskAttrs(it.held.task),
		slog.Bool("will_retry", res.GetWillRetry()), slog.String("type", f.GetType()), slog.String("error", f.GetMessage()))...)
}

// answered deals with the answer about one task.
func (s *session) answered(from *outbox, it *settlement, e *Error) {
	switch {
	case e == nil:
		s.settle(it.held)
	case final(e):
		s.lose(it.held, e)
	case refused(e) && it.fail == nil:
		// The server will never take this result (too big, wrong kind). Told as a
		// failure it shows, and the retry policy decides.
		s.fails.put(s.failure(it.held, &wigglev1.FailTaskRequest{
			Failure:   &wigglev1.Failure{Type: typeRefused, Message: cut(e.Error(), maxFailureText)},
			StartedAt: it.report.GetStartedAt(), FinishedAt: it.report.GetFinishedAt(),
		}))
	case refused(e):
		s.giveUp(it, e)
	case broken(e) && it.failures >= maxBroken:
		s.giveUp(it, e)
	default:
		s.retry(from, it, e)
	}
}

func (s *session) giveUp(it *settlement, e *Error) {
	s.w.logger.LogAttrs(context.Background(), slog.LevelError, "wiggle: the server does not take a report; the lease is left to run out",
		append(taskAttrs(it.held.task), slog.Any("error", e))...)
	s.settle(it.held)
}

func (s *session) retry(box *outbox, it *settlement, e *Error) {
	it.failures++
	it.after = time.Now().Add(max(reportRetries.pause(it.failures), jittered(e.RetryAfter)))
	box.put(it)
}

// live leaves out the tasks that are no longer ours.
func (s *session) live(batch []*settlement) []*settlement {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.DeleteFunc(batch, func(it *settlement) bool { return it.held.gone })
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
