package leader

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"

	"connectrpc.com/connect"
	"github.com/oklog/ulid/v2"
	"go.opentelemetry.io/otel/metric"

	"github.com/wiggle-run/wiggle/pkg/identity"
	"github.com/wiggle-run/wiggle/pkg/lifecycle"
	"github.com/wiggle-run/wiggle/pkg/postgres"
	wirerpc "github.com/wiggle-run/wiggle/pkg/rpc"
	"github.com/wiggle-run/wiggle/pkg/topology"
	"github.com/wiggle-run/wiggle/services/leader/internal/duty"
	"github.com/wiggle-run/wiggle/services/leader/internal/election"
	"github.com/wiggle-run/wiggle/services/leader/internal/heartbeat"
	"github.com/wiggle-run/wiggle/services/leader/internal/relay"
	"github.com/wiggle-run/wiggle/services/leader/internal/store"
)

// healthName is the name under which gRPC health tells whether this process leads.
const healthName = "leader"

// Service is one leader process.
type Service struct {
	cfg      Config
	log      *slog.Logger
	process  string // names this process, new at every start
	home     *database
	shards   []*database // home among them
	duties   []duty.Duty
	election *election.Election
	hub      *relay.Hub // nil without NATS
	server   *wirerpc.Server
	closers  []func()
	refusal  atomic.Pointer[string] // why home is not open; nil when it is
}

// New makes a leader process. It connects to nothing yet.
func New(cfg Config) (*Service, error) {
	if cfg.Topology == nil {
		return nil, errors.New("leader: no topology")
	}
	s := &Service{cfg: cfg, log: cfg.logger(), process: strings.ToLower(ulid.Make().String())}
	opening := "opening"
	s.refusal.Store(&opening)
	if err := s.wire(); err != nil {
		s.Close()
		return nil, fmt.Errorf("leader: %w", err)
	}
	return s, nil
}

// wire makes the parts of the service.
func (s *Service) wire() error {
	if err := s.addDatabases(); err != nil {
		return err
	}
	if err := s.addShardDuties(); err != nil {
		return err
	}
	if err := s.addServer(); err != nil {
		return err
	}
	if err := s.addClusterDuties(); err != nil {
		return err
	}
	s.election = election.New(election.Config{
		Lease: store.NewLease(s.home.pool), Holder: s.process, Logger: s.log, Duties: s.lead,
	})
	return s.observe()
}

// addDatabases makes the pools. A retired shard has no duties.
func (s *Service) addDatabases() error {
	homeID := s.cfg.Topology.Home().ID
	for _, sh := range s.cfg.Topology.Shards {
		if sh.State == topology.StateRetired {
			continue
		}
		pool, err := postgres.Open(context.Background(), s.cfg.member(sh.Primary))
		if err != nil {
			return err
		}
		db := newDatabase(s, sh, pool)
		s.shards = append(s.shards, db)
		if sh.ID == homeID {
			s.home = db
		}
	}
	return nil
}

// addShardDuties adds what is done for each shard.
func (s *Service) addShardDuties() error {
	if len(s.cfg.NATS.URLs) > 0 {
		nats := s.cfg.NATS
		nats.Name, nats.Logger = "wiggle-leader "+s.process, s.log
		s.hub = relay.NewHub(nats, s.log)
	} else {
		s.log.Info("no NATS is configured: events stay in the shards, where PollEvents reads them; search has none")
	}
	var relays []*relay.Relay
	for _, db := range s.shards {
		pulse := heartbeat.NewPulse()
		s.duties = append(s.duties, duty.Duty{Name: "heartbeat", Shard: db.id, Run: heartbeat.New(db, pulse).Run})
		if s.hub != nil && db.instances {
			r := relay.New(db.id, db, s.hub, pulse, s.log)
			r.Tracer = s.cfg.tracer()
			relays = append(relays, r)
			s.duties = append(s.duties, duty.Duty{Name: "relay", Shard: db.id, Run: r.Run})
		}
	}
	if s.hub == nil {
		return nil
	}
	return relay.Observe(s.cfg.meter(), s.hub, relays)
}

