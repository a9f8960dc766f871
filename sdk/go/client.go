package wiggle

import (
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"connectrpc.com/connect"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/trace"

	"github.com/wiggle-run/wiggle/proto/gen/wiggle/v1/wigglev1connect"
)

// Client talks to a Wiggle server. It is safe for use by many goroutines, and one
// is enough for a process.
type Client struct {
	workflows wigglev1connect.WorkflowServiceClient
	instances wigglev1connect.InstanceServiceClient
	events    wigglev1connect.EventServiceClient
	schedules wigglev1connect.ScheduleServiceClient
	cluster   wigglev1connect.ClusterServiceClient
	workers   wigglev1connect.WorkerServiceClient
	search    wigglev1connect.SearchServiceClient
	streams   wigglev1connect.WorkerServiceClient // for work streams

	namespace string
	logger    *slog.Logger
	tracers   trace.TracerProvider
	tracer    trace.Tracer
	retries   retries
	keyed     bool         // it shows an API key
	ownHTTP   *http.Client // to be closed with the client
	generated generated
}

// ClientOption sets something of a [Client].
type ClientOption func(*clientConfig)

type clientConfig struct {
	servers    []string
	httpClient connect.HTTPClient
	tls        *tls.Config
	key        keyOf
	grpc       bool
	namespace  string
	logger     *slog.Logger
	tracers    trace.TracerProvider
	retries    retries
	connect    []connect.ClientOption
}

// WithHTTPClient makes every call through the given client: for a proxy, or for a
// server in the same process. [Client.Close] leaves it alone. What it does with
// redirects is its own: without it none is followed.
func WithHTTPClient(c connect.HTTPClient) ClientOption {
	return func(cfg *clientConfig) { cfg.httpClient = c }
}

// WithServers adds other routers of the same cluster, by URLs as [Dial] takes them: calls go to one of them all for as long
// as it answers, and then to the next. A client begins with any of them. A call that fails because its router is away
// is made again as [WithRetries] says, on the next one; one that is not safe to repeat is not.
func WithServers(urls ...string) ClientOption {
	return func(cfg *clientConfig) { cfg.servers = append(cfg.servers, urls...) }
}

// WithTLSConfig sets how servers at https URLs are spoken to: the roots that are
// trusted, and the certificate by which the client is known, for a key that is a
// certificate. Without it the system's roots are trusted. TLS is 1.2
// at least. It cannot be had with [WithHTTPClient], which has its own.
func WithTLSConfig(c *tls.Config) ClientOption {
	return func(cfg *clientConfig) { cfg.tls = c.Clone() }
}

// WithGRPC speaks gRPC in place of the Connect protocol. Without TLS that is
// HTTP/2 with prior knowledge.
func WithGRPC() ClientOption { return func(cfg *clientConfig) { cfg.grpc = true } }

// WithNamespace chooses the namespace. Without it: "default".
func WithNamespace(name string) ClientOption {
	return func(cfg *clientConfig) { cfg.namespace = name }
}

// WithLogger logs repeated calls, and what workers have to tell. Without it:
// slog.Default.
func WithLogger(l *slog.Logger) ClientOption {
	return func(cfg *clientConfig) { cfg.logger = l }
}

// WithTracerProvider makes the spans of starts and of workers' steps. Without it:
// OpenTelemetry's global provider.
func WithTracerProvider(p trace.TracerProvider) ClientOption {
	return func(cfg *clientConfig) { cfg.tracers = p }
}

// WithRetries bounds how often a call is made when the server is out of reach or
// the outcome is unknown, and the pause between: the first, doubling up to the
// longest, with jitter; a pause that the server asks for is honoured. Only
// calls that are safe to repeat are. 1 attempt means no retry. Without it: 8
// attempts, 100 ms to 5 s.
func WithRetries(attempts int, first, longest time.Duration) ClientOption {
	return func(cfg *clientConfig) {
		cfg.retries = retries{attempts: max(attempts, 1), first: first, longest: max(first, longest)}
	}
}

// WithConnectOptions adds options of connect: interceptors, compression, limits.
func WithConnectOptions(opts ...connect.ClientOption) ClientOption {
	return func(cfg *clientConfig) { cfg.connect = append(cfg.connect, opts...) }
}

// Dial makes a client of the server at a URL, such as "https://wiggle.example.com".
// It does not wait for the server: a server that is away is told by the calls. It
// shows the API key of the environment, WIGGLE_API_KEY or WIGGLE_API_KEY_FILE, unless
// [WithAPIKey] or [WithAPIKeyFile] says otherwise. It returns an error for a URL or a
// key that is none.
func Dial(serverURL string, opts ...ClientOption) (*Client, error) {
	cfg := clientConfig{
		logger:  slog.Default(),
		tracers: otel.GetTracerProvider(),
		retries: retries{attempts: 8, first: 100 * time.Millisecond, longest: 5 * time.Second},
		key:     keyInEnvironment,
	}
	for _, o := range opts {
		o(&cfg)
	}
	routers, err := parseServers(append([]string{serverURL}, cfg.servers...))
	if err != nil {
		return nil, err
	}
	if cfg.logger == nil || cfg.tracers == nil {
		return nil, errors.New("wiggle: dial: the logger or tracer provider is nil")
	}
	own := cfg.httpClient == nil
	if cfg.tls != nil && !own {
		return nil, errors.New("wiggle: dial: WithTLSConfig and WithHTTPClient: the HTTP client has TLS settings of its own")
	}
	key, err := cfg.key(cfg.logger)
	if err != nil {
		return nil, fmt.Errorf("wiggle: dial: %w", err)
	}
	c := &Client{namespace: cfg.namespace, logger: cfg.logger, tracers: cfg.tracers, retries: cfg.retries, keyed: key != nil}
	c.tracer = cfg.tracers.Tracer(tracerName)
	if own {
		c.ownHTTP = newHTTPClient(cfg.grpc && routers.urls[0].Scheme == "http", cfg.tls)
		cfg.httpClient = c.ownHTTP
	}
	if key != nil {
		cfg.connect = append(cfg.connect, connect.WithInterceptors(bearer{key}))
		for _, u := range routers.urls {
			if own { // else what it goes over is the HTTP client's to know
				warnPlain(cfg.logger, u)
			}
		}
	}
	c.wire(&cfg, routers, serverURL)
	return c, nil
}

