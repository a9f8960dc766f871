package router_test

import (
	"context"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/oklog/ulid/v2"

	"github.com/wiggle-run/wiggle/pkg/rpc"
	"github.com/wiggle-run/wiggle/pkg/topology"
	"github.com/wiggle-run/wiggle/proto/gen/wiggle/v1/wigglev1connect"
	wiggleinternalv1 "github.com/wiggle-run/wiggle/proto/gen/wiggleinternal/v1"
	"github.com/wiggle-run/wiggle/proto/gen/wiggleinternal/v1/wiggleinternalv1connect"
	"github.com/wiggle-run/wiggle/services/router"
)

// cluster is a router with instances processes around it, in one bubble of time.
type cluster struct {
	t         *testing.T
	net       *rpc.MemoryNetwork
	databases map[int]*database
	processes map[string]*process
	router    *router.Router
	stop      context.CancelFunc
	done      chan error
	http      *http.Client

	instances wigglev1connect.InstanceServiceClient
	workers   wigglev1connect.WorkerServiceClient
	workflows wigglev1connect.WorkflowServiceClient
	events    wigglev1connect.EventServiceClient
	shards    wigglev1connect.ClusterServiceClient
}

// threeShards is home 0, and 1 and 2, with 9 retired.
const threeShards = `{
  "generations": [{"id": 1, "activeFrom": "1970-01-01T00:00:00Z", "weights": {"0": 1, "1": 1, "2": 1}}],
  "shards": [
    {"id": 0, "state": "active", "roles": ["instances", "home", "auth"], "primary": {"url": "postgres://s0/w"}},
    {"id": 1, "state": "active", "roles": ["instances"], "primary": {"url": "postgres://s1/w"}},
    {"id": 2, "state": "active", "roles": ["instances"], "primary": {"url": "postgres://s2/w"}},
    {"id": 9, "state": "retired", "roles": ["instances"]}
  ]
}`

// inBubble runs a test against a cluster whose processes, by name, serve the given shards.
func inBubble(t *testing.T, processes map[string][]int, test func(c *cluster), options ...func(*router.Config)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, processes, options...)
		defer c.close()
		c.settle()
		test(c)
	})
}

func newCluster(t *testing.T, processes map[string][]int, options ...func(*router.Config)) *cluster {
	t.Helper()
	c := &cluster{
		t: t, net: rpc.NewMemoryNetwork(), databases: map[int]*database{}, processes: map[string]*process{},
		done: make(chan error, 1),
	}
	for _, id := range []int{0, 1, 2} {
		c.databases[id] = newDatabase(id)
	}
	cfg := router.Config{
		Topology: parse(t, threeShards), DialContext: c.net.DialContext, Release: "test", PayloadBytes: 1 << 20,
		Logger: testLogger(t), AuthOff: true,
	}
	for name, shards := range processes {
		c.startProcess(name, shards...)
		cfg.InstancesURLs = append(cfg.InstancesURLs, c.net.URL(name))
	}
	slices.Sort(cfg.InstancesURLs)
	for _, option := range options {
		option(&cfg)
	}
	var err error
	if cfg.Listener, err = c.net.Listen("router"); err != nil {
		t.Fatal(err)
	}
	if c.router, err = router.New(cfg); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	c.stop = stop
	go func() { c.done <- c.router.Run(ctx) }()

	clientConfig := rpc.ClientConfig{DialContext: c.net.DialContext}
	c.http = rpc.NewHTTPClient(clientConfig)
	opts, err := rpc.NewClientOptions(clientConfig)
	if err != nil {
		t.Fatal(err)
	}
	c.instances = wigglev1connect.NewInstanceServiceClient(c.http, "http://router", opts...)
	c.workers = wigglev1connect.NewWorkerServiceClient(c.http, "http://router", opts...)
	c.workflows = wigglev1connect.NewWorkflowServiceClient(c.http, "http://router", opts...)
	c.events = wigglev1connect.NewEventServiceClient(c.http, "http://router", opts...)
	c.shards = wigglev1connect.NewClusterServiceClient(c.http, "http://router", opts...)
	return c
}

