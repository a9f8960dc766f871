package cluster

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/wiggle-run/wiggle/pkg/topology"
	"github.com/wiggle-run/wiggle/test/ports"
)

const (
	readyPause = 20 * time.Millisecond
	stopTime   = 30 * time.Second
)

// Config says what a cluster is made of.
type Config struct {
	// Shards is how many shards, and servers, there are. The first is home.
	Shards int
	// Processes is how many instances processes serve every shard.
	Processes int
	// Down are shards whose servers are not started.
	Down []int
	// Routers is how many routers there are. 0: 1.
	Routers int
	// Leaders is how many leader processes stand by.
	Leaders int
	// Search adds a search process with a shard of its own, and NATS, which carries the event log.
	Search bool
	// Auth is how many auth processes there are, which have a shard of their own. 0: callers are not checked.
	Auth int
	// AuthCache is how long routers count a caller as known without asking again. 0: the router's default.
	AuthCache time.Duration
}

// The numbers of the shards that have no instances.
const (
	SearchShard = 100
	AuthShard   = 200
)

// AdminName is the name of the administrator of a cluster that checks callers.
const AdminName = "admin"

// Cluster is a cluster of processes.
type Cluster struct {
	// Dir holds data and logs. It is there until Remove.
	Dir string
	// Databases are the servers of the instance shards in their order, and of the search and the auth shard if there are such.
	Databases []*Database
	// SearchDatabase and AuthDatabase are the servers of those; nil where there are none.
	SearchDatabase, AuthDatabase *Database
	// Instances are the instances processes, Routers the routers, of which Router is the first.
	Instances []*Process
	Routers   []*Process
	Router    *Process
	// Leaders are the leader processes. Search and NATS are nil where there are none.
	Leaders      []*Process
	Search, NATS *Process
	// Auth are the auth processes. AdminPassword is the password of [AdminName].
	Auth          []*Process
	AdminPassword string
	// NATSURL is where NATS takes connections, NATSDir where it keeps the stream.
	NATSURL, NATSDir string
	// Topology describes the shards.
	Topology *topology.Topology

	key           string // by which its services know each other
	routerURLs    []string
	instancesURLs []string
	leaderURLs    []string
	processes     []*Process
}

// Start starts a cluster. It does not wait until it is ready. On an error nothing
// is left running.
func Start(ctx context.Context, cfg Config) (*Cluster, error) {
	// Not a test's directory: it outlives a test that failed, and the account of
	// PostgreSQL must be able to enter it.
	dir, err := os.MkdirTemp("/tmp", "wiggle-crash-")
	if err != nil {
		return nil, err
	}
	c := &Cluster{Dir: dir, key: rand.Text() + rand.Text()}
	if err := os.Chmod(dir, 0o755); err != nil { //nolint:gosec // data below is 0700
		return nil, err
	}
	if err := c.start(ctx, cfg); err != nil {
		return nil, errors.Join(err, c.Close(), c.Remove())
	}
	return c, nil
}

func (c *Cluster) start(ctx context.Context, cfg Config) error {
	shards := shardsOf(cfg)
	routers := max(cfg.Routers, 1)
	free, err := ports.Free(len(shards) + routers + cfg.Processes + cfg.Leaders + cfg.Auth + 2)
	if err != nil {
		return err
	}
	doc, err := c.startDatabases(ctx, cfg, shards, free)
	if err != nil {
		return err
	}
	if c.Topology, err = parse(doc); err != nil {
		return err
	}
	free = free[len(shards):]
	address := func() string {
		port := free[0]
		free = free[1:]
		return "127.0.0.1:" + strconv.Itoa(port)
	}
	routerConfig := serviceConfig{Topology: doc, Key: c.key, AuthCache: cfg.AuthCache}
	addresses := make([]string, routers)
	for i := range addresses {
		addresses[i] = address()
		c.routerURLs = append(c.routerURLs, "http://"+addresses[i])
	}
	for i := range cfg.Processes {
		at := address()
		c.instancesURLs = append(c.instancesURLs, "http://"+at)
		p, err := c.startService("instances-"+strconv.Itoa(i), roleInstances, serviceConfig{Address: at, Topology: doc, Key: c.key})
		if err != nil {
			return err
		}
		c.Instances = append(c.Instances, p)
	}
	routerConfig.Instances = c.instancesURLs
	if err := c.startFollowers(cfg, doc, address, &routerConfig); err != nil {
		return err
	}
	for i, at := range addresses {
		name := "router"
		if i > 0 {
			name += "-" + strconv.Itoa(i)
		}
		routerConfig.Address = at
		p, err := c.startService(name, roleRouter, routerConfig)
		if err != nil {
			return err
		}
		c.Routers = append(c.Routers, p)
	}
	c.Router = c.Routers[0]
	return nil
}

// startFollowers starts what the hot path does not need: NATS, auth, leaders, search.
func (c *Cluster) startFollowers(cfg Config, doc topology.Document, address func() string, router *serviceConfig) (err error) {
	common := serviceConfig{Topology: doc, Routers: c.routerURLs, Key: c.key}
	if cfg.Search {
		at := address()
		c.NATSURL, c.NATSDir = "nats://"+at, filepath.Join(c.Dir, "nats")
		common.NATS = []string{c.NATSURL}
		router.NATS = common.NATS
		if c.NATS, err = c.startService("nats", roleNATS, natsConfig{Address: at, Dir: c.NATSDir}); err != nil {
			return err
		}
	}
	if err := c.startAuth(cfg.Auth, common, address, router); err != nil {
		return err
	}
	for i := range cfg.Leaders {
		leader := common
		leader.Address = address()
		router.Leaders = append(router.Leaders, "http://"+leader.Address)
		p, err := c.startService("leader-"+strconv.Itoa(i), roleLeader, leader)
		if err != nil {
			return err
		}
		c.Leaders = append(c.Leaders, p)
	}
	c.leaderURLs = router.Leaders
	if cfg.Search {
		search := common
		search.Address = address()
		router.Search = []string{"http://" + search.Address}
		c.Search, err = c.startService("search", roleSearch, search)
	}
	return err
}

