package api

import (
	"context"
	"errors"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/wiggle-run/wiggle/pkg/faults"
	"github.com/wiggle-run/wiggle/pkg/rpc"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	"github.com/wiggle-run/wiggle/services/router/internal/backends"
	"github.com/wiggle-run/wiggle/services/router/internal/pause"
	"github.com/wiggle-run/wiggle/services/router/internal/route"
)

const (
	// defaultWait and maxWait bound WaitInstance.
	defaultWait = 30 * time.Second
	maxWait     = 5 * time.Minute
	// firstWaitPause is the pause before a wait goes on that its process ended early. It doubles, up to lastWaitPause.
	firstWaitPause = 50 * time.Millisecond
	lastWaitPause  = time.Second
	// waitPatience is how long a wait goes on while the shard does not answer. A failover takes less.
	waitPatience = 3 * time.Second
)

// StartInstance implements wigglev1connect.InstanceServiceHandler.
func (s *Services) StartInstance(
	ctx context.Context, req *wigglev1.StartInstanceRequest,
) (*wigglev1.StartInstanceResponse, error) {
	res, err := s.StartInstances(ctx, &wigglev1.StartInstancesRequest{Starts: []*wigglev1.StartInstanceRequest{req}})
	if err != nil {
		return nil, err
	}
	outcome := res.GetOutcomes()[0]
	if outcome.GetFault() != nil {
		return nil, faults.FromProto(outcome.GetFault())
	}
	return outcome.GetStarted(), nil
}

// StartInstances implements wigglev1connect.InstanceServiceHandler. Each start goes to its shard with its ulid, minted
// here if the caller left it to us, so that trying again on another process is safe.
func (s *Services) StartInstances(
	ctx context.Context, req *wigglev1.StartInstancesRequest,
) (*wigglev1.StartInstancesResponse, error) {
	now := time.Now()
	cluster := s.cluster()
	outcomes := scatter(ctx, req.GetStarts(),
		func(start *wigglev1.StartInstanceRequest) (int, error) {
			if err := s.checkPayload(start.GetInput()); err != nil {
				return 0, err
			}
			id, shard, err := cluster.Place(start.GetUlid(), now)
			if err != nil {
				return 0, err
			}
			start.Ulid = strings.ToLower(id.String())
			return shard, nil
		},
		func(shard int, group []*wigglev1.StartInstanceRequest) ([]*wigglev1.StartOutcome, error) {
			return s.startOn(ctx, shard, group)
		},
		func(_ *wigglev1.StartInstanceRequest, err error) *wigglev1.StartOutcome {
			return &wigglev1.StartOutcome{Outcome: &wigglev1.StartOutcome_Fault{Fault: s.fault(ctx, err)}}
		})
	if err := allOverloaded(outcomes); err != nil {
		return nil, err
	}
	return &wigglev1.StartInstancesResponse{Outcomes: outcomes}, nil
}

func (s *Services) startOn(
	ctx context.Context, shard int, group []*wigglev1.StartInstanceRequest,
) ([]*wigglev1.StartOutcome, error) {
	if err := s.refusals.check(shard, time.Now()); err != nil {
		return nil, err
	}
	complete := s.keeper.Ensure(ctx, shard)
	part := &wigglev1.StartInstancesRequest{Starts: group}
	c := route.Call{Shard: shard, Method: "StartInstances", Timeout: s.cfg.CallTimeout, Yields: true}
	for _, start := range group {
		c.Bytes += len(start.GetInput().GetData())
	}
	res, err := route.Do(ctx, s.forward, c,
		func(ctx context.Context, c backends.Client) (*wigglev1.StartInstancesResponse, error) {
			return c.Instances.StartInstances(ctx, part)
		})
	s.refusals.note(shard, time.Now(), res.GetOutcomes(), err)
	if err != nil {
		return nil, err
	}
	if !complete {
		for _, outcome := range res.GetOutcomes() {
			if fault := outcome.GetFault(); fault.GetNotFound() != nil {
				late := faults.Unavailable(time.Second,
					"shard %d has not yet received every workflow definition, and does not know this one; try again", shard)
				outcome.Outcome = &wigglev1.StartOutcome_Fault{Fault: late.ToProto()}
			}
		}
	}
	return res.GetOutcomes(), nil
}

