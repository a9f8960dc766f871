package conformance

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/oklog/ulid/v2"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/wiggle-run/wiggle/pkg/rpc"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	"github.com/wiggle-run/wiggle/proto/gen/wiggle/v1/wigglev1connect"
	wiggle "github.com/wiggle-run/wiggle/sdk/go"
)

const (
	// patience bounds how long a scenario may take, in real time, on a loaded machine.
	patience = 2 * time.Minute
	// moment is how long one poll waits where it is not known whether anything comes.
	moment = 20 * time.Millisecond
	// wary is for how many polls a slow one makes those that follow wait longer.
	wary = 4
	// aLease outlasts every scenario, unless it waits for its end.
	aLease = 30 * time.Second
	// batchMax is how many items a call may carry.
	batchMax = 1000
)

// Server is a configuration as scenarios see it.
type Server interface {
	// Clients reach it.
	Clients() Clients
	// Pass lets time pass when no task can be had: a clock that the test moves goes
	// on to the next timer, a real one goes by itself.
	Pass()
}

// Clients are the generated clients of a server.
type Clients struct {
	Workflows wigglev1connect.WorkflowServiceClient
	Instances wigglev1connect.InstanceServiceClient
	Workers   wigglev1connect.WorkerServiceClient
	Events    wigglev1connect.EventServiceClient
	// HTTP and URL are for calls that are about the bytes on the wire.
	HTTP *http.Client
	URL  string
}

// NewClients makes clients over a connection to a router.
func NewClients(url string, cfg rpc.ClientConfig) (Clients, error) {
	opts, err := rpc.NewClientOptions(cfg)
	if err != nil {
		return Clients{}, err
	}
	c := rpc.NewHTTPClient(cfg)
	return Clients{
		Workflows: wigglev1connect.NewWorkflowServiceClient(c, url, opts...),
		Instances: wigglev1connect.NewInstanceServiceClient(c, url, opts...),
		Workers:   wigglev1connect.NewWorkerServiceClient(c, url, opts...),
		Events:    wigglev1connect.NewEventServiceClient(c, url, opts...),
		HTTP:      c, URL: url,
	}, nil
}

// Run is a scenario under way on a server.
type Run struct {
	*testing.T
	Clients
	server   Server
	ctx      context.Context //nolint:containedctx // a run is a call
	lease    time.Duration
	Workflow string
	// ID is the instance that the scenario started last.
	ID string
	// held are tasks that were polled and not yet asked for.
	held []*wigglev1.Task
	// starved is above zero while a poll was far slower than it was to be and few have
	// come since. Polls wait longer meanwhile, less with each.
	starved int
}

// Play runs a scenario on a server.
func Play(t *testing.T, server Server, s Scenario) {
	t.Helper()
	r := newRun(t, server)
	if s.Lease > 0 {
		r.lease = s.Lease
	}
	switch {
	case s.Definition != nil:
		r.Register(s.Definition)
	case s.Flow != nil:
		r.Register(s.Flow.Proto())
	}
	if s.Script != nil {
		s.Script(r)
	} else {
		r.Start(s.Input)
		r.Work(s.Answers)
	}
	if s.Want.State != 0 {
		r.See(s.Want)
	}
}

func newRun(t *testing.T, server Server) *Run {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return &Run{T: t, Clients: server.Clients(), server: server, ctx: ctx, lease: aLease}
}

// Register registers a definition under a name that no other run has, the same for
// all definitions of this run.
func (r *Run) Register(def *wigglev1.Definition) *wigglev1.RegisterWorkflowResponse {
	r.Helper()
	if r.Workflow == "" {
		r.Workflow = unique(def.GetName())
	}
	res, err := r.RegisterAs(r.Workflow, def)
	if err != nil {
		r.Fatalf("register: %v", err)
	}
	if len(res.GetShardsBehind()) > 0 {
		r.Errorf("WF-13: shards %v are behind", res.GetShardsBehind())
	}
	return res
}

