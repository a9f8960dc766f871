package app

import (
	"context"
	"fmt"
	"net"
	"os"
	"time"

	"github.com/wiggle-run/wiggle/pkg/lifecycle"
	"github.com/wiggle-run/wiggle/pkg/process"
	"github.com/wiggle-run/wiggle/pkg/rpc"
	"github.com/wiggle-run/wiggle/pkg/topology"
	"github.com/wiggle-run/wiggle/services/auth"
	"github.com/wiggle-run/wiggle/services/instances"
	"github.com/wiggle-run/wiggle/services/leader"
	"github.com/wiggle-run/wiggle/services/router"
	"github.com/wiggle-run/wiggle/services/search"
)

// ServeAll runs every service in this process until ctx is done, configured by an environment as os.Environ returns it.
// Only the router is on the network.
func ServeAll(ctx context.Context, environ []string) error {
	s, err := Load(environ)
	if err != nil {
		return err
	}
	return s.Process.Run(ctx, func(ctx context.Context, e process.Equipment) (process.Wiring, error) {
		s.Topology = s.Process.Topology
		if !s.Router.AuthOff { // else nobody needs an administrator
			s.Auth.SetUp = os.Stderr
		}
		instances.LogConnections(ctx, e.Logger, s.Topology, s.Instances.Shards)
		var err error
		if s.Router.Listener, err = s.Process.Listen(ctx, router.SettingAddr, s.Router.Addr); err != nil {
			return process.Wiring{}, err
		}
		all, err := NewAll(s.Services, e)
		if err != nil {
			return process.Wiring{}, err
		}
		return process.Wiring{
			Services: all.Components(), Grace: s.Router.Grace, Mount: all.Router.Mount,
			Close: all.Close, SetTopology: all.Router.SetTopology,
		}, nil
	})
}

// Services are the configurations of every service of a process. Where they listen inside, whom they call, and what
// stands around them is filled in.
type Services struct {
	// Topology is the cluster's.
	Topology  *topology.Topology
	Router    router.Config
	Instances instances.Config
	Leader    leader.Config
	Search    search.Config
	Auth      auth.Config
}

// searches tells whether a search service runs: where there is a shard for its documents, and NATS, which brings it events.
func (s *Services) searches(t *topology.Topology) bool {
	if t == nil || len(s.Search.NATS.URLs) == 0 {
		return false
	}
	for _, shard := range t.WithRole(topology.RoleSearch) {
		if shard.State != topology.StateRetired {
			return true
		}
	}
	return false
}

// All is every service of a process, wired over an in-memory network.
type All struct {
	Router    *router.Router
	Instances *instances.Service
	Leader    *leader.Service
	// Search is nil where the topology has no search shard, or there is no NATS.
	Search *search.Service
	Auth   *auth.Service
}

// The services' names in the in-memory network.
const (
	memoryRouter    = "router.memory"
	memoryInstances = "instances.memory"
	memoryLeader    = "leader.memory"
	memorySearch    = "search.memory"
	memoryAuth      = "auth.memory"
)

// NewAll wires the services.
func NewAll(s Services, e process.Equipment) (*All, error) {
	network := rpc.NewMemoryNetwork()
	urls := func(name string) []string { return []string{network.URL(name)} }
	withSearch := s.searches(s.Topology)
	if !withSearch {
		e.Logger.Info("this process searches nothing: that takes a shard with the role search, and NATS")
	}
	for name, listener := range map[string]*net.Listener{
		memoryRouter: &s.Router.Inside, memoryInstances: &s.Instances.Listener, memoryLeader: &s.Leader.Listener,
		memorySearch: &s.Search.Listener, memoryAuth: &s.Auth.Listener,
	} {
		var err error
		if *listener, err = network.Listen(name); err != nil {
			return nil, fmt.Errorf("listen in memory: %w", err)
		}
	}
	all := &All{}
	if err := all.wire(s, e, network, urls, withSearch); err != nil {
		all.Close()
		return nil, err
	}
	return all, nil
}

func (a *All) wire(
	s Services, e process.Equipment, network *rpc.MemoryNetwork, urls func(string) []string, withSearch bool,
) (err error) {
	s.Instances.Topology, s.Instances.Release, s.Instances.Logger, s.Instances.Telemetry = s.Topology, e.Release, e.Logger, e.Telemetry
	if a.Instances, err = instances.New(s.Instances); err != nil {
		return err
	}
	s.Leader.Topology, s.Leader.Release, s.Leader.Logger, s.Leader.Telemetry = s.Topology, e.Release, e.Logger, e.Telemetry
	s.Leader.RouterURLs, s.Leader.DialContext = urls(memoryRouter), network.DialContext
	if a.Leader, err = leader.New(s.Leader); err != nil {
		return err
	}
	s.Router.Topology, s.Router.Release, s.Router.Logger, s.Router.Telemetry = s.Topology, e.Release, e.Logger, e.Telemetry
	// The router alone is on the network. The others need no transport: only services reach the network in memory, which is
	// their identity, and the router's listener inside takes who calls there for a service.
	s.Router.Transport = e.Transport
	s.Router.InstancesURLs, s.Router.LeaderURLs, s.Router.DialContext = urls(memoryInstances), urls(memoryLeader), network.DialContext
	if withSearch {
		s.Search.Topology, s.Search.Release, s.Search.Logger, s.Search.Telemetry = s.Topology, e.Release, e.Logger, e.Telemetry
		s.Search.RouterURLs, s.Search.DialContext = urls(memoryRouter), network.DialContext
		if a.Search, err = search.New(s.Search); err != nil {
			return err
		}
		s.Router.SearchURLs = urls(memorySearch)
	}
	s.Router.AuthURLs = urls(memoryAuth)
	s.Auth.Topology, s.Auth.Release, s.Auth.Logger, s.Auth.Telemetry = s.Topology, e.Release, e.Logger, e.Telemetry
	if a.Auth, err = auth.New(s.Auth); err != nil {
		return err
	}
	a.Router, err = router.New(s.Router)
	return err
}

// Components are the services in the order of their start. Those that call the router stop before it, and start when it
// serves, or a moment later if it cannot yet: else their first calls would fail, and be told.
func (a *All) Components() []lifecycle.Component {
	components := []lifecycle.Component{
		{Name: "instances", Run: a.Instances.Run},
		{Name: "auth", Run: a.Auth.Run},
		{Name: "router", Run: a.Router.Run},
		{Name: "leader", Start: a.awaitRouter, Run: a.Leader.Run},
	}
	if a.Search != nil {
		components = append(components, lifecycle.Component{Name: "search", Run: a.Search.Run})
	}
	return components
}

const (
	// routerTime is how long other services wait for a router that is not ready; routerLook is how often they look.
	routerTime = 3 * time.Second
	routerLook = 10 * time.Millisecond
)

func (a *All) awaitRouter(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, routerTime)
	defer cancel()
	look := time.NewTicker(routerLook)
	defer look.Stop()
	for len(a.Router.Missing(ctx)) > 0 {
		select {
		case <-look.C:
		case <-ctx.Done():
			return nil // they can do without for now
		}
	}
	return nil
}

// Close gives back what the services hold, also where they never came to run.
func (a *All) Close() {
	if a.Instances != nil {
		a.Instances.Close()
	}
	if a.Leader != nil {
		a.Leader.Close()
	}
	if a.Search != nil {
		a.Search.Close()
	}
	if a.Auth != nil {
		a.Auth.Close()
	}
}
