package api

import (
	"context"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	"github.com/wiggle-run/wiggle/pkg/faults"
	"github.com/wiggle-run/wiggle/pkg/identity"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	"github.com/wiggle-run/wiggle/proto/gen/wiggle/v1/wigglev1connect"
	wiggleinternalv1 "github.com/wiggle-run/wiggle/proto/gen/wiggleinternal/v1"
	"github.com/wiggle-run/wiggle/proto/gen/wiggleinternal/v1/wiggleinternalv1connect"
	"github.com/wiggle-run/wiggle/services/router/internal/guard"
	"github.com/wiggle-run/wiggle/services/router/internal/peers"
)

// AuthClient is one auth process.
type AuthClient struct {
	wigglev1connect.AuthServiceClient
	wigglev1connect.AccountServiceClient
	wigglev1connect.RoleServiceClient
	wigglev1connect.KeyServiceClient
	wigglev1connect.AuditServiceClient

	principals wiggleinternalv1connect.PrincipalServiceClient
}

// NewAuthClient makes a client of the process at a URL. Callers go along with the calls of the public services; those of the
// router itself have none.
func NewAuthClient(httpClient connect.HTTPClient, baseURL string, options ...connect.ClientOption) AuthClient {
	own := connect.WithClientOptions(options...)
	forward := connect.WithClientOptions(own, connect.WithInterceptors(guard.ForwardAll{}))
	return AuthClient{
		AuthServiceClient:    wigglev1connect.NewAuthServiceClient(httpClient, baseURL, forward),
		AccountServiceClient: wigglev1connect.NewAccountServiceClient(httpClient, baseURL, forward),
		RoleServiceClient:    wigglev1connect.NewRoleServiceClient(httpClient, baseURL, forward),
		KeyServiceClient:     wigglev1connect.NewKeyServiceClient(httpClient, baseURL, forward),
		AuditServiceClient:   wigglev1connect.NewAuditServiceClient(httpClient, baseURL, forward),
		principals:           wiggleinternalv1connect.NewPrincipalServiceClient(httpClient, baseURL, own),
	}
}

// Principals asks the auth processes for the router itself.
type Principals struct{ Peers *peers.Peers[AuthClient] }

// Authenticate tells whose a credential is. Its time is that of ctx.
func (p Principals) Authenticate(
	ctx context.Context, req *wiggleinternalv1.AuthenticateRequest,
) (*wiggleinternalv1.AuthenticateResponse, error) {
	return peers.Do(ctx, p.Peers, maxWait, func(ctx context.Context, c AuthClient) (*wiggleinternalv1.AuthenticateResponse, error) {
		return c.principals.Authenticate(ctx, req)
	})
}

// ListChanges tells what changed.
func (p Principals) ListChanges(
	ctx context.Context, req *wiggleinternalv1.ListChangesRequest,
) (*wiggleinternalv1.ListChangesResponse, error) {
	return peers.Do(ctx, p.Peers, maxWait, func(ctx context.Context, c AuthClient) (*wiggleinternalv1.ListChangesResponse, error) {
		return c.principals.ListChanges(ctx, req)
	})
}

// RecordAudit writes entries.
func (p Principals) RecordAudit(
	ctx context.Context, req *wiggleinternalv1.RecordAuditRequest,
) (*wiggleinternalv1.RecordAuditResponse, error) {
	return peers.Do(ctx, p.Peers, maxWait, func(ctx context.Context, c AuthClient) (*wiggleinternalv1.RecordAuditResponse, error) {
		return c.principals.RecordAudit(ctx, req)
	})
}

// Auth implements the public services of accounts by the auth processes. It is what the caller is, and the cookies of
// browsers, that it knows itself.
type Auth struct {
	wigglev1connect.UnimplementedAuthServiceHandler

	peers    *peers.Peers[AuthClient]
	timeout  time.Duration
	enforced bool
}

// NewAuth makes the services. enforced tells callers whether calls are checked.
func NewAuth(processes *peers.Peers[AuthClient], timeout time.Duration, enforced bool) *Auth {
	return &Auth{peers: processes, timeout: timeout, enforced: enforced}
}

// method is a method of an auth process's client.
type method[Req, Res any] func(AuthClient, context.Context, *Req) (*Res, error)

// again makes a call that may be made again on another process.
func again[Req, Res any](ctx context.Context, a *Auth, req *Req, do method[Req, Res]) (*Res, error) {
	return peers.Do(ctx, a.peers, a.timeout, func(ctx context.Context, c AuthClient) (*Res, error) { return do(c, ctx, req) })
}

