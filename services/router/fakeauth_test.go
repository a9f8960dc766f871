package router_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/wiggle-run/wiggle/pkg/faults"
	"github.com/wiggle-run/wiggle/pkg/identity"
	"github.com/wiggle-run/wiggle/pkg/rpc"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	"github.com/wiggle-run/wiggle/proto/gen/wiggle/v1/wigglev1connect"
	wiggleinternalv1 "github.com/wiggle-run/wiggle/proto/gen/wiggleinternal/v1"
	"github.com/wiggle-run/wiggle/proto/gen/wiggleinternal/v1/wiggleinternalv1connect"
	"github.com/wiggle-run/wiggle/services/router"
)

// fakeAuth is an auth process: keys by their tokens, what changed, and what it was told.
type fakeAuth struct {
	wigglev1connect.UnimplementedAuthServiceHandler
	wigglev1connect.UnimplementedKeyServiceHandler

	t   *testing.T
	net *rpc.MemoryNetwork

	mu       sync.Mutex
	server   *rpc.Server
	keys     map[string]*wiggleinternalv1.Principal
	revision int64
	revoked  []string
	audit    []*wigglev1.AuditEntry
	caller   string // of the last call of a public service
	address  string
}

func tokenOf(name string) string { return "wgk_" + name + "_0123456789" }

func newFakeAuth(t *testing.T) *fakeAuth {
	return &fakeAuth{t: t, keys: map[string]*wiggleinternalv1.Principal{}, revision: 1}
}

// option has a cluster's router ask it.
func (a *fakeAuth) option(cfg *router.Config) {
	cfg.AuthOff, cfg.AuthURLs = false, []string{"http://auth"}
}

func (a *fakeAuth) up() {
	a.t.Helper()
	server, err := rpc.NewServer(rpc.ServerConfig{Interceptors: []connect.Interceptor{identity.Receive{}}})
	if err != nil {
		a.t.Fatal(err)
	}
	server.Mount(wigglev1connect.NewAuthServiceHandler(a, server.Options()...))
	server.Mount(wigglev1connect.NewKeyServiceHandler(a, server.Options()...))
	server.Mount(wiggleinternalv1connect.NewPrincipalServiceHandler(a, server.Options()...))
	listener, err := a.net.Listen("auth")
	if err != nil {
		a.t.Fatal(err)
	}
	a.server = server
	go func() { _ = server.Serve(listener) }()
}

func (a *fakeAuth) down() {
	if err := a.server.Close(); err != nil {
		a.t.Error(err)
	}
}

func (a *fakeAuth) add(name string, permissions ...string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.keys[tokenOf(name)] = &wiggleinternalv1.Principal{
		Kind: wiggleinternalv1.PrincipalKind_PRINCIPAL_KIND_KEY, Name: name, CredentialId: name, Permissions: permissions,
	}
}

func (a *fakeAuth) revoke(name string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.keys, tokenOf(name))
	a.revision++
	a.revoked = append(a.revoked, name)
}

func (a *fakeAuth) recorded() []*wigglev1.AuditEntry {
	a.mu.Lock()
	defer a.mu.Unlock()
	return append([]*wigglev1.AuditEntry(nil), a.audit...)
}

func (a *fakeAuth) Authenticate(
	_ context.Context, req *wiggleinternalv1.AuthenticateRequest,
) (*wiggleinternalv1.AuthenticateResponse, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	p := a.keys[req.GetToken()]
	if p == nil {
		return nil, faults.Unauthenticated("unknown")
	}
	return &wiggleinternalv1.AuthenticateResponse{Principal: p, Revision: a.revision}, nil
}

func (a *fakeAuth) ListChanges(
	_ context.Context, req *wiggleinternalv1.ListChangesRequest,
) (*wiggleinternalv1.ListChangesResponse, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	res := &wiggleinternalv1.ListChangesResponse{Revision: a.revision}
	if req.GetAfter() < a.revision {
		res.CredentialIds = a.revoked
	}
	return res, nil
}

func (a *fakeAuth) RecordAudit(
	_ context.Context, req *wiggleinternalv1.RecordAuditRequest,
) (*wiggleinternalv1.RecordAuditResponse, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.audit = append(a.audit, req.GetEntries()...)
	return &wiggleinternalv1.RecordAuditResponse{}, nil
}

// SignIn begins a session for everybody.
func (a *fakeAuth) SignIn(ctx context.Context, _ *wigglev1.SignInRequest) (*wigglev1.SignInResponse, error) {
	a.note(ctx)
	return &wigglev1.SignInResponse{
		Token: "wgs_s1_0123456789", Session: &wigglev1.Session{Id: "s1", ExpiresAt: timestamppb.New(time.Now().Add(time.Hour))},
	}, nil
}

// SignOut ends nobody's session.
func (a *fakeAuth) SignOut(ctx context.Context, _ *wigglev1.SignOutRequest) (*wigglev1.SignOutResponse, error) {
	a.note(ctx)
	return &wigglev1.SignOutResponse{}, nil
}

// ListKeys tells nothing; it is there to be called.
func (a *fakeAuth) ListKeys(ctx context.Context, _ *wigglev1.ListKeysRequest) (*wigglev1.ListKeysResponse, error) {
	a.note(ctx)
	return &wigglev1.ListKeysResponse{}, nil
}

// note keeps who called, as the router says.
func (a *fakeAuth) note(ctx context.Context) {
	info, _ := connect.CallInfoForHandlerContext(ctx)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.caller, a.address = "", info.RequestHeader().Get(identity.AddressHeader)
	if p := identity.FromContext(ctx); p != nil {
		a.caller = p.String()
	}
}

func (a *fakeAuth) lastCaller() (caller, address string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.caller, a.address
}
