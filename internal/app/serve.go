package app

import (
	"context"
	"fmt"

	"github.com/wiggle-run/wiggle/pkg/lifecycle"
	"github.com/wiggle-run/wiggle/pkg/process"
	"github.com/wiggle-run/wiggle/pkg/rpc"
	"github.com/wiggle-run/wiggle/services/instances"
	"github.com/wiggle-run/wiggle/services/router"
)

// ServeAll runs every service in this process until ctx is done, configured by an environment as os.Environ returns it.
// Only the router is on the network.
func ServeAll(ctx context.Context, environ []string) error {
	s, err := Load(environ)
	if err != nil {
		return err
	}
	return s.Process.Run(ctx, func(ctx context.Context, e process.Equipment) (process.Wiring, error) {
		s.Instances.Topology = s.Process.Topology
		instances.LogConnections(ctx, e.Logger, s.Instances.Topology, s.Instances.Shards)
		var err error
		if s.Router.Listener, err = s.Process.Listen(ctx, router.SettingAddr, s.Router.Addr); err != nil {
			return process.Wiring{}, err
		}
		all, err := NewAll(s.Router, s.Instances, e)
		if err != nil {
			return process.Wiring{}, err
		}
		return process.Wiring{
			Services: all.Components(), Grace: s.Router.Grace, Mount: all.Router.Mount,
			Close: all.Instances.Close, SetTopology: all.Router.SetTopology,
		}, nil
	})
}

// All is every service of a process, wired over an in-memory network.
type All struct {
	Router    *router.Router
	Instances *instances.Service
}

// memoryName is the instances service's in the in-memory network.
const memoryName = "instances.memory"

// NewAll wires the services. Where they listen, and their topology and limits, come with the configurations.
func NewAll(routerConfig router.Config, instancesConfig instances.Config, e process.Equipment) (*All, error) {
	network := rpc.NewMemoryNetwork()
	var err error
	instancesConfig.Release, instancesConfig.Logger, instancesConfig.Telemetry = e.Release, e.Logger, e.Telemetry
	if instancesConfig.Listener, err = network.Listen(memoryName); err != nil {
		return nil, fmt.Errorf("listen in memory: %w", err)
	}
	all := &All{}
	if all.Instances, err = instances.New(instancesConfig); err != nil {
		return nil, err
	}
	routerConfig.Release, routerConfig.Logger, routerConfig.Telemetry = e.Release, e.Logger, e.Telemetry
	routerConfig.Topology = instancesConfig.Topology
	routerConfig.InstancesURLs, routerConfig.DialContext = []string{network.URL(memoryName)}, network.DialContext
	if all.Router, err = router.New(routerConfig); err != nil {
		all.Instances.Close()
		return nil, err
	}
	return all, nil
}

// Components are the services in the order of their start; the router stops first.
func (a *All) Components() []lifecycle.Component {
	return []lifecycle.Component{{Name: "instances", Run: a.Instances.Run}, {Name: "router", Run: a.Router.Run}}
}
