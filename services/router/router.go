package router

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"connectrpc.com/connect"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/metric/noop"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/wiggle-run/wiggle/pkg/lifecycle"
	"github.com/wiggle-run/wiggle/pkg/rpc"
	"github.com/wiggle-run/wiggle/pkg/topology"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	"github.com/wiggle-run/wiggle/proto/gen/wiggle/v1/wigglev1connect"
	"github.com/wiggle-run/wiggle/proto/gen/wiggleinternal/v1/wiggleinternalv1connect"
	"github.com/wiggle-run/wiggle/services/router/internal/api"
	"github.com/wiggle-run/wiggle/services/router/internal/backends"
	"github.com/wiggle-run/wiggle/services/router/internal/definitions"
	"github.com/wiggle-run/wiggle/services/router/internal/guard"
	"github.com/wiggle-run/wiggle/services/router/internal/peers"
	"github.com/wiggle-run/wiggle/services/router/internal/poll"
	"github.com/wiggle-run/wiggle/services/router/internal/route"
	"github.com/wiggle-run/wiggle/services/router/internal/scopes"
	"github.com/wiggle-run/wiggle/services/router/internal/work"
)

// meterName is the instrumentation scope of the router's metrics.
const meterName = "github.com/wiggle-run/wiggle/services/router"

// Router is one router. Make it with New.
type Router struct {
	cfg       Config
	logger    *slog.Logger
	cluster   atomic.Pointer[route.Cluster]
	http      *http.Client
	discovery backends.Discovery
	set       *backends.Set
	poller    *poll.Poller
	streams   *work.Hub
	keeper    *definitions.Keeper
	server    *rpc.Server
	security  *security
	started   time.Time

	topologyMu sync.Mutex
	topology   *topology.Topology
}

// Run runs a router until ctx is done, and then drains it within the grace of the configuration.
func Run(ctx context.Context, cfg Config) error {
	r, err := New(cfg)
	if err != nil {
		return err
	}
	return r.Run(ctx)
}

// New wires a router. It does nothing yet: no connection is opened and no port taken.
func New(cfg Config) (*Router, error) {
	cfg.setDefaults()
	if err := cfg.check(); err != nil {
		return nil, err
	}
	r := &Router{cfg: cfg, logger: cfg.Logger, started: time.Now()}
	r.topology = cfg.Topology
	r.cluster.Store(route.NewCluster(cfg.Topology))
	meter := meterOf(cfg)

	clientConfig := cfg.Transport.Client(rpc.ClientConfig{
		DialContext: cfg.DialContext, Connections: cfg.Connections, Telemetry: cfg.Telemetry, Release: cfg.Release,
	})
	clientOptions, err := rpc.NewClientOptions(clientConfig)
	if err != nil {
		return nil, fmt.Errorf("make clients: %w", err)
	}
	own := slices.Concat(clientOptions, []connect.ClientOption{connect.WithGRPC()})
	clientOptions = slices.Concat(own, []connect.ClientOption{
		connect.WithInterceptors(guard.Forward{}), connect.WithInterceptors(cfg.ClientInterceptors...),
	})
	r.http = rpc.NewHTTPClient(clientConfig)
	r.discovery = backends.Discovery{
		URLs: cfg.InstancesURLs, Lookup: cfg.LookupHost, Interval: cfg.LookupInterval, Logger: r.logger,
		Connect: func(baseURL string) backends.Client { return newClient(r.http, baseURL, clientOptions) },
	}
	r.set = backends.New(backends.Config{
		Interval: cfg.ProbeInterval, Timeout: cfg.ProbeTimeout, Release: cfg.Release, Logger: r.logger,
		OnHint: func(process *backends.Process, shard int, namespace, queue string) {
			r.poller.Hint(shard, namespace, queue)
			r.streams.Hint(process.Name(), shard, namespace, queue)
		},
		OnReady: r.shardReady,
	})
	forward, err := route.NewForwarder(r.set, meter)
	if err != nil {
		return nil, fmt.Errorf("make metrics: %w", err)
	}
	r.keeper = definitions.New(
		definitions.Config{RegisterTimeout: cfg.CallTimeout, PutTimeout: cfg.PutTimeout}, forward, r.cluster.Load, r.logger)
	r.poller, err = poll.New(
		poll.Config{MaxParked: cfg.MaxParkedPolls, ClaimTimeout: cfg.ClaimTimeout, Recheck: cfg.PollRecheck},
		forward, r.cluster.Load, r.logger, meter)
	if err != nil {
		return nil, fmt.Errorf("make metrics: %w", err)
	}
	validator, err := rpc.NewValidator()
	if err != nil {
		return nil, fmt.Errorf("make validator: %w", err)
	}
	r.streams, err = work.New(
		work.Config{
			MaxStreams: cfg.MaxParkedPolls, OpenTimeout: cfg.ClaimTimeout, Recheck: cfg.PollRecheck, Validate: validator.Validate,
		},
		forward, r.cluster.Load, r.logger, meter)
	if err != nil {
		return nil, fmt.Errorf("make metrics: %w", err)
	}
	if r.security, err = r.newSecurity(scopes.New(forward, r.cluster.Load, cfg.CallTimeout), own, meter); err != nil {
		return nil, err
	}
	services := api.New(
		api.Config{
			CallTimeout: cfg.CallTimeout, FanOutTimeout: cfg.FanOutTimeout,
			PayloadBytes: cfg.PayloadBytes, PayloadSetting: settingPayloadBytes,
			Schedules: newPeers(
				r.http, "leader", settingLeaderURLs, cfg.LeaderURLs, clientOptions, wigglev1connect.NewScheduleServiceClient),
		},
		forward, r.cluster.Load, r.keeper, r.poller, r.logger)
	if err := r.mount(services, validator); err != nil {
		return nil, err
	}
	search := api.NewSearch(
		newPeers(r.http, "search", settingSearchURLs, cfg.SearchURLs, clientOptions, wigglev1connect.NewSearchServiceClient),
		cfg.CallTimeout)
	r.server.Mount(wigglev1connect.NewSearchServiceHandler(search, r.server.Options()...))
	r.mountAuth()
	return r, nil
}

