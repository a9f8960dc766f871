package leader

import (
	"context"
	"log/slog"
	"net"
	"time"

	"go.opentelemetry.io/otel/metric"
	metricnoop "go.opentelemetry.io/otel/metric/noop"
	"go.opentelemetry.io/otel/trace"
	tracenoop "go.opentelemetry.io/otel/trace/noop"

	"github.com/wiggle-run/wiggle/pkg/bus"
	"github.com/wiggle-run/wiggle/pkg/postgres"
	"github.com/wiggle-run/wiggle/pkg/process"
	"github.com/wiggle-run/wiggle/pkg/rpc"
	"github.com/wiggle-run/wiggle/pkg/settings"
	"github.com/wiggle-run/wiggle/pkg/topology"
)

// Names of settings that messages mention.
const settingAddr = "WIGGLE_LEADER_ADDR"

// defaultAddr is where a leader listens.
const defaultAddr = "127.0.0.1:8440"

// poolSize is the number of connections to each shard: heartbeat and relay use one each, and home has the lease and the
// duties of the cluster beside them.
const poolSize = 4

// Config is everything that a leader process needs. Topology and Listener are required; the rest has defaults.
type Config struct {
	// Topology describes the cluster's databases.
	Topology *topology.Topology
	// Addr is where a process of its own listens. It makes the Listener of it.
	Addr string
	// Listener is where the services are offered.
	Listener net.Listener
	// NATS is where events go. Without URLs they go nowhere.
	NATS bus.Config
	// RouterURLs are the routers, through which schedules start instances: http or https URLs.
	RouterURLs []string
	// DialContext connects to routers: TCP.
	DialContext func(ctx context.Context, network, address string) (net.Conn, error)
	// Transport is how the service and the others know each other, and what is spoken. Zero: plain text, and whoever reaches
	// the listener may call.
	Transport rpc.Transport
	// SchemaVerify applies no migration and waits for those that are missing.
	SchemaVerify bool
	// Grace is how long calls under way may take when the process stops. 0: 20 s.
	Grace time.Duration
	// Release is what the process tells others that it is.
	Release string
	// Logger gets what operators have to know. Nil: nothing is logged.
	Logger *slog.Logger
	// Telemetry is where calls are traced and measured.
	Telemetry rpc.Telemetry
}

// Declare declares the settings of a leader on a registry.
func (c *Config) Declare(r *settings.Registry) {
	r.Section("leader")
	r.String(&c.Addr, settingAddr, defaultAddr, "Address and port where the leader service listens.")
	c.NATS.Declare(r)
	process.DeclareRouterURLs(r, &c.RouterURLs)
	process.DeclareSchemaMode(r, &c.SchemaVerify)
	process.DeclareGrace(r, &c.Grace)
}

// Check says what is wrong with the settings of a leader. The topology has no say.
func (c *Config) Check(*topology.Topology) []process.Problem {
	return process.CheckURLs(process.SettingRouterURLs, c.RouterURLs...)
}

func (c *Config) logger() *slog.Logger {
	if c.Logger == nil {
		return slog.New(slog.DiscardHandler)
	}
	return c.Logger
}

// scope names the service's instruments and spans.
const scope = "github.com/wiggle-run/wiggle/services/leader"

func (c *Config) tracer() trace.Tracer {
	if c.Telemetry.TracerProvider == nil {
		return tracenoop.Tracer{}
	}
	return c.Telemetry.TracerProvider.Tracer(scope)
}

func (c *Config) meter() metric.Meter {
	if c.Telemetry.MeterProvider == nil {
		return metricnoop.Meter{}
	}
	return c.Telemetry.MeterProvider.Meter(scope)
}

// member is how the primary of a shard is connected to.
func (c *Config) member(m topology.Member) postgres.MemberConfig {
	return postgres.MemberConfig{
		Name: m.Name(), URL: m.ConnString(), MaxConns: min(poolSize, m.Pool), Logger: c.logger(), ApplicationName: "wiggle-leader",
	}
}
