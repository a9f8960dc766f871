//go:build clients

package clients

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/wiggle-run/wiggle/internal/app/dev"
	"github.com/wiggle-run/wiggle/test/commands"
)

const (
	// startTime bounds how long the stack takes to come up, with a PostgreSQL of its own.
	startTime   = 2 * time.Minute
	workers     = 2
	concurrency = 16
)

// stack is what `wiggle dev --auth` runs, and how clients reach it.
type stack struct {
	*dev.Stack

	relay *relay
	// home is where the administrator is signed in, bin has the command line.
	home, bin string
}

// start runs a stack until the test ends.
func start(t *testing.T) *stack {
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
			DataDir: dir, Auth: true, Shards: 2, Workers: workers, Concurrency: concurrency, LogLevel: slog.LevelWarn, Progress: t.Output(),
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
		signedIn := &stack{Stack: s, relay: openRelay(t, s.URL)}
		signedIn.signIn(t)
		return signedIn
	case err := <-ended:
		ended <- nil // the failure is told here
		t.Fatalf("the stack does not start: %v", err)
	case <-time.After(startTime):
		t.Fatalf("the stack did not start in %v", startTime)
	}
	return nil
}

// relay is what lies between clients and the router: connections, which may break.
type relay struct {
	t        *testing.T
	addr, to string
	listener net.Listener
	wg       sync.WaitGroup

	mu    sync.Mutex
	conns []net.Conn
}

func openRelay(t *testing.T, url string) *relay {
	t.Helper()
	r := &relay{t: t, addr: "127.0.0.1:0", to: strings.TrimPrefix(url, "http://")}
	r.open()
	t.Cleanup(r.close)
	return r
}

// open listens where the relay listened before.
func (r *relay) open() {
	var err error
	if r.listener, err = (&net.ListenConfig{}).Listen(r.t.Context(), "tcp", r.addr); err != nil {
		r.t.Fatal(err)
	}
	r.addr = r.listener.Addr().String()
	r.wg.Go(func() {
		for {
			from, err := r.listener.Accept()
			if err != nil {
				return // closed
			}
			r.wg.Go(func() { r.connect(from) })
		}
	})
}

// connect passes on what one side sends until either has ended.
func (r *relay) connect(from net.Conn) {
	to, err := (&net.Dialer{}).DialContext(context.WithoutCancel(r.t.Context()), "tcp", r.to)
	if err != nil {
		_ = from.Close()
		return
	}
	r.mu.Lock()
	r.conns = append(r.conns, from, to)
	r.mu.Unlock()
	var both sync.WaitGroup
	for _, pair := range [][2]net.Conn{{from, to}, {to, from}} {
		both.Go(func() {
			_, _ = io.Copy(pair[0], pair[1])
			_, _ = from.Close(), to.Close()
		})
	}
	both.Wait()
}

// close breaks every connection.
func (r *relay) close() {
	_ = r.listener.Close()
	r.mu.Lock()
	for _, conn := range r.conns {
		_ = conn.Close()
	}
	r.conns = nil
	r.mu.Unlock()
	r.wg.Wait()
}

// signIn signs the administrator in for the commands of pages, in the directory that is their home.
func (s *stack) signIn(t *testing.T) {
	t.Helper()
	s.home, s.bin = t.TempDir(), t.TempDir()
	if err := commands.Install(s.bin, "wiggle"); err != nil {
		t.Fatal(err)
	}
	command := fmt.Sprintf("wiggle login --name %s --password-stdin < '%s'", s.AdminName, s.AdminPasswordFile)
	if out, err := s.sh(t, s.home, command, ""); err != nil {
		t.Fatalf("%s: %v\n%s", command, err, out)
	}
}

// environment is what a client's process is given: a key, or none, and then the administrator's session is there for wiggle.
func (s *stack) environment(key string) []string {
	environ := append(os.Environ(), "WIGGLE_SERVER=http://"+s.relay.addr, "WIGGLE_API_KEY="+key)
	if key == "" {
		environ = append(environ, "HOME="+s.home, "XDG_CONFIG_HOME=")
	}
	return environ
}
