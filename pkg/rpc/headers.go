package rpc

import (
	"context"
	"net/http"
	"strconv"

	"connectrpc.com/connect"

	"github.com/wiggle-run/wiggle/pkg/faults"
)

const (
	// ShardHeader names the shard of a call that no id routes.
	ShardHeader = "Wiggle-Shard"
	// ReleaseHeader tells the release of the calling process in a request, of the called one in an answer (OPS-4).
	ReleaseHeader = "Wiggle-Release"
)

type shardKey struct{}

// WithShard names the shard for calls that clients made with [NewClientOptions] make under the returned context. The
// context of a handler does not carry the shard of its own call on to the calls it makes.
func WithShard(ctx context.Context, shard int) context.Context {
	return context.WithValue(ctx, shardKey{}, shard)
}

// ShardFromContext returns the shard that the caller of a handler named, false if it named none. A header that is not a
// shard never gets as far as a handler: the call fails with INVALID_ARGUMENT.
func ShardFromContext(ctx context.Context) (int, bool) {
	info, ok := connect.CallInfoForHandlerContext(ctx)
	if !ok {
		return 0, false
	}
	shard, named, err := shardOf(info.RequestHeader())
	return shard, named && err == nil
}

// ReleaseFromContext returns the release of the process that called the handler, false if it does not tell.
func ReleaseFromContext(ctx context.Context) (string, bool) {
	info, ok := connect.CallInfoForHandlerContext(ctx)
	if !ok {
		return "", false
	}
	release := info.RequestHeader().Get(ReleaseHeader)
	return release, release != ""
}

// shardOf parses the header strictly: one value, decimal digits without a sign or leading zeros, at most 2^31-1.
func shardOf(header http.Header) (shard int, named bool, err error) {
	values := header[ShardHeader]
	if len(values) == 0 {
		return 0, false, nil
	}
	n, perr := strconv.ParseUint(values[0], 10, 31)
	if perr != nil || len(values) > 1 || strconv.FormatUint(n, 10) != values[0] {
		return 0, true, faults.InvalidArgument("header %s must be one shard number, such as 3", ShardHeader)
	}
	return int(n), true, nil
}

// handlerHeaders tells the release and refuses a malformed shard.
type handlerHeaders struct{ release string }

func (h handlerHeaders) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
		if _, _, err := shardOf(req.Header()); err != nil {
			return nil, err
		}
		res, err := next(ctx, req)
		if err == nil && h.release != "" {
			res.Header().Set(ReleaseHeader, h.release)
		}
		return res, err
	}
}

func (h handlerHeaders) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return func(ctx context.Context, conn connect.StreamingHandlerConn) error {
		if _, _, err := shardOf(conn.RequestHeader()); err != nil {
			return err
		}
		if h.release != "" {
			conn.ResponseHeader().Set(ReleaseHeader, h.release)
		}
		return next(ctx, conn)
	}
}

func (h handlerHeaders) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return next
}

// clientHeaders sends the shard, the release and the service key.
type clientHeaders struct {
	release     string
	key         string
	peerRelease func(peer, release string)
}

func (c clientHeaders) write(ctx context.Context, header http.Header) {
	if shard, ok := ctx.Value(shardKey{}).(int); ok {
		header.Set(ShardHeader, strconv.Itoa(shard))
	}
	if c.release != "" {
		header.Set(ReleaseHeader, c.release)
	}
	if c.key != "" {
		header.Set(ServiceKeyHeader, c.key)
	}
}

func (c clientHeaders) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
		c.write(ctx, req.Header())
		res, err := next(ctx, req)
		if err == nil && c.peerRelease != nil {
			if release := res.Header().Get(ReleaseHeader); release != "" {
				c.peerRelease(req.Peer().Addr, release)
			}
		}
		return res, err
	}
}

func (c clientHeaders) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return func(ctx context.Context, spec connect.Spec) connect.StreamingClientConn {
		conn := next(ctx, spec)
		c.write(ctx, conn.RequestHeader())
		return conn
	}
}

func (c clientHeaders) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return next
}
