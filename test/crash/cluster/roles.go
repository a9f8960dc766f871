package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/wiggle-run/wiggle/internal/devstack"
	"github.com/wiggle-run/wiggle/pkg/bus"
	"github.com/wiggle-run/wiggle/pkg/lifecycle"
	"github.com/wiggle-run/wiggle/pkg/rpc"
	"github.com/wiggle-run/wiggle/pkg/settings"
	"github.com/wiggle-run/wiggle/pkg/topology"
	"github.com/wiggle-run/wiggle/services/auth"
	"github.com/wiggle-run/wiggle/services/instances"
	"github.com/wiggle-run/wiggle/services/leader"
	"github.com/wiggle-run/wiggle/services/router"
	"github.com/wiggle-run/wiggle/services/search"
)

// The environment of a child: what it is, and its configuration as JSON.
const (
	envRole   = "WIGGLE_TEST_ROLE"
	envConfig = "WIGGLE_TEST_ROLE_CONFIG"
)

// The roles that every cluster has.
const (
	roleInstances = "instances"
	roleRouter    = "router"
	roleLeader    = "leader"
	roleSearch    = "search"
	roleAuth      = "auth"
	roleNATS      = "nats"
)

const (
	// bindTime is how long a child waits for its port: its predecessor may just be dying.
	bindTime  = 10 * time.Second
	bindPause = 20 * time.Millisecond
	// grace is what a process has to finish calls when it is asked to stop.
	grace = 10 * time.Second
	// poolSize keeps two processes well under a server's connections.
	poolSize = 8
)

// Role is what a test binary does as a child: it runs until ctx is done. config is
// what the process was made with, as JSON.
type Role func(ctx context.Context, config []byte, log *slog.Logger) error

// Main runs the tests of a binary, or in a child the role it was started for: one
// of those given, or one that every cluster has. It exits.
func Main(m *testing.M, roles map[string]Role) {
	name := os.Getenv(envRole)
	if name == "" {
		os.Exit(m.Run())
	}
	role := roles[name]
	if own := ownRoles()[name]; own != nil {
		role = own
	}
	if role == nil {
		fmt.Fprintf(os.Stderr, "there is no role %q\n", name)
		os.Exit(2)
	}
	go exitWithParent()
	ctx, stop := lifecycle.WithSignals(context.Background())
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	err := role(ctx, []byte(os.Getenv(envConfig)), log)
	stop()
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s ends: %v\n", name, err)
		os.Exit(1)
	}
	os.Exit(0)
}

func ownRoles() map[string]Role {
	return map[string]Role{
		roleInstances: runInstances, roleRouter: runRouter, roleLeader: runLeader, roleSearch: runSearch, roleAuth: runAuth,
		roleNATS: runNATS,
	}
}

// exitWithParent ends the process when the parent, who holds the other end of
// standard input, is gone.
func exitWithParent() {
	_, _ = io.Copy(io.Discard, os.Stdin) // it only ever ends
	os.Exit(3)
}

// serviceConfig configures the roles that every cluster has.
type serviceConfig struct {
	Address  string            `json:"address"`
	Topology topology.Document `json:"topology"`
	// URLs, for the router.
	Instances []string `json:"instances,omitempty"`
	Leaders   []string `json:"leaders,omitempty"`
	Search    []string `json:"search,omitempty"`
	Auth      []string `json:"auth,omitempty"`
	// URLs, for leader and search.
	Routers []string `json:"routers,omitempty"`
	// URLs, for all but instances.
	NATS []string `json:"nats,omitempty"`
	// For the router, where there are auth processes.
	AuthCache time.Duration `json:"auth_cache,omitempty"`
	// For auth.
	AdminPassword string `json:"admin_password,omitempty"`
	// Key is by what the services know each other.
	Key string `json:"key"`
}

// transport is that of a service which only services may call; a router is for everybody.
func (c *serviceConfig) transport() rpc.Transport {
	return rpc.Transport{ServiceKeys: []string{c.Key}, RequireService: true}
}

// natsConfig configures the NATS server.
type natsConfig struct {
	Address string `json:"address"`
	Dir     string `json:"dir"`
}

func (c *serviceConfig) read(config []byte) (*topology.Topology, error) {
	if err := json.Unmarshal(config, c); err != nil {
		return nil, fmt.Errorf("read configuration: %w", err)
	}
	return parse(c.Topology)
}

