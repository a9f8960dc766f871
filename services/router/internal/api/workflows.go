package api

import (
	"context"
	"errors"

	"github.com/wiggle-run/wiggle/pkg/faults"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	"github.com/wiggle-run/wiggle/services/router/internal/backends"
	"github.com/wiggle-run/wiggle/services/router/internal/route"
)

// RegisterWorkflow implements wigglev1connect.WorkflowServiceHandler.
func (s *Services) RegisterWorkflow(
	ctx context.Context, req *wigglev1.RegisterWorkflowRequest,
) (*wigglev1.RegisterWorkflowResponse, error) {
	return s.keeper.Register(ctx, orDefault(req.GetNamespace()), req.GetDefinition())
}

// GetWorkflow implements wigglev1connect.WorkflowServiceHandler. Home answers. While it is out of reach, another shard
// answers for an exact version, which never changes once it exists, and one that is not behind for the latest. That no
// shard has the version is then no answer, as home may have it: the error is home's.
func (s *Services) GetWorkflow(
	ctx context.Context, req *wigglev1.GetWorkflowRequest,
) (*wigglev1.GetWorkflowResponse, error) {
	return fromHome(ctx, s, "GetWorkflow", req.GetVersion() > 0,
		func(ctx context.Context, c backends.Client) (*wigglev1.GetWorkflowResponse, error) {
			return c.Workflows.GetWorkflow(ctx, req)
		})
}

// ListWorkflows implements wigglev1connect.WorkflowServiceHandler. Home answers. While it is out of reach, a shard that
// is not behind does.
func (s *Services) ListWorkflows(
	ctx context.Context, req *wigglev1.ListWorkflowsRequest,
) (*wigglev1.ListWorkflowsResponse, error) {
	res, err := fromHome(ctx, s, "ListWorkflows", false,
		func(ctx context.Context, c backends.Client) (*wigglev1.ListWorkflowsResponse, error) {
			return c.Workflows.ListWorkflows(ctx, req)
		})
	if err != nil {
		return nil, err
	}
	res.ShardsBehind = nil
	for _, shard := range s.keeper.Behind() {
		res.ShardsBehind = append(res.ShardsBehind, route.Wire(shard))
	}
	return res, nil
}

// fromHome asks home, and while that is out of reach the other shards: those that have every definition, or any.
func fromHome[T any](
	ctx context.Context, s *Services, method string, anyShard bool,
	do func(ctx context.Context, c backends.Client) (T, error),
) (T, error) {
	home := s.cluster().Home()
	res, homeErr := call(ctx, s, home, method, do)
	if homeErr == nil || !errors.Is(homeErr, faults.ErrUnavailable) {
		return res, homeErr
	}
	behind := make(map[int]bool)
	for _, shard := range s.keeper.Behind() {
		behind[shard] = true
	}
	for _, shard := range s.cluster().Instances() {
		if shard == home || behind[shard] && !anyShard || len(s.forward.Set().Shard(shard).Processes) == 0 {
			continue
		}
		if res, err := call(ctx, s, shard, method, do); err == nil {
			return res, nil
		}
	}
	return res, homeErr
}

func orDefault(namespace string) string {
	if namespace == "" {
		return "default"
	}
	return namespace
}
