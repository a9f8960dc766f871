package testcluster_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"testing"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/wiggle-run/wiggle/internal/pgtest"
	"github.com/wiggle-run/wiggle/internal/testcluster"
	"github.com/wiggle-run/wiggle/pkg/faults"
	"github.com/wiggle-run/wiggle/pkg/identity"
	"github.com/wiggle-run/wiggle/pkg/rpc"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	"github.com/wiggle-run/wiggle/proto/gen/wiggle/v1/wigglev1connect"
	wiggleinternalv1 "github.com/wiggle-run/wiggle/proto/gen/wiggleinternal/v1"
	"github.com/wiggle-run/wiggle/services/router"
)

// relay stands for the router's guard: it has a principal that a test names in a header go along to the services.
type relay struct{}

const testHeader = "Test-Principal"

type relayKey struct{}

func (relay) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
		if !req.Spec().IsClient {
			return next(context.WithValue(ctx, relayKey{}, req.Header().Get(testHeader)), req)
		}
		if text, _ := ctx.Value(relayKey{}).(string); text != "" {
			req.Header().Set(identity.Header, text)
		}
		return next(ctx, req)
	}
}

func (relay) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return next
}

func (relay) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return next
}

// caller is somebody with scopes, and the services as it sees them.
type caller struct {
	scopes    []scope
	instances wigglev1connect.InstanceServiceClient
	workflows wigglev1connect.WorkflowServiceClient
	events    wigglev1connect.EventServiceClient
}

type scope struct{ namespace, workflow string }

// sees is what the scopes hold, said in another way than the code does.
func (c *caller) sees(namespace, workflow string) bool {
	within := func(pattern, name string) bool {
		if n := len(pattern) - 1; pattern[n] == '*' {
			return len(name) >= n && name[:n] == pattern[:n]
		}
		return pattern == name
	}
	return slices.ContainsFunc(c.scopes, func(s scope) bool { return within(s.namespace, namespace) && within(s.workflow, workflow) })
}

type scopesScene struct {
	*testing.T

	*rand.Rand

	cluster *testcluster.Cluster
	all     *caller // who is not limited
}

var (
	scopeNamespaces = []string{"default", "orders", "orders_eu"}
	scopeWorkflows  = []string{"pay", "payout", "re", "refund", "refund_all", "ship"}
)

func pick[T any](r *rand.Rand, list ...T) T { return list[r.IntN(len(list))] }

// caller makes somebody; without scopes one that sees nothing.
func (s *scopesScene) caller(scopes ...scope) *caller {
	s.Helper()
	c := &caller{scopes: scopes}
	permissions := []string{"instance.start", "task.poll:*/x"} // what has nothing to do with it
	for _, in := range scopes {
		for _, action := range []string{"instance.read", "instance.cancel", "event.read", "workflow.*"} {
			permissions = append(permissions, action+":"+in.namespace+"/"+in.workflow)
		}
	}
	p, err := identity.New(&wiggleinternalv1.Principal{
		Kind: wiggleinternalv1.PrincipalKind_PRINCIPAL_KIND_USER, Name: "alice", Permissions: permissions,
	})
	if err != nil {
		s.Fatal(err)
	}
	header := http.Header{}
	p.Write(header)
	c.dial(s, header.Get(identity.Header))
	return c
}

func (c *caller) dial(s *scopesScene, principal string) {
	options, err := rpc.NewClientOptions(rpc.ClientConfig{})
	if err != nil {
		s.Fatal(err)
	}
	options = append(options, connect.WithGRPC(), connect.WithInterceptors(connect.UnaryInterceptorFunc(func(next connect.UnaryFunc) connect.UnaryFunc {
		return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
			if principal != "" {
				req.Header().Set(testHeader, principal)
			}
			return next(ctx, req)
		}
	})))
	client, url := s.cluster.HTTPClient(), s.cluster.URL()
	c.instances = wigglev1connect.NewInstanceServiceClient(client, url, options...)
	c.workflows = wigglev1connect.NewWorkflowServiceClient(client, url, options...)
	c.events = wigglev1connect.NewEventServiceClient(client, url, options...)
}

