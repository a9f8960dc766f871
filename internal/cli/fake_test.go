package cli

import (
	"context"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/wiggle-run/wiggle/pkg/faults"
	"github.com/wiggle-run/wiggle/pkg/rpc"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	"github.com/wiggle-run/wiggle/proto/gen/wiggle/v1/wigglev1connect"
	wiggle "github.com/wiggle-run/wiggle/sdk/go"
)

// fakeServer answers what tests print; the engine has tests of its own.
type fakeServer struct {
	wigglev1connect.UnimplementedInstanceServiceHandler
	wigglev1connect.UnimplementedWorkflowServiceHandler
	wigglev1connect.UnimplementedEventServiceHandler
	wigglev1connect.UnimplementedScheduleServiceHandler
	wigglev1connect.UnimplementedClusterServiceHandler

	URL    string
	mu     sync.Mutex
	inputs map[string]string
	acks   []string
	put    *wigglev1.Schedule // the last
}

func newFakeServer(t *testing.T) *fakeServer {
	t.Helper()
	f := &fakeServer{inputs: map[string]string{}}
	server, err := rpc.NewServer(rpc.ServerConfig{})
	if err != nil {
		t.Fatal(err)
	}
	server.Mount(wigglev1connect.NewInstanceServiceHandler(f, server.Options()...))
	server.Mount(wigglev1connect.NewWorkflowServiceHandler(f, server.Options()...))
	server.Mount(wigglev1connect.NewEventServiceHandler(f, server.Options()...))
	server.Mount(wigglev1connect.NewScheduleServiceHandler(f, server.Options()...))
	server.Mount(wigglev1connect.NewClusterServiceHandler(f, server.Options()...))
	h := httptest.NewServer(http.HandlerFunc(server.Handler().ServeHTTP))
	t.Cleanup(h.Close)
	f.URL = h.URL
	return f
}

func (f *fakeServer) input(id string) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.inputs[id]
}

func at(seconds float64) *timestamppb.Timestamp {
	return timestamppb.New(now.Add(-time.Hour).Add(time.Duration(seconds * float64(time.Second))))
}

func payload(text string) *wigglev1.Payload { return &wigglev1.Payload{Data: []byte(text)} }

// fakeInstances are one of each kind, by the end of their ids.
func fakeInstances() []*wigglev1.Instance {
	return []*wigglev1.Instance{
		{
			Id: "wfi.s0.01k6j00000000000000000000a", Namespace: "default", Workflow: "order", Version: 2, Priority: 5,
			State: wigglev1.InstanceState_INSTANCE_STATE_COMPLETED, CreatedAt: at(0), EndedAt: at(0.25),
			Context: payload(`{"total":12345678901234567890,"lines":[1,2]}`),
		},
		{
			Id: "wfi.s1.01k6j00000000000000000000b", Namespace: "default", Workflow: "order", Version: 2, Priority: 5,
			State: wigglev1.InstanceState_INSTANCE_STATE_FAILED, CreatedAt: at(-10), EndedAt: at(2),
			Context: payload(`{"total":1}`),
			Failure: &wigglev1.Failure{Type: "CardDeclined", Message: "no money", Node: "authorise", Attempt: 3, Worker: "w1"},
		},
		{
			Id: "wfi.s1.01k6j00000000000000000000c", Namespace: "default", Workflow: "order", Version: 2, Priority: 9,
			State: wigglev1.InstanceState_INSTANCE_STATE_RUNNING, CreatedAt: at(-20), Context: payload(`"text"`), ActiveTokens: 1500,
			Tokens: []*wigglev1.Token{
				{Id: "tok.s1.01k6j00000000000000000000d", Node: "merge.join", State: wigglev1.TokenState_TOKEN_STATE_JOINED, PendingBranches: 2},
				{
					Id: "tok.s1.01k6j00000000000000000000e", Node: "authorise", State: wigglev1.TokenState_TOKEN_STATE_READY, Attempt: 2,
					Branch: "payment", DueAt: at(3601), LastFailure: &wigglev1.Failure{Type: "CardDeclined", Message: "no money"},
				},
			},
		},
	}
}

