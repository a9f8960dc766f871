package api

import (
	"context"
	"time"

	"connectrpc.com/connect"

	"github.com/wiggle-run/wiggle/pkg/faults"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	"github.com/wiggle-run/wiggle/proto/gen/wiggle/v1/wigglev1connect"
	"github.com/wiggle-run/wiggle/services/router/internal/peers"
)

// Search implements wigglev1connect.SearchServiceHandler by the search processes, each of which has every search shard.
type Search struct {
	peers   *peers.Peers[wigglev1connect.SearchServiceClient]
	timeout time.Duration
}

// NewSearch makes the service. The timeout bounds a call, and how long a stream may take to begin.
func NewSearch(processes *peers.Peers[wigglev1connect.SearchServiceClient], timeout time.Duration) *Search {
	return &Search{peers: processes, timeout: timeout}
}

// Search implements wigglev1connect.SearchServiceHandler.
func (s *Search) Search(ctx context.Context, req *wigglev1.SearchRequest) (*wigglev1.SearchResponse, error) {
	return peers.Do(ctx, s.peers, s.timeout,
		func(ctx context.Context, c wigglev1connect.SearchServiceClient) (*wigglev1.SearchResponse, error) {
			return c.Search(ctx, req)
		})
}

// CountFacets implements wigglev1connect.SearchServiceHandler.
func (s *Search) CountFacets(ctx context.Context, req *wigglev1.CountFacetsRequest) (*wigglev1.CountFacetsResponse, error) {
	return peers.Do(ctx, s.peers, s.timeout,
		func(ctx context.Context, c wigglev1connect.SearchServiceClient) (*wigglev1.CountFacetsResponse, error) {
			return c.CountFacets(ctx, req)
		})
}

// GetIndexStatus implements wigglev1connect.SearchServiceHandler.
func (s *Search) GetIndexStatus(
	ctx context.Context, req *wigglev1.GetIndexStatusRequest,
) (*wigglev1.GetIndexStatusResponse, error) {
	return peers.Do(ctx, s.peers, s.timeout,
		func(ctx context.Context, c wigglev1connect.SearchServiceClient) (*wigglev1.GetIndexStatusResponse, error) {
			return c.GetIndexStatus(ctx, req)
		})
}

// Reindex implements wigglev1connect.SearchServiceHandler.
func (s *Search) Reindex(
	ctx context.Context, req *wigglev1.ReindexRequest, stream *connect.ServerStream[wigglev1.ReindexResponse],
) error {
	return passOn(ctx, s, stream,
		func(ctx context.Context, c wigglev1connect.SearchServiceClient) (*connect.ServerStreamForClient[wigglev1.ReindexResponse], error) {
			return c.Reindex(ctx, req)
		})
}

// Verify implements wigglev1connect.SearchServiceHandler.
func (s *Search) Verify(
	ctx context.Context, req *wigglev1.VerifyRequest, stream *connect.ServerStream[wigglev1.VerifyResponse],
) error {
	return passOn(ctx, s, stream,
		func(ctx context.Context, c wigglev1connect.SearchServiceClient) (*connect.ServerStreamForClient[wigglev1.VerifyResponse], error) {
			return c.Verify(ctx, req)
		})
}

// passOn sends what a process streams to the caller. Another process is tried until the first message has come; after that
// an end that is not the process's own is the caller's to see, who knows where to go on.
func passOn[Res any](
	ctx context.Context, s *Search, to *connect.ServerStream[Res],
	open func(context.Context, wigglev1connect.SearchServiceClient) (*connect.ServerStreamForClient[Res], error),
) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	from, err := peers.Do(ctx, s.peers, s.timeout,
		func(try context.Context, c wigglev1connect.SearchServiceClient) (*connect.ServerStreamForClient[Res], error) {
			return begin(ctx, try, c, open)
		})
	if err != nil {
		return err
	}
	defer func() { _ = from.Close() }()
	for {
		if err := to.Send(from.Msg()); err != nil {
			return err
		}
		if !from.Receive() {
			return from.Err()
		}
	}
}

// begin opens a stream that lives as long as ctx, and waits for its first message for as long as try.
func begin[Res any](
	ctx, try context.Context, c wigglev1connect.SearchServiceClient,
	open func(context.Context, wigglev1connect.SearchServiceClient) (*connect.ServerStreamForClient[Res], error),
) (*connect.ServerStreamForClient[Res], error) {
	ctx, cancel := context.WithCancel(ctx) // on success it ends with its parent, as the stream does
	stop := context.AfterFunc(try, cancel)
	from, err := open(ctx, c)
	if err == nil && from.Receive() {
		stop()
		return from, nil
	}
	defer cancel()
	if err == nil {
		err = from.Err()
		_ = from.Close()
	}
	if err == nil {
		err = faults.Unavailable(time.Second, "the search service ended the call before it began; try again")
	}
	return nil, err
}