// mount makes the server and puts the services on it.
func (r *Router) mount(services *api.Services, validator *rpc.Validator) (err error) {
	r.server, err = rpc.NewServer(r.cfg.Transport.Server(rpc.ServerConfig{
		Logger: r.logger, Telemetry: r.cfg.Telemetry, Release: r.cfg.Release, Validator: validator,
		Interceptors: r.interceptors(), Wrap: guard.Wrap, Ready: r.Missing, CORSOrigins: r.cfg.CORSOrigins,
		MaxMessageBytes: r.cfg.MaxMessageBytes,
		Yielding: []string{
			wigglev1connect.InstanceServiceStartInstanceProcedure, wigglev1connect.InstanceServiceStartInstancesProcedure,
		},
		Refuse: services.Refuse,
	}))
	if err != nil {
		return fmt.Errorf("make server: %w", err)
	}
	r.server.Mount(wigglev1connect.NewInstanceServiceHandler(services, r.server.Options()...))
	r.server.Mount(wigglev1connect.NewWorkerServiceHandler(services, r.server.Options()...))
	r.server.Mount(wigglev1connect.NewWorkflowServiceHandler(services, r.server.Options()...))
	r.server.Mount(wiggleinternalv1connect.NewScanServiceHandler(services, r.server.Options()...))
	r.server.Mount(wigglev1connect.NewEventServiceHandler(services, r.server.Options()...))
	r.server.Mount(wigglev1connect.NewScheduleServiceHandler(services, r.server.Options()...))
	r.server.Mount(wigglev1connect.NewClusterServiceHandler(services, r.server.Options()...))
	r.server.Handle(wigglev1connect.WorkerServiceWorkProcedure, connect.NewBidiStreamHandler(
		wigglev1connect.WorkerServiceWorkProcedure, r.streams.Serve,
		append(r.server.RawOptions(), connect.WithSchema(workMethod()))...))
	r.server.Handle("GET /readyz/shards", http.HandlerFunc(r.serveShards))
	return nil
}

// workMethod describes the one call that is not generated.
func workMethod() protoreflect.MethodDescriptor {
	return wigglev1.File_wiggle_v1_worker_service_proto.Services().ByName("WorkerService").Methods().ByName("Work")
}

func newClient(httpClient *http.Client, baseURL string, options []connect.ClientOption) backends.Client {
	return backends.Client{
		Instances: wigglev1connect.NewInstanceServiceClient(httpClient, baseURL, options...),
		Workers:   wigglev1connect.NewWorkerServiceClient(httpClient, baseURL, options...),
		Work: connect.NewClient[work.Request, work.Response](
			httpClient, baseURL+wigglev1connect.WorkerServiceWorkProcedure,
			append(slices.Clone(options), rpc.RawClientOption(), connect.WithSchema(workMethod()))...),
		Workflows: wigglev1connect.NewWorkflowServiceClient(httpClient, baseURL, options...),
		Events:    wigglev1connect.NewEventServiceClient(httpClient, baseURL, options...),
		Shards:    wiggleinternalv1connect.NewShardServiceClient(httpClient, baseURL, options...),
		Scans:     wiggleinternalv1connect.NewScanServiceClient(httpClient, baseURL, options...),
		Scopes:    wiggleinternalv1connect.NewScopeServiceClient(httpClient, baseURL, options...),
	}
}

