package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/wiggle-run/wiggle/internal/bench/child"
	"github.com/wiggle-run/wiggle/internal/bench/pgmeter"
	"github.com/wiggle-run/wiggle/internal/bench/procfs"
	"github.com/wiggle-run/wiggle/internal/devstack"
	"github.com/wiggle-run/wiggle/pkg/topology"
)

const (
	readyEvery  = 20 * time.Millisecond
	readyTime   = time.Minute
	stopTime    = 30 * time.Second
	poolSize    = 16
	maxSessions = 100 // of PostgreSQL, beyond what the instances processes take

	// largeMemory is from where PostgreSQL is given largeBuffers.
	largeMemory  = 3 << 30
	largeBuffers = "512MB"

	processBench     = "bench"
	processPostgres  = "postgres"
	processInstances = "instances"
	processRouter    = "router"
	processWorker    = "worker"
)

// cluster is what is measured: one of our own, or one that runs already.
type cluster struct {
	opts *Options
	dir  string
	// server is nil where the cluster is not ours.
	server *devstack.Server
	// url is the router's.
	url          string
	adminURL     string // of PostgreSQL, empty if it is out of reach
	databaseURLs []string
	topology     string // the document
	databases    pgmeter.Databases
	services     []*child.Process
	workers      *workers
	temporary    bool
}

// openCluster brings up PostgreSQL, or finds what was named. The services come later: nothing else runs beside the limit.
func openCluster(ctx context.Context, opts *Options) (*cluster, error) {
	c := &cluster{opts: opts, url: opts.Server, databaseURLs: opts.DatabaseURLs}
	if err := c.open(ctx); err != nil {
		return nil, errors.Join(err, c.close(ctx))
	}
	return c, nil
}

func (c *cluster) open(ctx context.Context) error {
	if err := c.makeDir(); err != nil {
		return err
	}
	if c.opts.Server == "" {
		if err := c.startDatabase(ctx); err != nil {
			return err
		}
	}
	if len(c.databaseURLs) > 0 && c.adminURL == "" {
		c.adminURL = c.databaseURLs[0]
	}
	var err error
	c.databases, err = pgmeter.Open(ctx, c.databaseURLs)
	return err
}

// makeDir makes the directory for data and logs. Not in /tmp, which may be memory, where a flush costs nothing; and
// where the account of PostgreSQL can enter.
func (c *cluster) makeDir() error {
	if c.opts.DataDir != "" {
		c.dir = c.opts.DataDir
		return os.MkdirAll(c.dir, 0o755) //nolint:gosec // PostgreSQL's account enters; its data is 0700
	}
	parent := "/var/tmp"
	if _, err := os.Stat(parent); err != nil {
		parent = os.TempDir()
	}
	removeStale(parent)
	dir, err := os.MkdirTemp(parent, dirPrefix+strconv.Itoa(os.Getpid())+"-")
	if err != nil {
		return err
	}
	c.dir, c.temporary = dir, true
	return os.Chmod(dir, 0o755) //nolint:gosec // as above
}

// dirPrefix starts the names of directories; the process id of the owner follows.
const dirPrefix = "wiggle-bench-"

// removeStale removes directories of runs that were killed.
func removeStale(parent string) {
	dirs, _ := filepath.Glob(filepath.Join(parent, dirPrefix+"*")) // only a malformed pattern fails
	for _, dir := range dirs {
		pid, _, _ := strings.Cut(strings.TrimPrefix(filepath.Base(dir), dirPrefix), "-")
		owner, err := strconv.Atoi(pid)
		if err == nil && errors.Is(syscall.Kill(owner, 0), syscall.ESRCH) {
			_ = os.RemoveAll(dir)
		}
	}
}

func databaseName(shard int) string { return fmt.Sprintf("wiggle_s%d", shard) }

// startDatabase starts PostgreSQL with a database for each shard and describes them.
func (c *cluster) startDatabase(ctx context.Context) error {
	installation, err := devstack.Provide(ctx, devstack.ProvideOptions{Progress: c.opts.Progress})
	if err != nil {
		return err
	}
	cfg := devstack.ServerConfig{
		Installation: installation, Dir: filepath.Join(c.dir, "postgres"), TCP: true,
		MaxConnections: maxSessions + poolSize*c.opts.Shards*c.opts.Instances,
		StatStatements: c.opts.Scenario == scenarioIdle,
		Settings:       map[string]string{"max_wal_size": "4GB"},
	}
	if c.opts.Throwaway {
		cfg.Profile = devstack.Throwaway
	}
	if procfs.ThisMachine().MemoryBytes >= largeMemory && !c.opts.Throwaway {
		cfg.SharedBuffers = largeBuffers
	}
	maps.Copy(cfg.Settings, c.opts.Postgres)
	if c.server, err = devstack.StartServer(ctx, cfg); err != nil {
		return err
	}
	c.adminURL = c.server.TCPURL("postgres")
	document := topology.Document{Generations: []topology.DocumentGeneration{{
		ID: 1, ActiveFrom: time.Unix(0, 0).UTC(), Weights: map[int]float64{},
	}}}
	document.Defaults.Pool = poolSize
	for shard := range c.opts.Shards {
		if err := c.server.CreateDatabase(ctx, databaseName(shard)); err != nil {
			return err
		}
		roles := topology.Roles{topology.RoleInstances}
		if shard == 0 {
			roles = append(roles, topology.RoleHome, topology.RoleAuth)
		}
		u := c.server.TCPURL(databaseName(shard))
		document.Generations[0].Weights[shard] = 1
		document.Shards = append(document.Shards, topology.DocumentShard{
			ID: shard, State: topology.StateActive, Roles: roles,
			Primary: &topology.DocumentMember{URL: topology.NewCredential(u)},
		})
		c.databaseURLs = append(c.databaseURLs, u)
	}
	text, err := json.Marshal(document)
	if err != nil {
		return fmt.Errorf("write the topology: %w", err)
	}
	c.topology = string(text)
	return nil
}

