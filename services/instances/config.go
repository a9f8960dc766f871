package instances

import (
	"fmt"
	"log/slog"
	"net"
	"time"

	"go.opentelemetry.io/otel/metric"
	metricnoop "go.opentelemetry.io/otel/metric/noop"

	"github.com/wiggle-run/wiggle/pkg/postgres"
	"github.com/wiggle-run/wiggle/pkg/process"
	"github.com/wiggle-run/wiggle/pkg/rpc"
	"github.com/wiggle-run/wiggle/pkg/settings"
	"github.com/wiggle-run/wiggle/pkg/topology"
	"github.com/wiggle-run/wiggle/proto/definition"
	"github.com/wiggle-run/wiggle/services/instances/internal/dispatch"
	"github.com/wiggle-run/wiggle/services/instances/internal/machine"
	"github.com/wiggle-run/wiggle/services/instances/internal/store/pgstore"
)

// Names of settings that messages mention.
const (
	settingAddr   = "WIGGLE_INSTANCES_ADDR"
	settingShards = "WIGGLE_INSTANCES_SHARDS"

	settingRetention = "WIGGLE_EVENTS_RETENTION"
	settingHardCap   = "WIGGLE_EVENTS_HARD_CAP"
)

// Defaults of what can be set.
const (
	defaultAddr = "127.0.0.1:8430"

	defaultLanes        = 1
	defaultBatch        = 256
	defaultBranches     = 10_000
	defaultPayloadBytes = 2 << 20
	defaultHistoryBytes = 4 << 10
	defaultCombineBytes = 32 << 20
	defaultEventBytes   = 64 << 10
	defaultRetention    = 7 * 24 * time.Hour
	defaultHardCap      = 30 * 24 * time.Hour
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
	// Transport is how the service and the others know each other, and what is spoken. Zero: plain text, and whoever reaches
	// the listener may call.
	Transport rpc.Transport
	// Zone is where the process runs. Of the replicas that can be read from those of the
	// same zone are preferred. Empty: all are the same.
	Zone string
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
	// EventBytes is how large the payload of an event may be that a handler emits. 0: 64 KiB.
	EventBytes int
	// EventsRetention is how long the event log is kept for nobody, EventsHardCap how long for consumers that have not
	// read it and for the relay to NATS (EVT-6). 0: 7 days, 30 days.
	EventsRetention, EventsHardCap time.Duration
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
	var payloadBytes, historyBytes, combineBytes, eventBytes, definitionBytes int64
	r.Section("instances")
	r.String(&c.Addr, settingAddr, defaultAddr, "Address and port where the instances service listens.")
	r.Ints(&c.Shards, settingShards, nil,
		"Numbers of the shards to serve. Not set: every shard with the role instances that is not retired.", settings.Example("0,1"))
	r.String(&c.Zone, "WIGGLE_ZONE", "",
		"Zone where the process runs. Reads that may lag go to replicas of the same zone, by the topology, if there are any.",
		settings.Example("az-b"))
	process.DeclareSchemaMode(r, &c.SchemaVerify)
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
	r.Bytes(&eventBytes, machine.SettingEventBytes, defaultEventBytes,
		"How large the payload of an event may be that a handler emits.", settings.Between(1<<10, 1<<20))
	r.Duration(&c.EventsRetention, settingRetention, defaultRetention,
		"How long the event log is kept. What a consumer has not acknowledged, or the relay has not brought to NATS, is kept longer.",
		settings.Within(time.Minute, 10*365*24*time.Hour))
	r.Duration(&c.EventsHardCap, settingHardCap, defaultHardCap,
		"How long the event log is kept at most, whoever has not read it.", settings.Within(time.Minute, 10*365*24*time.Hour))
	r.Int(&c.DefinitionLimits.Nodes, definition.SettingNodes, limits.Nodes,
		"How many nodes a definition may have.", settings.Between(1, 1_000_000))
	r.Int(&c.DefinitionLimits.Nesting, definition.SettingNesting, limits.Nesting,
		"How deep fan-outs may stand within each other.", settings.Between(1, 1000))
	r.Bytes(&definitionBytes, definition.SettingBytes, int64(limits.Bytes),
		"How large a definition may be, in the binary encoding.", settings.Between(1<<10, 64<<20))
	// In the words of the router, which declares it too.
	r.Bytes(&payloadBytes, "WIGGLE_LIMIT_PAYLOAD_BYTES", defaultPayloadBytes,
		"How large a payload may be: an input, a context, a result.", settings.Between(1<<10, 64<<20))
	process.DeclareGrace(r, &c.Grace)
	// Settings have sizes where the configuration has ints.
	r.Check(func() error {
		c.PayloadBytes, c.HistoryBytes, c.CombineBytes = int(payloadBytes), int(historyBytes), int(combineBytes)
		c.EventBytes, c.DefinitionLimits.Bytes = int(eventBytes), int(definitionBytes)
		if c.EventsHardCap < c.EventsRetention {
			return fmt.Errorf("%s is %s, less than %s, which is %s", settingHardCap, c.EventsHardCap, settingRetention, c.EventsRetention)
		}
		return nil
	})
}

func (c *Config) logger() *slog.Logger {
	if c.Logger == nil {
		return slog.New(slog.DiscardHandler)
	}
	return c.Logger
}

// scope names the service's instruments and spans.
const scope = "github.com/wiggle-run/wiggle/services/instances"

func (c *Config) meter() metric.Meter {
	if c.Telemetry.MeterProvider == nil {
		return metricnoop.Meter{}
	}
	return c.Telemetry.MeterProvider.Meter(scope)
}

func (c *Config) definitionLimits() definition.Limits {
	if c.DefinitionLimits == (definition.Limits{}) {
		return definition.DefaultLimits()
	}
	return c.DefinitionLimits
}

// retention is how long the event log is kept, and how long at most.
func (c *Config) retention() (usual, most time.Duration) {
	usual, most = c.EventsRetention, c.EventsHardCap
	if usual == 0 {
		usual = defaultRetention
	}
	if most == 0 {
		most = defaultHardCap
	}
	return usual, max(usual, most)
}

func (c *Config) dispatch() dispatch.Config {
	d := dispatch.DefaultConfig()
	if c.Telemetry.TracerProvider != nil {
		d.Tracer = c.Telemetry.TracerProvider.Tracer(scope)
	}
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
	set(&d.Limits.EventBytes, c.EventBytes)
	return d
}

// Connections to home for definitions alone, where home is not served here.
const homePoolSize = 2

// member is how the primary of a shard, or a replica, is connected to.
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
