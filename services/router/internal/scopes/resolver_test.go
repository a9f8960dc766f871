package scopes

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"
	"go.opentelemetry.io/otel/metric/noop"

	"github.com/wiggle-run/wiggle/pkg/faults"
	"github.com/wiggle-run/wiggle/pkg/rpc"
	"github.com/wiggle-run/wiggle/pkg/topology"
	wiggleinternalv1 "github.com/wiggle-run/wiggle/proto/gen/wiggleinternal/v1"
	"github.com/wiggle-run/wiggle/proto/gen/wiggleinternal/v1/wiggleinternalv1connect"
	"github.com/wiggle-run/wiggle/services/router/internal/backends"
	"github.com/wiggle-run/wiggle/services/router/internal/route"
	"github.com/wiggle-run/wiggle/services/router/internal/subject"
)

// process is an instances process that serves two shards of three. What an id is about it reads from the id's end.
type process struct {
	wiggleinternalv1connect.UnimplementedShardServiceHandler

	mu    sync.Mutex
	calls []string
}

func (p *process) Status(context.Context, *wiggleinternalv1.StatusRequest) (*wiggleinternalv1.StatusResponse, error) {
	return &wiggleinternalv1.StatusResponse{ProcessId: "p", Shards: []*wiggleinternalv1.ShardStatus{
		{Shard: 0, Ready: true}, {Shard: 1, Ready: true},
	}}, nil
}

func (p *process) WatchWork(
	ctx context.Context, _ *wiggleinternalv1.WatchWorkRequest, stream *connect.ServerStream[wiggleinternalv1.WatchWorkResponse],
) error {
	if err := stream.Send(&wiggleinternalv1.WatchWorkResponse{}); err != nil {
		return err
	}
	<-ctx.Done()
	return nil
}

// subjectOf tells of a thing whose id does not end in z.
func subjectOf(id, more string) *wiggleinternalv1.Subject {
	if strings.HasSuffix(id, "z") {
		return &wiggleinternalv1.Subject{}
	}
	return &wiggleinternalv1.Subject{Namespace: "n", Name: id[len(id)-1:] + more, Found: true}
}

func (p *process) ResolveInstances(
	_ context.Context, req *wiggleinternalv1.ResolveInstancesRequest,
) (*wiggleinternalv1.ResolveInstancesResponse, error) {
	p.took("instances", req.GetShard(), len(req.GetInstanceIds()))
	res := &wiggleinternalv1.ResolveInstancesResponse{}
	for _, id := range req.GetInstanceIds() {
		res.Subjects = append(res.Subjects, subjectOf(id, ""))
	}
	return res, nil
}

func (p *process) ResolveTasks(
	_ context.Context, req *wiggleinternalv1.ResolveTasksRequest,
) (*wiggleinternalv1.ResolveTasksResponse, error) {
	p.took("tasks", req.GetShard(), len(req.GetTasks()))
	res := &wiggleinternalv1.ResolveTasksResponse{}
	for _, task := range req.GetTasks() {
		res.Subjects = append(res.Subjects, subjectOf(task.GetTaskId(), task.GetLease()))
	}
	return res, nil
}

func (p *process) took(what string, shard int32, n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.calls = append(p.calls, fmt.Sprintf("%s of %d: %d", what, shard, n))
}

// expect tells what was asked since the last time.
func (p *process) expect(t *testing.T, want ...string) {
	t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	slices.Sort(p.calls)
	if !slices.Equal(p.calls, want) {
		t.Errorf("asked %q, want %q", p.calls, want)
	}
	p.calls = nil
}

const document = `{"shards": [
	{"id": 0, "state": "active", "roles": ["home", "instances", "auth"], "primary": {"url": "postgres://a/0"}},
	{"id": 1, "state": "active", "roles": ["instances"], "primary": {"url": "postgres://a/1"}},
	{"id": 2, "state": "active", "roles": ["instances"], "primary": {"url": "postgres://a/2"}}
], "generations": [{"id": 1, "activeFrom": "2020-01-01T00:00:00Z", "weights": {"0": 1, "1": 1, "2": 1}}]}`

