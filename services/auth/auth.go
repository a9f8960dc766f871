package auth

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	"connectrpc.com/connect"

	"github.com/wiggle-run/wiggle/pkg/identity"
	"github.com/wiggle-run/wiggle/pkg/lifecycle"
	"github.com/wiggle-run/wiggle/pkg/postgres"
	wirerpc "github.com/wiggle-run/wiggle/pkg/rpc"
	"github.com/wiggle-run/wiggle/proto/gen/wiggle/v1/wigglev1connect"
	"github.com/wiggle-run/wiggle/proto/gen/wiggleinternal/v1/wiggleinternalv1connect"
	"github.com/wiggle-run/wiggle/services/auth/internal/announce"
	"github.com/wiggle-run/wiggle/services/auth/internal/authstore"
	"github.com/wiggle-run/wiggle/services/auth/internal/password"
	"github.com/wiggle-run/wiggle/services/auth/internal/policy"
	"github.com/wiggle-run/wiggle/services/auth/internal/rpc"
)

const (
	// trimEvery is how often the audit log is looked at for entries past their time, cleanEvery sessions and limits of tries.
	trimEvery  = time.Hour
	cleanEvery = 5 * time.Minute
	// houseTimeout bounds one batch of that.
	houseTimeout = 30 * time.Second
	// maxMessageBytes is for an import: a thousand accounts with their hashes.
	maxMessageBytes = 8 << 20
	// maxCall bounds a call. None of them waits for anything but its turn.
	maxCall = 30 * time.Second
)

// Service is one auth process.
type Service struct {
	cfg     Config
	shard   int
	isHome  bool
	pool    *postgres.Pool
	home    *postgres.Pool
	cluster *postgres.ClusterIdentity
	store   *authstore.Store
	hasher  *password.Hasher
	herald  *announce.Herald // nil without NATS
	server  *wirerpc.Server
	closers []func()
	opened  atomic.Bool
	refusal atomic.Pointer[string] // why the shard is not opened
}

// New makes an auth process. It waits for nothing: the database and NATS are connected to while it runs.
func New(cfg Config) (*Service, error) {
	cfg.setDefaults()
	if err := cfg.check(); err != nil {
		return nil, err
	}
	s := &Service{cfg: cfg, cluster: postgres.NewClusterIdentity()}
	opening := "opening"
	s.refusal.Store(&opening)
	if err := s.wire(); err != nil {
		s.Close()
		return nil, fmt.Errorf("auth: %w", err)
	}
	return s, nil
}

func (s *Service) wire() error {
	if err := s.addPools(); err != nil {
		return err
	}
	s.store = authstore.New(s.pool, policy.Sessions{Idle: s.cfg.SessionIdle, Lifetime: s.cfg.SessionLifetime})
	if s.cfg.now != nil {
		s.store = s.store.WithNow(s.cfg.now)
	}
	metrics, err := rpc.NewMetrics(s.cfg.meter())
	if err != nil {
		return err
	}
	s.hasher = password.New(s.cfg.passwords, func(took time.Duration) {
		metrics.Hashed(took)
		s.cfg.hashed()
	})
	tell := func(authstore.Changes) {}
	if len(s.cfg.NATS.URLs) > 0 {
		nats := s.cfg.NATS
		nats.Name, nats.Logger = "wiggle-auth", s.cfg.Logger
		if s.herald, err = announce.New(nats, s.cfg.Logger); err != nil {
			return err
		}
		s.closers = append(s.closers, s.herald.Close)
		tell = func(c authstore.Changes) { s.herald.Tell(rpc.WireChanges(c)) }
	}
	api := rpc.New(rpc.Config{
		Store: s.store, Hasher: s.hasher, Shard: s.shard, Ready: s.ready, Announce: tell, Metrics: metrics, Logger: s.cfg.Logger,
	})
	return s.mount(api)
}

// mount offers the services.
func (s *Service) mount(api *rpc.Server) error {
	validator, err := wirerpc.NewValidator()
	if err != nil {
		return err
	}
	s.server, err = wirerpc.NewServer(s.cfg.Transport.Server(wirerpc.ServerConfig{
		Logger: s.cfg.Logger, Telemetry: s.cfg.Telemetry, Release: s.cfg.Release, Ready: s.missing, Validator: validator,
		Interceptors:    []connect.Interceptor{identity.Receive{}, rpc.Authorize{}, rpc.Pasted{}},
		MaxMessageBytes: maxMessageBytes, MaxCallDuration: maxCall,
	}))
	if err != nil {
		return err
	}
	s.server.Mount(wigglev1connect.NewAuthServiceHandler(api, s.server.Options()...))
	s.server.Mount(wigglev1connect.NewAccountServiceHandler(api, s.server.Options()...))
	s.server.Mount(wigglev1connect.NewRoleServiceHandler(api, s.server.Options()...))
	s.server.Mount(wigglev1connect.NewKeyServiceHandler(api, s.server.Options()...))
	s.server.Mount(wigglev1connect.NewAuditServiceHandler(api, s.server.Options()...))
	s.server.Mount(wiggleinternalv1connect.NewPrincipalServiceHandler(api, s.server.Options()...))
	return nil
}

// Run serves until ctx is done, then finishes what is under way. It may be called once.
func (s *Service) Run(ctx context.Context) error {
	defer s.Close()
	components := []lifecycle.Component{{Name: "auth shard", Run: s.runShard}}
	if s.herald != nil {
		components = append(components, lifecycle.Component{Name: "herald", Run: s.herald.Run})
	}
	components = append(components, lifecycle.Component{Name: "server", Run: s.serve})
	if err := lifecycle.Run(ctx, s.cfg.Grace, components...); err != nil {
		return fmt.Errorf("auth: %w", err)
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

// keepHouse removes what is over, a batch at a time, while the shard is served.
func (s *Service) keepHouse(ctx context.Context) error {
	group := lifecycle.NewGroup(ctx)
	for _, loop := range []struct {
		name  string
		every time.Duration
		once  func(ctx context.Context) error
	}{
		{"trim the audit log", trimEvery, func(ctx context.Context) error { return s.store.TrimAudit(ctx, s.cfg.AuditRetention) }},
		{"clean up", cleanEvery, s.store.Clean},
	} {
		group.Go(loop.name, lifecycle.Loop{
			Interval: loop.every, Timeout: houseTimeout, RunOnce: loop.once,
			OnError: func(err error) {
				s.cfg.Logger.WarnContext(ctx, "housekeeping failed; it is tried again later",
					slog.String("task", loop.name), slog.Any("error", err))
			},
		}.Run)
	}
	return group.Wait()
}

// missing says what is missing before the process can do everything.
func (s *Service) missing(context.Context) []string {
	ready, reason := s.state()
	s.server.Health().Set(wirerpc.HealthOfShard(s.shard), ready)
	if !ready {
		return []string{fmt.Sprintf("auth shard %d: %s", s.shard, reason)}
	}
	return nil
}

// Handler is everything that the process answers, for tests and for what is mounted beside.
func (s *Service) Handler() *wirerpc.Server { return s.server }

// Close gives back what New has opened, for a service that may not have come to Run, which does so by itself.
func (s *Service) Close() {
	for _, c := range slices.Backward(s.closers) {
		c()
	}
	s.closers = nil
}
