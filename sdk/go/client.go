package wiggle

import (
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
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
	retries   retries
	ownHTTP   *http.Client // to be closed with the client
}

// ClientOption sets something of a [Client].
type ClientOption func(*clientConfig)

type clientConfig struct {
	httpClient connect.HTTPClient
	grpc       bool
	namespace  string
	logger     *slog.Logger
	tracers    trace.TracerProvider
	retries    retries
	connect    []connect.ClientOption
}

// WithHTTPClient makes every call through the given client: for TLS settings, for
// a proxy, or for a server in the same process. [Client.Close] leaves it alone.
func WithHTTPClient(c connect.HTTPClient) ClientOption {
	return func(cfg *clientConfig) { cfg.httpClient = c }
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

// WithTracerProvider makes the spans of workers. Without it: OpenTelemetry's global
// provider.
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
// returns an error for a URL that is none.
func Dial(serverURL string, opts ...ClientOption) (*Client, error) {
	u, err := url.Parse(serverURL)
	if err != nil {
		return nil, fmt.Errorf("wiggle: dial: %w", err)
	}
	if u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return nil, fmt.Errorf("wiggle: dial %q: want http://host:port or https://host", serverURL)
	}
	cfg := clientConfig{
		logger:  slog.Default(),
		tracers: otel.GetTracerProvider(),
		retries: retries{attempts: 8, first: 100 * time.Millisecond, longest: 5 * time.Second},
	}
	for _, o := range opts {
		o(&cfg)
	}
	if cfg.logger == nil || cfg.tracers == nil {
		return nil, errors.New("wiggle: dial: the logger or tracer provider is nil")
	}
	c := &Client{namespace: cfg.namespace, logger: cfg.logger, tracers: cfg.tracers, retries: cfg.retries}
	own := cfg.httpClient == nil
	if own {
		c.ownHTTP = newHTTPClient(cfg.grpc && u.Scheme == "http")
		cfg.httpClient = c.ownHTTP
	}
	if cfg.grpc {
		cfg.connect = append([]connect.ClientOption{connect.WithGRPC()}, cfg.connect...)
	}
	// Answers are small and many: compressing them costs both sides more than the
	// network does. WithConnectOptions may ask for it again.
	cfg.connect = append([]connect.ClientOption{connect.WithAcceptCompression("gzip", nil, nil)}, cfg.connect...)
	c.workflows = wigglev1connect.NewWorkflowServiceClient(cfg.httpClient, serverURL, cfg.connect...)
	c.instances = wigglev1connect.NewInstanceServiceClient(cfg.httpClient, serverURL, cfg.connect...)
	c.events = wigglev1connect.NewEventServiceClient(cfg.httpClient, serverURL, cfg.connect...)
	c.schedules = wigglev1connect.NewScheduleServiceClient(cfg.httpClient, serverURL, cfg.connect...)
	c.cluster = wigglev1connect.NewClusterServiceClient(cfg.httpClient, serverURL, cfg.connect...)
	c.workers = wigglev1connect.NewWorkerServiceClient(cfg.httpClient, serverURL, cfg.connect...)
	c.search = wigglev1connect.NewSearchServiceClient(cfg.httpClient, serverURL, cfg.connect...)
	c.streams = c.workers
	if own {
		c.streams = wigglev1connect.NewWorkerServiceClient(newStreamClient(), serverURL, cfg.connect...)
	}
	return c, nil
}

// Close closes the client's connections. Calls must not be made after it.
func (c *Client) Close() {
	if c.ownHTTP != nil {
		c.ownHTTP.CloseIdleConnections()
	}
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
func newStreamClient() *http.Client {
	t := newTransport(true)
	t.DisableKeepAlives = true
	return &http.Client{Transport: t}
}

func newHTTPClient(http2 bool) *http.Client { return &http.Client{Transport: newTransport(http2)} }

// newTransport has no timeout of its own: long polls and streams take what they take,
// and every call has a context. With http2 it speaks nothing else, without TLS with
// prior knowledge.
func newTransport(http2 bool) *http.Transport {
	t := &http.Transport{}
	if std, ok := http.DefaultTransport.(*http.Transport); ok {
		t = std.Clone()
	}
	t.MaxIdleConnsPerHost = 64
	t.TLSClientConfig = &tls.Config{MinVersion: tls.VersionTLS12}
	t.Protocols = new(http.Protocols)
	t.Protocols.SetHTTP2(true)
	t.Protocols.SetHTTP1(!http2)
	t.Protocols.SetUnencryptedHTTP2(http2)
	t.HTTP2 = &http.HTTP2Config{
		SendPingTimeout: pingAfter, PingTimeout: pingTimeout, WriteByteTimeout: pingAfter + pingTimeout,
	}
	return t
}
