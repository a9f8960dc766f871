package api

import (
	"context"

	"github.com/wiggle-run/wiggle/pkg/faults"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	wiggleinternalv1 "github.com/wiggle-run/wiggle/proto/gen/wiggleinternal/v1"
	"github.com/wiggle-run/wiggle/services/router/internal/backends"
	"github.com/wiggle-run/wiggle/services/router/internal/route"
)

// GetInstances implements wigglev1connect.InstanceServiceHandler. Each instance is read from its shard, and a shard that
// does not answer fails its own.
func (s *Services) GetInstances(
	ctx context.Context, req *wigglev1.GetInstancesRequest,
) (*wigglev1.GetInstancesResponse, error) {
	cluster := s.cluster()
	outcomes := scatter(ctx, req.GetInstances(),
		func(ref *wigglev1.InstanceRef) (int, error) { return cluster.Instance(ref.GetInstanceId()) },
		func(shard int, group []*wigglev1.InstanceRef) ([]*wigglev1.InstanceOutcome, error) {
			part := &wigglev1.GetInstancesRequest{Instances: group}
			res, err := call(ctx, s, shard, "GetInstances",
				func(ctx context.Context, c backends.Client) (*wigglev1.GetInstancesResponse, error) {
					return c.Instances.GetInstances(ctx, part)
				})
			return res.GetOutcomes(), err
		},
		func(_ *wigglev1.InstanceRef, err error) *wigglev1.InstanceOutcome {
			return &wigglev1.InstanceOutcome{Outcome: &wigglev1.InstanceOutcome_Fault{Fault: s.fault(ctx, err)}}
		})
	return &wigglev1.GetInstancesResponse{Outcomes: outcomes}, nil
}

// ScanInstances implements wiggleinternalv1connect.ScanServiceHandler. Scans yield: a shard that has much to do refuses them
// first.
func (s *Services) ScanInstances(
	ctx context.Context, req *wiggleinternalv1.ScanInstancesRequest,
) (*wiggleinternalv1.ScanInstancesResponse, error) {
	shard := int(req.GetShard())
	if err := s.cluster().Scannable(shard); err != nil {
		return nil, err
	}
	if req.GetLimit() < 0 {
		return nil, faults.InvalidArgument("the limit is %d; want 1 or more, or 0 for the default", req.GetLimit())
	}
	c := route.Call{Shard: shard, Method: "ScanInstances", Timeout: s.cfg.CallTimeout, Yields: true}
	return route.Do(ctx, s.forward, c,
		func(ctx context.Context, c backends.Client) (*wiggleinternalv1.ScanInstancesResponse, error) {
			return c.Scans.ScanInstances(ctx, req)
		})
}
