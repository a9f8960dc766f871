// Package testcluster runs a whole cluster, a router and any number of instances
// processes, inside one process over an in-memory network: for the test server and
// for tests that cross services. Handlers, clients and interceptors are those of
// production (ARC-4); only connections are made of memory, and shards may be.
package testcluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/wiggle-run/wiggle/pkg/clock"
	"github.com/wiggle-run/wiggle/pkg/rpc"
	"github.com/wiggle-run/wiggle/pkg/topology"
	"github.com/wiggle-run/wiggle/services/instances"
	"github.com/wiggle-run/wiggle/services/router"
)

// Config says what the cluster is made of.
type Config struct {
	// Shards is how many instance shards there are, numbered from 0. 0: 1.
	Shards int
	// DatabaseURLs are the shards' databases, one each. Empty: the shards live in
	// memory and go by Clock.
	DatabaseURLs []string
	// Processes is how many instances processes serve every shard. 0: 1. Shards in
	// memory cannot be shared by several.
	Processes int
	// Clock is the clock of shards in memory. Nil: the machine's.
	Clock clock.Clock
	// Configure, if set, may change the configuration of an instances process.
	Configure func(*instances.Config)
	// ConfigureRouter, if set, may change the configuration of the router.
	ConfigureRouter func(*router.Config)
	// RouterAddr makes the router listen on the network, such as "127.0.0.1:0".
	// Empty: only in memory.
	RouterAddr string
	// Logger gets the log of every part. Nil: nothing is logged.
	Logger *slog.Logger
}

// Cluster is a running cluster.
type Cluster struct {
	net    *rpc.MemoryNetwork
	cfg    Config
	top    *topology.Topology
	router *part
	url    string
	client *http.Client

	mu        sync.Mutex
	processes map[string]*part
	services  map[string]*instances.Service
}

// part is a running service.
type part struct {
	kill func() error
	stop context.CancelFunc
	done chan error
}

const routerName = "router"

// starved is how long the parts wait for each other: tests share a machine with whatever
// else runs on it, and a part that gets no processor is not a part that is down. One
// that is killed is noticed by its connections at once.
const starved = 15 * time.Second

