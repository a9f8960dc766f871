package accounts_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/wiggle-run/wiggle/pkg/faults"
	"github.com/wiggle-run/wiggle/pkg/rpc"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	"github.com/wiggle-run/wiggle/proto/gen/wiggle/v1/wigglev1connect"
)

// Secrets that the fake knows or gives. Every one of them has "secret" in it, which is looked for in what is printed.
const (
	password    = "the secret of alice"
	newPassword = "another secret of hers"
	setUpToken  = "setup-secret"
	token       = "wgs_s1_secret"
	apiKey      = "wgk_k0_secret"
	newKey      = "wgk_k1_secret"
)

// fakeAuth answers as the auth service does behind a router; both have tests of their own.
type fakeAuth struct {
	wigglev1connect.UnimplementedAuthServiceHandler
	wigglev1connect.UnimplementedAccountServiceHandler
	wigglev1connect.UnimplementedRoleServiceHandler
	wigglev1connect.UnimplementedKeyServiceHandler
	wigglev1connect.UnimplementedAuditServiceHandler

	URL string

	mu    sync.Mutex
	asked []proto.Message
	shown []string // as each call's Authorization
	agent string   // of the last call
	ended bool     // the session
	// log answers for the audit log in place of the fake.
	log func(*wigglev1.ListAuditEntriesRequest) (*wigglev1.ListAuditEntriesResponse, error)
}

func newFakeAuth(t *testing.T) *fakeAuth {
	t.Helper()
	f := &fakeAuth{}
	server, err := rpc.NewServer(rpc.ServerConfig{})
	if err != nil {
		t.Fatal(err)
	}
	server.Mount(wigglev1connect.NewAuthServiceHandler(f, server.Options()...))
	server.Mount(wigglev1connect.NewAccountServiceHandler(f, server.Options()...))
	server.Mount(wigglev1connect.NewRoleServiceHandler(f, server.Options()...))
	server.Mount(wigglev1connect.NewKeyServiceHandler(f, server.Options()...))
	server.Mount(wigglev1connect.NewAuditServiceHandler(f, server.Options()...))
	h := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		shown := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
		f.mu.Lock()
		f.shown, f.agent = append(f.shown, shown), r.UserAgent()
		f.mu.Unlock()
		server.Handler().ServeHTTP(w, r)
	}))
	t.Cleanup(h.Close)
	f.URL = h.URL
	return f
}

// note keeps a request, and refuses a call that shows nothing that the fake knows.
func (f *fakeAuth) note(req proto.Message) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asked = append(f.asked, proto.Clone(req))
	shown := f.shown[len(f.shown)-1]
	if shown == apiKey || shown == token && !f.ended {
		return nil
	}
	return fault(&wigglev1.Fault{Code: int32(faults.CodeUnauthenticated), Message: "no session and no key that is known"})
}

// last is the last request.
func (f *fakeAuth) last() proto.Message {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.asked) == 0 {
		return nil
	}
	return f.asked[len(f.asked)-1]
}

func (f *fakeAuth) lastShown() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.shown[len(f.shown)-1]
}

func fault(f *wigglev1.Fault) error { return faults.FromProto(f) }

func at(seconds float64) *timestamppb.Timestamp {
	return timestamppb.New(now.Add(-time.Hour).Add(time.Duration(seconds * float64(time.Second))))
}

