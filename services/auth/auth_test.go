package auth

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/wiggle-run/wiggle/internal/pgtest"
	"github.com/wiggle-run/wiggle/pkg/faults"
	"github.com/wiggle-run/wiggle/pkg/identity"
	"github.com/wiggle-run/wiggle/pkg/postgres"
	"github.com/wiggle-run/wiggle/pkg/rpc"
	"github.com/wiggle-run/wiggle/pkg/topology"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	"github.com/wiggle-run/wiggle/proto/gen/wiggle/v1/wigglev1connect"
	internalv1 "github.com/wiggle-run/wiggle/proto/gen/wiggleinternal/v1"
	"github.com/wiggle-run/wiggle/proto/gen/wiggleinternal/v1/wiggleinternalv1connect"
	"github.com/wiggle-run/wiggle/services/auth/internal/password"
	"github.com/wiggle-run/wiggle/services/auth/migrations"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

const (
	cluster   = "thecluster"
	authShard = 20
	rootName  = "root"
	rootWord  = "the first secret of all"
	someWord  = "a secret of somebody"
)

// clock is the time of a scene, which stands still until a test moves it.
type clock struct {
	mu  sync.Mutex
	now time.Time
}

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) Advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

// logs are what processes have written.
type logs struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logs) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *logs) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// scene is auth processes on databases of their own.
type scene struct {
	*testing.T

	home, auth string
	clock      *clock
	logs       *logs
	hashes     atomic.Int64
	database   *postgres.Pool
}

// newScene makes the databases: home claimed, that of auth migrated and claimed.
func newScene(t *testing.T) *scene {
	t.Helper()
	s := &scene{T: t, home: pgtest.NewDatabase(t), logs: &logs{}, clock: &clock{now: time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)}}
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(s.logs)
		}
	})
	prepare := func(ctx context.Context, url string, shard int, sets ...postgres.MigrationSet) error {
		pool, err := postgres.Open(ctx, postgres.MemberConfig{Name: "prepare", URL: url, MaxConns: 1})
		if err != nil {
			return err
		}
		defer pool.Close()
		for _, set := range append([]postgres.MigrationSet{postgres.ShardMigrations()}, sets...) {
			if _, err := postgres.Migrate(ctx, pool, set, postgres.Apply); err != nil {
				return err
			}
		}
		_, err = postgres.Claim(ctx, pool, shard, cluster)
		return err
	}
	if err := prepare(t.Context(), s.home, 0); err != nil {
		t.Fatal(err)
	}
	s.auth = pgtest.NewDatabaseFrom(t, "auth "+migrations.Checksum(), func(ctx context.Context, url string) error {
		return prepare(ctx, url, authShard, migrations.Set())
	})
	s.database = pgtest.OpenPool(t, s.auth)
	return s
}

func (s *scene) topology() *topology.Topology {
	s.Helper()
	document := topology.Document{Generations: []topology.DocumentGeneration{
		{ID: 1, ActiveFrom: time.Unix(0, 0).UTC(), Weights: map[int]float64{0: 1}},
	}}
	document.Defaults.Pool = 8
	for shard, url := range map[int]string{0: s.home, authShard: s.auth} {
		roles := topology.Roles{topology.RoleInstances, topology.RoleHome}
		if shard == authShard {
			roles = topology.Roles{topology.RoleAuth}
		}
		document.Shards = append(document.Shards, topology.DocumentShard{
			ID: shard, State: topology.StateActive, Roles: roles, Primary: &topology.DocumentMember{URL: topology.NewCredential(url)},
		})
	}
	text, err := json.Marshal(document)
	if err != nil {
		s.Fatal(err)
	}
	top, err := topology.Parse(text, func(string) (string, bool) { return "", false })
	if err != nil {
		s.Fatal(err)
	}
	return top
}

// instance is one auth process with clients for it.
type instance struct {
	*scene
	wigglev1connect.AuthServiceClient
	wigglev1connect.AccountServiceClient
	wigglev1connect.RoleServiceClient
	wigglev1connect.KeyServiceClient
	wigglev1connect.AuditServiceClient
	wiggleinternalv1connect.PrincipalServiceClient

	service *Service
}

// start runs an auth process until the test ends, and waits until it serves.
func (s *scene) start(change ...func(*Config)) *instance {
	s.Helper()
	i := s.begin(change...)
	s.await("the auth shard", i.service.ready)
	return i
}

func (s *scene) begin(change ...func(*Config)) *instance {
	s.Helper()
	network := rpc.NewMemoryNetwork()
	listener, err := network.Listen("auth.memory")
	if err != nil {
		s.Fatal(err)
	}
	cfg := Config{
		Topology: s.topology(), Listener: listener, Grace: time.Second, now: s.clock.Now,
		Logger:    slog.New(slog.NewTextHandler(s.logs, &slog.HandlerOptions{Level: slog.LevelDebug})),
		passwords: password.Params{MemoryKiB: 4096, Passes: 1, Lanes: 1}, hashed: func() { s.hashes.Add(1) },
	}
	for _, f := range change {
		f(&cfg)
	}
	service, err := New(cfg)
	if err != nil {
		s.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.WithoutCancel(s.Context()))
	done := make(chan error, 1)
	go func() { done <- service.Run(ctx) }()
	client := rpc.ClientConfig{DialContext: network.DialContext}
	options, err := rpc.NewClientOptions(client)
	if err != nil {
		s.Fatal(err)
	}
	options = append(options, connect.WithGRPC(), connect.WithInterceptors(addresses{}))
	http, url := rpc.NewHTTPClient(client), network.URL("auth.memory")
	s.Cleanup(func() {
		stop()
		http.CloseIdleConnections()
		if err := <-done; err != nil {
			s.Error(err)
		}
	})
	return &instance{
		scene: s, service: service,
		AuthServiceClient:      wigglev1connect.NewAuthServiceClient(http, url, options...),
		AccountServiceClient:   wigglev1connect.NewAccountServiceClient(http, url, options...),
		RoleServiceClient:      wigglev1connect.NewRoleServiceClient(http, url, options...),
		KeyServiceClient:       wigglev1connect.NewKeyServiceClient(http, url, options...),
		AuditServiceClient:     wigglev1connect.NewAuditServiceClient(http, url, options...),
		PrincipalServiceClient: wiggleinternalv1connect.NewPrincipalServiceClient(http, url, options...),
	}
}

