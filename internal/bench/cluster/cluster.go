// Package cluster brings up what the bench measures, PostgreSQL and the services in processes of their own, and watches it: which
// of them has ended, and what CPU and memory each takes. One that runs already can stand for it: of that only the databases are
// seen.
//
// The processes are this program again, and end with it. They start one after the other: [Open] has PostgreSQL alone, so that
// nothing else runs beside the limit; then follow [Cluster.StartServices] and [Cluster.StartWorkers].
package cluster

import (
	"context"
	"crypto/rand"
	"errors"
	"io"
	"os"
	"slices"
	"time"

	"github.com/wiggle-run/wiggle/internal/bench/child"
	"github.com/wiggle-run/wiggle/internal/bench/pgmeter"
	"github.com/wiggle-run/wiggle/internal/bench/procfs"
	"github.com/wiggle-run/wiggle/internal/bench/steps"
	"github.com/wiggle-run/wiggle/internal/devstack"
)

const (
	readyEvery = 20 * time.Millisecond
	readyTime  = time.Minute
	stopTime   = 30 * time.Second
)

// ProcessBench is the name of this process in figures.
const ProcessBench = "bench"

// The names of the others.
const (
	processPostgres  = "postgres"
	processInstances = "instances"
	processRouter    = "router"
	processWorker    = "worker"
	processLeader    = "leader"
	processSearch    = "search"
	processNATS      = "nats"
	processAuth      = "auth"
)

// Config says what to bring up.
type Config struct {
	// Server is the URL of a router that runs already, DatabaseURLs its shards', as far as they are in reach. Empty: a cluster of
	// our own.
	Server       string
	DatabaseURLs []string
	// Shards and Instances are how many databases and instances processes it has.
	Shards, Instances int
	// With are services that run beside those that work needs: WithLeader, WithSearch,
	// WithAuth.
	With []string
	// LoggedEvents is how many entries the event log of each shard has before the leader starts.
	LoggedEvents int
	// TraceRatio is the part of traces that is sampled and exported, to a collector that forgets them. 0: no tracing.
	TraceRatio float64
	// DataDir keeps PostgreSQL's data and the logs. Empty: a directory that is removed.
	DataDir string
	// Postgres are settings of PostgreSQL.
	Postgres map[string]string
	// Throwaway does not flush. StatStatements has PostgreSQL count statements.
	Throwaway, StatStatements bool
	// Profiles has every process offer profiles.
	Profiles bool
	// Command runs this program, Environ is what processes are started with.
	Command, Environ []string
	// Progress gets a line for what takes long.
	Progress io.Writer
}

func (c *Config) with(service string) bool { return slices.Contains(c.With, service) }

// Cluster is what is measured: one of our own, or one that runs already.
type Cluster struct {
	// URL is the router's, once services run.
	URL string
	// AdminURL is of PostgreSQL, empty if it is out of reach.
	AdminURL string
	// Databases are those of the shards that are in reach.
	Databases pgmeter.Databases
	// Dir is where data and logs are.
	Dir string

	cfg          Config
	server       *devstack.Server // nil where the cluster is not ours
	databaseURLs []string
	topology     string // the document
	key          string // by which the services know each other
	services     []*child.Process
	workers      *workers
	collector    *collector // nil without tracing
	// authURL is the auth service's, adminPassword its administrator's, and apiKey what the bench and its workers show, where
	// there is one.
	authURL, adminPassword, apiKey string
	temporary                      bool
}

// Open brings up PostgreSQL, or finds what was named.
func Open(ctx context.Context, cfg Config) (*Cluster, error) {
	c := &Cluster{cfg: cfg, URL: cfg.Server, databaseURLs: cfg.DatabaseURLs, key: rand.Text() + rand.Text()}
	if err := c.open(ctx); err != nil {
		return nil, errors.Join(err, c.Close(ctx))
	}
	return c, nil
}

func (c *Cluster) open(ctx context.Context) error {
	if err := c.makeDir(); err != nil {
		return err
	}
	if c.cfg.Server == "" {
		if err := c.startDatabase(ctx); err != nil {
			return err
		}
	}
	if len(c.databaseURLs) > 0 && c.AdminURL == "" {
		c.AdminURL = c.databaseURLs[0]
	}
	var err error
	if c.cfg.TraceRatio > 0 {
		if c.collector, err = startCollector(ctx); err != nil {
			return err
		}
	}
	c.Databases, err = pgmeter.Open(ctx, c.databaseURLs)
	return err
}

// Processes are those of the services and workers.
func (c *Cluster) Processes() []*child.Process {
	all := slices.Clone(c.services)
	if c.workers != nil {
		all = append(all, c.workers.children...)
	}
	return all
}

// Tally is what the workers have told so far, nil if there are none.
func (c *Cluster) Tally() *steps.Tally {
	if c.workers == nil {
		return nil
	}
	return c.workers.tally
}

// Ended is the error of the first process that has ended by itself.
func (c *Cluster) Ended() error {
	for _, p := range c.Processes() {
		if err := p.Ended(); err != nil {
			return err
		}
	}
	return nil
}

// CPU is what every process that can be seen has used so far, in seconds, by name.
func (c *Cluster) CPU() map[string]float64 {
	used := map[string]float64{ProcessBench: procfs.CPUSeconds(os.Getpid())}
	for _, p := range c.Processes() {
		used[p.Name] += procfs.CPUSeconds(p.PID())
	}
	if c.server != nil {
		used[processPostgres] = procfs.CPUSecondsOfFamily(c.server.PID())
	}
	return used
}

// Close ends every process, the ones first that use others, and removes what is temporary.
func (c *Cluster) Close(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTime)
	defer cancel()
	c.StopWorkers(ctx)
	for _, p := range slices.Backward(c.services) {
		p.Stop(ctx)
	}
	c.Databases.Close()
	if c.collector != nil {
		c.collector.close()
	}
	var errs []error
	if c.server != nil {
		errs = append(errs, c.server.Stop(ctx))
	}
	if c.temporary {
		errs = append(errs, os.RemoveAll(c.Dir))
	}
	return errors.Join(errs...)
}
