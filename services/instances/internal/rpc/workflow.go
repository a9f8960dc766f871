package rpc

import (
	"context"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/wiggle-run/wiggle/pkg/faults"
	"github.com/wiggle-run/wiggle/pkg/identity"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	"github.com/wiggle-run/wiggle/proto/gen/wiggle/v1/wigglev1connect"
	"github.com/wiggle-run/wiggle/services/instances/internal/reads"
	"github.com/wiggle-run/wiggle/services/instances/internal/registry"
	"github.com/wiggle-run/wiggle/services/instances/internal/store"
)

// RegisterWorkflow is the router's: it takes more than one shard.
func (s *Server) RegisterWorkflow(context.Context, *wigglev1.RegisterWorkflowRequest) (*wigglev1.RegisterWorkflowResponse, error) {
	return nil, faults.Unimplemented("an instances process registers no workflow: call the router")
}

// GetWorkflow reads one definition of the shard that the caller names.
func (s *Server) GetWorkflow(ctx context.Context, req *wigglev1.GetWorkflowRequest) (*wigglev1.GetWorkflowResponse, error) {
	shard, err := s.named(ctx)
	if err != nil {
		return nil, err
	}
	name := namespace(req.GetNamespace())
	if err := errors.Join(clean("namespace", name, maxNamespaceBytes), clean("workflow", req.GetName(), maxWorkflowBytes)); err != nil {
		return nil, faults.InvalidArgument("%s", err.Error())
	}
	if err := identity.Check(ctx, actionWorkflows, name, req.GetName()); err != nil {
		return nil, err
	}
	c := reads.Call{Procedure: wigglev1connect.WorkflowServiceGetWorkflowProcedure}
	d, _, err := read(ctx, s, shard.ID(), c, func(ctx context.Context, r store.Reader) (store.Definition, error) {
		return r.Definition(ctx, name, req.GetName(), req.GetVersion())
	})
	switch {
	case errors.Is(err, store.ErrNotFound) && req.GetVersion() > 0:
		return nil, faults.NotFound("version", versionName(req.GetName(), req.GetVersion()))
	case errors.Is(err, store.ErrNotFound):
		return nil, faults.NotFound("workflow", req.GetName())
	case err != nil:
		return nil, fault(shard.ID(), err)
	}
	return &wigglev1.GetWorkflowResponse{
		Definition: d.Graph, Fingerprint: hex.EncodeToString(d.Fingerprint[:]), RegisteredAt: stamp(d.RegisteredAt),
	}, nil
}

// ListWorkflows lists the versions that the shard has which the caller names. A page
// that is not the first is read from the primary: a replica might lack what another
// process has told of.
func (s *Server) ListWorkflows(ctx context.Context, req *wigglev1.ListWorkflowsRequest) (*wigglev1.ListWorkflowsResponse, error) {
	shard, err := s.named(ctx)
	if err != nil {
		return nil, err
	}
	catalogue, err := s.shards.Catalogue(shard.ID())
	if err != nil {
		return nil, err
	}
	after, version, err := parseVersionToken(req.GetPageToken())
	if err != nil {
		return nil, err
	}
	name := namespace(req.GetNamespace())
	size, only := page(req.GetPageSize(), defaultPage, maxPage), identity.Within(ctx, actionWorkflows, name)
	c := reads.Call{Procedure: wigglev1connect.WorkflowServiceListWorkflowsProcedure, Primary: req.GetPageToken() != ""}
	list, _, err := read(ctx, s, shard.ID(), c, func(ctx context.Context, r store.Reader) ([]registry.Summary, error) {
		return catalogue.List(ctx, r, registry.Listing{
			Namespace: name, Only: only, After: after, AfterVersion: version, Limit: size + 1,
		})
	})
	if err != nil {
		return nil, fault(shard.ID(), err)
	}
	res := &wigglev1.ListWorkflowsResponse{}
	if len(list) > size {
		list = list[:size]
		res.NextPageToken = versionToken(list[size-1].Workflow, list[size-1].Version)
	}
	for _, v := range list {
		res.Workflows = append(res.Workflows, &wigglev1.WorkflowVersion{
			Name: v.Workflow, Version: v.Version, Fingerprint: hex.EncodeToString(v.Fingerprint[:]),
			RegisteredAt: stamp(v.RegisteredAt), Nodes: int32(v.Nodes), //nolint:gosec // at most 10 000
		})
	}
	return res, nil
}

// versionToken is a page token of a list of versions.
func versionToken(workflow string, version int32) string {
	return base64.RawURLEncoding.EncodeToString(fmt.Appendf(nil, "%d/%s", version, workflow))
}

func parseVersionToken(text string) (workflow string, version int32, err error) {
	if text == "" {
		return "", 0, nil
	}
	b, err := base64.RawURLEncoding.DecodeString(text)
	if err == nil {
		if v, name, ok := strings.Cut(string(b), "/"); ok {
			if n, err := strconv.ParseInt(v, 10, 32); err == nil && name != "" {
				return name, int32(n), nil
			}
		}
	}
	return "", 0, faults.InvalidArgument("malformed page token %.60q: use the next_page_token of the page before", text)
}