// once makes a call that must not be made twice: a key that is rotated twice has lost its old secret.
func once[Req, Res any](ctx context.Context, a *Auth, req *Req, do method[Req, Res]) (*Res, error) {
	return peers.Once(ctx, a.peers, a.timeout, func(ctx context.Context, c AuthClient) (*Res, error) { return do(c, ctx, req) })
}

// SignIn implements wigglev1connect.AuthServiceHandler.
func (a *Auth) SignIn(ctx context.Context, req *wigglev1.SignInRequest) (*wigglev1.SignInResponse, error) {
	if req.GetCookie() {
		if err := guard.CheckBrowser(ctx); err != nil {
			return nil, err
		}
	}
	res, err := again(ctx, a, req, AuthClient.SignIn)
	if err != nil || !req.GetCookie() {
		return res, err
	}
	if res.GetToken() == "" {
		return nil, faults.Unavailable(time.Second, "the auth service began no session; try again")
	}
	guard.SetSession(ctx, res.GetToken(), res.GetSession().GetExpiresAt().AsTime())
	res = proto.CloneOf(res)
	res.Token = ""
	return res, nil
}

// SignOut implements wigglev1connect.AuthServiceHandler.
func (a *Auth) SignOut(ctx context.Context, req *wigglev1.SignOutRequest) (*wigglev1.SignOutResponse, error) {
	guard.ClearSession(ctx)
	return again(ctx, a, req, AuthClient.SignOut)
}

// SetUp implements wigglev1connect.AuthServiceHandler.
func (a *Auth) SetUp(ctx context.Context, req *wigglev1.SetUpRequest) (*wigglev1.SetUpResponse, error) {
	return once(ctx, a, req, AuthClient.SetUp)
}

// WhoAmI implements wigglev1connect.AuthServiceHandler: the caller is whom the router takes it for, also while no auth process
// answers.
func (a *Auth) WhoAmI(ctx context.Context, _ *wigglev1.WhoAmIRequest) (*wigglev1.WhoAmIResponse, error) {
	p := identity.FromContext(ctx)
	if p == nil {
		return nil, faults.Unauthenticated("nobody is signed in; set WIGGLE_API_KEY, or sign in (wiggle login)")
	}
	m := p.Message()
	res := &wigglev1.WhoAmIResponse{
		Name: m.GetName(), Roles: m.GetRoles(), Permissions: m.GetPermissions(), ExpiresAt: m.GetExpiresAt(), Enforced: a.enforced,
	}
	switch m.GetKind() {
	case wiggleinternalv1.PrincipalKind_PRINCIPAL_KIND_USER:
		res.Kind = "user"
	case wiggleinternalv1.PrincipalKind_PRINCIPAL_KIND_KEY:
		res.Kind = "key"
	case wiggleinternalv1.PrincipalKind_PRINCIPAL_KIND_SERVICE:
		res.Kind = "service"
	default:
		res.Kind = "anonymous"
	}
	return res, nil
}

// ChangePassword implements wigglev1connect.AuthServiceHandler.
func (a *Auth) ChangePassword(ctx context.Context, req *wigglev1.ChangePasswordRequest) (*wigglev1.ChangePasswordResponse, error) {
	return once(ctx, a, req, AuthClient.ChangePassword)
}

// ListSessions implements wigglev1connect.AuthServiceHandler.
func (a *Auth) ListSessions(ctx context.Context, req *wigglev1.ListSessionsRequest) (*wigglev1.ListSessionsResponse, error) {
	return again(ctx, a, req, AuthClient.ListSessions)
}

// RevokeSession implements wigglev1connect.AuthServiceHandler.
func (a *Auth) RevokeSession(ctx context.Context, req *wigglev1.RevokeSessionRequest) (*wigglev1.RevokeSessionResponse, error) {
	return again(ctx, a, req, AuthClient.RevokeSession)
}

// CreateAccount implements wigglev1connect.AccountServiceHandler.
func (a *Auth) CreateAccount(ctx context.Context, req *wigglev1.CreateAccountRequest) (*wigglev1.CreateAccountResponse, error) {
	return once(ctx, a, req, AuthClient.CreateAccount)
}

// ImportAccounts implements wigglev1connect.AccountServiceHandler.
func (a *Auth) ImportAccounts(ctx context.Context, req *wigglev1.ImportAccountsRequest) (*wigglev1.ImportAccountsResponse, error) {
	return again(ctx, a, req, AuthClient.ImportAccounts)
}