// environment is what a child gets: ours, so that settings of the services can be tried, but for what says where they are.
func (c *cluster) environment(more ...string) []string {
	environ := slices.DeleteFunc(slices.Clone(c.opts.Environ), func(kv string) bool {
		name, _, _ := strings.Cut(kv, "=")
		switch name {
		case topology.EnvTopology, topology.EnvDatabaseURL, "WIGGLE_SERVER", "WIGGLE_ROUTER_ADDR", "WIGGLE_INSTANCES_ADDR",
			"WIGGLE_INSTANCES_URLS", "WIGGLE_INSTANCES_SHARDS", envPprof:
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
	return append(environ, more...)
}

// startServices starts instances processes and a router, and waits until every shard is served.
func (c *cluster) startServices(ctx context.Context) error {
	if c.opts.Server != "" {
		return c.awaitReady(ctx)
	}
	ports, err := child.FreePorts(2 * (c.opts.Instances + 1))
	if err != nil {
		return err
	}
	address := func() string {
		port := ports[0]
		ports = ports[1:]
		return fmt.Sprintf("127.0.0.1:%d", port)
	}
	var urls []string
	for i := range c.opts.Instances {
		addr := address()
		urls = append(urls, "http://"+addr)
		if err := c.startService(processInstances, fmt.Sprintf("-%d", i+1), address(), "WIGGLE_INSTANCES_ADDR="+addr); err != nil {
			return err
		}
	}
	addr := address()
	c.url = "http://" + addr
	if err := c.startService(processRouter, "", address(),
		"WIGGLE_ROUTER_ADDR="+addr, "WIGGLE_INSTANCES_URLS="+strings.Join(urls, ",")); err != nil {
		return err
	}
	return c.awaitReady(ctx)
}

func (c *cluster) startService(name, number, pprof string, environ ...string) error {
	environ = append(environ, topology.EnvTopology+"="+c.topology)
	if c.opts.Profile != "" {
		environ = append(environ, envPprof+"="+pprof)
	}
	p, err := child.Start(c.command("serve", name), c.dir, name, number, c.environment(environ...))
	if err != nil {
		return err
	}
	if c.opts.Profile != "" {
		p.Profiles = "http://" + pprof
	}
	c.services = append(c.services, p)
	return nil
}

// command is this program with other arguments.
func (c *cluster) command(args ...string) []string { return slices.Concat(c.opts.Command, args) }

func (c *cluster) awaitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, readyTime)
	defer cancel()
	poll := time.NewTicker(readyEvery)
	defer poll.Stop()
	for {
		missing := c.missing(ctx)
		if missing == "" {
			return nil
		}
		if err := c.ended(); err != nil {
			return err
		}
		select {
		case <-poll.C:
		case <-ctx.Done():
			if !errors.Is(context.Cause(ctx), context.DeadlineExceeded) {
				return context.Cause(ctx)
			}
			return fmt.Errorf("the cluster was not ready in %v: %s", readyTime, missing)
		}
	}
}

// missing is what the router still lacks, as it says itself.
func (c *cluster) missing(ctx context.Context) string {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.url+"/readyz", nil)
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

// ended is the error of the first process that has ended by itself.
func (c *cluster) ended() error {
	all := slices.Clone(c.services)
	if c.workers != nil {
		all = append(all, c.workers.children...)
	}
	for _, p := range all {
		if err := p.Ended(); err != nil {
			return err
		}
	}
	return nil
}

// cpu is what every process that can be seen has used so far, by name.
func (c *cluster) cpu() map[string]float64 {
	used := map[string]float64{processBench: procfs.CPUSeconds(os.Getpid())}
	for _, p := range c.services {
		used[p.Name] += procfs.CPUSeconds(p.PID())
	}
	if c.workers != nil {
		for _, p := range c.workers.children {
			used[p.Name] += procfs.CPUSeconds(p.PID())
		}
	}
	if c.server != nil {
		used[processPostgres] = procfs.CPUSecondsOfFamily(c.server.PID())
	}
	return used
}

// close ends every process, the ones first that use others, and removes what is temporary.
func (c *cluster) close(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTime)
	defer cancel()
	c.stopWorkers(ctx)
	for _, p := range slices.Backward(c.services) {
		p.Stop(ctx)
	}
	c.databases.Close()
	var errs []error
	if c.server != nil {
		errs = append(errs, c.server.Stop(ctx))
	}
	if c.temporary {
		errs = append(errs, os.RemoveAll(c.dir))
	}
	return errors.Join(errs...)
}
