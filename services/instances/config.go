package instances

import (
	"log/slog"
	"net"
	"time"

	"go.opentelemetry.io/otel/metric"
	metricnoop "go.opentelemetry.io/otel/metric/noop"

	"github.com/wiggle-run/wiggle/pkg/postgres"
	"github.com/wiggle-run/wiggle/pkg/rpc"
	"github.com/wiggle-run/wiggle/pkg/settings"
	"github.com/wiggle-run/wiggle/pkg/topology"
	"github.com/wiggle-run/wiggle/proto/definition"
	"github.com/wiggle-run/wiggle/services/instances/internal/dispatch"
	"github.com/wiggle-run/wiggle/services/instances/internal/store/pgstore"
)

// Names of settings that messages mention.
const (
	settingAddr   = "WIGGLE_INSTANCES_ADDR"
	settingShards = "WIGGLE_INSTANCES_SHARDS"
)

// Defaults of what can be set.
const (
	defaultAddr  = "127.0.0.1:8430"
	schemaApply  = "apply"
	schemaVerify = "verify"

	defaultLanes        = 1
	defaultBatch        = 256
	defaultBranches     = 10_000
	defaultPayloadBytes = 2 << 20
	defaultHistoryBytes = 4 << 10
	defaultCombineBytes = 32 << 20
	defaultGrace        = 20 * time.Second
)

// Config says what an instances process serves and how. Topology and Listener are
// required; the rest has defaults.
type Config struct {
	// Topology describes the cluster's databases.
	Topology *topology.Topology
	// Shards are the shards to serve. Empty: every one with the role instances
	// that is not retired.
	Shards []int
	// Addr is where a process of its own listens. It makes the Listener of it.
	Addr string
	// Listener is where the services are offered.
	Listener net.Listener
	// SchemaVerify applies no migration and refuses shards that need one.
	SchemaVerify bool
	// PoolSize is the number of connections to each shard's primary. 0: the
	// topology's.
	PoolSize int
	// Lanes is how many batches a shard commits at the same time, of each way. 0: 1.
	Lanes int
	// BatchSize is how many operations share one transaction at most. 0: 256.
	BatchSize int
	// PayloadBytes, Branches, HistoryBytes and CombineBytes are the limits of WF-8
	// and what follows from it. 0: 2 MiB, 10 000, 4 KiB, 32 MiB.
	PayloadBytes, Branches, HistoryBytes, CombineBytes int
	// DefinitionLimits bound definitions. Zero: the defaults.
	DefinitionLimits definition.Limits
	// Grace is how long calls under way may take when the process stops. 0: 20 s.
	Grace time.Duration
	// Release is what the process tells others that it is.
	Release string
	// Logger gets what operators have to know. Nil: nothing is logged.
	Logger *slog.Logger
	// Telemetry is where calls are traced and measured.
	Telemetry rpc.Telemetry
}