// Start starts a cluster. Close it.
func Start(cfg Config) (*Cluster, error) {
	if cfg.Shards = max(cfg.Shards, len(cfg.DatabaseURLs)); cfg.Shards == 0 {
		cfg.Shards = 1
	}
	if cfg.Clock == nil {
		cfg.Clock = clock.Real{}
	}
	c := &Cluster{
		net: rpc.NewMemoryNetwork(), cfg: cfg,
		processes: map[string]*part{}, services: map[string]*instances.Service{},
	}
	var err error
	if c.top, err = describe(cfg); err != nil {
		return nil, err
	}
	c.client = rpc.NewHTTPClient(rpc.ClientConfig{DialContext: c.net.DialContext})
	urls := make([]string, max(cfg.Processes, 1))
	for i := range urls {
		name := Process(i)
		urls[i] = c.net.URL(name)
		if err := c.StartProcess(name); err != nil {
			return nil, errors.Join(err, c.Close())
		}
	}
	if err := c.startRouter(urls); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

// Process is the name of the i-th instances process.
func Process(i int) string { return "instances-" + strconv.Itoa(i) }

// describe writes the topology. Shards in memory get a URL that nobody opens.
func describe(cfg Config) (*topology.Topology, error) {
	weights := map[int]float64{}
	doc := topology.Document{
		Generations: []topology.DocumentGeneration{{ID: 1, ActiveFrom: time.Unix(0, 0).UTC(), Weights: weights}},
	}
	for i := range cfg.Shards {
		roles := topology.Roles{topology.RoleInstances}
		if i == 0 {
			roles = append(roles, topology.RoleHome, topology.RoleAuth)
		}
		url := fmt.Sprintf("postgres://memory/shard%d", i)
		if i < len(cfg.DatabaseURLs) {
			url = cfg.DatabaseURLs[i]
		}
		weights[i] = 1
		doc.Shards = append(doc.Shards, topology.DocumentShard{
			ID: i, State: topology.StateActive, Roles: roles,
			Primary: &topology.DocumentMember{URL: topology.NewCredential(url)},
		})
	}
	text, err := json.Marshal(doc)
	if err != nil {
		return nil, fmt.Errorf("describe the cluster: %w", err)
	}
	top, err := topology.Parse(text, func(string) (string, bool) { return "", false })
	if err != nil {
		return nil, fmt.Errorf("describe the cluster: %w", err)
	}
	return top, nil
}

// StartProcess starts an instances process under a name, or starts it again.
func (c *Cluster) StartProcess(name string) error {
	listener, err := c.net.Listen(name)
	if err != nil {
		return fmt.Errorf("start %s: %w", name, err)
	}
	cfg := instances.Config{Topology: c.top, Listener: listener, Release: "test", Logger: c.cfg.Logger, Grace: 5 * time.Second}
	if c.cfg.Configure != nil {
		c.cfg.Configure(&cfg)
	}
	var s *instances.Service
	if len(c.cfg.DatabaseURLs) > 0 {
		s, err = instances.New(cfg)
	} else {
		for i := range c.cfg.Shards {
			cfg.Shards = append(cfg.Shards, i)
		}
		s, err = instances.NewInMemory(cfg, c.cfg.Clock)
	}
	if err != nil {
		return fmt.Errorf("start %s: %w", name, err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.services[name] = s
	c.processes[name] = run(s.Run, s.Handler().Close)
	return nil
}

func run(serve func(context.Context) error, kill func() error) *part {
	ctx, stop := context.WithCancel(context.Background())
	p := &part{kill: kill, stop: stop, done: make(chan error, 1)}
	go func() { p.done <- serve(ctx) }()
	return p
}

func (c *Cluster) startRouter(urls []string) error {
	listener, err := c.listenRouter()
	if err != nil {
		return fmt.Errorf("start router: %w", err)
	}
	cfg := router.Config{
		AuthOff:  true,
		Topology: c.top, InstancesURLs: urls, Listener: listener, DialContext: c.net.DialContext,
		Release: "test", Logger: c.cfg.Logger, Grace: 5 * time.Second,
		ProbeTimeout: starved, CallTimeout: 2 * starved, FanOutTimeout: starved, PutTimeout: starved, ClaimTimeout: starved,
	}
	if c.cfg.ConfigureRouter != nil {
		c.cfg.ConfigureRouter(&cfg)
	}
	r, err := router.New(cfg)
	if err != nil {
		return fmt.Errorf("start router: %w", err)
	}
	c.router = run(r.Run, func() error { return nil })
	return nil
}

// listenRouter opens the router's port, in memory or on the network.
func (c *Cluster) listenRouter() (net.Listener, error) {
	if c.cfg.RouterAddr == "" {
		c.url = c.net.URL(routerName)
		return c.net.Listen(routerName)
	}
	listener, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", c.cfg.RouterAddr)
	if err != nil {
		return nil, err
	}
	c.url = "http://" + listener.Addr().String()
	c.client = rpc.NewHTTPClient(rpc.ClientConfig{})
	return listener, nil
}

// URL is the router's base URL. A router in memory is reached only by HTTPClient.
func (c *Cluster) URL() string { return c.url }

// HTTPClient reaches the router, and where that is in memory each process by its name.
func (c *Cluster) HTTPClient() *http.Client { return c.client }

// Network is the network that connects the parts.
func (c *Cluster) Network() *rpc.MemoryNetwork { return c.net }

// Topology is the cluster's topology.
func (c *Cluster) Topology() *topology.Topology { return c.top }

// Service is the instances process of the name.
func (c *Cluster) Service(name string) *instances.Service {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.services[name]
}

// WaitReady waits until the router finds every shard served.
func (c *Cluster) WaitReady(ctx context.Context) error {
	for {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.URL()+"/readyz", nil)
		if err != nil {
			return fmt.Errorf("ask for readiness: %w", err)
		}
		if res, err := c.client.Do(req); err == nil {
			_ = res.Body.Close()
			if res.StatusCode == http.StatusOK {
				return nil
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the cluster did not get ready: %w", context.Cause(ctx))
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// KillProcess cuts every connection of an instances process and stops it without
// letting it drain.
func (c *Cluster) KillProcess(name string) error {
	c.mu.Lock()
	p := c.processes[name]
	delete(c.processes, name)
	c.mu.Unlock()
	if p == nil {
		return fmt.Errorf("no process %s runs", name)
	}
	err := p.kill()
	p.stop()
	return errors.Join(err, <-p.done)
}

// StopProcess has an instances process drain and end, as a deployment does.
func (c *Cluster) StopProcess(name string) error {
	c.mu.Lock()
	p := c.processes[name]
	delete(c.processes, name)
	c.mu.Unlock()
	if p == nil {
		return fmt.Errorf("no process %s runs", name)
	}
	p.stop()
	return <-p.done
}

// StopRouter has the router drain and end, and tells when it has.
func (c *Cluster) StopRouter() error {
	c.mu.Lock()
	p := c.router
	c.router = nil
	c.mu.Unlock()
	if p == nil {
		return errors.New("no router runs")
	}
	p.stop()
	return <-p.done
}

// Close stops everything.
func (c *Cluster) Close() error {
	var errs []error
	c.mu.Lock()
	routed := c.router != nil
	c.mu.Unlock()
	if routed {
		errs = append(errs, c.StopRouter())
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range c.processes {
		p.stop()
	}
	for _, p := range c.processes {
		errs = append(errs, <-p.done)
	}
	c.client.CloseIdleConnections()
	return errors.Join(errs...)
}