// wire makes the generated clients.
func (c *Client) wire(cfg *clientConfig, routers *servers, serverURL string) {
	// Answers are small and many: compressing them costs both sides more than the
	// network does. WithConnectOptions may ask for it again.
	options := []connect.ClientOption{
		connect.WithAcceptCompression("gzip", nil, nil), connect.WithInterceptors(carryTrace{}),
	}
	if cfg.grpc {
		options = append(options, connect.WithGRPC())
	}
	if len(routers.urls) > 1 {
		options = append(options, connect.WithInterceptors(routers))
	}
	options = append(options, cfg.connect...)
	over := routers.over(cfg.httpClient)
	c.generated = generated{over, serverURL, connect.WithClientOptions(options...)}
	c.workflows = wigglev1connect.NewWorkflowServiceClient(over, serverURL, options...)
	c.instances = wigglev1connect.NewInstanceServiceClient(over, serverURL, options...)
	c.events = wigglev1connect.NewEventServiceClient(over, serverURL, options...)
	c.schedules = wigglev1connect.NewScheduleServiceClient(over, serverURL, options...)
	c.cluster = wigglev1connect.NewClusterServiceClient(over, serverURL, options...)
	c.workers = wigglev1connect.NewWorkerServiceClient(over, serverURL, options...)
	c.search = wigglev1connect.NewSearchServiceClient(over, serverURL, options...)
	c.streams = c.workers
	if c.ownHTTP != nil {
		c.streams = wigglev1connect.NewWorkerServiceClient(routers.over(newStreamClient(cfg.tls)), serverURL, options...)
	}
}

// Close closes the client's connections. Calls must not be made after it.
func (c *Client) Close() {
	if c.ownHTTP != nil {
		c.ownHTTP.CloseIdleConnections()
	}
}

// generated is what generated clients are made of.
type generated struct {
	http    connect.HTTPClient
	url     string
	options connect.ClientOption
}

// Generated is what generated clients are made of that are to go the client's way, with
// its key: for services that this package has no methods for.
//
//	keys := wigglev1connect.NewKeyServiceClient(client.Generated())
//
// Their calls are not repeated. [AsError] makes of their errors what this package
// returns.
func (c *Client) Generated() (connect.HTTPClient, string, connect.ClientOption) {
	return c.generated.http, c.generated.url, c.generated.options
}

// Namespace is the client's namespace; empty means "default".
func (c *Client) Namespace() string { return c.namespace }

// A connection over HTTP/2 that is silent for pingAfter is asked whether it still
// lives, and is broken if no answer comes within pingTimeout: both fit into a lease,
// so that tasks can be kept over another.
const (
	pingAfter   = 10 * time.Second
	pingTimeout = 5 * time.Second
)

// newStreamClient gives each call a connection of its own, over HTTP/2: a stream that
// is opened because its server goes away must not come to the same server again.
func newStreamClient(config *tls.Config) *http.Client {
	t := newTransport(true, config)
	t.DisableKeepAlives = true
	return &http.Client{Transport: t, CheckRedirect: noRedirect}
}

func newHTTPClient(http2 bool, config *tls.Config) *http.Client {
	return &http.Client{Transport: newTransport(http2, config), CheckRedirect: noRedirect}
}

// newTransport has no timeout of its own: long polls and streams take what they take,
// and every call has a context. With http2 it speaks nothing else, without TLS with
// prior knowledge.
func newTransport(http2 bool, config *tls.Config) *http.Transport {
	t := &http.Transport{}
	if std, ok := http.DefaultTransport.(*http.Transport); ok {
		t = std.Clone()
	}
	t.MaxIdleConnsPerHost = 64
	t.TLSClientConfig = &tls.Config{MinVersion: tls.VersionTLS12}
	if config != nil {
		t.TLSClientConfig = config.Clone()
		t.TLSClientConfig.MinVersion = max(config.MinVersion, tls.VersionTLS12)
	}
	t.Protocols = new(http.Protocols)
	t.Protocols.SetHTTP2(true)
	t.Protocols.SetHTTP1(!http2)
	t.Protocols.SetUnencryptedHTTP2(http2)
	t.HTTP2 = &http.HTTP2Config{
		SendPingTimeout: pingAfter, PingTimeout: pingTimeout, WriteByteTimeout: pingAfter + pingTimeout,
	}
	return t
}
