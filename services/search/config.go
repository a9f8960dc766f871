package search

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"regexp"
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
	"github.com/wiggle-run/wiggle/services/search/internal/query"
	"github.com/wiggle-run/wiggle/services/search/internal/searchstore"
)

// Names of settings that messages mention.
const (
	settingAddr     = "WIGGLE_SEARCH_ADDR"
	settingNATSURLs = "WIGGLE_NATS_URLS"
	settingLanguage = "WIGGLE_SEARCH_LANGUAGE"
)

// Defaults of what can be set.
const (
	defaultAddr     = "127.0.0.1:8450"
	defaultLanguage = "simple"
)

// Config says what a search process works with. Topology, Listener, NATS and RouterURLs are required; the rest has
// defaults.
type Config struct {
	// Topology describes the cluster's databases. Every shard with the role search that is not retired is served.
	Topology *topology.Topology
	// Addr is where a process of its own listens. It makes the Listener of it.
	Addr string
	// Listener is where the service is offered.
	Listener net.Listener
	// NATS carries the event log.
	NATS bus.Config
	// RouterURLs are the routers through which instances are read: http or https URLs.
	RouterURLs []string
	// DialContext connects to routers: TCP.
	DialContext func(ctx context.Context, network, address string) (net.Conn, error)
	// Transport is how the service and the others know each other, and what is spoken. Zero: plain text, and whoever reaches
	// the listener may call.
	Transport rpc.Transport
	// Language is a text search configuration of PostgreSQL: how texts and queries become words. Empty: simple.
	Language string
	// SchemaVerify applies no migration and refuses shards that need one.
	SchemaVerify bool
	// PoolSize is the number of connections to each search shard. 0: the topology's.
	PoolSize int
	// Settled is how long ago an instance was started or ended that a comparison expects in the index. 0: 10 s.
	Settled time.Duration
	// Grace is how long calls under way may take when the process stops. 0: 20 s.
	Grace time.Duration
	// Release is what the process tells others that it is.
	Release string
	// Logger gets what operators have to know. Nil: nothing is logged.
	Logger *slog.Logger
	// Telemetry is where calls are traced and measured.
	Telemetry rpc.Telemetry
}

// Declare declares the settings of a search service on a registry.
func (c *Config) Declare(r *settings.Registry) {
	r.Section("search")
	r.String(&c.Addr, settingAddr, defaultAddr, "Address and port where the search service listens.")
	r.String(&c.Language, settingLanguage, defaultLanguage, "How texts and queries become words: a text search configuration of"+
		" PostgreSQL. simple takes each word as it stands, and so finds names and numbers; english and others know endings, and"+
		" leave out frequent words. After a change, wiggle search reindex brings the index up to it.")
	c.NATS.Declare(r)
	process.DeclareRouterURLs(r, &c.RouterURLs)
	process.DeclareSchemaMode(r, &c.SchemaVerify)
	process.DeclareGrace(r, &c.Grace)
}

// languageName is what the names of text search configurations look like.
var languageName = regexp.MustCompile(`^[a-z_][a-z0-9_]{0,62}$`)

// Check says what is wrong with the settings of a search service that has a process to itself.
func (c *Config) Check(t *topology.Topology) []process.Problem {
	var found []process.Problem
	refuse := func(where, format string, args ...any) {
		found = append(found, process.Problem{Where: where, Message: fmt.Sprintf(format, args...)})
	}
	if len(c.NATS.URLs) == 0 {
		refuse(settingNATSURLs, "is not set: search follows the event log, which NATS carries")
	}
	if len(c.RouterURLs) == 0 {
		refuse(process.SettingRouterURLs, "is not set: search reads instances through the routers")
	}
	found = append(found, process.CheckURLs(process.SettingRouterURLs, c.RouterURLs...)...)
	if c.Language != "" && !languageName.MatchString(c.Language) {
		refuse(settingLanguage, "is %q, which is no name of a text search configuration; use simple, english or another that "+
			"PostgreSQL's \\dF lists", c.Language)
	}
	if t == nil {
		return found
	}
	switch n := len(searchShards(t)); {
	case n == 0:
		refuse(topology.EnvTopology, "has no shard with the role search")
	case n > query.MaxShards:
		refuse(topology.EnvTopology, "has %d shards with the role search; at most %d are searched", n, query.MaxShards)
	}
	return found
}

func (c *Config) check() error {
	if c.Topology == nil {
		return errors.New("search: no topology")
	}
	var errs []error
	for _, problem := range c.Check(c.Topology) {
		errs = append(errs, errors.New("search: "+problem.String()))
	}
	return errors.Join(errs...)
}

func (c *Config) setDefaults() {
	if c.Language == "" {
		c.Language = defaultLanguage
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
}

// scope names the service's instruments and spans.
const scope = "github.com/wiggle-run/wiggle/services/search"

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

// searchShards are the shards that are served.
func searchShards(t *topology.Topology) []topology.Shard { return living(t, topology.RoleSearch) }

func living(t *topology.Topology, role topology.Role) []topology.Shard {
	var list []topology.Shard
	for _, s := range t.WithRole(role) {
		if s.State != topology.StateRetired {
			list = append(list, s)
		}
	}
	return list
}

// homePoolSize is for the cluster's id alone.
const homePoolSize = 1

// member is how the primary of a search shard is connected to.
func (c *Config) member(m topology.Member) postgres.MemberConfig {
	size := c.PoolSize
	if size == 0 {
		size = m.Pool
	}
	member := postgres.MemberConfig{
		Name: m.Name(), URL: m.ConnString(), MaxConns: size, Logger: c.Logger, ApplicationName: "wiggle-search",
	}
	searchstore.Configure(&member)
	return member
}