// random makes somebody with random scopes.
func (s *scopesScene) random() *caller {
	s.Helper()
	var scopes []scope
	for range s.IntN(4) {
		in := scope{
			pick(s.Rand, append([]string{"orders*", "o*", "*", "no*"}, scopeNamespaces...)...),
			pick(s.Rand, append([]string{"*", "pay*", "re*", "refund_*", "none", "x*"}, scopeWorkflows...)...),
		}
		if in != (scope{"*", "*"}) { // who may see everything is sent along by nobody
			scopes = append(scopes, in)
		}
	}
	return s.caller(scopes...)
}

// Whatever somebody may see, every list, count, read and poll answers exactly that, in the order in which who sees all gets it
// (AUT-3, AUT-4; a page token is no key).
func TestScopes(t *testing.T) {
	t.Parallel()
	for name, databases := range map[string]func(t *testing.T) []string{
		"in memory":  func(*testing.T) []string { return nil },
		"PostgreSQL": func(t *testing.T) []string { return []string{pgtest.NewDatabase(t), pgtest.NewDatabase(t)} },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			seed := rand.Uint64()
			t.Logf("seed %d", seed)
			cluster, err := testcluster.Start(testcluster.Config{
				Shards: 2, DatabaseURLs: databases(t), ConfigureRouter: func(cfg *router.Config) {
					cfg.Interceptors = append(cfg.Interceptors, relay{})
					cfg.ClientInterceptors = append(cfg.ClientInterceptors, relay{})
				},
			})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if err := cluster.Close(); err != nil {
					t.Error(err)
				}
			})
			if err := cluster.WaitReady(t.Context()); err != nil {
				t.Fatal(err)
			}
			s := &scopesScene{T: t, Rand: rand.New(rand.NewPCG(seed, 3)), cluster: cluster, all: &caller{}}
			s.all.dial(s, "")
			s.fill()
			for range 25 {
				c := s.random()
				s.lists(c)
				s.reads(c)
				s.definitions(c)
				s.polls(c)
			}
		})
	}
}

// fill registers every workflow in every namespace, and starts and cancels instances.
func (s *scopesScene) fill() {
	s.Helper()
	for _, namespace := range scopeNamespaces {
		for _, name := range scopeWorkflows {
			_, err := s.all.workflows.RegisterWorkflow(s.Context(), &wigglev1.RegisterWorkflowRequest{
				Namespace: namespace, Definition: &wigglev1.Definition{Name: name, Start: "a", Nodes: map[string]*wigglev1.Node{
					"a":   {Kind: &wigglev1.Node_Task{Task: &wigglev1.TaskNode{Next: "end"}}},
					"end": {Kind: &wigglev1.Node_End{End: &wigglev1.EndNode{}}},
				}},
			})
			if err != nil {
				s.Fatal(err)
			}
		}
	}
	for range 80 {
		res, err := s.all.instances.StartInstance(s.Context(), &wigglev1.StartInstanceRequest{
			Namespace: pick(s.Rand, scopeNamespaces...), Workflow: pick(s.Rand, scopeWorkflows...),
		})
		if err == nil && s.IntN(3) == 0 {
			_, err = s.all.instances.CancelInstance(s.Context(), &wigglev1.CancelInstanceRequest{InstanceId: res.GetInstanceId()})
		}
		if err != nil {
			s.Fatal(err)
		}
	}
}

// listed reads a list to its end, and gives the token of its first page.
func (s *scopesScene) listed(c *caller, filter *wigglev1.InstanceFilter, size int32) (list []*wigglev1.Instance, first string) {
	s.Helper()
	req := &wigglev1.ListInstancesRequest{Filter: filter, PageSize: size}
	for {
		res, err := c.instances.ListInstances(s.Context(), req)
		if err != nil {
			s.Fatal(err)
		}
		list = append(list, res.GetInstances()...)
		if req.PageToken = res.GetNextPageToken(); req.GetPageToken() == "" {
			return list, first
		}
		if first == "" {
			first = req.GetPageToken()
		}
	}
}

func instanceIDs(list []*wigglev1.Instance) []string {
	ids := make([]string, len(list))
	for i, in := range list {
		ids[i] = in.GetId()
	}
	return ids
}

