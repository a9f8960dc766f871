package rpc

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"connectrpc.com/connect"
	"connectrpc.com/grpchealth"
	"connectrpc.com/grpcreflect"
	"golang.org/x/net/netutil"
)

const (
	defaultMaxRequest = 16 << 20
	defaultMaxAnswer  = 64 << 20
	defaultMaxHeader  = 64 << 10
	defaultMaxStreams = 1000
	// defaultMaxCall is above the longest wait that a caller may ask for, five minutes in WaitInstance.
	defaultMaxCall        = 6 * time.Minute
	defaultMaxReadyChecks = 2 * time.Second
	defaultIdle           = 2 * time.Minute
	readHeaderTimeout     = 10 * time.Second
	serverPing            = 20 * time.Second
	serverPong            = 10 * time.Second
	// compressFrom is the size from which an answer is worth compressing.
	compressFrom = 1 << 10
)

// ServerConfig says how a [Server] serves. The zero value is fine.
type ServerConfig struct {
	// Logger gets the access log: calls at debug level, internal errors at warning level. Nil: nothing is logged.
	Logger *slog.Logger
	// Telemetry traces and measures the calls.
	Telemetry Telemetry
	// Release is told to callers in the header Wiggle-Release. Empty: not told.
	Release string
	// Interceptors come after the headers and before validation: authentication, rate limits.
	Interceptors []connect.Interceptor
	// Validator checks requests. Nil: they are not checked, as behind a router that has checked them.
	Validator *Validator
	// Payloads normalises payloads. Nil: one of its own.
	Payloads *Payloads
	// Ready returns what is missing before the process can serve, for people; nothing if it can. It names no host. It is
	// called for each /readyz, under a context of two seconds. Nil: always ready.
	Ready func(ctx context.Context) []string
	// Shards returns how the shards of the process are. Those that are not ready are missing in /readyz, and gRPC health has
	// each, by [HealthOfShard]. It must not block: it is called for each /readyz and twice a second. Nil: there are none.
	Shards func() []ShardState
	// Warnings returns what /readyz tells beside that: what does not keep the process from serving, and has to be seen to,
	// such as a certificate that ends soon. Nil: nothing.
	Warnings func() []string
	// CORSOrigins are the origins whose pages may call from a browser, such as "https://ops.example.com", or "*". None:
	// only pages of the same origin may.
	CORSOrigins []string
	// TLS, if set, is spoken instead of plain text.
	TLS *tls.Config
	// ServiceKeys are the keys by which services show themselves in the header Wiggle-Service-Key; see [CalledByService]. A
	// call that shows another is refused. None: the header is not looked at.
	ServiceKeys []string
	// ServiceCertificates has services show a client certificate, which TLS has verified: beside a key, or in place of one if
	// there are no keys. It is for ports whose authority certifies none but services.
	ServiceCertificates bool
	// RequireService refuses every call of somebody who is no service with UNAUTHENTICATED, before its request is read.
	// gRPC health, /healthz, /readyz and what is mounted for GET are for everybody.
	RequireService bool
	// MaxMessageBytes bounds a request's message, uncompressed. 0: 16 MiB.
	MaxMessageBytes int
	// MaxHeaderBytes bounds a request's headers. 0: 64 KiB.
	MaxHeaderBytes int
	// MaxConcurrentStreams bounds the calls under way on one HTTP/2 connection. Go clients open another connection when
	// it is reached. 0: 1000.
	MaxConcurrentStreams int
	// ConnectionBuffer bounds what is received on one HTTP/2 connection and not yet read by handlers. Streams of one
	// connection share it, so where many of them come from one peer it must be much more than the megabyte that one
	// that is not read may take. 0: 1 MiB.
	ConnectionBuffer int
	// MaxCallDuration bounds a unary call. 0: 6 min.
	MaxCallDuration time.Duration
	// MaxCalls and MaxCallBytes bound the calls under way and the bytes that their requests hold; more is refused with
	// RESOURCE_EXHAUSTED and a pause. 0: 40 000, 256 MiB or four of the largest requests.
	MaxCalls, MaxCallBytes int
	// Yielding are the procedures that are refused at half of these bounds: those that only make more work.
	Yielding []string
	// Wrap, if set, wraps what is mounted, for what interceptors do not see of a call: its host, its client certificate.
	Wrap func(http.Handler) http.Handler
	// Refuse, if set, is asked before a call's request is read, and refuses it by an error. It must not block: under a load
	// many times of what is sustainable, refusing is most of the work.
	Refuse func(procedure string) error
	// Exempt are the services that are never refused for these bounds, by their full names: those by which processes look
	// after each other. Health is.
	Exempt []string
	// MaxConnections bounds the connections; more wait until one ends. 0: 10 000.
	MaxConnections int
	// IdleTimeout ends connections without calls. 0: 2 min.
	IdleTimeout time.Duration
	// NoReflection leaves out gRPC reflection.
	NoReflection bool
}

