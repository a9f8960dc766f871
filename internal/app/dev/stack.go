package dev

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/wiggle-run/wiggle/internal/app"
	"github.com/wiggle-run/wiggle/internal/demo"
	"github.com/wiggle-run/wiggle/internal/devstack"
	"github.com/wiggle-run/wiggle/pkg/bus"
	"github.com/wiggle-run/wiggle/pkg/lifecycle"
	"github.com/wiggle-run/wiggle/pkg/process"
	"github.com/wiggle-run/wiggle/pkg/telemetry"
	"github.com/wiggle-run/wiggle/pkg/topology"
	wiggle "github.com/wiggle-run/wiggle/sdk/go"
	"github.com/wiggle-run/wiggle/services/instances"
	"github.com/wiggle-run/wiggle/services/leader"
	"github.com/wiggle-run/wiggle/services/router"
	"github.com/wiggle-run/wiggle/services/search"
)

// Options say what to run.
type Options struct {
	// DataDir holds everything that stays. Empty: devstack.DefaultDataDir.
	DataDir string
	// Reset deletes what an earlier run left there.
	Reset bool
	// Port of the router. 0: one that is free.
	Port int
	// Shards is how many instance shards there are.
	Shards int
	// Replicas is how many streaming replicas the server has, at most MaxReplicas. Each is a replica of every shard.
	Replicas int
	// Workers is how many workers serve the sample workflow, each with Concurrency handlers.
	Workers, Concurrency int
	// Auth is whether callers need a credential and permissions, as in production. Else everybody may do everything.
	Auth bool
	// Durable is whether commits are flushed to disk.
	Durable bool
	// LogLevel is the least level that the services log, to Progress.
	LogLevel slog.Level
	// Progress gets a line for what takes long, and logs.
	Progress io.Writer
	// Ready is called when everything runs. The stack stops when it returns, or when the context ends.
	Ready func(ctx context.Context, s *Stack) error
}

// Stack is what runs.
type Stack struct {
	// URL is the router's.
	URL string
	// DataDir and LogFile are where the data and PostgreSQL's log are.
	DataDir, LogFile string
	// Postgres is whose programs run.
	Postgres devstack.Installation
	// Databases are the shards' in order.
	Databases []Database
	// NATSURL is where NATS, which carries the event log, takes connections; NATSDir is where it keeps it.
	NATSURL, NATSDir string
	// AdminName and AdminPasswordFile are the administrator's, with Options.Auth.
	AdminName, AdminPasswordFile string
	// Client talks to the router over the network, as any other client would. With Options.Auth it is the administrator's.
	Client *wiggle.Client
	// Shop has the handlers of the sample workflow, which is registered as Workflow.
	Shop     *demo.Shop
	Workflow wiggle.Registered
	// Took is how long it took until everything ran.
	Took time.Duration

	opts     Options
	listener net.Listener
	nats     *devstack.NATS
	server   *devstack.Server
	replicas []*devstack.Server
	topology *topology.Topology
	logger   *slog.Logger
	tracers  trace.TracerProvider
}

// Database is one shard's.
type Database struct {
	Shard int
	Name  string
	// URL is for psql and the like.
	URL string
	// Roles of the shard.
	Roles topology.Roles
	// Replicas are the URLs of its replicas.
	Replicas []string
}

const (
	// grace is short: a developer waits for the prompt, and what is in flight is the sample's.
	grace = 3 * time.Second
	// stopTime bounds the whole end, PostgreSQL's with it.
	stopTime = 25 * time.Second
	// poolSize is what each shard's pool has: enough for one developer, and for eight shards on one server.
	poolSize = 16
	// MaxShards is bounded by the connections that one server has.
	MaxShards = 8
)

// Run runs the stack until ctx ends or Ready returns, whose error it returns.
func Run(ctx context.Context, opts Options) error {
	began := time.Now()
	s := &Stack{opts: opts, DataDir: opts.DataDir, Shop: &demo.Shop{}}
	if s.DataDir == "" {
		s.DataDir = devstack.DefaultDataDir()
	}
	var err error
	if s.listener, err = listen(ctx, opts.Port); err != nil {
		return err
	}
	defer func() { _ = s.listener.Close() }()
	s.URL = "http://" + s.listener.Addr().String()
	if err = s.startDatabase(ctx); err == nil {
		err = s.startNATS()
	}
	if err == nil {
		err = s.serve(ctx, began)
	}
	if s.nats != nil {
		s.nats.Stop()
	}
	// Also where serve has stopped it already, which does no harm, or was itself stopped before it began.
	return errors.Join(err, s.stopDatabase(ctx))
}