func find(id string) (*wigglev1.Instance, error) {
	all := fakeInstances()
	if i := slices.IndexFunc(all, func(in *wigglev1.Instance) bool { return in.GetId() == id }); i >= 0 {
		return all[i], nil
	}
	return nil, faults.NotFound("instance", id)
}

func (f *fakeServer) StartInstance(_ context.Context, req *wigglev1.StartInstanceRequest) (*wigglev1.StartInstanceResponse, error) {
	f.mu.Lock()
	f.inputs[req.GetUlid()] = string(req.GetInput().GetData())
	f.mu.Unlock()
	switch req.GetWorkflow() {
	case "nothing":
		return nil, faults.NotFound("workflow", "nothing")
	case "large":
		return nil, faults.LimitExceeded("input", "WIGGLE_LIMIT_PAYLOAD_BYTES", 10, 20)
	case "fails":
		return &wigglev1.StartInstanceResponse{InstanceId: "wfi.s1.01k6j00000000000000000000b", Version: 2, Created: true}, nil
	}
	return &wigglev1.StartInstanceResponse{InstanceId: "wfi.s0.01k6j00000000000000000000a", Version: 2, Created: true}, nil
}

func (f *fakeServer) WaitInstance(_ context.Context, req *wigglev1.WaitInstanceRequest) (*wigglev1.WaitInstanceResponse, error) {
	in, err := find(req.GetInstanceId())
	return &wigglev1.WaitInstanceResponse{Instance: in, Ended: true}, err
}

func (f *fakeServer) GetInstance(_ context.Context, req *wigglev1.GetInstanceRequest) (*wigglev1.GetInstanceResponse, error) {
	in, err := find(req.GetInstanceId())
	return &wigglev1.GetInstanceResponse{Instance: in}, err
}

func (f *fakeServer) GetHistory(context.Context, *wigglev1.GetHistoryRequest) (*wigglev1.GetHistoryResponse, error) {
	return &wigglev1.GetHistoryResponse{Entries: []*wigglev1.HistoryEntry{
		{Kind: wigglev1.HistoryKind_HISTORY_KIND_STARTED, RecordedAt: at(0)},
		{
			Kind: wigglev1.HistoryKind_HISTORY_KIND_STEP_FAILED, RecordedAt: at(0.05), TokenId: "tok.s0.a", Node: "price", Step: "price",
			Attempt: 1, Worker: "w1", QueuedAt: at(0), DispatchedAt: at(0.02), StartedAt: at(0.021), FinishedAt: at(0.045), DueAt: at(0.1),
			Failure: &wigglev1.Failure{Type: "Busy", Message: "come back"},
		},
		{
			Kind: wigglev1.HistoryKind_HISTORY_KIND_STEP_COMPLETED, RecordedAt: at(0.25), TokenId: "tok.s0.a", Node: "price", Step: "price",
			Attempt: 2, Worker: "w1", QueuedAt: at(0.1), DispatchedAt: at(0.15), StartedAt: at(0.151), FinishedAt: at(0.24),
			Output: payload(`{"total":1`), OutputTruncated: true, Position: 1,
		},
		{Kind: wigglev1.HistoryKind_HISTORY_KIND_COMPLETED, RecordedAt: at(0.25), Position: 1},
	}}, nil
}

func (f *fakeServer) ListInstances(_ context.Context, req *wigglev1.ListInstancesRequest) (*wigglev1.ListInstancesResponse, error) {
	res := &wigglev1.ListInstancesResponse{}
	for _, in := range fakeInstances() {
		if states := req.GetFilter().GetStates(); len(states) == 0 || slices.Contains(states, in.GetState()) {
			in.Context, in.Tokens = nil, nil
			res.Instances = append(res.Instances, in)
		}
	}
	if req.GetMissingShards() == wigglev1.MissingShards_MISSING_SHARDS_PARTIAL {
		res.Shards = []*wigglev1.ShardOutcome{{Shard: 0}, {Shard: 3, Fault: &wigglev1.Fault{
			Code: int32(connect.CodeUnavailable), Message: "shard 3 does not answer",
		}}}
	}
	return res, nil
}