func parse(doc topology.Document) (*topology.Topology, error) {
	text, err := json.Marshal(doc)
	if err != nil {
		return nil, fmt.Errorf("write topology: %w", err)
	}
	return topology.Parse(text, func(string) (string, bool) { return "", false })
}

// prepare reads a service's configuration and takes its port.
func prepare(ctx context.Context, config []byte) (c serviceConfig, top *topology.Topology, l net.Listener, err error) {
	if top, err = c.read(config); err != nil {
		return c, nil, nil, err
	}
	l, err = listen(ctx, c.Address)
	return c, top, l, err
}

func runInstances(ctx context.Context, config []byte, log *slog.Logger) error {
	c, top, listener, err := prepare(ctx, config)
	if err != nil {
		return err
	}
	s, err := instances.New(instances.Config{
		Topology: top, Listener: listener, Transport: c.transport(), PoolSize: poolSize, Grace: grace, Release: "test", Logger: log,
	})
	if err != nil {
		return err
	}
	return s.Run(ctx)
}

func runRouter(ctx context.Context, config []byte, log *slog.Logger) error {
	c, top, listener, err := prepare(ctx, config)
	if err != nil {
		return err
	}
	r, err := router.New(router.Config{
		AuthOff: len(c.Auth) == 0, AuthURLs: c.Auth, AuthCache: c.AuthCache, NATS: bus.Config{URLs: c.NATS},
		Topology: top, InstancesURLs: c.Instances, LeaderURLs: c.Leaders, SearchURLs: c.Search,
		Listener: listener, Transport: rpc.Transport{ServiceKeys: []string{c.Key}}, Grace: grace, Release: "test", Logger: log,
	})
	if err != nil {
		return err
	}
	return r.Run(ctx)
}

func runLeader(ctx context.Context, config []byte, log *slog.Logger) error {
	c, top, listener, err := prepare(ctx, config)
	if err != nil {
		return err
	}
	s, err := leader.New(leader.Config{
		Topology: top, Listener: listener, NATS: bus.Config{URLs: c.NATS}, RouterURLs: c.Routers, Grace: grace, Release: "test",
		Transport: c.transport(), Logger: log,
	})
	if err != nil {
		return err
	}
	return s.Run(ctx)
}

func runSearch(ctx context.Context, config []byte, log *slog.Logger) error {
	c, top, listener, err := prepare(ctx, config)
	if err != nil {
		return err
	}
	s, err := search.New(search.Config{
		Topology: top, Listener: listener, NATS: bus.Config{URLs: c.NATS}, RouterURLs: c.Routers, Grace: grace, Release: "test",
		Transport: c.transport(), Logger: log,
	})
	if err != nil {
		return err
	}
	return s.Run(ctx)
}

func runAuth(ctx context.Context, config []byte, log *slog.Logger) error {
	c, top, listener, err := prepare(ctx, config)
	if err != nil {
		return err
	}
	s, err := auth.New(auth.Config{
		Topology: top, Listener: listener, NATS: bus.Config{URLs: c.NATS}, Transport: c.transport(), PoolSize: poolSize,
		AdminName: AdminName, AdminPassword: settings.Secret(c.AdminPassword), Grace: grace, Release: "test", Logger: log,
	})
	if err != nil {
		return err
	}
	return s.Run(ctx)
}

func runNATS(ctx context.Context, config []byte, _ *slog.Logger) error {
	var c natsConfig
	if err := json.Unmarshal(config, &c); err != nil {
		return fmt.Errorf("read configuration: %w", err)
	}
	address, err := net.ResolveTCPAddr("tcp", c.Address)
	if err != nil {
		return err
	}
	for end := time.Now().Add(bindTime); ; {
		s, err := devstack.StartNATS(devstack.NATSConfig{Dir: c.Dir, Port: address.Port})
		if err == nil {
			<-ctx.Done()
			s.Stop()
			return nil
		}
		if time.Now().After(end) || !Pause(ctx, bindPause) {
			return err
		}
	}
}

// listen takes a port, waiting for whoever has it to go.
func listen(ctx context.Context, address string) (net.Listener, error) {
	end := time.Now().Add(bindTime)
	for {
		l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
		if err == nil || !errors.Is(err, syscall.EADDRINUSE) || time.Now().After(end) {
			return l, err
		}
		if !Pause(ctx, bindPause) {
			return nil, ctx.Err()
		}
	}
}

// Pause waits, and tells whether ctx still goes on.
func Pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
