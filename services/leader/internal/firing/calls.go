package firing

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/wiggle-run/wiggle/pkg/faults"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
)

// ask finds out about the instances before, a few at a time. When one call finds no router, those after it are not made.
func (l *Loop) ask(ctx context.Context, turns []*turn) {
	var asks []*turn
	for _, t := range turns {
		if t.asks() {
			asks = append(asks, t)
		}
	}
	var next atomic.Int64
	var away atomic.Pointer[faults.Error]
	var wg sync.WaitGroup
	for range min(asking, len(asks)) {
		wg.Go(func() {
			for i := int(next.Add(1)) - 1; i < len(asks); i = int(next.Add(1)) - 1 {
				if fault := away.Load(); fault != nil {
					asks[i].failed("ask after the instance before", fault)
				} else if fault := l.askOne(ctx, asks[i]); fault != nil && unreachable(fault) {
					away.Store(fault)
				}
			}
		})
	}
	wg.Wait()
}

// askOne asks after one instance, or cancels it. An instance that is not there any more has ended.
func (l *Loop) askOne(ctx context.Context, t *turn) *faults.Error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	doing := "ask after the instance before"
	var err error
	if t.overlap() == wigglev1.OverlapPolicy_OVERLAP_POLICY_CANCEL_RUNNING {
		doing = "cancel the instance before"
		req := &wigglev1.CancelInstanceRequest{
			InstanceId: t.row.LastInstance, Reason: fmt.Sprintf("schedule %s is due again", t.row.Schedule.GetId()),
		}
		err = guarded(ctx, func(ctx context.Context) error {
			_, err := l.router.CancelInstance(ctx, req)
			return err
		})
		if errors.Is(err, faults.ErrFailedPrecondition) {
			err = nil // it has ended
		}
	} else {
		var res *wigglev1.GetInstanceResponse
		res, err = l.router.GetInstance(ctx, &wigglev1.GetInstanceRequest{InstanceId: t.row.LastInstance})
		t.running = res.GetInstance().GetState() == wigglev1.InstanceState_INSTANCE_STATE_RUNNING
	}
	if err == nil || errors.Is(err, faults.ErrNotFound) {
		return nil
	}
	fault := faults.FromError(err)
	t.failed(doing, fault)
	return fault
}

// start starts what is to be started, in calls of many. The error is that of a call that failed as a whole for want of a
// router or of room.
func (l *Loop) start(ctx context.Context, turns []*turn) error {
	var group []*turn
	bytes := 0
	var failure error
	flush := func() {
		if len(group) > 0 {
			if err := l.startGroup(ctx, group); err != nil {
				failure = err
			}
		}
		group, bytes = nil, 0
	}
	for _, t := range turns {
		if !t.starts() {
			continue
		}
		size := len(t.row.Schedule.GetInput().GetData())
		if bytes += size; bytes > startBytes {
			flush()
			bytes = size
		}
		group = append(group, t)
	}
	flush()
	return failure
}

func (l *Loop) startGroup(ctx context.Context, group []*turn) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	req := &wigglev1.StartInstancesRequest{}
	for _, t := range group {
		start := t.request()
		l.begin(t, start)
		req.Starts = append(req.Starts, start)
	}
	defer endSpans(group)
	var res *wigglev1.StartInstancesResponse
	err := guarded(ctx, func(ctx context.Context) (err error) {
		res, err = l.router.StartInstances(ctx, req)
		return err
	})
	if err == nil && len(res.GetOutcomes()) != len(group) {
		err = faults.Internal(fmt.Errorf("the router answered %d starts with %d outcomes", len(group), len(res.GetOutcomes())))
	}
	if err != nil {
		fault := faults.FromError(err)
		for _, t := range group {
			t.failed("start", fault)
		}
		if unreachable(fault) {
			return fault
		}
		return nil
	}
	for i, t := range group {
		if fault := res.GetOutcomes()[i].GetFault(); fault != nil {
			t.failed("start", faults.FromProto(fault))
			continue
		}
		t.instance = res.GetOutcomes()[i].GetStarted().GetInstanceId() // made now, or before: it is that of the due time
	}
	return nil
}

// unreachable tells whether other calls would fail too, for now.
func unreachable(fault *faults.Error) bool {
	switch fault.Code() {
	case faults.CodeDeadlineExceeded, faults.CodeUnavailable:
		return !errors.Is(fault, faults.ErrShardUnavailable) && !errors.Is(fault, faults.ErrShardUnknown) &&
			!errors.Is(fault, faults.ErrOutcomeUnknown)
	case faults.CodeResourceExhausted:
		_, again := fault.RetryAfter()
		return again
	default:
		return false
	}
}
