package guard_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"
	"go.opentelemetry.io/otel/metric/noop"
	"google.golang.org/protobuf/proto"

	"github.com/wiggle-run/wiggle/pkg/faults"
	"github.com/wiggle-run/wiggle/pkg/identity"
	"github.com/wiggle-run/wiggle/pkg/rpc"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	"github.com/wiggle-run/wiggle/proto/gen/wiggle/v1/wigglev1connect"
	wiggleinternalv1 "github.com/wiggle-run/wiggle/proto/gen/wiggleinternal/v1"
	"github.com/wiggle-run/wiggle/proto/gen/wiggleinternal/v1/wiggleinternalv1connect"
	"github.com/wiggle-run/wiggle/services/router/internal/guard"
	"github.com/wiggle-run/wiggle/services/router/internal/principals"
	"github.com/wiggle-run/wiggle/services/router/internal/subject"
)

// public are the services that everybody may find.
var public = []string{
	wigglev1connect.InstanceServiceName, wigglev1connect.WorkerServiceName, wigglev1connect.WorkflowServiceName,
	wigglev1connect.EventServiceName, wigglev1connect.ScheduleServiceName, wigglev1connect.ClusterServiceName,
	wigglev1connect.SearchServiceName, wigglev1connect.AuthServiceName, wigglev1connect.AccountServiceName,
	wigglev1connect.RoleServiceName, wigglev1connect.KeyServiceName, wigglev1connect.AuditServiceName,
}

// keyOf is an API key whose permissions are its id: the fake knows keys by what they may do.
func keyOf(n string) string { return "wgk_" + n + "_secret" }

// known answers whose keys are.
type known struct {
	mu   sync.Mutex
	keys map[string]*identity.Principal
}

func (k *known) Lookup(_ context.Context, c principals.Credential) (*identity.Principal, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if p := k.keys[c.Text]; p != nil {
		return p, nil
	}
	return nil, faults.Unauthenticated("unknown")
}

func (k *known) set(t testing.TB, token, name string, permissions ...string) *identity.Principal {
	t.Helper()
	p, err := identity.New(&wiggleinternalv1.Principal{
		Kind: wiggleinternalv1.PrincipalKind_PRINCIPAL_KIND_KEY, Name: name, CredentialId: name, Permissions: permissions,
	})
	if err != nil {
		t.Fatal(err)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.keys[token] = p
	return p
}

func (k *known) revoke(token string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.keys, token)
}

// resolver knows ids of the form namespace/name.
type resolver struct{}

func (resolver) Instances(_ context.Context, ids []string) ([]subject.Subject, error) {
	subjects := make([]subject.Subject, len(ids))
	for i, id := range ids {
		s := &subjects[i]
		s.Namespace, s.Name, s.Found = strings.Cut(id, "/")
	}
	return subjects, nil
}

func (r resolver) Tasks(ctx context.Context, ids []string) ([]subject.Subject, error) {
	return r.Instances(ctx, ids)
}

// recorder keeps entries.
type recorder struct {
	mu      sync.Mutex
	entries []*wigglev1.AuditEntry
}

func (r *recorder) Record(e *wigglev1.AuditEntry) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.entries = append(r.entries, e)
}

func (r *recorder) last() *wigglev1.AuditEntry {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.entries) == 0 {
		return &wigglev1.AuditEntry{}
	}
	return r.entries[len(r.entries)-1]
}

// behind is what the guard stands before: everything is unimplemented, but for batches, which tell what was denied, and a wait.
type behind struct {
	wigglev1connect.UnimplementedInstanceServiceHandler
	wigglev1connect.UnimplementedWorkerServiceHandler

	waits chan struct{}
}

func (behind) StartInstances(
	ctx context.Context, req *wigglev1.StartInstancesRequest,
) (*wigglev1.StartInstancesResponse, error) {
	res := &wigglev1.StartInstancesResponse{}
	for i := range req.GetStarts() {
		outcome := &wigglev1.StartOutcome{Outcome: &wigglev1.StartOutcome_Started{Started: &wigglev1.StartInstanceResponse{}}}
		if fault := denied(ctx, i); fault != nil {
			outcome.Outcome = &wigglev1.StartOutcome_Fault{Fault: fault}
		}
		res.Outcomes = append(res.Outcomes, outcome)
	}
	return res, nil
}

func (behind) ReportSteps(ctx context.Context, req *wigglev1.ReportStepsRequest) (*wigglev1.ReportStepsResponse, error) {
	res := &wigglev1.ReportStepsResponse{}
	for i, r := range req.GetReports() {
		res.Outcomes = append(res.Outcomes, &wigglev1.TaskOutcome{TaskId: r.GetTaskId(), Fault: denied(ctx, i)})
	}
	return res, nil
}

func (behind) CancelInstance(context.Context, *wigglev1.CancelInstanceRequest) (*wigglev1.CancelInstanceResponse, error) {
	return &wigglev1.CancelInstanceResponse{}, nil
}

// WaitInstance waits for ever.
func (b behind) WaitInstance(ctx context.Context, _ *wigglev1.WaitInstanceRequest) (*wigglev1.WaitInstanceResponse, error) {
	b.waits <- struct{}{}
	<-ctx.Done()
	return nil, ctx.Err()
}

func denied(ctx context.Context, i int) *wigglev1.Fault {
	if errs := guard.Denied(ctx); errs != nil && errs[i] != nil {
		return faults.FromError(errs[i]).ToProto()
	}
	return nil
}