// GetAccount implements wigglev1connect.AccountServiceHandler.
func (a *Auth) GetAccount(ctx context.Context, req *wigglev1.GetAccountRequest) (*wigglev1.GetAccountResponse, error) {
	return again(ctx, a, req, AuthClient.GetAccount)
}

// ListAccounts implements wigglev1connect.AccountServiceHandler.
func (a *Auth) ListAccounts(ctx context.Context, req *wigglev1.ListAccountsRequest) (*wigglev1.ListAccountsResponse, error) {
	return again(ctx, a, req, AuthClient.ListAccounts)
}

// UpdateAccount implements wigglev1connect.AccountServiceHandler.
func (a *Auth) UpdateAccount(ctx context.Context, req *wigglev1.UpdateAccountRequest) (*wigglev1.UpdateAccountResponse, error) {
	return again(ctx, a, req, AuthClient.UpdateAccount)
}

// ResetPassword implements wigglev1connect.AccountServiceHandler.
func (a *Auth) ResetPassword(ctx context.Context, req *wigglev1.ResetPasswordRequest) (*wigglev1.ResetPasswordResponse, error) {
	return once(ctx, a, req, AuthClient.ResetPassword)
}

// DeleteAccount implements wigglev1connect.AccountServiceHandler.
func (a *Auth) DeleteAccount(ctx context.Context, req *wigglev1.DeleteAccountRequest) (*wigglev1.DeleteAccountResponse, error) {
	return again(ctx, a, req, AuthClient.DeleteAccount)
}

// ListAccountSessions implements wigglev1connect.AccountServiceHandler.
func (a *Auth) ListAccountSessions(
	ctx context.Context, req *wigglev1.ListAccountSessionsRequest,
) (*wigglev1.ListAccountSessionsResponse, error) {
	return again(ctx, a, req, AuthClient.ListAccountSessions)
}

// RevokeAccountSessions implements wigglev1connect.AccountServiceHandler.
func (a *Auth) RevokeAccountSessions(
	ctx context.Context, req *wigglev1.RevokeAccountSessionsRequest,
) (*wigglev1.RevokeAccountSessionsResponse, error) {
	return again(ctx, a, req, AuthClient.RevokeAccountSessions)
}

// PutRole implements wigglev1connect.RoleServiceHandler.
func (a *Auth) PutRole(ctx context.Context, req *wigglev1.PutRoleRequest) (*wigglev1.PutRoleResponse, error) {
	return again(ctx, a, req, AuthClient.PutRole)
}

// ListRoles implements wigglev1connect.RoleServiceHandler.
func (a *Auth) ListRoles(ctx context.Context, req *wigglev1.ListRolesRequest) (*wigglev1.ListRolesResponse, error) {
	return again(ctx, a, req, AuthClient.ListRoles)
}

// DeleteRole implements wigglev1connect.RoleServiceHandler.
func (a *Auth) DeleteRole(ctx context.Context, req *wigglev1.DeleteRoleRequest) (*wigglev1.DeleteRoleResponse, error) {
	return again(ctx, a, req, AuthClient.DeleteRole)
}

// CreateKey implements wigglev1connect.KeyServiceHandler.
func (a *Auth) CreateKey(ctx context.Context, req *wigglev1.CreateKeyRequest) (*wigglev1.CreateKeyResponse, error) {
	return once(ctx, a, req, AuthClient.CreateKey)
}

// ListKeys implements wigglev1connect.KeyServiceHandler.
func (a *Auth) ListKeys(ctx context.Context, req *wigglev1.ListKeysRequest) (*wigglev1.ListKeysResponse, error) {
	return again(ctx, a, req, AuthClient.ListKeys)
}

// RotateKey implements wigglev1connect.KeyServiceHandler.
func (a *Auth) RotateKey(ctx context.Context, req *wigglev1.RotateKeyRequest) (*wigglev1.RotateKeyResponse, error) {
	return once(ctx, a, req, AuthClient.RotateKey)
}

// RevokeKey implements wigglev1connect.KeyServiceHandler.
func (a *Auth) RevokeKey(ctx context.Context, req *wigglev1.RevokeKeyRequest) (*wigglev1.RevokeKeyResponse, error) {
	return again(ctx, a, req, AuthClient.RevokeKey)
}

// ListAuditEntries implements wigglev1connect.AuditServiceHandler.
func (a *Auth) ListAuditEntries(ctx context.Context, req *wigglev1.ListAuditEntriesRequest) (*wigglev1.ListAuditEntriesResponse, error) {
	return again(ctx, a, req, AuthClient.ListAuditEntries)
}
