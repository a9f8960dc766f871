package router

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"strings"
	"time"

	"connectrpc.com/connect"

	"github.com/wiggle-run/wiggle/pkg/bus"
	"github.com/wiggle-run/wiggle/pkg/lifecycle"
	"github.com/wiggle-run/wiggle/pkg/process"
	"github.com/wiggle-run/wiggle/pkg/rpc"
	"github.com/wiggle-run/wiggle/pkg/settings"
	"github.com/wiggle-run/wiggle/pkg/topology"
)

// SettingAddr names the setting with the address where a router listens.
const SettingAddr = "WIGGLE_ROUTER_ADDR"

// Names of settings that messages mention.
const (
	settingPayloadBytes  = "WIGGLE_LIMIT_PAYLOAD_BYTES"
	settingInstancesURLs = "WIGGLE_INSTANCES_URLS"
	settingLeaderURLs    = "WIGGLE_LEADER_URLS"
	settingSearchURLs    = "WIGGLE_SEARCH_URLS"
	settingAuthURLs      = "WIGGLE_AUTH_URLS"
	settingProxies       = "WIGGLE_TRUSTED_PROXIES"
)

// Defaults of what can be set.
const (
	defaultAddr           = "127.0.0.1:8420"
	defaultConnections    = 2
	defaultProbeInterval  = 500 * time.Millisecond
	defaultProbeTimeout   = 500 * time.Millisecond
	defaultLookupInterval = 2 * time.Second
	defaultCallTimeout    = 10 * time.Second
	defaultFanOutTimeout  = 2 * time.Second
	defaultPutTimeout     = time.Second
	defaultClaimTimeout   = 5 * time.Second
	defaultPollRecheck    = 5 * time.Second
	defaultMaxParkedPolls = 20_000
	defaultPayloadBytes   = 2 << 20
	defaultMessageBytes   = 16 << 20
	defaultAuthCache      = 30 * time.Second
	defaultAuthGrace      = 15 * time.Minute
)

// Config is everything that a router needs. A zero field has the default that its comment names.
type Config struct {
	// Topology says which shards there are. Required. The router takes no connection data from it.
	Topology *topology.Topology
	// InstancesURLs are the instances processes: http or https URLs, one for each process, or with dns+ in front one for
	// all addresses of a host. Required.
	InstancesURLs []string
	// LeaderURLs and SearchURLs are the leader and search processes: http or https URLs. None: schedules and search are
	// UNIMPLEMENTED.
	LeaderURLs, SearchURLs []string

	// AuthOff lets everybody do everything. By default every call needs a credential and its permission.
	AuthOff bool
	// AuthURLs are the auth processes: http or https URLs. Required unless AuthOff.
	AuthURLs []string
	// AuthCache is how long a caller counts as known without asking again: 30 s.
	AuthCache time.Duration
	// AuthGrace is how long a caller counts as known while no auth process answers: 15 min.
	AuthGrace time.Duration
	// TrustedProxies are networks, such as 10.0.0.0/8, whose word on a caller's address is believed: none.
	TrustedProxies []string
	// NATS, if it names servers, brings word of changed credentials sooner than asking for it does.
	NATS bus.Config

	// Addr is where to listen: 127.0.0.1:8420.
	Addr string
	// Listener is used in place of Addr, for example one of an rpc.MemoryNetwork.
	Listener net.Listener
	// Inside is a second listener, for services of the same process that call the router over memory.
	Inside net.Listener
	// Transport is how the router and the other services know each other, and what is spoken. Zero: plain text, and nobody is
	// known.
	Transport rpc.Transport
	// CORSOrigins are the origins whose pages may call from a browser. None: the router's own only.
	CORSOrigins []string
	// Interceptors are added to every call, behind the guard and before validation.
	Interceptors []connect.Interceptor
	// ClientInterceptors are added to every call to other services. Tests that hold the services alone to a caller's limits send
	// the caller along by one, past the guard.
	ClientInterceptors []connect.Interceptor

	// DialContext connects to instances processes: TCP.
	DialContext func(ctx context.Context, network, address string) (net.Conn, error)
	// LookupHost finds the addresses behind a dns+ URL: the system's resolver.
	LookupHost func(ctx context.Context, host string) ([]string, error)
	// Connections is how many connections share the calls to one process: 2.
	Connections int

	// ProbeInterval is how often an instances process is asked for its status: 500 ms.
	ProbeInterval time.Duration
	// ProbeTimeout is how long it may take to answer before others are preferred: 500 ms. Twice that is the end of it.
	ProbeTimeout time.Duration
	// LookupInterval is how often the hosts of dns+ URLs are looked up: 2 s.
	LookupInterval time.Duration
	// CallTimeout bounds a call to a shard: 10 s.
	CallTimeout time.Duration
	// FanOutTimeout bounds each shard's part in a list or count: 2 s.
	FanOutTimeout time.Duration
	// PutTimeout bounds how long a registration waits for shards other than home: 1 s.
	PutTimeout time.Duration
	// ClaimTimeout bounds one shard's claim for a poll: 5 s.
	ClaimTimeout time.Duration
	// PollRecheck is how often waiting polls look at all shards without a hint, once for all that wait for the same: 5 s.
	PollRecheck time.Duration
	// MaxParkedPolls is how many polls may wait, and how many workers' streams may be open: 20 000.
	MaxParkedPolls int
	// PayloadBytes is the largest payload: 2 MiB.
	PayloadBytes int64
	// MaxMessageBytes is the largest request: 16 MiB, and no less than four payloads.
	MaxMessageBytes int
	// Grace is how long the router may take to finish what is in flight: 20 s.
	Grace time.Duration

	// Release is told in headers and compared with that of the instances processes.
	Release string
	// Logger gets the log: nothing is logged.
	Logger *slog.Logger
	// Telemetry gets spans and metrics: none.
	Telemetry rpc.Telemetry
}