func parse(t *testing.T, document string) *topology.Topology {
	t.Helper()
	top, err := topology.Parse([]byte(document), func(string) (string, bool) { return "", false })
	if err != nil {
		t.Fatal(err)
	}
	return top
}

// startProcess starts, or restarts, a process.
func (c *cluster) startProcess(name string, shards ...int) *process {
	c.t.Helper()
	return c.startProcessAs(name, name+"-"+ulid.Make().String(), shards...)
}

// startProcessAs starts a process with an id, which decides for which shards it comes first.
func (c *cluster) startProcessAs(name, id string, shards ...int) *process {
	c.t.Helper()
	p := &process{
		name: name, id: id, shards: map[int]*database{},
		hints: make(chan *wiggleinternalv1.WorkHint), streams: streams{kick: make(chan struct{})},
	}
	for _, id := range shards {
		p.shards[id] = c.databases[id]
	}
	server, err := rpc.NewServer(rpc.ServerConfig{Release: "test"})
	if err != nil {
		c.t.Fatal(err)
	}
	p.server = server
	server.Mount(wigglev1connect.NewInstanceServiceHandler(p, server.Options()...))
	server.Mount(wigglev1connect.NewWorkerServiceHandler(p, server.Options()...))
	server.Mount(wigglev1connect.NewWorkflowServiceHandler(p, server.Options()...))
	server.Mount(wigglev1connect.NewEventServiceHandler(p, server.Options()...))
	server.Mount(wiggleinternalv1connect.NewShardServiceHandler(p, server.Options()...))
	server.Mount(wiggleinternalv1connect.NewScanServiceHandler(scans{p}, server.Options()...))
	server.Mount(wiggleinternalv1connect.NewScopeServiceHandler(subjects{p: p}, server.Options()...))
	listener, err := c.net.Listen(name)
	if err != nil {
		c.t.Fatal(err)
	}
	go server.Serve(listener)
	c.processes[name] = p
	return p
}

// kill ends a process at once.
func (c *cluster) kill(name string) {
	c.t.Helper()
	if err := c.processes[name].server.Close(); err != nil {
		c.t.Error(err)
	}
}

// settle lets everything that is under way come to rest, without time passing.
func (c *cluster) settle() { synctest.Wait() }

func (c *cluster) close() {
	c.stop()
	if err := <-c.done; err != nil {
		c.t.Errorf("the router ended with %v", err)
	}
	c.http.CloseIdleConnections()
	for name := range c.processes {
		c.kill(name)
	}
	// A connection whose other end was lost with a call on it ends when its pings stay unanswered.
	time.Sleep(time.Minute) // of the bubble
}

// called lists the calls of a method on all processes since the last time.
func (c *cluster) called(method string) []string {
	var list []string
	for _, p := range c.processes {
		list = append(list, p.took(method)...)
	}
	slices.Sort(list)
	return list
}

// get fetches a path of the router.
func (c *cluster) get(path string) (int, string) {
	c.t.Helper()
	req, err := http.NewRequestWithContext(c.t.Context(), http.MethodGet, "http://router"+path, nil)
	if err != nil {
		c.t.Fatal(err)
	}
	res, err := c.http.Do(req)
	if err != nil {
		c.t.Fatal(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		c.t.Fatal(err)
	}
	return res.StatusCode, string(body)
}

// ulidOn finds a ulid that is placed on the shard: one of the first few, since three shards share them equally.
func (c *cluster) ulidOn(shard int) string {
	c.t.Helper()
	for range 1000 {
		u := ulid.MustNew(ulid.Timestamp(time.Now()), ulid.DefaultEntropy())
		if placeOf(c.t, u) == shard {
			return strings.ToLower(u.String())
		}
	}
	c.t.Fatalf("no ulid is placed on shard %d", shard)
	return ""
}