// ShardState is how a shard is in a process.
type ShardState struct {
	// Shard is its number.
	Shard int
	// Ready tells whether it can be used.
	Ready bool
	// Reason says why not. It names no host.
	Reason string
}

// Server serves Connect handlers on one port. Handlers are mounted before it serves; all else is safe for concurrent
// use. A server that was shut down stays down.
//
// Calls stop in this order: [Server.Drain] tells balancers, by health and readiness, and handlers, by [Draining], while
// every call is still answered; [Server.Shutdown] takes no new connections or calls and waits for those under way.
type Server struct {
	cfg     ServerConfig
	options []connect.HandlerOption
	mux     *http.ServeMux
	http    *http.Server
	health  *Health
	load    *load
	callers *identity

	mu       sync.Mutex
	services []string

	draining  chan struct{} // closed by Drain
	stopping  chan struct{} // closed by Shutdown
	drainOnce sync.Once
	stopOnce  sync.Once
}

type drainKey struct{}

// Draining returns a channel that is closed when the server that called the handler with ctx begins to drain. A handler
// that waits, such as a poll or a watch, then answers what it has. Outside of a server's handlers it is nil, which is
// never ready.
func Draining(ctx context.Context) <-chan struct{} {
	ch, _ := ctx.Value(drainKey{}).(<-chan struct{})
	return ch
}

// NewServer returns a server without services.
func NewServer(cfg ServerConfig) (*Server, error) {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.Payloads == nil {
		cfg.Payloads = NewPayloads()
	}
	cfg.MaxMessageBytes = orDefault(cfg.MaxMessageBytes, defaultMaxRequest)
	cfg.MaxHeaderBytes = orDefault(cfg.MaxHeaderBytes, defaultMaxHeader)
	cfg.MaxConcurrentStreams = orDefault(cfg.MaxConcurrentStreams, defaultMaxStreams)
	cfg.MaxCallDuration = orDefault(cfg.MaxCallDuration, defaultMaxCall)
	cfg.MaxCalls = orDefault(cfg.MaxCalls, defaultMaxCalls)
	cfg.MaxCallBytes = orDefault(cfg.MaxCallBytes, max(defaultMaxCallBytes, 4*cfg.MaxMessageBytes))
	cfg.MaxConnections = orDefault(cfg.MaxConnections, defaultMaxConnections)
	cfg.IdleTimeout = orDefault(cfg.IdleTimeout, defaultIdle)
	stack, err := handlerStack(cfg)
	if err != nil {
		return nil, err
	}
	s := &Server{
		cfg: cfg, mux: http.NewServeMux(), health: newHealth(), load: newLoad(&cfg), callers: newIdentity(&cfg),
		draining: make(chan struct{}), stopping: make(chan struct{}),
		options: []connect.HandlerOption{
			connect.WithInterceptors(stack...),
			connect.WithHandlerOptions(jsonHandlerOptions(cfg.Payloads)...),
			connect.WithReadMaxBytes(cfg.MaxMessageBytes),
			connect.WithCompressMinBytes(compressFrom),
		},
	}
	s.mountOwn()
	s.http = s.newHTTPServer()
	return s, nil
}

// Options returns the options with which handlers are generated, see [Server.Mount].
func (s *Server) Options() []connect.HandlerOption { return s.options }

// Mount adds a generated handler. It is written
//
//	s.Mount(wigglev1connect.NewWorkerServiceHandler(workers, s.Options()...))
//
// and makes the service known to reflection and health.
func (s *Server) Mount(path string, handler http.Handler) {
	s.mux.Handle(path, s.callers.only(handler))
	service := strings.Trim(path, "/")
	s.mu.Lock()
	s.services = append(s.services, service)
	s.mu.Unlock()
	s.load.know(service)
	s.health.Set(service, true)
}

// Handle adds an HTTP handler for a pattern as http.ServeMux has them, such as "/" for the portal. One that begins with
// "GET " is for everybody, also where only services may call.
func (s *Server) Handle(pattern string, handler http.Handler) {
	if !strings.HasPrefix(pattern, "GET ") {
		handler = s.callers.only(handler)
	}
	s.mux.Handle(pattern, handler)
}

// Health returns what gRPC health answers.
func (s *Server) Health() *Health { return s.health }

// Handler returns everything that the server answers, for tests and for servers of other making.
func (s *Server) Handler() http.Handler { return s.http.Handler }

// Serve answers on the listener, a network's or a [MemoryNetwork]'s, until Shutdown or Close. It returns nil then.
func (s *Server) Serve(listener net.Listener) error {
	defer s.keepHealth()()
	listener = netutil.LimitListener(listener, s.cfg.MaxConnections)
	if s.cfg.TLS != nil {
		return serveError(s.http.ServeTLS(listener, "", ""))
	}
	return serveError(s.http.Serve(listener))
}

