package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/wiggle-run/wiggle/internal/bench/child"
	"github.com/wiggle-run/wiggle/pkg/process"
	"github.com/wiggle-run/wiggle/pkg/topology"
)

// envPprof is the setting by which a service offers profiles.
const envPprof = "WIGGLE_PPROF_ADDR"

// environment is what a child gets: ours, so that settings of the services can be tried, but for what says where they are.
func (c *Cluster) environment(more ...string) []string {
	environ := slices.DeleteFunc(slices.Clone(c.cfg.Environ), func(kv string) bool {
		name, _, _ := strings.Cut(kv, "=")
		switch name {
		case topology.EnvTopology, topology.EnvDatabaseURL, "WIGGLE_SERVER", "WIGGLE_AUTH", "WIGGLE_AUTH_URLS", "WIGGLE_AUTH_ADDR",
			"WIGGLE_AUTH_ADMIN_NAME", "WIGGLE_AUTH_ADMIN_PASSWORD", "WIGGLE_ROUTER_ADDR", "WIGGLE_INSTANCES_ADDR",
			"WIGGLE_INSTANCES_URLS", "WIGGLE_INSTANCES_SHARDS", "WIGGLE_LEADER_ADDR", "WIGGLE_LEADER_URLS", "WIGGLE_SEARCH_ADDR",
			"WIGGLE_SEARCH_URLS", "WIGGLE_NATS_URLS", "WIGGLE_NATS_CREDENTIALS", "WIGGLE_ROUTER_URLS",
			process.SettingServiceKey, "WIGGLE_SERVICE_KEY_FILE", envPprof:
			return true
		}
		if c.collector != nil && telemetrySetting(name) {
			return true
		}
		return name == topology.EnvReplicaURLs || strings.HasPrefix(name, "WIGGLE_TEST_")
	})
	level := true
	for _, kv := range environ {
		level = level && !strings.HasPrefix(kv, "WIGGLE_LOG_LEVEL=")
	}
	if level {
		environ = append(environ, "WIGGLE_LOG_LEVEL=warn")
	}
	if c.collector != nil {
		environ = append(environ, c.collector.environment(c.cfg.TraceRatio)...)
	}
	environ = append(environ, process.SettingServiceKey+"="+c.key)
	if c.cfg.Server == "" { // that behind Server has its own
		environ = slices.DeleteFunc(environ, func(kv string) bool { return strings.HasPrefix(kv, envAPIKey) })
		environ = append(environ, envAPIKey+"="+c.apiKey)
	}
	return append(environ, more...)
}

// StartServices starts instances processes, a router and what else was asked for, and waits until every shard is served.
func (c *Cluster) StartServices(ctx context.Context) error {
	if c.cfg.Server != "" {
		return c.awaitReady(ctx)
	}
	const others = 8 // the router, auth, leader, search and NATS, with where profiles are offered
	ports, err := child.FreePorts(2*c.cfg.Instances + 2 + others)
	if err != nil {
		return err
	}
	address := func() string {
		port := ports[0]
		ports = ports[1:]
		return fmt.Sprintf("127.0.0.1:%d", port)
	}
	var urls []string
	for i := range c.cfg.Instances {
		addr := address()
		urls = append(urls, "http://"+addr)
		if err := c.startService(processInstances, fmt.Sprintf("-%d", i+1), address(), "WIGGLE_INSTANCES_ADDR="+addr); err != nil {
			return err
		}
	}
	environ, err := c.startAuth(address)
	if err != nil {
		return err
	}
	addr := address()
	c.URL = "http://" + addr
	var f followers
	if c.cfg.with(WithLeader) {
		f.leader = address()
	}
	if c.cfg.with(WithSearch) {
		f.search, f.nats = address(), address()
	}
	environ = append(environ, f.routerEnvironment()...)
	environ = append(environ, "WIGGLE_ROUTER_ADDR="+addr, "WIGGLE_INSTANCES_URLS="+strings.Join(urls, ","))
	if err := c.startService(processRouter, "", address(), environ...); err != nil {
		return err
	}
	if err := c.awaitReady(ctx); err != nil {
		return err
	}
	if err := c.makeKey(ctx); err != nil {
		return err
	}
	if c.cfg.LoggedEvents > 0 {
		if err := c.Databases.FillEvents(ctx, c.cfg.LoggedEvents); err != nil {
			return err
		}
	}
	return c.startFollowers(ctx, f, address)
}

func (c *Cluster) startService(name, number, pprof string, environ ...string) error {
	environ = append(environ, topology.EnvTopology+"="+c.topology)
	if c.cfg.Profiles {
		environ = append(environ, envPprof+"="+pprof)
	}
	p, err := child.Start(c.command("serve", name), c.Dir, name, number, c.environment(environ...))
	if err != nil {
		return err
	}
	if c.cfg.Profiles {
		p.Profiles = "http://" + pprof
	}
	c.services = append(c.services, p)
	return nil
}

// command is this program with other arguments.
func (c *Cluster) command(args ...string) []string { return slices.Concat(c.cfg.Command, args) }

func (c *Cluster) awaitReady(ctx context.Context) error { return c.await(ctx, c.URL) }

// await waits until a process is ready.
func (c *Cluster) await(ctx context.Context, url string) error {
	ctx, cancel := context.WithTimeout(ctx, readyTime)
	defer cancel()
	poll := time.NewTicker(readyEvery)
	defer poll.Stop()
	for {
		missing := missing(ctx, url)
		if missing == "" {
			return nil
		}
		if err := c.Ended(); err != nil {
			return err
		}
		select {
		case <-poll.C:
		case <-ctx.Done():
			if !errors.Is(context.Cause(ctx), context.DeadlineExceeded) {
				return context.Cause(ctx)
			}
			return fmt.Errorf("%s was not ready in %v: %s", url, readyTime, missing)
		}
	}
}

// missing is what a process still lacks, as it says itself.
func missing(ctx context.Context, url string) string {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url+"/readyz", nil)
	if err != nil {
		return err.Error()
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return err.Error()
	}
	defer func() { _ = res.Body.Close() }()
	body, err := io.ReadAll(res.Body)
	if err == nil && res.StatusCode == http.StatusOK {
		return ""
	}
	return fmt.Sprintf("%s: %s", res.Status, body)
}