// withRoot has a process make the first administrator.
func withRoot(c *Config) { c.AdminName, c.AdminPassword = rootName, rootWord }

func (s *scene) await(what string, is func() bool) {
	s.Helper()
	again := time.NewTicker(5 * time.Millisecond)
	defer again.Stop()
	deadline := time.After(30 * time.Second)
	for !is() {
		select {
		case <-again.C:
		case <-deadline:
			s.Fatalf("%s: not so in 30 s", what)
		}
	}
}

// addresses sends the principal and the address of the context, as a router does.
type addresses struct{}

type addressKey struct{}

func from(ctx context.Context, address string) context.Context {
	return context.WithValue(ctx, addressKey{}, address)
}

func (addresses) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
		address, ok := ctx.Value(addressKey{}).(string)
		if !ok {
			address = "192.0.2.1"
		}
		req.Header().Set(identity.AddressHeader, address)
		req.Header().Set(identity.AgentHeader, "test")
		if p := identity.FromContext(ctx); p != nil {
			p.Write(req.Header())
		}
		return next(ctx, req)
	}
}

func (addresses) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return next
}

func (addresses) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return next
}

// authenticate asks whose a credential is, as a router does.
func (i *instance) authenticate(token string) (*internalv1.Principal, error) {
	res, err := i.Authenticate(i.Context(), &internalv1.AuthenticateRequest{
		Credential: &internalv1.AuthenticateRequest_Token{Token: token},
	})
	return res.GetPrincipal(), err
}

// as is a context of somebody who shows a credential, as a router makes it.
func (i *instance) as(token string) context.Context {
	i.Helper()
	message, err := i.authenticate(token)
	if err != nil {
		i.Fatal(err)
	}
	p, err := identity.New(message)
	if err != nil {
		i.Fatal(err)
	}
	return identity.With(i.Context(), p)
}

// signIn signs in and returns the token.
func (i *instance) signIn(name, word string) string {
	i.Helper()
	res, err := i.SignIn(i.Context(), &wigglev1.SignInRequest{Name: name, Password: word})
	if err != nil {
		i.Fatalf("%s cannot sign in: %v", name, err)
	}
	return res.GetToken()
}

// account makes an account with a role of its own that has the permissions, and signs in.
func (i *instance) account(root context.Context, name string, permissions ...string) string {
	i.Helper()
	if _, err := i.PutRole(root, &wigglev1.PutRoleRequest{Role: &wigglev1.Role{Name: name, Permissions: permissions}}); err != nil {
		i.Fatal(err)
	}
	_, err := i.CreateAccount(root, &wigglev1.CreateAccountRequest{Name: name, Password: someWord, Roles: []string{name}})
	if err != nil {
		i.Fatal(err)
	}
	return i.signIn(name, someWord)
}

// wantCode checks how a call ended.
func (s *scene) wantCode(what string, err error, want faults.Code) {
	s.Helper()
	if got := faults.CodeOf(err); got != want {
		s.Errorf("%s: %s (%v), want %s", what, got, err, want)
	}
}

func TestKeyLivesAndDies(t *testing.T) { // AUT-2
	t.Parallel()
	s := newScene(t)
	i := s.start(withRoot)
	root := i.as(i.signIn("ROOT", rootWord)) // names that differ in case only are the same
	made, err := i.CreateKey(root, &wigglev1.CreateKeyRequest{Name: "ci", Roles: []string{"worker"}, Permissions: []string{"instance.read:orders/*"}})
	if err != nil {
		t.Fatal(err)
	}
	p, err := i.authenticate(made.GetSecret())
	if err != nil || p.GetName() != "ci" || p.GetKind() != internalv1.PrincipalKind_PRINCIPAL_KIND_KEY || len(p.GetPermissions()) != 4 {
		t.Fatalf("%v, %v", p, err)
	}
	keys, err := i.ListKeys(root, &wigglev1.ListKeysRequest{})
	if err != nil || len(keys.GetKeys()) != 1 || keys.GetKeys()[0].GetUsedAt() == nil || keys.GetKeys()[0].GetCreatedBy() != "user/root" {
		t.Errorf("%v, %v", keys, err)
	}
	if _, err := i.RevokeKey(root, &wigglev1.RevokeKeyRequest{Key: "ci"}); err != nil {
		t.Fatal(err)
	}
	_, err = i.authenticate(made.GetSecret())
	s.wantCode("a revoked key", err, faults.CodeUnauthenticated)
	changes, err := i.ListChanges(t.Context(), &internalv1.ListChangesRequest{After: 0})
	if err != nil || changes.GetRevision() != 1 || len(changes.GetCredentialIds()) != 1 || changes.GetCredentialIds()[0] != made.GetKey().GetId() {
		t.Errorf("%v, %v", changes, err)
	}
}
