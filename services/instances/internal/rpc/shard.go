package rpc

import (
	"context"

	"connectrpc.com/connect"

	"github.com/wiggle-run/wiggle/pkg/faults"
	wirerpc "github.com/wiggle-run/wiggle/pkg/rpc"
	internalv1 "github.com/wiggle-run/wiggle/proto/gen/wiggleinternal/v1"
	"github.com/wiggle-run/wiggle/proto/gen/wiggleinternal/v1/wiggleinternalv1connect"
	"github.com/wiggle-run/wiggle/services/instances/internal/dispatch"
	"github.com/wiggle-run/wiggle/services/instances/internal/reads"
	"github.com/wiggle-run/wiggle/services/instances/internal/registry"
	"github.com/wiggle-run/wiggle/services/instances/internal/store"
)

const (
	defaultDefinitions = 100
	maxDefinitions     = 1000
)

// Status tells how the process and its shards are.
func (s *Server) Status(context.Context, *internalv1.StatusRequest) (*internalv1.StatusResponse, error) {
	return s.shards.Status(), nil
}

// WatchWork streams which queues have tasks. Each shard has a watcher of its own;
// all of them feed the one stream.
func (s *Server) WatchWork(
	ctx context.Context, _ *internalv1.WatchWorkRequest, stream *connect.ServerStream[internalv1.WatchWorkResponse],
) error {
	hints := make(chan *internalv1.WatchWorkResponse)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for _, shard := range s.shards.All() {
		go watch(ctx, shard, hints)
	}
	// The first message opens the stream: what became ready before it is found by
	// the claims that the router makes when it sees the process.
	if err := stream.Send(&internalv1.WatchWorkResponse{}); err != nil {
		return err
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-wirerpc.Draining(ctx):
			return nil
		case h := <-hints:
			if err := stream.Send(h); err != nil {
				return err
			}
		}
	}
}

// watch hands a shard's hints on until ctx is done.
func watch(ctx context.Context, shard *dispatch.Shard, hints chan<- *internalv1.WatchWorkResponse) {
	w := shard.Watch()
	defer w.Close()
	for {
		select {
		case <-ctx.Done():
			return
		case <-w.C():
		}
		res := &internalv1.WatchWorkResponse{}
		for _, key := range w.Take() {
			res.Hints = append(res.Hints, &internalv1.WorkHint{
				Shard: int32(shard.ID()), Namespace: key.Namespace, Queue: key.Queue, //nolint:gosec // a shard fits
			})
		}
		select {
		case <-ctx.Done():
			return
		case hints <- res:
		}
	}
}

// RegisterDefinition registers on home.
func (s *Server) RegisterDefinition(
	ctx context.Context, req *internalv1.RegisterDefinitionRequest,
) (*internalv1.RegisterDefinitionResponse, error) {
	home, err := s.shards.Serving(s.shards.Home())
	if err != nil {
		return nil, err
	}
	name := namespace(req.GetNamespace())
	if err := clean("namespace", name, maxNamespaceBytes); err != nil {
		return nil, err
	}
	stored, created, err := registry.Register(ctx, home.Store(), s.limits, name, req.GetDefinition())
	if err != nil {
		return nil, fault(home.ID(), err)
	}
	if copied, err := s.shards.Definitions(home.ID()); err == nil {
		copied.Note(stored.Revision)
	}
	return &internalv1.RegisterDefinitionResponse{Stored: definitionProto(stored), Created: created}, nil
}

// PutDefinitions writes definitions of home to another shard.
func (s *Server) PutDefinitions(ctx context.Context, req *internalv1.PutDefinitionsRequest) (*internalv1.PutDefinitionsResponse, error) {
	shard := int(req.GetShard())
	if _, err := s.shards.Serving(shard); err != nil {
		return nil, err
	}
	copied, err := s.shards.Definitions(shard)
	if err != nil {
		return nil, err
	}
	ds := make([]store.Definition, 0, len(req.GetDefinitions()))
	for _, d := range req.GetDefinitions() {
		read, err := definitionOf(d)
		if err != nil {
			return nil, err
		}
		ds = append(ds, read)
	}
	revision, err := copied.Put(ctx, ds)
	if err != nil {
		return nil, fault(shard, err)
	}
	return &internalv1.PutDefinitionsResponse{DefinitionsRevision: revision}, nil
}

// ListDefinitions reads the definitions of a shard.
func (s *Server) ListDefinitions(ctx context.Context, req *internalv1.ListDefinitionsRequest) (*internalv1.ListDefinitionsResponse, error) {
	shard, err := s.shards.Serving(int(req.GetShard()))
	if err != nil {
		return nil, err
	}
	query := store.DefinitionQuery{
		AfterRevision: req.GetAfterRevision(), Namespace: req.GetNamespace(), Workflow: req.GetWorkflow(),
		Limit: page(req.GetLimit(), defaultDefinitions, maxDefinitions),
	}
	c := reads.Call{Procedure: wiggleinternalv1connect.ShardServiceListDefinitionsProcedure}
	ds, _, err := read(ctx, s, shard.ID(), c, func(ctx context.Context, r store.Reader) ([]store.Definition, error) {
		return r.ListDefinitions(ctx, query)
	})
	if err != nil {
		return nil, fault(shard.ID(), err)
	}
	res := &internalv1.ListDefinitionsResponse{}
	for _, d := range ds {
		res.Definitions = append(res.Definitions, definitionProto(d))
	}
	return res, nil
}

func definitionProto(d store.Definition) *internalv1.StoredDefinition {
	return &internalv1.StoredDefinition{
		Namespace: d.Namespace, Definition: d.Graph, Fingerprint: d.Fingerprint[:],
		Revision: d.Revision, RegisteredAt: stamp(d.RegisteredAt),
	}
}

func definitionOf(d *internalv1.StoredDefinition) (store.Definition, error) {
	out := store.Definition{
		Namespace: d.GetNamespace(), Workflow: d.GetDefinition().GetName(), Version: d.GetDefinition().GetVersion(),
		Revision: d.GetRevision(), RegisteredAt: moment(d.GetRegisteredAt()), Graph: d.GetDefinition(),
	}
	if len(d.GetFingerprint()) != len(out.Fingerprint) || out.Version <= 0 || out.Revision <= 0 {
		return out, faults.InvalidArgument("definition %q is not one that a home shard registered", out.Workflow)
	}
	copy(out.Fingerprint[:], d.GetFingerprint())
	return out, nil
}
