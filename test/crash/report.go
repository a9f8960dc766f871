package crash

import (
	"context"
	"errors"
	"time"

	"github.com/wiggle-run/wiggle/pkg/faults"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	"github.com/wiggle-run/wiggle/test/crash/cluster"
	"github.com/wiggle-run/wiggle/test/crash/ledger"
)

// repeatPause is the pause before a call is repeated that was not answered.
const repeatPause = 100 * time.Millisecond

// pending is a report on its way; its outcome is sent once.
type pending struct {
	report  *wigglev1.StepReport
	outcome chan error
}

// report hands a report to a reporter, waits for its outcome and writes it down.
// again sends it a second time after it was applied.
func (w *worker) report(ctx context.Context, t *wigglev1.Task, report *wigglev1.StepReport, again bool) {
	err := w.send(ctx, report)
	w.settled(t, ledger.Done, err)
	if err != nil || !again {
		return
	}
	cluster.Pause(ctx, time.Duration(fenceOf(t)%3)*repeatPause) // at once, or after the token has moved on
	switch err := w.send(ctx, report); {
	case err == nil:
		w.tell(t, ledger.Again, "")
	case ctx.Err() == nil:
		w.tell(t, ledger.Denied, err.Error())
	}
}

// settled writes down how a lease ended: by what the worker did, or not.
func (w *worker) settled(t *wigglev1.Task, as ledger.What, err error) {
	switch {
	case err == nil:
		w.tell(t, as, "")
	case errors.Is(err, faults.ErrLeaseLost):
		w.tell(t, ledger.Refused, "")
	case errors.Is(err, context.Canceled):
	default:
		w.tell(t, ledger.Strange, err.Error())
	}
}

// send reports one step by way of the reporters.
func (w *worker) send(ctx context.Context, report *wigglev1.StepReport) error {
	p := &pending{report: report, outcome: make(chan error, 1)}
	select {
	case w.reports <- p:
	case <-ctx.Done():
		return ctx.Err()
	}
	select {
	case err := <-p.outcome:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// reportLoop sends what is there in one call, and the very same reports again until
// each is answered.
func (w *worker) reportLoop(ctx context.Context) {
	var unanswered []*pending
	for ctx.Err() == nil {
		if len(unanswered) == 0 {
			select {
			case p := <-w.reports:
				unanswered = append(unanswered, p)
			case <-ctx.Done():
				return
			}
		}
		unanswered = w.gather(unanswered)
		if unanswered = w.call(ctx, unanswered); len(unanswered) > 0 {
			cluster.Pause(ctx, repeatPause)
		}
	}
}

// gather adds what waits.
func (w *worker) gather(list []*pending) []*pending {
	for len(list) < reportMost {
		select {
		case p := <-w.reports:
			list = append(list, p)
		default:
			return list
		}
	}
	return list
}

// call sends reports and returns those that were not answered for good.
func (w *worker) call(ctx context.Context, list []*pending) []*pending {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	req := &wigglev1.ReportStepsRequest{Worker: w.name}
	for _, p := range list {
		req.Reports = append(req.Reports, p.report)
	}
	res, err := w.clients.Workers.ReportSteps(ctx, req)
	if err != nil {
		w.log.Info("reports not answered", "reports", len(list), "error", err)
	}
	var left []*pending
	for i, p := range list {
		err := err
		if err == nil {
			err = outcomeError(res.GetOutcomes()[i])
		}
		if again(err) {
			left = append(left, p)
			continue
		}
		p.outcome <- err
	}
	return left
}

// until repeats a call until it is answered for good.
func (w *worker) until(ctx context.Context, t *wigglev1.Task, call func(ctx context.Context) error) error {
	for {
		callCtx, cancel := context.WithTimeout(ctx, callTime)
		err := call(callCtx)
		cancel()
		if !again(err) || ctx.Err() != nil {
			return err
		}
		w.log.Info("call not answered", "task", t.GetId(), "error", err)
		if !cluster.Pause(ctx, repeatPause) {
			return ctx.Err()
		}
	}
}

// again tells whether an answer says to try again, as those of an outage do.
func again(err error) bool {
	switch faults.CodeOf(err) {
	case faults.CodeUnavailable, faults.CodeDeadlineExceeded, faults.CodeResourceExhausted, faults.CodeCanceled:
		return true
	default:
		return false
	}
}

func itemError(outcomes []*wigglev1.TaskOutcome, err error) error {
	if err != nil {
		return err
	}
	return outcomeError(outcomes[0])
}

func outcomeError(o *wigglev1.TaskOutcome) error {
	if f := o.GetFault(); f != nil {
		return faults.FromProto(f)
	}
	return nil
}
