//go:build clients

package clients

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/wiggle-run/wiggle/internal/app/dev"
)

// key is what clients are given in WIGGLE_API_KEY.
const key = "wgl_example_key"

const (
	// startTime bounds how long the stack takes to come up, with a PostgreSQL of its own.
	startTime   = 2 * time.Minute
	workers     = 2
	concurrency = 16
)

// stack is what `wiggle dev` runs, and the gate through which clients reach it.
type stack struct {
	*dev.Stack

	gate *gate
}

// start runs a stack until the test ends.
func start(t *testing.T) stack {
	t.Helper()
	// Not t.TempDir, which PostgreSQL's account cannot reach when root runs the test.
	dir, err := os.MkdirTemp("/tmp", "wiggle-clients-test-") //nolint:usetesting // as said
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	ready, ended := make(chan *dev.Stack, 1), make(chan error, 1)
	go func() {
		ended <- dev.Run(ctx, dev.Options{
			DataDir: dir, Shards: 2, Workers: workers, Concurrency: concurrency, LogLevel: slog.LevelWarn, Progress: t.Output(),
			Ready: func(ctx context.Context, s *dev.Stack) error {
				ready <- s
				<-ctx.Done()
				return nil
			},
		})
	}()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Errorf("the stack: %v", err)
		}
	})
	select {
	case s := <-ready:
		return stack{s, openGate(t, s.URL)}
	case err := <-ended:
		ended <- nil // the failure is told here
		t.Fatalf("the stack does not start: %v", err)
	case <-time.After(startTime):
		t.Fatalf("the stack did not start in %v", startTime)
	}
	return stack{}
}

// gate lets through to the stack who has the key. It is what a server that knows keys is to a client.
type gate struct {
	t      *testing.T
	addr   string
	proxy  *httputil.ReverseProxy
	server *http.Server
}

func openGate(t *testing.T, target string) *gate {
	t.Helper()
	to, err := url.Parse(target)
	if err != nil {
		t.Fatal(err)
	}
	var h2c http.Protocols
	h2c.SetUnencryptedHTTP2(true)
	g := &gate{t: t, addr: "127.0.0.1:0", proxy: &httputil.ReverseProxy{
		Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(to) },
		Transport:     &http.Transport{Protocols: &h2c},
		FlushInterval: -1,
		ErrorLog:      slog.NewLogLogger(slog.DiscardHandler, slog.LevelError), // clients that go away in the middle are meant to
	}}
	g.open()
	t.Cleanup(g.close)
	return g
}

// open listens where the gate listened before.
func (g *gate) open() {
	listener, err := (&net.ListenConfig{}).Listen(g.t.Context(), "tcp", g.addr)
	if err != nil {
		g.t.Fatal(err)
	}
	g.addr = listener.Addr().String()
	var both http.Protocols
	both.SetHTTP1(true)
	both.SetUnencryptedHTTP2(true)
	g.server = &http.Server{Handler: g, Protocols: &both, ReadHeaderTimeout: time.Minute}
	go func(server *http.Server) {
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			g.t.Errorf("the gate: %v", err)
		}
	}(g.server)
}

// close breaks every connection.
func (g *gate) close() { _ = g.server.Close() }

// ServeHTTP asks for the key wherever it will be asked for: health and reflection are open.
func (g *gate) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if strings.HasPrefix(r.URL.Path, "/wiggle.") && r.Header.Get("Authorization") != "Bearer "+key {
		http.Error(w, "no key", http.StatusUnauthorized)
		return
	}
	g.proxy.ServeHTTP(w, r)
}

// environment is what a client's process is given.
func (s stack) environment() []string {
	return append(os.Environ(), "WIGGLE_SERVER=http://"+s.gate.addr, "WIGGLE_API_KEY="+key)
}