// GetInstance implements wigglev1connect.InstanceServiceHandler.
func (s *Services) GetInstance(
	ctx context.Context, req *wigglev1.GetInstanceRequest,
) (*wigglev1.GetInstanceResponse, error) {
	shard, err := s.cluster().Instance(req.GetInstanceId())
	if err != nil {
		return nil, err
	}
	return call(ctx, s, shard, "GetInstance",
		func(ctx context.Context, c backends.Client) (*wigglev1.GetInstanceResponse, error) {
			return c.Instances.GetInstance(ctx, req)
		})
}

// GetHistory implements wigglev1connect.InstanceServiceHandler.
func (s *Services) GetHistory(
	ctx context.Context, req *wigglev1.GetHistoryRequest,
) (*wigglev1.GetHistoryResponse, error) {
	shard, err := s.cluster().Instance(req.GetInstanceId())
	if err != nil {
		return nil, err
	}
	return call(ctx, s, shard, "GetHistory",
		func(ctx context.Context, c backends.Client) (*wigglev1.GetHistoryResponse, error) {
			return c.Instances.GetHistory(ctx, req)
		})
}

// CancelInstance implements wigglev1connect.InstanceServiceHandler.
func (s *Services) CancelInstance(
	ctx context.Context, req *wigglev1.CancelInstanceRequest,
) (*wigglev1.CancelInstanceResponse, error) {
	shard, err := s.cluster().Instance(req.GetInstanceId())
	if err != nil {
		return nil, err
	}
	return call(ctx, s, shard, "CancelInstance",
		func(ctx context.Context, c backends.Client) (*wigglev1.CancelInstanceResponse, error) {
			return c.Instances.CancelInstance(ctx, req)
		})
}

// WaitInstance implements wigglev1connect.InstanceServiceHandler. When the process that waits for us goes away or ends the
// wait early, another one goes on with it. When the router goes down, the caller gets the state as it is.
func (s *Services) WaitInstance(
	ctx context.Context, req *wigglev1.WaitInstanceRequest,
) (*wigglev1.WaitInstanceResponse, error) {
	shard, err := s.cluster().Instance(req.GetInstanceId())
	if err != nil {
		return nil, err
	}
	wait := defaultWait
	if req.GetWait() != nil {
		wait = min(max(req.GetWait().AsDuration(), 0), maxWait)
	}
	end := time.Now().Add(wait)
	answered := time.Now() // when the shard last did
	for next := firstWaitPause; ; next = min(2*next, lastWaitPause) {
		draining := isDraining(ctx)
		if draining {
			end = time.Now()
		}
		res, err := s.waitOn(ctx, shard, req.GetInstanceId(), end)
		over := draining || time.Until(end) <= next
		switch {
		case err == nil && (res.GetEnded() || over):
			return res, nil
		case err == nil:
			answered = time.Now()
		case isDraining(ctx) && !draining: // which is why: ask for the state as it is
		case !errors.Is(err, faults.ErrUnavailable) || over || time.Since(answered) > waitPatience:
			return nil, err
		}
		if !pause.For(ctx, pause.Jitter(next), rpc.Draining(ctx)) {
			return nil, ctx.Err()
		}
	}
}

// waitOn waits on one shard until the end, at most until the router drains.
func (s *Services) waitOn(
	ctx context.Context, shard int, id string, end time.Time,
) (*wigglev1.WaitInstanceResponse, error) {
	wait := max(time.Until(end), 0)
	if wait > 0 {
		waitCtx, cancel := context.WithCancel(ctx)
		defer cancel()
		done := make(chan struct{})
		defer close(done)
		draining := rpc.Draining(ctx)
		go func() {
			select {
			case <-draining:
				cancel()
			case <-done:
			}
		}()
		ctx = waitCtx
	}
	c := route.Call{Shard: shard, Method: "WaitInstance", Timeout: wait + s.cfg.CallTimeout}
	return route.Do(ctx, s.forward, c,
		func(ctx context.Context, c backends.Client) (*wigglev1.WaitInstanceResponse, error) {
			part := &wigglev1.WaitInstanceRequest{InstanceId: id, Wait: durationpb.New(max(time.Until(end), 0))}
			return c.Instances.WaitInstance(ctx, part)
		})
}

func isDraining(ctx context.Context) bool {
	select {
	case <-rpc.Draining(ctx):
		return true
	default:
		return false
	}
}