func (s *scopesScene) lists(c *caller) {
	s.Helper()
	filter := &wigglev1.InstanceFilter{Namespace: pick(s.Rand, scopeNamespaces...)}
	if s.IntN(3) == 0 {
		filter.Workflow = pick(s.Rand, scopeWorkflows...)
	}
	if s.IntN(3) == 0 {
		filter.States = []wigglev1.InstanceState{wigglev1.InstanceState_INSTANCE_STATE_CANCELLED}
	}
	want, _ := s.listed(s.all, filter, 100)
	want = slices.DeleteFunc(want, func(in *wigglev1.Instance) bool { return !c.sees(in.GetNamespace(), in.GetWorkflow()) })
	got, token := s.listed(c, filter, int32(1+s.IntN(9)))
	if !slices.Equal(instanceIDs(got), instanceIDs(want)) {
		s.Errorf("%v in %v: listed %v, want %v", c.scopes, filter, instanceIDs(got), instanceIDs(want))
	}
	states := map[wigglev1.InstanceState]int64{}
	for _, in := range want {
		states[in.GetState()]++
	}
	count, err := c.instances.CountInstances(s.Context(), &wigglev1.CountInstancesRequest{Filter: filter})
	if err != nil || count.GetTotal() != int64(len(want)) || len(count.GetByState()) != len(states) {
		s.Errorf("%v in %v: counted %v, %v, want %v", c.scopes, filter, count, err, states)
	}
	for _, n := range count.GetByState() {
		if states[n.GetState()] != n.GetCount() {
			s.Errorf("%v in %v: counted %v, want %v", c.scopes, filter, count, states)
		}
	}
	if token == "" {
		return
	}
	other := s.random()
	res, err := other.instances.ListInstances(s.Context(), &wigglev1.ListInstancesRequest{Filter: filter, PageSize: 100, PageToken: token})
	if err != nil {
		s.Fatal(err)
	}
	for _, in := range res.GetInstances() {
		if !other.sees(in.GetNamespace(), in.GetWorkflow()) {
			s.Errorf("with a token of %v's, %v was told of %v", c.scopes, other.scopes, in)
		}
	}
}

func (s *scopesScene) reads(c *caller) {
	s.Helper()
	namespace := pick(s.Rand, scopeNamespaces...)
	all, _ := s.listed(s.all, &wigglev1.InstanceFilter{Namespace: namespace}, 100)
	req := &wigglev1.GetInstancesRequest{}
	for _, in := range all {
		req.Instances = append(req.Instances, &wigglev1.InstanceRef{InstanceId: in.GetId()})
	}
	req.Instances = append(req.Instances, &wigglev1.InstanceRef{InstanceId: "wfi.s1.01k6zqk3v8r5d1f0m9c2x7y4ab"})
	res, err := c.instances.GetInstances(s.Context(), req)
	if err != nil || len(res.GetOutcomes()) != len(req.GetInstances()) {
		s.Fatalf("%v, %v", res, err)
	}
	for i, o := range res.GetOutcomes()[:len(all)] {
		if seen := c.sees(namespace, all[i].GetWorkflow()); (o.GetInstance() != nil) != seen || !seen && !denied(faults.FromProto(o.GetFault())) {
			s.Errorf("%v: %v was answered with %v", c.scopes, all[i], o)
		}
	}
	if missing := res.GetOutcomes()[len(all)].GetFault(); !denied(faults.FromProto(missing)) {
		s.Errorf("%v: an instance that is not there was answered with %v", c.scopes, missing)
	}
	for _, in := range []*wigglev1.Instance{pick(s.Rand, all...), pick(s.Rand, all...)} {
		s.read(c, in, c.sees(namespace, in.GetWorkflow()))
	}
	s.read(c, &wigglev1.Instance{Id: "wfi.s1.01k6zqk3v8r5d1f0m9c2x7y4ab"}, false)
}

func denied(err error) bool { return errors.Is(err, faults.ErrPermissionMissing) }

