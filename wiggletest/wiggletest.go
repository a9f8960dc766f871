// Package wiggletest runs a Wiggle server inside a test: the real engine, router
// and services over a store in memory, with a clock that the test moves. A workflow
// with a 30-day sleep is tested in milliseconds (WF-23).
//
//	func TestReminder(t *testing.T) {
//		srv := wiggletest.New(t)
//		client := srv.Client()
//		// register, start a worker, start an instance ...
//		srv.Advance(30 * 24 * time.Hour)
//		// ... and see that the reminder was sent
//	}
//
// Nothing is shared between servers, so tests may run in parallel.
package wiggletest

import (
	"context"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/wiggle-run/wiggle/internal/testcluster"
	"github.com/wiggle-run/wiggle/pkg/clock"
	wiggle "github.com/wiggle-run/wiggle/sdk/go"
)

// patience bounds how long the server may take, in real time, to start and to do
// what has become due.
const patience = 10 * time.Second

// Server is a test server.
type Server struct {
	tb      testing.TB
	cluster *testcluster.Cluster
	clock   *clock.Manual
}

// Option changes how a server is made.
type Option func(*options)

type options struct {
	shards int
	start  time.Time
}

// WithShards spreads instances over n shards. Without it there is one.
func WithShards(n int) Option { return func(o *options) { o.shards = n } }

// WithTime sets the time at which the clock stands. Without it, the time of now.
func WithTime(t time.Time) Option { return func(o *options) { o.start = t } }

// New starts a server that is stopped at the end of the test.
func New(tb testing.TB, opts ...Option) *Server {
	tb.Helper()
	o := options{shards: 1, start: time.Now()}
	for _, opt := range opts {
		opt(&o)
	}
	s := &Server{tb: tb, clock: clock.NewManual(o.start)}
	var err error
	if s.cluster, err = testcluster.Start(testcluster.Config{Shards: o.shards, Clock: s.clock}); err != nil {
		tb.Fatalf("wiggletest: %v", err)
	}
	tb.Cleanup(func() {
		if err := s.cluster.Close(); err != nil {
			tb.Errorf("wiggletest: stop the server: %v", err)
		}
	})
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := s.cluster.WaitReady(ctx); err != nil {
		tb.Fatalf("wiggletest: %v", err)
	}
	return s
}

// URL is the server's base URL. Only HTTPClient reaches it.
func (s *Server) URL() string { return s.cluster.URL() }

// HTTPClient reaches the server.
func (s *Server) HTTPClient() *http.Client { return s.cluster.HTTPClient() }

// DialContext opens connections to the server, for clients of other making.
func (s *Server) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	return s.cluster.Network().DialContext(ctx, network, address)
}

// Client makes a client of the server. Further options come after the server's own.
func (s *Server) Client(opts ...wiggle.ClientOption) *wiggle.Client {
	s.tb.Helper()
	// A key of the environment is another server's.
	own := []wiggle.ClientOption{wiggle.WithHTTPClient(s.HTTPClient()), wiggle.WithAPIKey("")}
	c, err := wiggle.Dial(s.URL(), append(own, opts...)...)
	if err != nil {
		s.tb.Fatalf("wiggletest: %v", err)
	}
	return c
}

// Now is the time by the server's clock.
func (s *Server) Now() time.Time { return s.clock.Now() }

// Advance moves the clock by d, from one timer to the next: whatever is due on the
// way happens at its own time, and workers that are connected have done what they
// could before the clock goes on. It returns when nothing is left to do at the new
// time, or, should a worker be busy for longer than ten seconds or no worker serve
// a step, goes on without it.
func (s *Server) Advance(d time.Duration) {
	s.tb.Helper()
	end := s.clock.Now().Add(d)
	for {
		next := s.settle()
		now := s.clock.Now()
		if next.IsZero() || next.After(end) {
			s.clock.Advance(end.Sub(now))
			s.settle()
			return
		}
		s.clock.Advance(next.Sub(now))
	}
}

// Skip moves the clock to the next timer or the end of a lease, whichever comes
// first, without waiting for workers: for tests that are the worker themselves. It
// moves it by a second where there is neither.
func (s *Server) Skip() {
	s.tb.Helper()
	next, err := s.cluster.Service(testcluster.Process(0)).NextTime(context.Background())
	if err != nil {
		s.tb.Fatalf("wiggletest: %v", err)
	}
	d := time.Second
	if !next.IsZero() {
		d = max(next.Sub(s.clock.Now()), 0) + time.Millisecond
	}
	s.clock.Advance(d)
}

// settle waits until nothing is ready, leased or due, and tells when the next timer is.
func (s *Server) settle() (next time.Time) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	service := s.cluster.Service(testcluster.Process(0))
	for {
		busy, next, err := service.Pending(ctx)
		if err != nil || !busy {
			return next
		}
		select {
		case <-ctx.Done():
			return next
		case <-time.After(time.Millisecond):
		}
	}
}