// ServeInside is Serve for a listener that none but services of the same process can reach, one of a [MemoryNetwork]: the
// network is their identity, so whoever calls is a service to [CalledByService], without a key and without TLS.
func (s *Server) ServeInside(listener net.Listener) error {
	defer s.keepHealth()()
	return serveError(s.http.Serve(insideListener{netutil.LimitListener(listener, s.cfg.MaxConnections)}))
}

func serveError(err error) error {
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return fmt.Errorf("serve: %w", err)
}

// Drain marks the server as going down: health and readiness say so, and [Draining] is closed. Calls are still answered.
func (s *Server) Drain() {
	s.drainOnce.Do(func() {
		close(s.draining)
		s.health.drain()
	})
}

// Shutdown drains, then takes no new calls and waits for those under way. When ctx ends first it cuts what is left and
// returns the context's error.
func (s *Server) Shutdown(ctx context.Context) error {
	s.Drain()
	s.stopOnce.Do(func() { close(s.stopping) })
	if err := s.http.Shutdown(ctx); err != nil {
		cut := s.InFlight()
		_ = s.http.Close()
		return fmt.Errorf("shut down with %d calls under way: %w", cut, err)
	}
	return nil
}

// Close cuts every connection at once, as the end of a process would.
func (s *Server) Close() error {
	s.stopOnce.Do(func() { close(s.stopping) })
	if err := s.http.Close(); err != nil {
		return fmt.Errorf("close: %w", err)
	}
	return nil
}

// InFlight returns how many calls are under way.
func (s *Server) InFlight() int { return int(s.load.calls.Load()) }

func (s *Server) newHTTPServer() *http.Server {
	var handler http.Handler = s.mux
	if s.cfg.Wrap != nil {
		handler = s.cfg.Wrap(handler)
	}
	var protocols http.Protocols
	protocols.SetHTTP1(true)
	protocols.SetHTTP2(true)
	protocols.SetUnencryptedHTTP2(true)
	// There are no ReadTimeout and no WriteTimeout: they would cut long polls and streams. Dead peers are found by pings.
	return &http.Server{
		Handler:           withCORS(s.cfg.CORSOrigins, s.callers.caller(s.load.wrap(handler))),
		TLSConfig:         s.cfg.TLS,
		ReadHeaderTimeout: readHeaderTimeout,
		IdleTimeout:       s.cfg.IdleTimeout,
		MaxHeaderBytes:    s.cfg.MaxHeaderBytes,
		Protocols:         &protocols,
		HTTP2: &http.HTTP2Config{
			MaxConcurrentStreams: s.cfg.MaxConcurrentStreams, MaxReceiveBufferPerConnection: s.cfg.ConnectionBuffer,
			SendPingTimeout: serverPing, PingTimeout: serverPong, WriteByteTimeout: serverPing + serverPong,
		},
		ErrorLog: slog.NewLogLogger(s.cfg.Logger.Handler(), slog.LevelInfo),
		BaseContext: func(net.Listener) context.Context {
			return context.WithValue(context.Background(), drainKey{}, (<-chan struct{})(s.draining))
		},
		ConnContext: connContext,
	}
}

// mountOwn adds what every server answers.
func (s *Server) mountOwn() {
	path, handler := grpchealth.NewHandler(s.health, s.options...)
	s.mux.Handle(path, s.untilStopping(handler))
	s.mux.HandleFunc("GET /healthz", s.healthz)
	s.mux.HandleFunc("GET /readyz", s.readyz)
	if s.callers.require { // what there is not is nobody else's business
		s.mux.Handle("/", s.callers.only(http.NotFoundHandler()))
	}
	if s.cfg.NoReflection {
		return
	}
	reflector := grpcreflect.NewReflector(grpcreflect.NamerFunc(s.serviceNames))
	for _, mount := range []func(*grpcreflect.Reflector, ...connect.HandlerOption) (string, http.Handler){
		grpcreflect.NewHandlerV1, grpcreflect.NewHandlerV1Alpha,
	} {
		path, handler := mount(reflector, s.options...)
		s.mux.Handle(path, s.callers.only(s.untilStopping(handler)))
	}
}

func (s *Server) serviceNames() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string{grpchealth.HealthV1ServiceName}, s.services...)
}

// untilStopping ends the streams of handlers that know nothing of draining, so that Shutdown need not wait for clients
// that watch health forever.
func (s *Server) untilStopping(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithCancel(r.Context())
		defer cancel()
		done := make(chan struct{})
		defer close(done)
		go func() {
			select {
			case <-s.stopping:
				cancel()
			case <-done:
			}
		}()
		next.ServeHTTP(w, r.WithContext(ctx))
	})
}

func orDefault[T int | time.Duration](value, fallback T) T {
	if value == 0 {
		return fallback
	}
	return value
}
