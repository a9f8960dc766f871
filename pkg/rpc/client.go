package rpc

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"connectrpc.com/connect"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
)

const (
	// dialTimeout leaves room for another process within the second that a failover may take (ARC-2).
	dialTimeout = 700 * time.Millisecond
	// clientPing is how long a connection may be silent before the peer is asked whether it still lives.
	clientPing = 5 * time.Second
	// clientPong is how long the peer may take to answer.
	clientPong = 2 * time.Second
	// clientIdle is how long a connection without calls is kept.
	clientIdle = 90 * time.Second
)

// Telemetry is where calls are traced and measured. The zero value is off and costs nothing.
type Telemetry struct {
	// TracerProvider makes the spans. Nil: none.
	TracerProvider trace.TracerProvider
	// MeterProvider makes the instruments. Nil: none.
	MeterProvider metric.MeterProvider
	// Propagator carries the trace in headers. Nil: W3C trace context and baggage.
	Propagator propagation.TextMapPropagator
}

func (t Telemetry) propagator() propagation.TextMapPropagator {
	if t.Propagator != nil {
		return t.Propagator
	}
	return propagation.NewCompositeTextMapPropagator(propagation.TraceContext{}, propagation.Baggage{})
}

// ClientConfig says how services are called. The zero value is fine.
type ClientConfig struct {
	// DialContext opens connections, for example MemoryNetwork.DialContext, within 700 ms. Nil: TCP.
	DialContext func(ctx context.Context, network, address string) (net.Conn, error)
	// TLS is used for https URLs. Nil: the system's roots.
	TLS *tls.Config
	// CurrentTLS is asked in place of TLS, anew for each connection: for certificates and roots that change.
	CurrentTLS func() *tls.Config
	// Connections is how many connections share the calls to one address; one HTTP/2 connection does not use more than
	// about one core. 0: 1.
	Connections int
	// Telemetry traces and measures the calls.
	Telemetry Telemetry
	// Release is told to the services that are called.
	Release string
	// ServiceKey, if set, is shown to the services that are called, by which they know one of their own (AUT-4). It is for
	// clients of services alone: whoever is called learns it. Redirects are not followed, so nobody else does.
	ServiceKey string
	// PeerRelease, if set, is called with the address and the release of a service that answered a unary call.
	PeerRelease func(peer, release string)
	// MaxMessageBytes bounds an answer's message. 0: 64 MiB.
	MaxMessageBytes int
	// Compress asks for compressed answers. Off by default: between services it costs more than it saves.
	Compress bool
}

// NewHTTPClient returns a client for http URLs, spoken in HTTP/2 without TLS and without asking first, and for https
// URLs, spoken in HTTP/2. It has no overall timeout: contexts have. A dead peer is found by pings within seven seconds,
// also while a long poll waits. CloseIdleConnections ends its connections.
func NewHTTPClient(cfg ClientConfig) *http.Client {
	pool := &spread{}
	for range max(cfg.Connections, 1) {
		pool.transports = append(pool.transports, newTransport(cfg))
	}
	return &http.Client{
		Transport: pool,
		// Services do not redirect, and headers are for whom they were meant.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// NewClientOptions returns the options for generated clients: they return *faults.Error, trace, send the shard of
// [WithShard], the release and the service key.
func NewClientOptions(cfg ClientConfig) ([]connect.ClientOption, error) {
	stack, err := clientStack(cfg)
	if err != nil {
		return nil, err
	}
	options := []connect.ClientOption{
		connect.WithInterceptors(stack...),
		connect.WithReadMaxBytes(orDefault(cfg.MaxMessageBytes, defaultMaxAnswer)),
	}
	if !cfg.Compress {
		options = append(options, connect.WithAcceptCompression("gzip", nil, nil))
	}
	return options, nil
}

func newTransport(cfg ClientConfig) *http.Transport {
	dial := cfg.DialContext
	if dial == nil {
		dial = (&net.Dialer{KeepAlive: 15 * time.Second}).DialContext
	}
	var protocols http.Protocols
	protocols.SetHTTP2(true)
	protocols.SetUnencryptedHTTP2(true)
	transport := &http.Transport{
		DialContext:         within(dialTimeout, dial),
		TLSClientConfig:     cfg.TLS,
		TLSHandshakeTimeout: dialTimeout,
		IdleConnTimeout:     clientIdle,
		DisableCompression:  true, // Connect compresses messages, where it does
		Protocols:           &protocols,
		HTTP2: &http.HTTP2Config{
			SendPingTimeout: clientPing, PingTimeout: clientPong, WriteByteTimeout: clientPing + clientPong,
		},
	}
	if cfg.CurrentTLS != nil {
		transport.DialTLSContext = within(2*dialTimeout, dialTLS(transport.DialContext, cfg.CurrentTLS))
	}
	return transport
}

// dialTLS shakes hands by the configuration of the moment.
func dialTLS(
	dial func(ctx context.Context, network, address string) (net.Conn, error), current func() *tls.Config,
) func(ctx context.Context, network, address string) (net.Conn, error) {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		cfg := current().Clone()
		if cfg.ServerName == "" {
			if cfg.ServerName, _, err = net.SplitHostPort(address); err != nil {
				cfg.ServerName = address
			}
		}
		secure := tls.Client(conn, cfg)
		if err := secure.HandshakeContext(ctx); err != nil {
			_ = conn.Close()
			return nil, err
		}
		return secure, nil
	}
}

// within bounds the time of a dial: http.Transport goes on with one when the call that wanted it has given up.
func within(
	limit time.Duration, dial func(ctx context.Context, network, address string) (net.Conn, error),
) func(ctx context.Context, network, address string) (net.Conn, error) {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		ctx, cancel := context.WithTimeout(ctx, limit)
		defer cancel()
		return dial(ctx, network, address)
	}
}

// spread takes turns among transports, each of which keeps a connection of its own.
type spread struct {
	transports []*http.Transport
	turn       atomic.Uint64
}

func (s *spread) RoundTrip(req *http.Request) (*http.Response, error) {
	if len(s.transports) == 1 {
		return s.transports[0].RoundTrip(req)
	}
	return s.transports[s.turn.Add(1)%uint64(len(s.transports))].RoundTrip(req)
}

// CloseIdleConnections makes http.Client.CloseIdleConnections work.
func (s *spread) CloseIdleConnections() {
	for _, transport := range s.transports {
		transport.CloseIdleConnections()
	}
}
