package rpc

import (
	"context"

	"github.com/wiggle-run/wiggle/pkg/faults"
	"github.com/wiggle-run/wiggle/pkg/identity"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	"github.com/wiggle-run/wiggle/services/instances/internal/dispatch"
	"github.com/wiggle-run/wiggle/services/instances/internal/machine"
	"github.com/wiggle-run/wiggle/services/instances/internal/store"
)

// reportEvent reads a report, with the steps that followed it in a batched workflow. Of these the router, which checks the
// task, knows nothing: whoever is limited reports such of its own queues only.
func reportEvent(ctx context.Context, worker string, lease store.Lease, r *wigglev1.StepReport) (dispatch.Event, error) {
	report, err := reportOf(worker, r)
	if err != nil || len(r.GetFollowedBy()) == 0 {
		return reportedBy(dispatch.Report(lease, report), r), err
	}
	following := make([]machine.Following, len(r.GetFollowedBy()))
	for i, f := range r.GetFollowedBy() {
		if f.GetOutcome() == nil {
			return dispatch.Event{}, faults.InvalidArgument(
				"step %q, which followed in the report of task %s, has no outcome: set result, unchanged, gate or choice",
				f.GetNode(), r.GetTaskId())
		}
		following[i].Node = f.GetNode()
		if following[i].Report, err = reportOf(worker, stepOf(f)); err != nil {
			return dispatch.Event{}, err
		}
	}
	var may func(namespace, queue string) error
	if identity.FromContext(ctx) != nil {
		may = func(namespace, queue string) error { return identity.Check(ctx, actionTasks, namespace, queue) }
	}
	return reportedBy(dispatch.ReportBatch(lease, report, following, may), r), nil
}

// reportedBy has the event of a report go on with the span in which the step ran.
func reportedBy(ev dispatch.Event, r *wigglev1.StepReport) dispatch.Event {
	ev.Traceparent = r.GetTraceparent()
	return ev
}

// stepOf is a step that followed as the report that it would have been.
func stepOf(f *wigglev1.FollowingStep) *wigglev1.StepReport {
	r := &wigglev1.StepReport{StartedAt: f.GetStartedAt(), FinishedAt: f.GetFinishedAt(), Events: f.GetEvents()}
	switch o := f.GetOutcome().(type) {
	case *wigglev1.FollowingStep_Result:
		r.Outcome = &wigglev1.StepReport_Result{Result: o.Result}
	case *wigglev1.FollowingStep_Unchanged:
		r.Outcome = &wigglev1.StepReport_Unchanged{Unchanged: o.Unchanged}
	case *wigglev1.FollowingStep_Gate:
		r.Outcome = &wigglev1.StepReport_Gate{Gate: o.Gate}
	case *wigglev1.FollowingStep_Choice:
		r.Outcome = &wigglev1.StepReport_Choice{Choice: o.Choice}
	}
	return r
}