func (f *fakeServer) CountInstances(context.Context, *wigglev1.CountInstancesRequest) (*wigglev1.CountInstancesResponse, error) {
	return &wigglev1.CountInstancesResponse{
		Total: 3, ByState: []*wigglev1.StateCount{
			{State: wigglev1.InstanceState_INSTANCE_STATE_RUNNING, Count: 1}, {State: wigglev1.InstanceState_INSTANCE_STATE_COMPLETED, Count: 2},
		},
		Shards: []*wigglev1.ShardOutcome{{Shard: 0, Count: 1}, {Shard: 1, Count: 2}},
	}, nil
}

func (f *fakeServer) CancelInstance(_ context.Context, req *wigglev1.CancelInstanceRequest) (*wigglev1.CancelInstanceResponse, error) {
	in, err := find(req.GetInstanceId())
	if err != nil {
		return nil, err
	}
	if in.GetState() != wigglev1.InstanceState_INSTANCE_STATE_RUNNING {
		return nil, faults.WrongState(in.GetId(), "COMPLETED")
	}
	return &wigglev1.CancelInstanceResponse{State: wigglev1.InstanceState_INSTANCE_STATE_CANCELLED}, nil
}

func fakeFlow() *wiggle.Definition {
	return wiggle.Define("order", func(f *wiggle.Flow) {
		f.Task("price", wiggle.Retry(3, time.Second))
		f.Gate("worth-it")
		f.Fork(
			wiggle.Branch("a", func(f *wiggle.Flow) { f.Task("one") }),
			wiggle.Branch("b", func(f *wiggle.Flow) { f.Sleep(time.Minute); f.Effect("two") }),
		).Combine("both")
		f.Choose("what").Case("good", func(f *wiggle.Flow) { f.End() }).Default(func(f *wiggle.Flow) { f.Fail("bad") })
	}, wiggle.Version(2))
}

func (f *fakeServer) GetWorkflow(_ context.Context, req *wigglev1.GetWorkflowRequest) (*wigglev1.GetWorkflowResponse, error) {
	if req.GetName() != "order" {
		return nil, faults.NotFound("workflow", req.GetName())
	}
	return &wigglev1.GetWorkflowResponse{Definition: fakeFlow().Proto(), Fingerprint: fakeFlow().Fingerprint()}, nil
}

func (f *fakeServer) ListWorkflows(context.Context, *wigglev1.ListWorkflowsRequest) (*wigglev1.ListWorkflowsResponse, error) {
	return &wigglev1.ListWorkflowsResponse{Workflows: []*wigglev1.WorkflowVersion{
		{Name: "order", Version: 2, Nodes: 12, Fingerprint: strings.Repeat("ab", 32), RegisteredAt: at(0)},
		{Name: "order", Version: 1, Nodes: 9, Fingerprint: strings.Repeat("cd", 32), RegisteredAt: at(-86400)},
	}}, nil
}

func (f *fakeServer) RegisterWorkflow(
	_ context.Context, req *wigglev1.RegisterWorkflowRequest,
) (*wigglev1.RegisterWorkflowResponse, error) {
	if req.GetDefinition().GetName() == "taken" {
		return nil, faults.DefinitionConflict("taken", 1, "node price: activity differs")
	}
	return &wigglev1.RegisterWorkflowResponse{
		Version: 1, Fingerprint: strings.Repeat("ef", 32), Created: true, ShardsBehind: []int32{1, 3},
	}, nil
}

func (f *fakeServer) ListShards(context.Context, *wigglev1.ListShardsRequest) (*wigglev1.ListShardsResponse, error) {
	return &wigglev1.ListShardsResponse{Shards: []*wigglev1.Shard{
		{
			Shard: 0, State: "active", Roles: []string{"instances", "home"}, Ready: true, Processes: 2,
			Replicas: []*wigglev1.Replica{
				{
					Zone: "az-a", Serving: true, Lag: durationpb.New(1234 * time.Millisecond), Replayed: "1/A0000B8",
					ProbedAt: timestamppb.New(now), Reads: 4711,
				},
				{Index: 1, Reason: "failed: connection refused"},
			},
		},
		{Shard: 3, State: "draining", Roles: []string{"instances"}, Reason: "no process serves it"},
		{Shard: 10, State: "active", Roles: []string{"auth"}},
	}}, nil
}