// newResolver makes a resolver over a process.
func newResolver(t *testing.T) (*Resolver, *process) {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	top, err := topology.Parse([]byte(document), func(string) (string, bool) { return "", false })
	must(err)
	p, net := &process{}, rpc.NewMemoryNetwork()
	server, err := rpc.NewServer(rpc.ServerConfig{})
	must(err)
	server.Mount(wiggleinternalv1connect.NewShardServiceHandler(p, server.Options()...))
	server.Mount(wiggleinternalv1connect.NewScopeServiceHandler(p, server.Options()...))
	listener, err := net.Listen("p")
	must(err)
	ready := make(chan int, 16)
	set := backends.New(backends.Config{
		Interval: time.Minute, Timeout: time.Minute, Logger: slog.New(slog.DiscardHandler),
		OnHint: func(*backends.Process, int, string, string) {}, OnReady: func(shard int) { ready <- shard },
	})
	forward, err := route.NewForwarder(set, noop.Meter{})
	must(err)
	cfg := rpc.ClientConfig{DialContext: net.DialContext}
	options, err := rpc.NewClientOptions(cfg)
	must(err)
	client := rpc.NewHTTPClient(cfg)
	updates := make(chan []backends.Endpoint)
	ctx, stop := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = server.Serve(listener) })
	running.Go(func() { set.Run(ctx, updates) })
	t.Cleanup(func() {
		stop()
		client.CloseIdleConnections()
		_ = server.Close()
		running.Wait()
	})
	updates <- []backends.Endpoint{{Name: "p", Client: backends.Client{
		Shards: wiggleinternalv1connect.NewShardServiceClient(client, net.URL("p"), options...),
		Scopes: wiggleinternalv1connect.NewScopeServiceClient(client, net.URL("p"), options...),
	}}}
	for range 2 {
		<-ready
	}
	cluster := route.NewCluster(top)
	return New(forward, func() *route.Cluster { return cluster }, time.Minute), p
}

func id(kind string, shard int, end string) string {
	return fmt.Sprintf("%s.s%d.01k6zqk3v8r5d1f0m9c2x7y4a%s", kind, shard, end)
}

func found(name string) subject.Subject {
	return subject.Subject{Namespace: "n", Name: name, Found: true}
}

// Each shard is asked once for what is not known yet; what is not there is asked for again; and a shard that does not answer
// fails its own.
func TestInstances(t *testing.T) {
	t.Parallel()
	r, p := newResolver(t)
	ids := []string{id("wfi", 1, "b"), id("wfi", 0, "c"), "nonsense", id("wfi", 1, "z"), id("wfi", 1, "d"), id("wfi", 1, "b")}
	want := []subject.Subject{found("b"), found("c"), {}, {}, found("d"), found("b")}
	got, err := r.Instances(t.Context(), ids)
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("%v, %v, want %v", got, err, want)
	}
	p.expect(t, "instances of 0: 1", "instances of 1: 4")
	if got, err = r.Instances(t.Context(), ids); err != nil || !slices.Equal(got, want) {
		t.Errorf("again %v, %v, want %v", got, err, want)
	}
	p.expect(t, "instances of 1: 1")

	got, err = r.Instances(t.Context(), []string{id("wfi", 2, "b"), ids[0]})
	if err != nil || got[0].Found || !errors.Is(got[0].Err, faults.ErrShardUnavailable) || got[1] != want[0] {
		t.Errorf("with a shard away: %v, %v", got, err)
	}
	for _, one := range []string{id("wfi", 2, "b"), id("wfi", 9, "b")} {
		if got, err = r.Instances(t.Context(), []string{one}); !errors.Is(err, faults.ErrUnavailable) || got[0].Found {
			t.Errorf("%s alone: %v, %v", one, got, err)
		}
	}
	p.expect(t)
}

// Where a task is is asked each time, with its lease.
func TestTasks(t *testing.T) {
	t.Parallel()
	r, p := newResolver(t)
	refs := []string{subject.Task(id("tok", 1, "b"), "7.x"), subject.Task(id("tok", 1, "c"), ""), id("wfi", 1, "d"), id("tok", 0, "z")}
	want := []subject.Subject{found("b7.x"), found("c"), {}, {}}
	for range 2 {
		got, err := r.Tasks(t.Context(), refs)
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("%v, %v, want %v", got, err, want)
		}
		p.expect(t, "tasks of 0: 1", "tasks of 1: 2")
	}
}

// A call holds so many ids; more are asked for in several.
func TestBatches(t *testing.T) {
	t.Parallel()
	r, p := newResolver(t)
	refs := slices.Repeat([]string{id("tok", 1, "b")}, maxBatch+1)
	if got, err := r.Tasks(t.Context(), refs); err != nil || got[maxBatch] != found("b") {
		t.Errorf("%v, %v", got[maxBatch], err)
	}
	p.expect(t, "tasks of 1: 1", "tasks of 1: 1000")
}

// What was asked for last is kept.
func TestCache(t *testing.T) {
	t.Parallel()
	c := newCache(2)
	for _, name := range []string{"a", "b"} {
		c.put(name, found(name))
	}
	c.get("a")
	c.put("c", found("c"))
	c.put("c", found("c"))
	for name, kept := range map[string]bool{"a": true, "b": false, "c": true} {
		if got, ok := c.get(name); ok != kept || kept && got != found(name) {
			t.Errorf("%s is kept: %v, %v", name, got, ok)
		}
	}
	if c.recent.Len() != 2 || len(c.byID) != 2 {
		t.Errorf("%d and %d are kept", c.recent.Len(), len(c.byID))
	}
}