// startNATS brings the NATS server up. It is within this process.
func (s *Stack) startNATS() (err error) {
	s.NATSDir = filepath.Join(s.DataDir, "nats")
	if s.nats, err = devstack.StartNATS(devstack.NATSConfig{Dir: s.NATSDir}); err != nil {
		return err
	}
	s.NATSURL = s.nats.URL()
	return nil
}

func listen(ctx context.Context, port int) (net.Listener, error) {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if errors.Is(err, syscall.EADDRINUSE) {
		return nil, fmt.Errorf("port %d is taken, perhaps by another wiggle dev: choose another with --port, "+
			"or --port 0 for one that is free", port)
	}
	if err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	return l, nil
}

// serve runs the services over the database, then the workers, then Ready; it stops them in reverse.
func (s *Stack) serve(ctx context.Context, began time.Time) error {
	equipment, stopTelemetry, err := process.Equip(ctx, telemetry.Config{
		Service: "wiggle-dev", LogFormat: "text", LogLevel: s.opts.LogLevel, LogOutput: s.opts.Progress,
	})
	if err != nil {
		return err
	}
	s.logger = equipment.Logger
	authConfig, err := s.authConfig()
	if err != nil {
		return err
	}
	all, err := app.NewAll(app.Services{
		Topology:  s.topology,
		Router:    router.Config{AuthOff: !s.opts.Auth, Listener: s.listener, Grace: grace},
		Instances: instances.Config{Grace: grace},
		Leader:    leader.Config{NATS: bus.Config{URLs: []string{s.NATSURL}}, Grace: grace},
		Search:    search.Config{NATS: bus.Config{URLs: []string{s.NATSURL}}, Grace: grace},
		Auth:      authConfig,
	}, equipment)
	if err != nil {
		return err
	}
	all.Router.Mount("GET /metrics", equipment.Metrics)
	s.tracers = equipment.Telemetry.TracerProvider
	defer s.closeClient()

	ctx, finish := context.WithCancel(ctx)
	defer finish()
	var outcome error
	components := append([]lifecycle.Component{{Name: "PostgreSQL", Run: s.watchDatabase}}, all.Components()...)
	components = append(components,
		lifecycle.Component{Name: "workers", Start: s.register, Run: s.runWorkers},
		lifecycle.Component{Name: "session", Run: func(ctx context.Context) error {
			s.Took = time.Since(began)
			outcome = s.opts.Ready(ctx, s)
			finish()
			<-ctx.Done()
			return nil
		}})
	err = lifecycle.Run(ctx, stopTime, components...)
	flush, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	return errors.Join(outcome, err, stopTelemetry(flush))
}

// Workers is how many workers serve the sample workflow.
func (s *Stack) Workers() int { return s.opts.Workers }

// workerLogger leaves out what the sample's handlers report by design, declined cards, unless much is logged anyway.
func (s *Stack) workerLogger() *slog.Logger {
	if s.opts.LogLevel <= slog.LevelInfo {
		return s.logger
	}
	return slog.New(slog.NewTextHandler(s.opts.Progress, &slog.HandlerOptions{Level: slog.LevelError}))
}

// register waits until the router has every shard and makes the sample workflow known.
func (s *Stack) register(ctx context.Context) error {
	if err := s.awaitReady(ctx); err != nil {
		return err
	}
	if err := s.dial(ctx); err != nil {
		return err
	}
	var err error
	s.Workflow, err = s.Client.Register(ctx, demo.Flow())
	return err
}

const (
	readyEvery = 20 * time.Millisecond
	readyTime  = time.Minute
)

func (s *Stack) awaitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, readyTime)
	defer cancel()
	poll := time.NewTicker(readyEvery)
	defer poll.Stop()
	for {
		missing := s.missing(ctx)
		if missing == "" {
			return nil
		}
		select {
		case <-poll.C:
		case <-s.server.Exited():
			return s.databaseEnded()
		case <-ctx.Done():
			if cause := context.Cause(ctx); !errors.Is(cause, context.DeadlineExceeded) {
				return cause
			}
			return fmt.Errorf("the services were not ready in %v: %s", readyTime, missing)
		}
	}
}

// missing is what the router still lacks, as it says itself.
func (s *Stack) missing(ctx context.Context) string {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.URL+"/readyz", nil)
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
	return string(body)
}

// runWorkers serves the sample workflow.
func (s *Stack) runWorkers(ctx context.Context) error {
	g := lifecycle.NewGroup(ctx)
	for i := range s.opts.Workers {
		name := fmt.Sprintf("dev-%d", i+1)
		w := s.Shop.Worker(s.Client, wiggle.WorkerOptions{
			Name: name, Concurrency: s.opts.Concurrency, Grace: grace, Logger: s.workerLogger(),
		})
		g.Go(name, w.Run)
	}
	err := g.Wait()
	<-ctx.Done() // without workers there is nothing to wait for
	return err
}
