package cluster

import (
	"context"
	"path/filepath"
	"slices"
	"strings"

	"github.com/wiggle-run/wiggle/internal/bench/child"
	"github.com/wiggle-run/wiggle/internal/devstack"
	"github.com/wiggle-run/wiggle/pkg/topology"
)

// What can run beside the services that work needs, see Config.With.
const (
	// WithLeader is a leader process: heartbeats, schedules, and with NATS the relay.
	WithLeader = "leader"
	// WithSearch is a search process with a shard of its own, and NATS, which brings it events.
	WithSearch = "search"
)

const (
	searchShard    = 100
	searchDatabase = "wiggle_search"
)

// CommandNATS is the command line's name of [RunNATS].
const CommandNATS = "bench-nats"

// RunNATS runs a NATS server with JetStream until ctx is done.
func RunNATS(ctx context.Context, dir string, port int) error {
	s, err := devstack.StartNATS(devstack.NATSConfig{Dir: dir, Port: port})
	if err != nil {
		return err
	}
	<-ctx.Done()
	s.Stop()
	return nil
}

// followers are the processes that follow what the others do.
type followers struct{ nats, leader, search string } // addresses, empty where there is none

// searchMember makes the database of the search index, and describes it.
func (c *Cluster) searchMember(ctx context.Context) (topology.DocumentShard, error) {
	if err := c.server.CreateDatabase(ctx, searchDatabase); err != nil {
		return topology.DocumentShard{}, err
	}
	return topology.DocumentShard{
		ID: searchShard, State: topology.StateActive, Roles: topology.Roles{topology.RoleSearch},
		Primary: &topology.DocumentMember{URL: topology.NewCredential(c.server.TCPURL(searchDatabase))},
	}, nil
}

// routerEnvironment tells the router where the followers are.
func (f followers) routerEnvironment() []string {
	var environ []string
	if f.leader != "" {
		environ = append(environ, "WIGGLE_LEADER_URLS=http://"+f.leader)
	}
	if f.search != "" {
		environ = append(environ, "WIGGLE_SEARCH_URLS=http://"+f.search)
	}
	return environ
}

// startFollowers starts what was asked for, and waits until it works.
func (c *Cluster) startFollowers(ctx context.Context, f followers, address func() string) error {
	environ := []string{"WIGGLE_ROUTER_URLS=" + c.URL}
	if f.nats != "" {
		_, port, _ := strings.Cut(f.nats, ":")
		p, err := child.Start(c.command(CommandNATS, "--dir", filepath.Join(c.Dir, "nats"), "--port", port), c.Dir, processNATS, "",
			c.environment())
		if err != nil {
			return err
		}
		c.services = append(c.services, p)
		environ = append(environ, "WIGGLE_NATS_URLS=nats://"+f.nats)
	}
	for _, service := range []struct{ name, address, setting string }{
		{processLeader, f.leader, "WIGGLE_LEADER_ADDR"},
		{processSearch, f.search, "WIGGLE_SEARCH_ADDR"},
	} {
		if service.address == "" {
			continue
		}
		own := append(slices.Clone(environ), service.setting+"="+service.address)
		if err := c.startService(service.name, "", address(), own...); err != nil {
			return err
		}
		if err := c.await(ctx, "http://"+service.address); err != nil {
			return err
		}
	}
	return nil
}
