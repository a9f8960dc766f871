// Package rpc offers the search service to routers: it puts together what finds, indexes and rebuilds.
package rpc

import (
	"context"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"

	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	"github.com/wiggle-run/wiggle/services/search/internal/indexer"
	"github.com/wiggle-run/wiggle/services/search/internal/query"
	"github.com/wiggle-run/wiggle/services/search/internal/rebuild"
)

// Feed tells how much of the event log waits to be indexed.
type Feed interface {
	Pending(ctx context.Context) (int64, error)
}

// Server implements wigglev1connect.SearchServiceHandler.
type Server struct {
	*query.Searcher

	rebuilder *rebuild.Rebuilder
	delays    *indexer.Delays
	feed      Feed
}

// New makes the server.
func New(searcher *query.Searcher, rebuilder *rebuild.Rebuilder, delays *indexer.Delays, feed Feed) *Server {
	return &Server{Searcher: searcher, rebuilder: rebuilder, delays: delays, feed: feed}
}

// GetIndexStatus tells how far the index is. Delays are those of this process.
func (s *Server) GetIndexStatus(ctx context.Context, _ *wigglev1.GetIndexStatusRequest) (*wigglev1.GetIndexStatusResponse, error) {
	res := &wigglev1.GetIndexStatusResponse{Pending: -1}
	if n, err := s.feed.Pending(ctx); err == nil {
		res.Pending = n
	}
	if last, ok := s.delays.Last(); ok {
		res.LastDelay = durationpb.New(last)
	}
	const p99 = 0.99
	if d, ok := s.delays.Percentile(time.Now(), p99); ok {
		res.DelayP99 = durationpb.New(d)
	}
	res.Documents, res.Shards = s.Count(ctx)
	return res, ctx.Err()
}

// Reindex builds the index again.
func (s *Server) Reindex(
	ctx context.Context, req *wigglev1.ReindexRequest, stream *connect.ServerStream[wigglev1.ReindexResponse],
) error {
	return s.rebuilder.Reindex(ctx, req, stream.Send)
}

// Verify compares the index with the instances.
func (s *Server) Verify(ctx context.Context, req *wigglev1.VerifyRequest, stream *connect.ServerStream[wigglev1.VerifyResponse]) error {
	return s.rebuilder.Verify(ctx, req, stream.Send)
}