// startAuth starts the auth processes, any of which makes the administrator.
func (c *Cluster) startAuth(n int, auth serviceConfig, address func() string, router *serviceConfig) error {
	if n > 0 {
		c.AdminPassword = rand.Text()
	}
	for i := range n {
		auth.Address, auth.AdminPassword = address(), c.AdminPassword
		router.Auth = append(router.Auth, "http://"+auth.Address)
		p, err := c.startService("auth-"+strconv.Itoa(i), roleAuth, auth)
		if err != nil {
			return err
		}
		c.Auth = append(c.Auth, p)
	}
	return nil
}

func (c *Cluster) startService(name, role string, cfg any) (*Process, error) {
	p, err := c.NewProcess(name, role, cfg)
	if err != nil {
		return nil, err
	}
	if service, ok := cfg.(serviceConfig); ok {
		p.URL = "http://" + service.Address
	}
	return p, p.Start()
}

// shard is one of a cluster's: its number, and what it is for.
type shard struct {
	id    int
	roles topology.Roles
}

// shardsOf are the shards that a configuration asks for.
func shardsOf(cfg Config) []shard {
	var all []shard
	for i := range cfg.Shards {
		all = append(all, shard{i, topology.Roles{topology.RoleInstances}})
	}
	home := topology.Roles{topology.RoleInstances, topology.RoleHome}
	if cfg.Search {
		all = append(all, shard{SearchShard, topology.Roles{topology.RoleSearch}})
	}
	if cfg.Auth > 0 {
		all = append(all, shard{AuthShard, topology.Roles{topology.RoleAuth}})
	} else {
		home = append(home, topology.RoleAuth)
	}
	all[0].roles = home
	return all
}

// startDatabases starts the servers at the same time and describes them.
func (c *Cluster) startDatabases(ctx context.Context, cfg Config, shards []shard, ports []int) (topology.Document, error) {
	doc := topology.Document{Generations: []topology.DocumentGeneration{
		{ID: 1, ActiveFrom: time.Unix(0, 0).UTC(), Weights: map[int]float64{}},
	}}
	started := make(chan error)
	for i, s := range shards {
		name := "postgres-" + strconv.Itoa(i)
		db := newDatabase(name, filepath.Join(c.Dir, name), ports[i])
		c.Databases = append(c.Databases, db)
		switch s.id {
		case SearchShard:
			c.SearchDatabase = db
		case AuthShard:
			c.AuthDatabase = db
		default:
			doc.Generations[0].Weights[s.id] = 1
		}
		doc.Shards = append(doc.Shards, topology.DocumentShard{
			ID: s.id, State: topology.StateActive, Roles: s.roles,
			Primary: &topology.DocumentMember{URL: topology.NewCredential(db.URL())},
		})
		go func() {
			if slices.Contains(cfg.Down, i) {
				started <- nil
				return
			}
			started <- db.Start(ctx)
		}()
	}
	var errs []error
	for range shards {
		errs = append(errs, <-started)
	}
	return doc, errors.Join(errs...)
}

// InstanceDatabases are the servers of the instance shards, by number.
func (c *Cluster) InstanceDatabases() []*Database {
	return c.Databases[:len(c.Topology.WithRole(topology.RoleInstances))]
}

// RouterURL is where the first router answers, RouterURLs where each does.
func (c *Cluster) RouterURL() string { return c.routerURLs[0] }

// RouterURLs are where the routers answer.
func (c *Cluster) RouterURLs() []string { return c.routerURLs }

// InstancesURL is where the i-th instances process answers.
func (c *Cluster) InstancesURL(i int) string { return c.instancesURLs[i] }

// LeaderURL is where the i-th leader process answers.
func (c *Cluster) LeaderURL(i int) string { return c.leaderURLs[i] }

// WaitReady waits until the router finds every shard served.
func (c *Cluster) WaitReady(ctx context.Context) error {
	for {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.RouterURL()+"/readyz", nil)
		if err != nil {
			return err
		}
		if res, err := http.DefaultClient.Do(req); err == nil {
			_ = res.Body.Close()
			if res.StatusCode == http.StatusOK {
				return nil
			}
		}
		if !Pause(ctx, readyPause) {
			return fmt.Errorf("the cluster does not get ready: %w", ctx.Err())
		}
	}
}

// Odd tells about processes that ended by themselves.
func (c *Cluster) Odd() []error {
	var all []error
	for _, p := range c.processes {
		all = append(all, p.Odd()...)
	}
	return all
}

// LogFiles are the logs of everything that ran, by name.
func (c *Cluster) LogFiles() map[string]string {
	files := map[string]string{}
	for _, p := range c.processes {
		files[p.Name] = p.LogFile()
	}
	for _, d := range c.Databases {
		files[d.Name] = d.LogFile()
	}
	return files
}

// Close ends every process, the quick way: what they were for is over.
func (c *Cluster) Close() error {
	for _, p := range c.processes {
		p.Kill()
	}
	ctx, cancel := context.WithTimeout(context.Background(), stopTime)
	defer cancel()
	var errs []error
	for _, d := range c.Databases {
		errs = append(errs, d.Stop(ctx))
	}
	return errors.Join(errs...)
}

// Remove deletes data and logs.
func (c *Cluster) Remove() error { return os.RemoveAll(c.Dir) }