// fixture is a guard with everything before and behind it.
type fixture struct {
	guard  *guard.Guard
	known  *known
	audit  *recorder
	behind behind
	net    *rpc.MemoryNetwork
	http   *http.Client
	rules  map[string]*guard.Rule
}

const serverName = "router.mem"

func start(t testing.TB, options ...func(*guard.Config)) *fixture {
	t.Helper()
	rules, err := guard.Rules(append([]string{wiggleinternalv1connect.ScanServiceName}, public...)...)
	if err != nil {
		t.Fatal(err)
	}
	f := &fixture{
		known: &known{keys: map[string]*identity.Principal{}}, audit: &recorder{}, rules: rules, net: rpc.NewMemoryNetwork(),
		behind: behind{waits: make(chan struct{}, 1)},
	}
	cfg := guard.Config{
		Rules: rules, Known: f.known, Resolver: resolver{}, Audit: f.audit, Recheck: time.Minute,
		Logger: slog.New(slog.DiscardHandler), Meter: noop.NewMeterProvider().Meter("test"),
	}
	for _, option := range options {
		option(&cfg)
	}
	if f.guard, err = guard.New(cfg); err != nil {
		t.Fatal(err)
	}
	server, err := rpc.NewServer(rpc.ServerConfig{
		Interceptors: []connect.Interceptor{f.guard}, Wrap: guard.Wrap, ServiceKeys: []string{serviceKey},
	})
	if err != nil {
		t.Fatal(err)
	}
	f.mount(server)
	listener, err := f.net.Listen(serverName)
	if err != nil {
		t.Fatal(err)
	}
	f.http = rpc.NewHTTPClient(rpc.ClientConfig{DialContext: f.net.DialContext})
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = server.Serve(listener) })
	running.Go(func() { f.guard.Run(ctx) })
	t.Cleanup(func() {
		f.http.CloseIdleConnections()
		_ = server.Close()
		cancel()
		running.Wait()
	})
	return f
}

func (f *fixture) mount(s *rpc.Server) {
	o := s.Options()
	s.Mount(wigglev1connect.NewInstanceServiceHandler(f.behind, o...))
	s.Mount(wigglev1connect.NewWorkerServiceHandler(f.behind, o...))
	s.Mount(wigglev1connect.NewWorkflowServiceHandler(wigglev1connect.UnimplementedWorkflowServiceHandler{}, o...))
	s.Mount(wigglev1connect.NewEventServiceHandler(wigglev1connect.UnimplementedEventServiceHandler{}, o...))
	s.Mount(wigglev1connect.NewScheduleServiceHandler(wigglev1connect.UnimplementedScheduleServiceHandler{}, o...))
	s.Mount(wigglev1connect.NewClusterServiceHandler(wigglev1connect.UnimplementedClusterServiceHandler{}, o...))
	s.Mount(wigglev1connect.NewSearchServiceHandler(wigglev1connect.UnimplementedSearchServiceHandler{}, o...))
	s.Mount(wigglev1connect.NewAuthServiceHandler(wigglev1connect.UnimplementedAuthServiceHandler{}, o...))
	s.Mount(wigglev1connect.NewAccountServiceHandler(wigglev1connect.UnimplementedAccountServiceHandler{}, o...))
	s.Mount(wigglev1connect.NewRoleServiceHandler(wigglev1connect.UnimplementedRoleServiceHandler{}, o...))
	s.Mount(wigglev1connect.NewKeyServiceHandler(wigglev1connect.UnimplementedKeyServiceHandler{}, o...))
	s.Mount(wigglev1connect.NewAuditServiceHandler(wigglev1connect.UnimplementedAuditServiceHandler{}, o...))
	s.Mount(wiggleinternalv1connect.NewScanServiceHandler(wiggleinternalv1connect.UnimplementedScanServiceHandler{}, o...))
}

const serviceKey = "the-key-of-this-cluster-0123456789"

// answer is how a call ended: the name of its code, empty for success, and its message or body.
type answer struct{ code, text string }

// call makes a call of a procedure with headers given in pairs.
func (f *fixture) call(t testing.TB, procedure string, message proto.Message, headers ...string) answer {
	t.Helper()
	rule := f.rules[procedure]
	body, err := proto.Marshal(message)
	if err != nil {
		t.Fatal(err)
	}
	content := "application/proto"
	if rule.Streams() {
		content, body = "application/connect+proto", append([]byte{0, 0, 0, 0, byte(len(body))}, body...)
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, f.net.URL(serverName)+procedure, bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", content)
	for pair := range slices.Chunk(headers, 2) {
		req.Header.Add(pair[0], pair[1])
	}
	res, err := f.http.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	data, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return decode(t, rule, res.StatusCode, data)
}

func decode(t testing.TB, rule *guard.Rule, status int, data []byte) answer {
	t.Helper()
	failure := struct {
		Code    string
		Message string
		Error   *struct{ Code, Message string }
	}{}
	if rule.Streams() {
		data = data[5:]
	} else if status == http.StatusOK {
		return answer{"", string(data)}
	}
	if err := json.Unmarshal(data, &failure); err != nil {
		t.Fatalf("%s answered %d: %q: %v", rule.Procedure, status, data, err)
	}
	if failure.Error != nil {
		return answer{failure.Error.Code, failure.Error.Message}
	}
	return answer{failure.Code, failure.Message}
}

// with calls with a key that has the permissions.
func (f *fixture) with(t testing.TB, procedure string, message proto.Message, permissions ...string) answer {
	t.Helper()
	token := keyOf("caller")
	f.known.set(t, token, "caller", permissions...)
	return f.call(t, procedure, message, "Authorization", "Bearer "+token)
}
