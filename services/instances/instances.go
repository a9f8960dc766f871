package instances

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"connectrpc.com/connect"
	"github.com/oklog/ulid/v2"

	"github.com/wiggle-run/wiggle/pkg/clock"
	"github.com/wiggle-run/wiggle/pkg/faults"
	"github.com/wiggle-run/wiggle/pkg/identity"
	"github.com/wiggle-run/wiggle/pkg/lifecycle"
	"github.com/wiggle-run/wiggle/pkg/postgres"
	wirerpc "github.com/wiggle-run/wiggle/pkg/rpc"
	"github.com/wiggle-run/wiggle/pkg/topology"
	"github.com/wiggle-run/wiggle/proto/gen/wiggle/v1/wigglev1connect"
	internalv1 "github.com/wiggle-run/wiggle/proto/gen/wiggleinternal/v1"
	"github.com/wiggle-run/wiggle/proto/gen/wiggleinternal/v1/wiggleinternalv1connect"
	"github.com/wiggle-run/wiggle/services/instances/internal/backlog"
	"github.com/wiggle-run/wiggle/services/instances/internal/dispatch"
	"github.com/wiggle-run/wiggle/services/instances/internal/feed"
	"github.com/wiggle-run/wiggle/services/instances/internal/reads"
	"github.com/wiggle-run/wiggle/services/instances/internal/registry"
	"github.com/wiggle-run/wiggle/services/instances/internal/rpc"
	"github.com/wiggle-run/wiggle/services/instances/internal/store"
	"github.com/wiggle-run/wiggle/services/instances/internal/sweep"
)

// Service is one instances process.
type Service struct {
	cfg      Config
	log      *slog.Logger
	process  string // names this process, new at every start
	home     int
	shards   map[int]*served
	order    []*served // by shard
	server   *wirerpc.Server
	draining atomic.Bool
	cluster  *postgres.ClusterIdentity
	extra    []lifecycle.Component // what runs beside the shards
	closers  []func()
}

// served is one shard as this process serves it.
type served struct {
	database
	shard       *dispatch.Shard
	sweeper     *sweep.Sweeper
	definitions *registry.Copy
	catalogue   *registry.Catalogue
	feed        *feed.Feed
	trimmer     *feed.Trimmer
	backlog     *backlog.Watch
	reads       *reads.Shard
	ready       atomic.Bool
	refusal     atomic.Pointer[string] // why it is not ready
}

// database is where a shard's rows are.
type database interface {
	// open makes the shard usable: migrated, claimed. It may be tried again
	// unless its error says that it is refused.
	open(ctx context.Context) error
	// usable tells whether the database answers, and if not why.
	usable() (bool, string)
}

// refusedError is an error that trying again will not mend.
type refusedError struct{ error }

func (e refusedError) Unwrap() error { return e.error }