// Declare declares the settings of a router on a registry.
func (c *Config) Declare(r *settings.Registry) {
	r.Section("router")
	r.String(&c.Addr, SettingAddr, defaultAddr, "Address and port where the router listens.")
	r.Strings(&c.InstancesURLs, settingInstancesURLs, nil, "URLs of the instances processes, one for each; with dns+ in"+
		" front a URL stands for every address of its host, looked up again and again.",
		settings.Example("http://10.0.0.5:8421,dns+http://instances:8421"))
	r.Strings(&c.LeaderURLs, settingLeaderURLs, nil, "URLs of the leader processes, for schedules.",
		settings.Example("http://10.0.0.6:8440,http://10.0.0.7:8440"))
	r.Strings(&c.SearchURLs, settingSearchURLs, nil, "URLs of the search processes.", settings.Example("http://10.0.0.8:8450"))
	c.declareAuth(r)
	r.Strings(&c.CORSOrigins, "WIGGLE_ROUTER_CORS_ORIGINS", nil,
		"Origins whose pages may call the router from a browser.", settings.Example("https://ops.example.com"))
	r.Int(&c.Connections, "WIGGLE_ROUTER_CONNECTIONS", defaultConnections,
		"Connections that share the calls to one instances process.", settings.Between(1, 64))
	r.Duration(&c.ProbeInterval, "WIGGLE_ROUTER_PROBE_INTERVAL", defaultProbeInterval,
		"How often an instances process is asked how it is.", settings.Within(50*time.Millisecond, time.Minute))
	r.Duration(&c.ProbeTimeout, "WIGGLE_ROUTER_PROBE_TIMEOUT", defaultProbeTimeout,
		"How long it may take to answer before others are preferred; twice that and it counts as gone.",
		settings.Within(50*time.Millisecond, time.Minute))
	r.Duration(&c.CallTimeout, "WIGGLE_ROUTER_CALL_TIMEOUT", defaultCallTimeout,
		"How long a call to one shard may take, all tries together.", settings.Within(100*time.Millisecond, 5*time.Minute))
	r.Duration(&c.FanOutTimeout, "WIGGLE_ROUTER_FANOUT_TIMEOUT", defaultFanOutTimeout,
		"How long a list or count waits for each shard.", settings.Within(100*time.Millisecond, time.Minute))
	r.Int(&c.MaxParkedPolls, "WIGGLE_ROUTER_MAX_PARKED_POLLS", defaultMaxParkedPolls,
		"How many polls may wait for tasks at the same time, and how many workers' streams may be open; others are told to come back.",
		settings.Between(1, 1_000_000))
	r.Duration(&c.PollRecheck, "WIGGLE_ROUTER_POLL_RECHECK", defaultPollRecheck,
		"How often waiting polls look at every shard without a hint, once for all that wait for the same.",
		settings.Within(100*time.Millisecond, time.Minute))
	r.Bytes(&c.PayloadBytes, settingPayloadBytes, defaultPayloadBytes,
		"How large a payload may be: an input, a context, a result.", settings.Between(1<<10, 64<<20))
	process.DeclareGrace(r, &c.Grace)
}

func (c *Config) setDefaults() {
	orDefault(&c.Addr, defaultAddr)
	orDefault(&c.Connections, defaultConnections)
	orDefault(&c.ProbeInterval, defaultProbeInterval)
	orDefault(&c.ProbeTimeout, defaultProbeTimeout)
	orDefault(&c.LookupInterval, defaultLookupInterval)
	orDefault(&c.CallTimeout, defaultCallTimeout)
	orDefault(&c.FanOutTimeout, defaultFanOutTimeout)
	orDefault(&c.PutTimeout, defaultPutTimeout)
	orDefault(&c.ClaimTimeout, defaultClaimTimeout)
	orDefault(&c.PollRecheck, defaultPollRecheck)
	orDefault(&c.MaxParkedPolls, defaultMaxParkedPolls)
	orDefault(&c.PayloadBytes, defaultPayloadBytes)
	orDefault(&c.MaxMessageBytes, max(defaultMessageBytes, int(4*c.PayloadBytes)))
	orDefault(&c.Grace, lifecycle.DefaultGrace)
	orDefault(&c.AuthCache, defaultAuthCache)
	orDefault(&c.AuthGrace, defaultAuthGrace)
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
}

func orDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// Check says what is wrong with the settings of a router that has a process to itself. The topology has no say.
func (c *Config) Check(*topology.Topology) []process.Problem {
	var found []process.Problem
	if len(c.InstancesURLs) == 0 {
		found = append(found, process.Problem{
			Where: settingInstancesURLs, Message: "is not set: a router needs the URLs of the instances processes",
		})
	}
	for _, configured := range c.InstancesURLs {
		found = append(found, process.CheckURLs(settingInstancesURLs, strings.TrimPrefix(configured, "dns+"))...)
	}
	found = append(found, process.CheckURLs(settingLeaderURLs, c.LeaderURLs...)...)
	found = append(found, process.CheckURLs(settingSearchURLs, c.SearchURLs...)...)
	return append(found, c.checkAuth()...)
}

func (c *Config) check() error {
	var errs []error
	if c.Topology == nil {
		errs = append(errs, errors.New("router: the configuration has no topology"))
	}
	for _, problem := range c.Check(c.Topology) {
		errs = append(errs, errors.New("router: "+problem.String()))
	}
	return errors.Join(errs...)
}
