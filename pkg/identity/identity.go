// Package identity is who calls, as services know it.
//
// The router finds out whose credential a call shows, and checks what it needs. Where a service behind it has to know the
// caller too, as it answers only what the caller may see, or records who did it, the router sends the principal along in
// [Header]. A service believes it because only services may call it (package rpc: RequireService). No header means that the
// caller's permissions are not limited: the router has checked the call whole.
package identity

import (
	"context"
	"encoding/base64"
	"fmt"
	"net/http"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	"github.com/wiggle-run/wiggle/pkg/faults"
	"github.com/wiggle-run/wiggle/pkg/permission"
	wiggleinternalv1 "github.com/wiggle-run/wiggle/proto/gen/wiggleinternal/v1"
)

const (
	// Header carries a principal from the router to a service, as base64 of its encoded message.
	Header = "Wiggle-Principal-Bin"
	// AddressHeader carries the address from which the caller called.
	AddressHeader = "Wiggle-Caller-Address"
	// AgentHeader carries what the caller calls itself: the User-Agent of its call.
	AgentHeader = "Wiggle-Caller-Agent"
)

// Principal is who calls. It does not change once made.
type Principal struct {
	message *wiggleinternalv1.Principal
	allowed permission.Set
	encoded string
}

// New returns the principal of a message, which is not changed afterwards. It fails for permissions that are none.
func New(message *wiggleinternalv1.Principal) (*Principal, error) {
	set, err := permission.NewSet(message.GetPermissions())
	if err != nil {
		return nil, fmt.Errorf("principal %s: %w", message.GetName(), err)
	}
	return newPrincipal(message, set)
}

func newPrincipal(message *wiggleinternalv1.Principal, allowed permission.Set) (*Principal, error) {
	data, err := proto.Marshal(message)
	if err != nil {
		return nil, fmt.Errorf("encode principal %s: %w", message.GetName(), err)
	}
	return &Principal{message: message, allowed: allowed, encoded: base64.RawStdEncoding.EncodeToString(data)}, nil
}

// Service is the principal of the cluster's own services: it may do everything.
func Service() *Principal {
	return unlimited(wiggleinternalv1.PrincipalKind_PRINCIPAL_KIND_SERVICE, "service")
}

// Anonymous is anybody where nothing is enforced: it may do everything.
func Anonymous() *Principal {
	return unlimited(wiggleinternalv1.PrincipalKind_PRINCIPAL_KIND_ANONYMOUS, "anonymous")
}

func unlimited(kind wiggleinternalv1.PrincipalKind, name string) *Principal {
	p, err := newPrincipal(&wiggleinternalv1.Principal{
		Kind: kind, Name: name, Permissions: permission.Everything().Strings(),
	}, permission.Everything())
	if err != nil {
		panic(err) // a message of constants can be encoded
	}
	return p
}

// Message is the principal as services tell it each other. It must not be changed.
func (p *Principal) Message() *wiggleinternalv1.Principal { return p.message }

// Permissions are what it may do.
func (p *Principal) Permissions() permission.Set { return p.allowed }

// String names it in messages and in the audit log: user/alice, key/ci, service, anonymous.
func (p *Principal) String() string {
	switch p.message.GetKind() {
	case wiggleinternalv1.PrincipalKind_PRINCIPAL_KIND_USER:
		return "user/" + p.message.GetName()
	case wiggleinternalv1.PrincipalKind_PRINCIPAL_KIND_KEY:
		return "key/" + p.message.GetName()
	case wiggleinternalv1.PrincipalKind_PRINCIPAL_KIND_SERVICE:
		return "service"
	default:
		return "anonymous"
	}
}

type contextKey struct{}

// With returns a context that carries the principal.
func With(ctx context.Context, p *Principal) context.Context {
	return context.WithValue(ctx, contextKey{}, p)
}

// FromContext returns the principal that ctx carries: in the router whoever calls, in a service whom the router named. Nil
// if there is none.
func FromContext(ctx context.Context) *Principal {
	p, _ := ctx.Value(contextKey{}).(*Principal)
	return p
}

// Scopes are those within which the caller may do the action: [permission.Everywhere] alone where ctx carries no principal,
// as the router has checked the call whole then.
func Scopes(ctx context.Context, action string) []permission.Scope {
	p := FromContext(ctx)
	if p == nil {
		return []permission.Scope{permission.Everywhere()}
	}
	return p.allowed.Scopes(action)
}

// Within are the names of a namespace (workflows, queues) on which the caller may do the action. Nil, which stands for all,
// where ctx carries no principal.
func Within(ctx context.Context, action, namespace string) *permission.Names {
	p := FromContext(ctx)
	if p == nil {
		return nil
	}
	return p.allowed.Names(action, namespace)
}

// Allows reports whether the caller may do the action on a name of a namespace. It may where ctx carries no principal.
func Allows(ctx context.Context, action, namespace, name string) bool {
	p := FromContext(ctx)
	return p == nil || p.allowed.Allows(action, namespace, name)
}

// Check is PERMISSION_DENIED unless the caller may do the action on a name of a namespace, both of which it has told us. Where
// it has told an id alone, [Denied] does not tell it what is behind that.
func Check(ctx context.Context, action, namespace, name string) error {
	if Allows(ctx, action, namespace, name) {
		return nil
	}
	return faults.PermissionDenied(action+":"+namespace+"/"+name, FromContext(ctx).String())
}

// Denied is PERMISSION_DENIED for a thing ("instance", "schedule") that the caller has named by its id. It is for a caller whom
// ctx carries, and says the same of a thing that does not exist, so that ids cannot be tried.
func Denied(ctx context.Context, action, thing, id string) error {
	return faults.PermissionDeniedOn(action, FromContext(ctx).String(), thing, id)
}

// Write puts the principal into a request's headers.
func (p *Principal) Write(header http.Header) { header.Set(Header, p.encoded) }

// Read returns the principal of a request's headers, nil if they have none.
func Read(header http.Header) (*Principal, error) {
	text := header.Get(Header)
	if text == "" {
		return nil, nil //nolint:nilnil // the caller is not limited
	}
	data, err := base64.RawStdEncoding.DecodeString(text)
	if err != nil {
		return nil, faults.InvalidArgument("header %s is no base64", Header)
	}
	message := &wiggleinternalv1.Principal{}
	if err := proto.Unmarshal(data, message); err != nil {
		return nil, faults.InvalidArgument("header %s holds no principal", Header)
	}
	p, err := New(message)
	if err != nil {
		return nil, faults.InvalidArgument("header %s: %v", Header, err)
	}
	return p, nil
}

// Receive is an interceptor for handlers of services: it takes over the principal that the router named. It comes behind
// the check that a service calls.
type Receive struct{}

// WrapUnary implements [connect.Interceptor].
func (Receive) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
		if req.Spec().IsClient {
			return next(ctx, req)
		}
		p, err := Read(req.Header())
		if err != nil {
			return nil, err
		}
		if p != nil {
			ctx = With(ctx, p)
		}
		return next(ctx, req)
	}
}

// WrapStreamingClient implements [connect.Interceptor].
func (Receive) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return next
}

// WrapStreamingHandler implements [connect.Interceptor].
func (Receive) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return func(ctx context.Context, conn connect.StreamingHandlerConn) error {
		p, err := Read(conn.RequestHeader())
		if err != nil {
			return err
		}
		if p != nil {
			ctx = With(ctx, p)
		}
		return next(ctx, conn)
	}
}
