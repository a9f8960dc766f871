// Package source reads instances for the index, through the routers: search opens no instance shard (SRC-1). Calls go to
// one router for as long as it answers, and then to the next.
package source

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/wiggle-run/wiggle/pkg/faults"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	"github.com/wiggle-run/wiggle/proto/gen/wiggle/v1/wigglev1connect"
	internalv1 "github.com/wiggle-run/wiggle/proto/gen/wiggleinternal/v1"
	"github.com/wiggle-run/wiggle/proto/gen/wiggleinternal/v1/wiggleinternalv1connect"
)

const (
	// callTimeout is longer than a router gives a shard.
	callTimeout = 15 * time.Second
	retryAfter  = time.Second
)

// Router is how one router is called.
type Router struct {
	Instances wigglev1connect.InstanceServiceClient
	Scans     wiggleinternalv1connect.ScanServiceClient
}

// Source reads instances. It is safe for concurrent use.
type Source struct {
	routers   []Router
	preferred atomic.Uint32
	answered  atomic.Bool // the last call
}

// New makes a source.
func New(routers ...Router) *Source { return &Source{routers: routers} }

// Answers tells whether a router answered the last call; not before the first.
func (s *Source) Answers() bool { return s.answered.Load() }

// Get reads instances; the outcomes are in the order of refs. Its error means that no router answered, or that of ctx.
func (s *Source) Get(ctx context.Context, refs []*wigglev1.InstanceRef) ([]*wigglev1.InstanceOutcome, error) {
	req := &wigglev1.GetInstancesRequest{Instances: refs}
	res, err := do(ctx, s, func(ctx context.Context, r Router) (*wigglev1.GetInstancesResponse, error) {
		return r.Instances.GetInstances(ctx, req)
	})
	if err == nil && len(res.GetOutcomes()) != len(refs) {
		return nil, faults.Internal(errors.New("a router did not answer for each instance"))
	}
	return res.GetOutcomes(), err
}

// Scan reads a stretch of a shard's instances.
func (s *Source) Scan(ctx context.Context, req *internalv1.ScanInstancesRequest) (*internalv1.ScanInstancesResponse, error) {
	return do(ctx, s, func(ctx context.Context, r Router) (*internalv1.ScanInstancesResponse, error) {
		return r.Scans.ScanInstances(ctx, req)
	})
}

// Count is about how many instances there are: those of the shards that answer.
func (s *Source) Count(ctx context.Context, namespace, workflow string) (int64, error) {
	req := &wigglev1.CountInstancesRequest{
		Filter:        &wigglev1.InstanceFilter{Namespace: namespace, Workflow: workflow},
		MissingShards: wigglev1.MissingShards_MISSING_SHARDS_PARTIAL,
	}
	res, err := do(ctx, s, func(ctx context.Context, r Router) (*wigglev1.CountInstancesResponse, error) {
		return r.Instances.CountInstances(ctx, req)
	})
	return res.GetTotal(), err
}

func do[T any](ctx context.Context, s *Source, call func(context.Context, Router) (T, error)) (T, error) {
	var zero T
	first := s.preferred.Load()
	for i := range s.routers {
		at := (int(first) + i) % len(s.routers)
		res, err := within(ctx, s.routers[at], call)
		if err == nil || !away(err) {
			s.answered.Store(true)
			if i > 0 {
				s.preferred.CompareAndSwap(first, uint32(at)) //nolint:gosec // an index
			}
			return res, err
		}
		if ctx.Err() != nil {
			return zero, context.Cause(ctx)
		}
	}
	s.answered.Store(false)
	return zero, faults.Unavailable(retryAfter, "no router answers")
}

// away tells whether it was the router that did not answer, and not a shard behind it.
func away(err error) bool {
	e, ok := errors.AsType[*faults.Error](err)
	if !ok {
		return true
	}
	switch e.Code() {
	case faults.CodeUnavailable:
		return e.Kind() == ""
	case faults.CodeDeadlineExceeded, faults.CodeCanceled:
		return true
	default:
		return false
	}
}

func within[T any](ctx context.Context, r Router, call func(context.Context, Router) (T, error)) (T, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return call(ctx, r)
}