// maxMessageBytes lets a router forward what it has taken: a schedule has an input.
const maxMessageBytes = 64 << 20

// addServer makes the server, without services.
func (s *Service) addServer() (err error) {
	s.server, err = wirerpc.NewServer(s.cfg.Transport.Server(wirerpc.ServerConfig{
		Logger: s.log, Telemetry: s.cfg.Telemetry, Release: s.cfg.Release, Ready: s.missing, MaxMessageBytes: maxMessageBytes,
		Interceptors: []connect.Interceptor{identity.Receive{}},
	}))
	if err == nil {
		s.server.Health().Set(healthName, false)
	}
	return err
}

// addClusterDuties adds what is done for the whole cluster, with its rows on home, and mounts the services by which
// others change these rows: every process answers those, whether it leads or not. What is added here may use s.home.pool,
// which has the schema of package migrations when a duty runs and after s.ready() is true, and s.cfg.RouterURLs.
func (s *Service) addClusterDuties() error {
	return s.addSchedules()
}

// Run stands for election and answers calls until ctx is done; then it hands back the lease. It may be called once.
func (s *Service) Run(ctx context.Context) error {
	defer s.Close()
	err := lifecycle.Run(ctx, s.cfg.Grace,
		lifecycle.Component{Name: "server", Run: s.serve},
		lifecycle.Component{Name: "election", Run: s.stand},
	)
	if err != nil {
		return fmt.Errorf("leader: %w", err)
	}
	return nil
}

// Close gives back what New has opened, for a service that may not have come to Run, which does so by itself.
func (s *Service) Close() {
	if s.hub != nil {
		s.hub.Close()
	}
	for _, c := range s.closers {
		c()
	}
	for _, db := range s.shards {
		db.pool.Close()
	}
}

// stand opens home and stands for election.
func (s *Service) stand(ctx context.Context) error {
	if err := s.openHome(ctx); err != nil || !s.ready() {
		return err
	}
	return s.election.Run(ctx)
}

// lead does the duties of a leader.
func (s *Service) lead(ctx context.Context, term int64) error {
	s.server.Health().Set(healthName, true)
	defer s.server.Health().Set(healthName, false)
	return duty.Run(ctx, term, s.log, s.duties)
}

// Term is the term under which this process leads now; false if it does not.
func (s *Service) Term() (int64, bool) { return s.election.Term() }

// ready tells whether home is open.
func (s *Service) ready() bool { return s.refusal.Load() == nil }

// missing says what is missing before the process can lead or answer calls. That other shards or NATS are away does not
// count: they hold nothing else back.
func (s *Service) missing(context.Context) []string {
	if reason := s.refusal.Load(); reason != nil {
		return []string{"home shard: " + *reason}
	}
	if h := s.home.pool.Health(); !h.Usable() {
		return []string{"home shard: " + h.Reason}
	}
	return nil
}

// serve answers calls until ctx is done, and then lets those under way finish.
func (s *Service) serve(ctx context.Context) error {
	stopped := make(chan error, 1)
	go func() { stopped <- s.server.Serve(s.cfg.Listener) }()
	select {
	case err := <-stopped:
		return err
	case <-ctx.Done():
	}
	err := s.server.Shutdown(lifecycle.DrainContext(ctx))
	return errors.Join(err, <-stopped)
}

// observe makes the figure that tells who leads.
func (s *Service) observe() error {
	gauge, err := s.cfg.meter().Int64ObservableGauge("wiggle.leader.term",
		metric.WithDescription("The term under which this process leads, 0 if it does not."))
	if err != nil {
		return err
	}
	_, err = s.cfg.meter().RegisterCallback(func(_ context.Context, o metric.Observer) error {
		term, _ := s.Term()
		o.ObserveInt64(gauge, term)
		return nil
	}, gauge)
	return err
}

// Handler is everything that the process answers, for tests and for what is mounted beside.
func (s *Service) Handler() *wirerpc.Server { return s.server }
