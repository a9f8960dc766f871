package guard

import (
	"context"
	"net/http"

	"connectrpc.com/connect"

	"github.com/wiggle-run/wiggle/pkg/identity"
)

// origin is from where a call came, for the auth service.
type origin struct{ address, agent string }

type originKey struct{}

// Forward is an interceptor for the router's clients of instances, leader and search: a caller whose permission is limited
// goes along, as the service has to hold its answer to that. Others cost nothing.
type Forward struct{}

func (Forward) write(ctx context.Context, header http.Header) {
	if l := Of(ctx); l != nil {
		l.principal.Write(header)
	}
}

// WrapUnary implements [connect.Interceptor].
func (f Forward) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc { return wrapUnary(f.write, next) }

// WrapStreamingClient implements [connect.Interceptor].
func (f Forward) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return wrapStream(f.write, next)
}

// WrapStreamingHandler implements [connect.Interceptor].
func (Forward) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return next
}

// ForwardAll is an interceptor for the router's clients of the auth service: whoever calls goes along, with the address.
type ForwardAll struct{}

func (ForwardAll) write(ctx context.Context, header http.Header) {
	if p := identity.FromContext(ctx); p != nil {
		p.Write(header)
	}
	if from, ok := ctx.Value(originKey{}).(origin); ok {
		header.Set(identity.AddressHeader, from.address)
		header.Set(identity.AgentHeader, from.agent)
	}
}

// WrapUnary implements [connect.Interceptor].
func (f ForwardAll) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return wrapUnary(f.write, next)
}

// WrapStreamingClient implements [connect.Interceptor].
func (f ForwardAll) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return wrapStream(f.write, next)
}

// WrapStreamingHandler implements [connect.Interceptor].
func (ForwardAll) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return next
}

func wrapUnary(write func(context.Context, http.Header), next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
		write(ctx, req.Header())
		return next(ctx, req)
	}
}

func wrapStream(write func(context.Context, http.Header), next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return func(ctx context.Context, spec connect.Spec) connect.StreamingClientConn {
		conn := next(ctx, spec)
		write(ctx, conn.RequestHeader())
		return conn
	}
}
