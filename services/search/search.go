package search

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"connectrpc.com/connect"

	"github.com/wiggle-run/wiggle/pkg/bus"
	"github.com/wiggle-run/wiggle/pkg/identity"
	"github.com/wiggle-run/wiggle/pkg/lifecycle"
	"github.com/wiggle-run/wiggle/pkg/postgres"
	wirerpc "github.com/wiggle-run/wiggle/pkg/rpc"
	"github.com/wiggle-run/wiggle/pkg/topology"
	"github.com/wiggle-run/wiggle/proto/gen/wiggle/v1/wigglev1connect"
	"github.com/wiggle-run/wiggle/proto/gen/wiggleinternal/v1/wiggleinternalv1connect"
	"github.com/wiggle-run/wiggle/services/search/internal/index"
	"github.com/wiggle-run/wiggle/services/search/internal/indexer"
	"github.com/wiggle-run/wiggle/services/search/internal/query"
	"github.com/wiggle-run/wiggle/services/search/internal/rebuild"
	"github.com/wiggle-run/wiggle/services/search/internal/rpc"
	"github.com/wiggle-run/wiggle/services/search/internal/source"
)

const (
	// indexers is how many batches of events a process has under way: while one is written the next is read.
	indexers = 2
	// maxAnswerBytes is for instances with their contexts, of all shards.
	maxAnswerBytes = 512 << 20
)

// Service is one search process.
type Service struct {
	cfg      Config
	shards   []*shard
	home     *postgres.Pool
	cluster  *postgres.ClusterIdentity
	bus      *bus.Bus
	http     *http.Client
	source   *source.Source
	indexers []*indexer.Indexer
	server   *wirerpc.Server
	closers  []func()
}

// New makes a search process. It waits for nothing: databases, NATS and routers are connected to while it runs.
func New(cfg Config) (*Service, error) {
	cfg.setDefaults()
	if err := cfg.check(); err != nil {
		return nil, err
	}
	s := &Service{cfg: cfg, cluster: postgres.NewClusterIdentity()}
	if err := s.wire(); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

func (s *Service) wire() error {
	if err := s.addShards(); err != nil {
		return err
	}
	parts := make([]*index.Shard, len(s.shards))
	for i, v := range s.shards {
		parts[i] = &index.Shard{ID: v.id, Store: v.store, Ready: v.ready}
	}
	x, err := index.New(parts)
	if err != nil {
		return fmt.Errorf("search: %w", err)
	}
	if err := s.connect(); err != nil {
		return fmt.Errorf("search: %w", err)
	}
	metrics, err := indexer.NewMetrics(s.cfg.meter())
	if err != nil {
		return fmt.Errorf("search: %w", err)
	}
	delays := &indexer.Delays{}
	for range indexers {
		one := indexer.New(s.bus.Follow(indexer.Group), s.source, x, delays, metrics, s.cfg.Logger)
		one.Tracer = s.cfg.tracer()
		s.indexers = append(s.indexers, one)
	}
	var instanceShards []int
	for _, sh := range living(s.cfg.Topology, topology.RoleInstances) {
		instanceShards = append(instanceShards, sh.ID)
	}
	rebuilder := rebuild.New(x, s.source, instanceShards, s.cfg.Logger)
	if s.cfg.Settled > 0 {
		rebuilder.Settled = s.cfg.Settled
	}
	s.server, err = wirerpc.NewServer(s.cfg.Transport.Server(wirerpc.ServerConfig{
		Logger: s.cfg.Logger, Telemetry: s.cfg.Telemetry, Release: s.cfg.Release, Shards: s.states, Ready: s.missing,
		Interceptors: []connect.Interceptor{identity.Receive{}},
	}))
	if err != nil {
		return fmt.Errorf("search: %w", err)
	}
	api := rpc.New(query.New(x.Shards, s.cfg.Logger), rebuilder, delays, s.bus.Follow(indexer.Group))
	s.server.Mount(wigglev1connect.NewSearchServiceHandler(api, s.server.Options()...))
	return nil
}

// connect prepares the ways to NATS and to the routers.
func (s *Service) connect() error {
	nats := s.cfg.NATS
	nats.Name, nats.Logger = "wiggle-search", s.cfg.Logger
	var err error
	if s.bus, err = bus.Open(nats); err != nil {
		return err
	}
	s.closers = append(s.closers, s.bus.Close)
	client := s.cfg.Transport.Client(wirerpc.ClientConfig{
		DialContext: s.cfg.DialContext, Telemetry: s.cfg.Telemetry, Release: s.cfg.Release, MaxMessageBytes: maxAnswerBytes,
	})
	options, err := wirerpc.NewClientOptions(client)
	if err != nil {
		return err
	}
	options = append(options, connect.WithGRPC())
	s.http = wirerpc.NewHTTPClient(client)
	s.closers = append(s.closers, s.http.CloseIdleConnections)
	routers := make([]source.Router, len(s.cfg.RouterURLs))
	for i, url := range s.cfg.RouterURLs {
		routers[i] = source.Router{
			Instances: wigglev1connect.NewInstanceServiceClient(s.http, url, options...),
			Scans:     wiggleinternalv1connect.NewScanServiceClient(s.http, url, options...),
		}
	}
	s.source = source.New(routers...)
	return nil
}

// Run serves until ctx is done, then finishes what is under way. It may be called once.
func (s *Service) Run(ctx context.Context) error {
	defer s.Close()
	var components []lifecycle.Component
	for _, v := range s.shards {
		components = append(components, lifecycle.Component{
			Name: fmt.Sprintf("search shard %d", v.id), Run: func(ctx context.Context) error { return s.runShard(ctx, v) },
		})
	}
	for _, x := range s.indexers {
		components = append(components, lifecycle.Component{Name: "indexer", Run: x.Run})
	}
	components = append(components, lifecycle.Component{Name: "server", Run: s.serve})
	if err := lifecycle.Run(ctx, s.cfg.Grace, components...); err != nil {
		return fmt.Errorf("search: %w", err)
	}
	return nil
}

// serve answers calls, and at the end those that are under way.
func (s *Service) serve(ctx context.Context) error {
	served := make(chan error, 1)
	go func() { served <- s.server.Serve(s.cfg.Listener) }()
	select {
	case err := <-served:
		return err
	case <-ctx.Done():
	}
	err := s.server.Shutdown(lifecycle.DrainContext(ctx))
	return errors.Join(err, <-served)
}

// states tells how the search shards are.
func (s *Service) states() []wirerpc.ShardState {
	states := make([]wirerpc.ShardState, len(s.shards))
	for i, v := range s.shards {
		states[i].Shard = v.id
		states[i].Ready, states[i].Reason = v.state()
	}
	return states
}

// missing says what is missing beside shards before the process can do everything.
func (s *Service) missing(context.Context) []string {
	if s.bus.Connected() {
		return nil
	}
	return []string{"NATS does not answer: the index stands still"}
}

// Handler is everything that the process answers.
func (s *Service) Handler() *wirerpc.Server { return s.server }

// Close gives back what New has opened, for a service that may not have come to Run, which does so by itself.
func (s *Service) Close() {
	for _, c := range s.closers {
		c()
	}
}