// newPeers makes a client of each process of a service that any of them can serve.
func newPeers[C any](
	httpClient *http.Client, service, setting string, urls []string, options []connect.ClientOption,
	newClient func(connect.HTTPClient, string, ...connect.ClientOption) C,
) *peers.Peers[C] {
	clients := make([]C, len(urls))
	for i, baseURL := range urls {
		clients[i] = newClient(httpClient, baseURL, options...)
	}
	return peers.New(service, setting, clients...)
}

// Handler is everything that the router answers, for a server of another making. Calls are answered while Run runs.
func (r *Router) Handler() http.Handler { return r.server.Handler() }

// Mount adds a handler, such as the portal's files under "/". It is called before Run.
func (r *Router) Mount(pattern string, handler http.Handler) { r.server.Handle(pattern, handler) }

// SetTopology makes the router route by another topology from now on. One that the present one does not allow (a shard
// left out that is not retired, a state that goes back) is refused, and the present one kept (SHD-13, SHD-16). Calls that
// are under way end as they began.
func (r *Router) SetTopology(t *topology.Topology) error {
	r.topologyMu.Lock()
	defer r.topologyMu.Unlock()
	used := make([]topology.RegistryEntry, 0, len(r.topology.Shards))
	for _, shard := range r.topology.Shards {
		used = append(used, topology.RegistryEntry{ShardID: shard.ID, State: shard.State})
	}
	if problems := topology.Check(t, used, nil); problems != nil {
		return problems
	}
	r.topology = t
	r.cluster.Store(route.NewCluster(t))
	r.streams.Sync()
	for _, shard := range r.cluster.Load().Instances() {
		r.shardReady(shard) // a new shard may have had work before we knew of it
	}
	return nil
}

// shardReady says that a shard can be used from now on, or that hints of it may have been missed.
func (r *Router) shardReady(shard int) {
	r.poller.Ready(shard)
	r.streams.Ready(shard)
}

// Run serves until ctx is done. Then waiting polls are answered at once, calls in flight are finished, and what they rely
// on stops, all within the grace.
func (r *Router) Run(ctx context.Context) error {
	r.started = time.Now()
	defer r.http.CloseIdleConnections()
	updates := make(chan []backends.Endpoint)
	components := []lifecycle.Component{
		{Name: "discovery", Run: blocks(func(ctx context.Context) { r.discovery.Run(ctx, updates) })},
		{Name: "backends", Run: blocks(func(ctx context.Context) { r.set.Run(ctx, updates) })},
		{Name: "definitions", Run: r.keeper.Run},
	}
	components = append(components, r.security.components(r)...)
	components = append(components, []lifecycle.Component{
		{Name: "health", Run: blocks(r.reportHealth)},
		{Name: "polls", Run: blocks(r.poller.Run)},
		{Name: "streams", Run: blocks(r.streams.Run)},
		{Name: "server", Run: r.serve},
	}...)
	return lifecycle.Run(ctx, r.cfg.Grace, components...)
}

func blocks(run func(ctx context.Context)) func(ctx context.Context) error {
	return func(ctx context.Context) error {
		run(ctx)
		return nil
	}
}

// serve answers calls until ctx is done, and then lets those in flight finish.
func (r *Router) serve(ctx context.Context) error {
	listener := r.cfg.Listener
	if listener == nil {
		var err error
		if listener, err = (&net.ListenConfig{}).Listen(ctx, "tcp", r.cfg.Addr); err != nil {
			return fmt.Errorf("listen: %w", err)
		}
	}
	r.logger.InfoContext(ctx, "router serves", slog.String("address", listener.Addr().String()))
	served, left := make(chan error, 2), 1
	go func() { served <- r.server.Serve(listener) }()
	if r.cfg.Inside != nil {
		left++
		go func() { served <- r.server.ServeInside(r.cfg.Inside) }()
	}
	var err error
	select {
	case err = <-served:
		left--
	case <-ctx.Done():
	}
	r.poller.Drain()
	r.streams.Drain()
	err = errors.Join(err, r.server.Shutdown(lifecycle.DrainContext(ctx)))
	for range left {
		err = errors.Join(err, <-served)
	}
	return err
}

func meterOf(cfg Config) metric.Meter {
	if cfg.Telemetry.MeterProvider == nil {
		return noop.NewMeterProvider().Meter(meterName)
	}
	return cfg.Telemetry.MeterProvider.Meter(meterName)
}