// read makes the calls about one instance.
func (s *scopesScene) read(c *caller, in *wigglev1.Instance, seen bool) {
	s.Helper()
	id := in.GetId()
	_, get := c.instances.GetInstance(s.Context(), &wigglev1.GetInstanceRequest{InstanceId: id})
	_, history := c.instances.GetHistory(s.Context(), &wigglev1.GetHistoryRequest{InstanceId: id})
	_, wait := c.instances.WaitInstance(s.Context(), &wigglev1.WaitInstanceRequest{InstanceId: id, Wait: durationpb.New(0)})
	_, cancel := c.instances.CancelInstance(s.Context(), &wigglev1.CancelInstanceRequest{InstanceId: id})
	if errors.Is(cancel, faults.ErrWrongState) { // it has ended, which only who may cancel it is told
		cancel = nil
	}
	for name, err := range map[string]error{"get": get, "history": history, "wait": wait, "cancel": cancel} {
		if seen && err != nil || !seen && !denied(err) {
			s.Errorf("%v: %s of %v: %v", c.scopes, name, in, err)
		}
		if err != nil && in.GetWorkflow() != "" && (strings.Contains(err.Error(), in.GetNamespace()+"/") || strings.Contains(err.Error(), "/"+in.GetWorkflow())) {
			s.Errorf("%v: %s tells of what is not to be seen: %v", c.scopes, name, err)
		}
	}
}

func (s *scopesScene) definitions(c *caller) {
	s.Helper()
	namespace := pick(s.Rand, scopeNamespaces...)
	req := &wigglev1.ListWorkflowsRequest{Namespace: namespace, PageSize: int32(1 + s.IntN(4))}
	var got, want []string
	for {
		res, err := c.workflows.ListWorkflows(s.Context(), req)
		if err != nil {
			s.Fatal(err)
		}
		for _, w := range res.GetWorkflows() {
			got = append(got, w.GetName())
		}
		if req.PageToken = res.GetNextPageToken(); req.GetPageToken() == "" {
			break
		}
	}
	for _, name := range scopeWorkflows { // in order
		_, err := c.workflows.GetWorkflow(s.Context(), &wigglev1.GetWorkflowRequest{Namespace: namespace, Name: name})
		seen := c.sees(namespace, name)
		if seen {
			want = append(want, name)
		}
		if seen && err != nil || !seen && !denied(err) {
			s.Errorf("%v: workflow %s/%s: %v", c.scopes, namespace, name, err)
		}
	}
	if !slices.Equal(got, want) {
		s.Errorf("%v in %s: listed %v, want %v", c.scopes, namespace, got, want)
	}
}

// polled reads the log to its end.
func (s *scopesScene) polled(c *caller, filter *wigglev1.EventFilter, most int32) (got []*wigglev1.Event, cursor string) {
	s.Helper()
	req := &wigglev1.PollEventsRequest{
		Start: wigglev1.EventStart_EVENT_START_EARLIEST, Filter: filter, MaxEvents: most, Wait: durationpb.New(0),
	}
	for {
		res, err := c.events.PollEvents(s.Context(), req)
		if err != nil {
			s.Fatal(err)
		}
		got = append(got, res.GetEvents()...)
		if len(res.GetEvents()) == 0 && res.GetCursor() == req.GetAfter() {
			return got, req.GetAfter()
		}
		req.After = res.GetCursor()
	}
}

// polls: what may not be seen is passed by, and the cursor is behind all of it all the same.
func (s *scopesScene) polls(c *caller) {
	s.Helper()
	filter := &wigglev1.EventFilter{Namespace: pick(s.Rand, scopeNamespaces...)}
	if s.IntN(3) == 0 {
		filter.Workflows = []string{pick(s.Rand, scopeWorkflows...), pick(s.Rand, scopeWorkflows...)}
	}
	all, end := s.polled(s.all, filter, 1000)
	got, cursor := s.polled(c, filter, int32(1+s.IntN(9)))
	name := func(e *wigglev1.Event) string { return fmt.Sprint(e.GetShard(), "/", e.GetSeq(), " ", e.GetType()) }
	var want []string
	for _, e := range all {
		if c.sees(e.GetNamespace(), e.GetWorkflow()) {
			want = append(want, name(e))
		}
	}
	names := make([]string, len(got))
	for i, e := range got {
		names[i] = name(e)
	}
	if !slices.Equal(names, want) || cursor != end {
		s.Errorf("%v: polled %v up to %s, want %v up to %s", c.scopes, names, cursor, want, end)
	}
}