// New makes an instances process over PostgreSQL. It connects to nothing yet.
func New(cfg Config) (*Service, error) {
	if cfg.Topology == nil {
		return nil, errors.New("instances: no topology")
	}
	s, err := newService(cfg, cfg.Topology.Home().ID)
	if err != nil {
		return nil, err
	}
	if err := s.addDatabases(cfg); err != nil {
		s.close()
		return nil, err
	}
	if err := s.observe(); err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

func newService(cfg Config, home int) (*Service, error) {
	s := &Service{
		cfg: cfg, log: cfg.logger(), home: home, shards: map[int]*served{},
		process: strings.ToLower(ulid.Make().String()), cluster: postgres.NewClusterIdentity(),
	}
	server, err := wirerpc.NewServer(cfg.Transport.Server(wirerpc.ServerConfig{
		Logger: s.log, Telemetry: cfg.Telemetry, Release: cfg.Release, Shards: s.states,
		Interceptors:    []connect.Interceptor{identity.Receive{}},
		MaxMessageBytes: maxMessageBytes, ConnectionBuffer: connectionBuffer,
		Yielding: []string{
			wigglev1connect.InstanceServiceStartInstanceProcedure, wigglev1connect.InstanceServiceStartInstancesProcedure,
		},
		Exempt: []string{wiggleinternalv1connect.ShardServiceName},
	}))
	if err != nil {
		return nil, fmt.Errorf("instances: %w", err)
	}
	s.server = server
	api := rpc.New(s, cfg.definitionLimits(), s.log)
	server.Mount(wigglev1connect.NewInstanceServiceHandler(api, server.Options()...))
	server.Mount(wigglev1connect.NewEventServiceHandler(feed.NewServer(s.Feed), server.Options()...))
	server.Mount(wigglev1connect.NewWorkerServiceHandler(api, server.Options()...))
	server.Mount(wigglev1connect.NewWorkflowServiceHandler(api, server.Options()...))
	server.Mount(wiggleinternalv1connect.NewShardServiceHandler(api, server.Options()...))
	server.Mount(wiggleinternalv1connect.NewScanServiceHandler(api, server.Options()...))
	server.Mount(wiggleinternalv1connect.NewScopeServiceHandler(api, server.Options()...))
	return s, nil
}

// maxMessageBytes lets a router forward what it has taken, whatever a batch adds up to.
const maxMessageBytes = 64 << 20

// connectionBuffer keeps a worker's stream that is not read for the moment from holding
// up all else that comes from the same router.
const connectionBuffer = 64 << 20

// add makes a shard part of the service. It is read through where as well.
func (s *Service) add(
	id int, db database, st store.Store, where *reads.Shard, home store.Definitions, c clock.Clock, m *dispatch.Metrics,
) {
	d := s.cfg.dispatch()
	_, d.SameClock = db.(memory)
	shard := dispatch.New(id, st, c, d, m, s.log)
	v := &served{
		database: db, shard: shard,
		sweeper:     sweep.New(shard, c, s.process, s.log),
		definitions: registry.NewCopy(st, home, shard.Failures, s.log.With("shard", id)),
		catalogue:   registry.NewCatalogue(),
		feed:        feed.New(id, st, shard.Draining()),
		reads:       where,
	}
	shard.OnEvents(v.feed.Logged)
	retention, hardCap := s.cfg.retention()
	v.trimmer = feed.NewTrimmer(st, v.sweeper.Sweeps, retention, hardCap, s.log.With("shard", id))
	v.sweeper.AfterTick(v.definitions.ReadRevision)
	v.backlog = backlog.New(id, st)
	v.sweeper.AfterLook(v.backlog.Look)
	opening := "opening"
	v.refusal.Store(&opening)
	s.shards[id] = v
	s.order = append(s.order, v)
}

// observe makes the figures of the shards that are looked at now and then.
func (s *Service) observe() error {
	watches, trimmers := make([]*backlog.Watch, len(s.order)), make(map[int]*feed.Trimmer, len(s.order))
	for i, v := range s.order {
		watches[i], trimmers[v.shard.ID()] = v.backlog, v.trimmer
	}
	err := errors.Join(backlog.Observe(s.cfg.meter(), watches), feed.Observe(s.cfg.meter(), trimmers))
	if err != nil {
		return fmt.Errorf("instances: make metrics: %w", err)
	}
	return nil
}

// Run serves until ctx is done, then drains. It may be called once.
func (s *Service) Run(ctx context.Context) error {
	defer s.close()
	components := slices.Clone(s.extra)
	for _, v := range s.order {
		components = append(components, lifecycle.Component{
			Name: fmt.Sprintf("shard %d", v.shard.ID()), Run: func(ctx context.Context) error { return s.runShard(ctx, v) },
		})
	}
	components = append(components, lifecycle.Component{Name: "server", Run: s.serve})
	if err := lifecycle.Run(ctx, s.cfg.Grace, components...); err != nil {
		return fmt.Errorf("instances: %w", err)
	}
	return nil
}

func (s *Service) close() {
	for _, c := range s.closers {
		c()
	}
}

// serve answers calls. When it is time to stop it takes no new work, but answers
// reports until nothing is under way or the grace is over.
func (s *Service) serve(ctx context.Context) error {
	stopped := make(chan error, 1)
	go func() { stopped <- s.server.Serve(s.cfg.Listener) }()
	select {
	case err := <-stopped:
		return err
	case <-ctx.Done():
	}
	s.draining.Store(true)
	for _, v := range s.order {
		v.shard.Drain()
	}
	err := s.server.Shutdown(lifecycle.DrainContext(ctx))
	return errors.Join(err, <-stopped)
}

// openPause is how long to wait before a database that did not answer is tried again.
const openPause = time.Second

// runShard opens a shard, trying until its database answers, and runs it.
func (s *Service) runShard(ctx context.Context, v *served) error {
	log := s.log.With("shard", v.shard.ID())
	for reported := ""; ; {
		err := v.open(ctx)
		if err == nil {
			break
		}
		if _, refused := errors.AsType[refusedError](err); refused {
			return err // named by lifecycle
		}
		reason := postgres.Reason(err)
		v.refusal.Store(&reason)
		if reason != reported && ctx.Err() == nil {
			log.Warn("the shard cannot be served yet; trying again every second", "reason", reason, "error", err)
			reported = reason
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(openPause):
		}
	}
	if err := v.definitions.ReadRevision(ctx); err != nil {
		log.Debug("the revision of the definitions is read again by the sweep", "error", err)
	}
	v.ready.Store(true)
	log.Info("serving the shard")
	g := lifecycle.NewGroup(ctx)
	g.Go("lanes", v.shard.Run)
	g.Go("sweeper", v.sweeper.Run)
	g.Go("event feed", v.feed.Run)
	g.Go("event trimmer", v.trimmer.Run)
	g.Go("replicas", v.reads.Run)
	return g.Wait()
}

// Serving finds a shard that can be used now (SHD-22).
func (s *Service) Serving(id int) (*dispatch.Shard, error) {
	v := s.shards[id]
	if v == nil {
		return nil, faults.ShardUnknown(id)
	}
	if !v.ready.Load() {
		return nil, faults.ShardUnavailable(id, openPause)
	}
	return v.shard, nil
}

// Feed finds the event feed of a shard that can be used now.
func (s *Service) Feed(id int) (*feed.Feed, error) {
	if _, err := s.Serving(id); err != nil {
		return nil, err
	}
	return s.shards[id].feed, nil
}

// Definitions finds a shard's copy of the definitions.
func (s *Service) Definitions(id int) (*registry.Copy, error) {
	if v := s.shards[id]; v != nil {
		return v.definitions, nil
	}
	return nil, faults.ShardUnknown(id)
}

// Catalogue finds the list of a shard's definitions.
func (s *Service) Catalogue(id int) (*registry.Catalogue, error) {
	if v := s.shards[id]; v != nil {
		return v.catalogue, nil
	}
	return nil, faults.ShardUnknown(id)
}

// Reads finds where a shard can be read.
func (s *Service) Reads(id int) (*reads.Shard, error) {
	if v := s.shards[id]; v != nil {
		return v.reads, nil
	}
	return nil, faults.ShardUnknown(id)
}

// Home is the number of the home shard.
func (s *Service) Home() int { return s.home }

// All lists the shards that the process serves.
func (s *Service) All() []*dispatch.Shard {
	all := make([]*dispatch.Shard, len(s.order))
	for i, v := range s.order {
		all[i] = v.shard
	}
	return all
}

// state tells whether a shard can be used, and if not why.
func (v *served) state() (ready bool, reason string) {
	if !v.ready.Load() {
		return false, *v.refusal.Load()
	}
	return v.usable()
}

// Status tells how the process and its shards are.
func (s *Service) Status() *internalv1.StatusResponse {
	res := &internalv1.StatusResponse{ProcessId: s.process, Release: s.cfg.Release, Draining: s.draining.Load()}
	for _, v := range s.order {
		status := &internalv1.ShardStatus{Shard: int32(v.shard.ID())} //nolint:gosec // a shard fits
		if status.Ready, status.Reason = v.state(); status.GetReady() {
			status.DefinitionsRevision = v.definitions.Revision()
		}
		status.Replicas = v.reads.Replicas()
		res.Shards = append(res.Shards, status)
	}
	return res
}

// states tells how the shards are.
func (s *Service) states() []wirerpc.ShardState {
	states := make([]wirerpc.ShardState, len(s.order))
	for i, v := range s.order {
		states[i].Shard = v.shard.ID()
		states[i].Ready, states[i].Reason = v.state()
	}
	return states
}

// Handler is everything that the process answers, for tests.
func (s *Service) Handler() *wirerpc.Server { return s.server }

// served shards of a topology.
func servedShards(cfg Config) ([]topology.Shard, error) {
	if len(cfg.Shards) == 0 {
		var all []topology.Shard
		for _, sh := range cfg.Topology.WithRole(topology.RoleInstances) {
			if sh.State != topology.StateRetired {
				all = append(all, sh)
			}
		}
		return all, nil
	}
	chosen := make([]topology.Shard, 0, len(cfg.Shards))
	for _, id := range cfg.Shards {
		sh, ok := cfg.Topology.Shard(id)
		switch {
		case !ok:
			return nil, fmt.Errorf("instances: shard %d is not in the topology", id)
		case sh.State == topology.StateRetired:
			return nil, fmt.Errorf("instances: shard %d is retired", id)
		case !sh.Roles.Has(topology.RoleInstances):
			return nil, fmt.Errorf("instances: shard %d has no role instances", id)
		}
		chosen = append(chosen, sh)
	}
	return chosen, nil
}