func (f *fakeAuth) SignIn(_ context.Context, req *wigglev1.SignInRequest) (*wigglev1.SignInResponse, error) {
	_ = f.note(req)
	if req.GetName() != "alice" || req.GetPassword() != password && req.GetPassword() != newPassword {
		return nil, fault(&wigglev1.Fault{Code: int32(faults.CodeUnauthenticated), Message: "the name or the password is wrong"})
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ended = false
	return &wigglev1.SignInResponse{Token: token, Session: fakeSessions()[0]}, nil
}

func (f *fakeAuth) SetUp(_ context.Context, req *wigglev1.SetUpRequest) (*wigglev1.SetUpResponse, error) {
	_ = f.note(req)
	if req.GetToken() != setUpToken {
		return nil, fault(&wigglev1.Fault{Code: int32(faults.CodeFailedPrecondition), Message: "the token is not that of the first start"})
	}
	return &wigglev1.SetUpResponse{}, nil
}

func (f *fakeAuth) SignOut(_ context.Context, req *wigglev1.SignOutRequest) (*wigglev1.SignOutResponse, error) {
	err := f.note(req)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ended = true
	return &wigglev1.SignOutResponse{}, err
}

func (f *fakeAuth) WhoAmI(_ context.Context, req *wigglev1.WhoAmIRequest) (*wigglev1.WhoAmIResponse, error) {
	if err := f.note(req); err != nil {
		return nil, err
	}
	if f.lastShown() == token {
		return &wigglev1.WhoAmIResponse{
			Name: "alice", Kind: "user", Roles: []string{"operator", "orders-support"},
			Permissions: []string{"instance.*", "workflow.*", "event.read:orders/*"}, ExpiresAt: at(86400), Enforced: true,
		}, nil
	}
	return &wigglev1.WhoAmIResponse{Kind: "anonymous", Permissions: []string{"*"}}, nil
}

func (f *fakeAuth) ChangePassword(_ context.Context, req *wigglev1.ChangePasswordRequest) (*wigglev1.ChangePasswordResponse, error) {
	return &wigglev1.ChangePasswordResponse{}, f.note(req)
}

func fakeSessions() []*wigglev1.Session {
	return []*wigglev1.Session{
		{
			Id: "s1", Account: "alice", CreatedAt: at(0), UsedAt: at(60), ExpiresAt: at(86400), Address: "192.0.2.7",
			UserAgent: "wiggle/1.2 (linux)", Current: true,
		},
		{Id: "s2", Account: "alice", CreatedAt: at(-3600), ExpiresAt: at(3600), Address: "192.0.2.8", UserAgent: "evil\x1b[2J\tagent"},
	}
}

func (f *fakeAuth) ListSessions(_ context.Context, req *wigglev1.ListSessionsRequest) (*wigglev1.ListSessionsResponse, error) {
	return &wigglev1.ListSessionsResponse{Sessions: fakeSessions()}, f.note(req)
}

func (f *fakeAuth) RevokeSession(_ context.Context, req *wigglev1.RevokeSessionRequest) (*wigglev1.RevokeSessionResponse, error) {
	return &wigglev1.RevokeSessionResponse{}, f.note(req)
}

func fakeAccounts() []*wigglev1.Account {
	return []*wigglev1.Account{
		{Name: "alice", Roles: []string{"operator", "orders-support"}, CreatedAt: at(-86400), SignedInAt: at(0)},
		{Name: "bob", Disabled: true, CreatedAt: at(-3600)},
	}
}

func (f *fakeAuth) ListAccounts(_ context.Context, req *wigglev1.ListAccountsRequest) (*wigglev1.ListAccountsResponse, error) {
	if req.GetPageToken() == "" {
		return &wigglev1.ListAccountsResponse{Accounts: fakeAccounts()[:1], NextPageToken: "2"}, f.note(req)
	}
	return &wigglev1.ListAccountsResponse{Accounts: fakeAccounts()[1:]}, f.note(req)
}

func (f *fakeAuth) GetAccount(_ context.Context, req *wigglev1.GetAccountRequest) (*wigglev1.GetAccountResponse, error) {
	for _, a := range fakeAccounts() {
		if a.GetName() == req.GetName() {
			return &wigglev1.GetAccountResponse{Account: a}, f.note(req)
		}
	}
	return nil, faults.NotFound("user", req.GetName())
}

func (f *fakeAuth) CreateAccount(_ context.Context, req *wigglev1.CreateAccountRequest) (*wigglev1.CreateAccountResponse, error) {
	if slices.Contains(req.GetRoles(), "admin") {
		return nil, fault(&wigglev1.Fault{
			Code: int32(faults.CodePermissionDenied), Message: "nobody can give what they do not have",
			Kind: &wigglev1.Fault_PermissionMissing{PermissionMissing: &wigglev1.PermissionMissing{Permission: "*", Principal: "user/alice"}},
		})
	}
	return &wigglev1.CreateAccountResponse{Account: &wigglev1.Account{Name: req.GetName(), Roles: req.GetRoles(), CreatedAt: at(3600)}}, f.note(req)
}

func (f *fakeAuth) UpdateAccount(_ context.Context, req *wigglev1.UpdateAccountRequest) (*wigglev1.UpdateAccountResponse, error) {
	a := fakeAccounts()[0]
	a.Name, a.Disabled = req.GetName(), req.GetDisabled()
	if req.GetRoles() != nil {
		a.Roles = req.GetRoles().GetNames()
	}
	return &wigglev1.UpdateAccountResponse{Account: a}, f.note(req)
}

func (f *fakeAuth) ResetPassword(_ context.Context, req *wigglev1.ResetPasswordRequest) (*wigglev1.ResetPasswordResponse, error) {
	return &wigglev1.ResetPasswordResponse{}, f.note(req)
}

func (f *fakeAuth) DeleteAccount(_ context.Context, req *wigglev1.DeleteAccountRequest) (*wigglev1.DeleteAccountResponse, error) {
	if req.GetName() == "root" {
		return nil, faults.FailedPrecondition("root is the last administrator: make another first")
	}
	return &wigglev1.DeleteAccountResponse{}, f.note(req)
}

func (f *fakeAuth) ImportAccounts(_ context.Context, req *wigglev1.ImportAccountsRequest) (*wigglev1.ImportAccountsResponse, error) {
	res := &wigglev1.ImportAccountsResponse{}
	for _, a := range req.GetAccounts() {
		if a.GetName() == "alice" {
			res.Existing = append(res.Existing, a.GetName())
		} else {
			res.Created++
		}
	}
	return res, f.note(req)
}

func (f *fakeAuth) ListAccountSessions(
	_ context.Context, req *wigglev1.ListAccountSessionsRequest,
) (*wigglev1.ListAccountSessionsResponse, error) {
	if req.GetName() == "bob" {
		return &wigglev1.ListAccountSessionsResponse{}, f.note(req)
	}
	return &wigglev1.ListAccountSessionsResponse{Sessions: fakeSessions()[1:]}, f.note(req)
}

func (f *fakeAuth) RevokeAccountSessions(
	_ context.Context, req *wigglev1.RevokeAccountSessionsRequest,
) (*wigglev1.RevokeAccountSessionsResponse, error) {
	return &wigglev1.RevokeAccountSessionsResponse{Revoked: 2}, f.note(req)
}

func (f *fakeAuth) ListRoles(_ context.Context, req *wigglev1.ListRolesRequest) (*wigglev1.ListRolesResponse, error) {
	return &wigglev1.ListRolesResponse{Roles: []*wigglev1.Role{
		{Name: "admin", Permissions: []string{"*"}, Description: "may do everything", BuiltIn: true},
		{Name: "empty"},
		{Name: "orders-support", Permissions: []string{"instance.read:orders", "instance.cancel:orders/refund"}, Description: "helps"},
	}}, f.note(req)
}

func (f *fakeAuth) PutRole(_ context.Context, req *wigglev1.PutRoleRequest) (*wigglev1.PutRoleResponse, error) {
	return &wigglev1.PutRoleResponse{Role: req.GetRole()}, f.note(req)
}

func (f *fakeAuth) DeleteRole(_ context.Context, req *wigglev1.DeleteRoleRequest) (*wigglev1.DeleteRoleResponse, error) {
	return &wigglev1.DeleteRoleResponse{}, f.note(req)
}

func (f *fakeAuth) ListKeys(_ context.Context, req *wigglev1.ListKeysRequest) (*wigglev1.ListKeysResponse, error) {
	return &wigglev1.ListKeysResponse{Keys: []*wigglev1.Key{
		{Id: "k1", Name: "ci", Roles: []string{"operator"}, CreatedBy: "user/alice", CreatedAt: at(0), ExpiresAt: at(0)},
		{Id: "k2", Name: "shop-worker", Roles: []string{"worker"}, CreatedBy: "user/alice", CreatedAt: at(0), UsedAt: at(60), OldSecretUntil: at(86400)},
		{Id: "k3", Name: "worker-7", Permissions: []string{"task.poll:*/gpu"}, CreatedBy: "user/alice", CreatedAt: at(0), CertificateSubject: "CN=worker-7"},
	}}, f.note(req)
}

func (f *fakeAuth) CreateKey(_ context.Context, req *wigglev1.CreateKeyRequest) (*wigglev1.CreateKeyResponse, error) {
	k := &wigglev1.Key{
		Id: "k1", Name: req.GetName(), Roles: req.GetRoles(), Permissions: req.GetPermissions(), CreatedBy: "user/alice",
		CreatedAt: timestamppb.New(now), CertificateSubject: req.GetCertificateSubject(),
	}
	if req.GetLasts() != nil {
		k.ExpiresAt = timestamppb.New(now.Add(req.GetLasts().AsDuration()))
	}
	res := &wigglev1.CreateKeyResponse{Key: k, Secret: newKey}
	if req.GetCertificateSubject() != "" {
		res.Secret = ""
	}
	return res, f.note(req)
}

func (f *fakeAuth) RotateKey(_ context.Context, req *wigglev1.RotateKeyRequest) (*wigglev1.RotateKeyResponse, error) {
	k := &wigglev1.Key{Id: "k1", Name: req.GetKey(), Roles: []string{"worker"}, CreatedAt: at(0)}
	if overlap := req.GetOverlap(); overlap == nil || overlap.AsDuration() > 0 {
		k.OldSecretUntil = timestamppb.New(now.Add(24 * time.Hour))
	}
	return &wigglev1.RotateKeyResponse{Key: k, Secret: newKey}, f.note(req)
}

func (f *fakeAuth) RevokeKey(_ context.Context, req *wigglev1.RevokeKeyRequest) (*wigglev1.RevokeKeyResponse, error) {
	return &wigglev1.RevokeKeyResponse{}, f.note(req)
}

func (f *fakeAuth) ListAuditEntries(_ context.Context, req *wigglev1.ListAuditEntriesRequest) (*wigglev1.ListAuditEntriesResponse, error) {
	if f.log != nil {
		return f.log(req)
	}
	all := []*wigglev1.AuditEntry{
		{
			Seq: 9, At: at(3), Principal: "key/ci", Address: "192.0.2.9", Action: "instance.cancel", Target: "wfi.s0.x",
			Detail: "instance.cancel:orders/refund is missing", TraceId: "4bf92f3577b34da6a3ce929d0e0e4736",
		},
		{Seq: 8, At: at(2), Principal: "user/alice", Address: "192.0.2.7", Action: "user.manage", Target: "bob", Allowed: true, Detail: "disabled"},
		{Seq: 7, At: at(1), Address: "192.0.2.66", Action: "auth.sign_in", Target: "root\n\x1b[31m"},
	}
	switch {
	case req.GetFilter().GetPrincipal() == "nobody":
		return &wigglev1.ListAuditEntriesResponse{}, f.note(req)
	case req.GetPageToken() != "":
		return &wigglev1.ListAuditEntriesResponse{Entries: all[2:]}, f.note(req)
	}
	return &wigglev1.ListAuditEntriesResponse{Entries: all[:2], NextPageToken: "more"}, f.note(req)
}
