package rpc

import (
	"context"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/wiggle-run/wiggle/pkg/faults"
	"github.com/wiggle-run/wiggle/pkg/identity"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
)

// Authorize is the interceptor that holds callers to the permission that a call declares in its proto. Routers do so before; a
// caller whom the router has not named is refused what is not for anyone.
type Authorize struct{}

// WrapUnary implements [connect.Interceptor].
func (Authorize) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
		if err := authorize(ctx, req.Spec()); err != nil {
			return nil, err
		}
		return next(ctx, req)
	}
}

// WrapStreamingClient implements [connect.Interceptor].
func (Authorize) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return next
}

// WrapStreamingHandler implements [connect.Interceptor]. The service has no streams of its own.
func (Authorize) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return next
}

func authorize(ctx context.Context, spec connect.Spec) error {
	method, ok := spec.Schema.(protoreflect.MethodDescriptor)
	if !ok || spec.IsClient {
		return nil // health and reflection
	}
	needs := permissionOf(method)
	if needs == nil {
		return nil // what only services call
	}
	if needs.GetAccess() == wigglev1.Access_ACCESS_ANYONE {
		return nil
	}
	who := identity.FromContext(ctx)
	if who == nil {
		return unauthenticated()
	}
	if needs.GetAccess() == wigglev1.Access_ACCESS_SIGNED_IN || who.Permissions().AllowsEverywhere(needs.GetAction()) {
		return nil
	}
	return faults.PermissionDenied(needs.GetAction(), who.String())
}

// permissionOf is what a call needs by its schema; nil for what only services call.
func permissionOf(method protoreflect.MethodDescriptor) *wigglev1.Permission {
	p, _ := proto.GetExtension(method.Options(), wigglev1.E_Permission).(*wigglev1.Permission)
	return p
}