// RegisterFlow is Register for a flow.
func (r *Run) RegisterFlow(flow *wiggle.Definition) *wigglev1.RegisterWorkflowResponse {
	r.Helper()
	return r.Register(flow.Proto())
}

// RegisterAs registers a definition under a name.
func (r *Run) RegisterAs(name string, def *wigglev1.Definition) (*wigglev1.RegisterWorkflowResponse, error) {
	def = proto.CloneOf(def)
	def.Name = name
	return r.Workflows.RegisterWorkflow(r.ctx, &wigglev1.RegisterWorkflowRequest{Definition: def})
}

func unique(name string) string { return name + "-" + newULID() }

func newULID() string { return strings.ToLower(ulid.Make().String()) }

// ulidAt is a ulid whose time is the given one.
func ulidAt(at time.Time) string {
	return strings.ToLower(ulid.MustNew(ulid.Timestamp(at), ulid.DefaultEntropy()).String())
}

// StartOption changes a start.
type StartOption func(*wigglev1.StartInstanceRequest)

// Start starts an instance with an input as JSON; empty is none.
func (r *Run) Start(input string, change ...StartOption) string {
	r.Helper()
	res, err := r.TryStart(input, change...)
	if err != nil {
		r.Fatalf("start: %v", err)
	}
	r.ID = res.GetInstanceId()
	return r.ID
}

// TryStart starts an instance and tells what became of it.
func (r *Run) TryStart(input string, change ...StartOption) (*wigglev1.StartInstanceResponse, error) {
	req := &wigglev1.StartInstanceRequest{Workflow: r.Workflow}
	if input != "" {
		req.Input = payload(input)
	}
	for _, c := range change {
		c(req)
	}
	return r.Instances.StartInstance(r.ctx, req)
}

// Get reads the instance.
func (r *Run) Get() *wigglev1.Instance {
	r.Helper()
	res, err := r.Instances.GetInstance(r.ctx, &wigglev1.GetInstanceRequest{InstanceId: r.ID})
	if err != nil {
		r.Fatalf("get: %v", err)
	}
	return res.GetInstance()
}

// Token finds the instance's token at a node.
func (r *Run) Token(node string) *wigglev1.Token {
	r.Helper()
	in := r.Get()
	i := slices.IndexFunc(in.GetTokens(), func(t *wigglev1.Token) bool { return t.GetNode() == node })
	if i < 0 {
		r.Fatalf("no token at %q: %v", node, in)
	}
	return in.GetTokens()[i]
}

// History reads the whole history of the instance, in pages of a size.
func (r *Run) History(pageSize int32) []*wigglev1.HistoryEntry {
	r.Helper()
	var all []*wigglev1.HistoryEntry
	for token := ""; ; {
		req := &wigglev1.GetHistoryRequest{InstanceId: r.ID, PageSize: pageSize, PageToken: token}
		res, err := r.Instances.GetHistory(r.ctx, req)
		if err != nil {
			r.Fatalf("history: %v", err)
		}
		all = append(all, res.GetEntries()...)
		if token = res.GetNextPageToken(); token == "" {
			return all
		}
	}
}

// wholeHistory is a page that holds most histories.
const wholeHistory = 10_000

// Steps are the history's entries of a step.
func (r *Run) Steps(step string) []*wigglev1.HistoryEntry {
	r.Helper()
	return slices.DeleteFunc(r.History(wholeHistory), func(e *wigglev1.HistoryEntry) bool { return e.GetStep() != step })
}

// Ended tells whether the instance has ended.
func (r *Run) Ended() bool {
	r.Helper()
	return r.wait(0).GetEnded()
}

func (r *Run) wait(d time.Duration) *wigglev1.WaitInstanceResponse {
	r.Helper()
	res, err := r.Instances.WaitInstance(r.ctx, &wigglev1.WaitInstanceRequest{InstanceId: r.ID, Wait: durationpb.New(d)})
	if err != nil {
		r.Fatalf("wait: %v", err)
	}
	return res
}