// Declare declares the settings of an instances service on a registry.
func (c *Config) Declare(r *settings.Registry) {
	limits := definition.DefaultLimits()
	var schemaMode string
	var payloadBytes, historyBytes, combineBytes, definitionBytes int64
	r.Section("instances")
	r.String(&c.Addr, settingAddr, defaultAddr, "Address and port where the instances service listens.")
	r.Ints(&c.Shards, settingShards, nil,
		"Numbers of the shards to serve. Not set: every shard with the role instances that is not retired.", settings.Example("0,1"))
	r.String(&schemaMode, "WIGGLE_SCHEMA_MODE", schemaApply,
		"Whether a process applies pending migrations when it starts, or only verifies that there are none.",
		settings.OneOf(schemaApply, schemaVerify))
	r.Int(&c.Lanes, "WIGGLE_INSTANCES_LANES", defaultLanes,
		"How many batches a shard commits at the same time.", settings.Between(1, 64))
	r.Int(&c.BatchSize, "WIGGLE_INSTANCES_BATCH", defaultBatch,
		"How many operations share one transaction at most.", settings.Between(1, 10_000))
	r.Int(&c.Branches, "WIGGLE_LIMIT_BRANCHES", defaultBranches,
		"How many branches one fan-out may have.", settings.Between(1, 1_000_000))
	r.Bytes(&historyBytes, "WIGGLE_LIMIT_HISTORY_BYTES", defaultHistoryBytes,
		"How much of an output or error history keeps.", settings.Between(1, 1<<20))
	r.Bytes(&combineBytes, "WIGGLE_LIMIT_COMBINE_BYTES", defaultCombineBytes,
		"How much a combine may be handed: its context and every branch's result.", settings.Between(1<<10, 48<<20))
	r.Int(&c.DefinitionLimits.Nodes, definition.SettingNodes, limits.Nodes,
		"How many nodes a definition may have.", settings.Between(1, 1_000_000))
	r.Int(&c.DefinitionLimits.Nesting, definition.SettingNesting, limits.Nesting,
		"How deep fan-outs may stand within each other.", settings.Between(1, 1000))
	r.Bytes(&definitionBytes, definition.SettingBytes, int64(limits.Bytes),
		"How large a definition may be, in the binary encoding.", settings.Between(1<<10, 64<<20))
	// The next two are in the words of the router, which declares them too.
	r.Bytes(&payloadBytes, "WIGGLE_LIMIT_PAYLOAD_BYTES", defaultPayloadBytes,
		"How large a payload may be: an input, a context, a result.", settings.Between(1<<10, 64<<20))
	r.Duration(&c.Grace, "WIGGLE_GRACE", defaultGrace,
		"How long a process may take to finish what is in flight when it is stopped.",
		settings.Within(time.Millisecond, 10*time.Minute))
	// Settings have words and sizes where the configuration has switches and ints.
	r.Check(func() error {
		c.SchemaVerify = schemaMode == schemaVerify
		c.PayloadBytes, c.HistoryBytes, c.CombineBytes = int(payloadBytes), int(historyBytes), int(combineBytes)
		c.DefinitionLimits.Bytes = int(definitionBytes)
		return nil
	})
}

func (c *Config) logger() *slog.Logger {
	if c.Logger == nil {
		return slog.New(slog.DiscardHandler)
	}
	return c.Logger
}

func (c *Config) meter() metric.Meter {
	if c.Telemetry.MeterProvider == nil {
		return metricnoop.Meter{}
	}
	return c.Telemetry.MeterProvider.Meter("github.com/wiggle-run/wiggle/services/instances")
}

func (c *Config) definitionLimits() definition.Limits {
	if c.DefinitionLimits == (definition.Limits{}) {
		return definition.DefaultLimits()
	}
	return c.DefinitionLimits
}

func (c *Config) dispatch() dispatch.Config {
	d := dispatch.DefaultConfig()
	set := func(to *int, value int) {
		if value > 0 {
			*to = value
		}
	}
	set(&d.Lanes, c.Lanes)
	set(&d.BatchSize, c.BatchSize)
	set(&d.Limits.PayloadBytes, c.PayloadBytes)
	set(&d.Limits.Branches, c.Branches)
	set(&d.Limits.HistoryBytes, c.HistoryBytes)
	set(&d.Limits.CombineBytes, c.CombineBytes)
	return d
}

// Connections to home for definitions alone, where home is not served here.
const homePoolSize = 2

// member is how the primary of a shard is connected to.
func (c *Config) member(m topology.Member, size int) postgres.MemberConfig {
	if size == 0 {
		size = c.PoolSize
	}
	if size == 0 {
		size = m.Pool
	}
	member := postgres.MemberConfig{
		Name: m.Name(), URL: m.ConnString(), MaxConns: size, Logger: c.logger(), ApplicationName: "wiggle-instances",
	}
	pgstore.Configure(&member)
	return member
}
