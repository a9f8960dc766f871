package wiggle_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"connectrpc.com/connect"

	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	"github.com/wiggle-run/wiggle/proto/gen/wiggle/v1/wigglev1connect"
	wiggle "github.com/wiggle-run/wiggle/sdk/go"
)

const (
	secret      = "wgk_k1_0123456789secret"
	otherSecret = "wgk_k2_9876543210secret"
)

// gate notes what calls show, by the end of their paths.
type gate struct {
	next  http.Handler
	mu    sync.Mutex
	shown map[string][]string
}

func newGate(next http.Handler) *gate { return &gate{next: next, shown: map[string][]string{}} }

func (g *gate) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	g.mu.Lock()
	call := r.URL.Path[strings.LastIndex(r.URL.Path, "/")+1:]
	g.shown[call] = append(g.shown[call], r.Header.Get("Authorization"))
	g.mu.Unlock()
	g.next.ServeHTTP(w, r)
}

// last is what the last such call has shown; "none" if there was none.
func (g *gate) last(call string) string {
	g.mu.Lock()
	defer g.mu.Unlock()
	if n := len(g.shown[call]); n > 0 {
		return g.shown[call][n-1]
	}
	return "none"
}

// gatedClient is a client of the fake behind a gate.
func gatedClient(t *testing.T, f *fake, opts ...wiggle.ClientOption) (*gate, *wiggle.Client) {
	t.Helper()
	g, n := newGate(f.handler()), newNetwork()
	n.serve(t, g)
	c, err := wiggle.Dial("http://fake", append([]wiggle.ClientOption{
		wiggle.WithHTTPClient(n.httpClient(t, !f.unary)), wiggle.WithLogger(slog.New(slog.DiscardHandler)), wiggle.WithRetries(1, 0, 0),
	}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	return g, c
}

// AUT-2: every call and every stream shows the key.
func TestKeyIsShown(t *testing.T) {
	for _, opts := range [][]wiggle.ClientOption{nil, {wiggle.WithGRPC()}} {
		synctest.Test(t, func(t *testing.T) {
			f := newFake()
			g, c := gatedClient(t, f, append(opts, wiggle.WithAPIKey(secret))...)
			f.onStart = func(*wigglev1.StartInstanceRequest) (*wigglev1.StartInstanceResponse, error) {
				return &wigglev1.StartInstanceResponse{InstanceId: "wfi.s0.x"}, nil
			}
			if _, err := c.Start(t.Context(), "flow", nil); err != nil {
				t.Fatal(err)
			}
			stop := start(t, wiggle.NewWorker(c, wiggle.WorkerOptions{SkipCheck: true}))
			stop()
			for _, err := range c.Reindex(t.Context(), wiggle.ReindexOptions{}) {
				if err == nil {
					t.Error("the fake has no search, and reindexes")
				}
			}
			_, _ = wigglev1connect.NewKeyServiceClient(c.Generated()).ListKeys(t.Context(), &wigglev1.ListKeysRequest{})
			for _, call := range []string{"StartInstance", "Work", "Reindex", "ListKeys"} {
				if got := g.last(call); got != "Bearer "+secret {
					t.Errorf("%s shows %q", call, got)
				}
			}
		})
	}
}

func TestKeyComesFromTheEnvironment(t *testing.T) {
	file := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(file, []byte("  "+otherSecret+"\r\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	header := connect.UnaryInterceptorFunc(func(next connect.UnaryFunc) connect.UnaryFunc {
		return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
			if got := req.Header().Get("Authorization"); got != "" {
				t.Errorf("an interceptor of the user's sees %q", got)
			}
			req.Header().Set("Authorization", "Basic x")
			return next(ctx, req)
		}
	})
	for name, c := range map[string]struct {
		key, file string
		opts      []wiggle.ClientOption
		want      string
	}{
		"nothing":      {"", "", nil, ""},
		"key":          {secret, "", nil, "Bearer " + secret},
		"file":         {"", file, nil, "Bearer " + otherSecret},
		"option":       {secret, "", []wiggle.ClientOption{wiggle.WithAPIKey(otherSecret)}, "Bearer " + otherSecret},
		"file option":  {secret, "", []wiggle.ClientOption{wiggle.WithAPIKeyFile(file)}, "Bearer " + otherSecret},
		"turned off":   {secret, "", []wiggle.ClientOption{wiggle.WithAPIKey("")}, ""},
		"the last one": {"", "", []wiggle.ClientOption{wiggle.WithAPIKeyFile(file), wiggle.WithAPIKey(secret)}, "Bearer " + secret},
		"interceptor":  {secret, "", []wiggle.ClientOption{wiggle.WithConnectOptions(connect.WithInterceptors(header))}, "Basic x"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("WIGGLE_API_KEY", c.key)
			t.Setenv("WIGGLE_API_KEY_FILE", c.file)
			g, client := gatedClient(t, newFake(), c.opts...)
			_, _ = client.Shards(t.Context())
			if got := g.last("ListShards"); got != c.want {
				t.Errorf("shows %q, want %q", got, c.want)
			}
		})
	}
}

// Dial refuses what is no key, and does not repeat it.
func TestBadKeys(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	for name, c := range map[string]struct {
		key, file string
		opts      []wiggle.ClientOption
		says      string
	}{
		"both":        {secret, write("a", secret), nil, "WIGGLE_API_KEY and WIGGLE_API_KEY_FILE are both set"},
		"blanks":      {"", "", []wiggle.ClientOption{wiggle.WithAPIKey(secret + "\nX: y")}, "has blanks"},
		"environment": {secret + " x", "", nil, "WIGGLE_API_KEY: "},
		"no file":     {"", filepath.Join(dir, "nothing"), nil, "WIGGLE_API_KEY_FILE: read the API key: open"},
		"empty file":  {"", write("b", "\n"), nil, "holds no API key"},
		"two lines":   {"", write("c", secret+"\n"+secret), nil, "has blanks"},
		"long":        {"", write("d", strings.Repeat(secret, 300)), nil, "more than 4096 bytes"},
		"TLS": {"", "", []wiggle.ClientOption{
			wiggle.WithTLSConfig(&tls.Config{MinVersion: tls.VersionTLS13}), wiggle.WithHTTPClient(http.DefaultClient),
		}, "WithTLSConfig and WithHTTPClient"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("WIGGLE_API_KEY", c.key)
			t.Setenv("WIGGLE_API_KEY_FILE", c.file)
			_, err := wiggle.Dial("http://127.0.0.1:1", c.opts...)
			if err == nil || !strings.Contains(err.Error(), c.says) || strings.Contains(err.Error(), "secret") {
				t.Errorf("got %v, want one that says %q", err, c.says)
			}
		})
	}
}

// A key in a file is replaced without a restart; while it cannot be read, the one from before is shown.
func TestKeyFileIsReadAgain(t *testing.T) {
	file := filepath.Join(t.TempDir(), "key")
	synctest.Test(t, func(t *testing.T) {
		write := func(text string) {
			if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		write(secret)
		var log bytes.Buffer
		g, c := gatedClient(t, newFake(), wiggle.WithAPIKeyFile(file), wiggle.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
		shows := func(want string) {
			t.Helper()
			_, _ = c.Shards(t.Context())
			if got := g.last("ListShards"); got != "Bearer "+want {
				t.Errorf("shows %q, want %q", got, want)
			}
		}
		shows(secret)
		write(otherSecret)
		shows(secret)
		time.Sleep(5 * time.Second)
		shows(otherSecret)
		if err := os.Remove(file); err != nil {
			t.Fatal(err)
		}
		for range 3 {
			time.Sleep(5 * time.Second)
			shows(otherSecret)
		}
		write(secret)
		time.Sleep(5 * time.Second)
		shows(secret)
		if n := strings.Count(log.String(), "cannot be read"); n != 1 || strings.Contains(log.String(), "secret") {
			t.Errorf("%d warnings:\n%s", n, &log)
		}
	})
}

// What is redirected is not sent on: neither the key nor the call gets to another host.
func TestRedirectsAreNotFollowed(t *testing.T) {
	t.Parallel()
	other := newGate(newFake().handler())
	far := httptest.NewServer(other)
	defer far.Close()
	near := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, far.URL+r.URL.Path, http.StatusTemporaryRedirect) //nolint:gosec // that is what is tested
	}))
	defer near.Close()
	c, err := wiggle.Dial(near.URL, wiggle.WithAPIKey(secret), wiggle.WithLogger(slog.New(slog.DiscardHandler)))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_, err = c.Shards(t.Context())
	if !errors.Is(err, wiggle.ErrFailedPrecondition) || !strings.Contains(err.Error(), "redirects to "+far.URL) ||
		strings.Contains(err.Error(), "secret") {
		t.Errorf("got %v", err)
	}
	if got := other.last("ListShards"); got != "none" {
		t.Errorf("the other host was called, with %q", got)
	}
}

// AUT-10: nothing that prints a client, or what it says, prints the key.
func TestKeyIsNotPrinted(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(file, []byte(secret), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, option := range []wiggle.ClientOption{wiggle.WithAPIKey(secret), wiggle.WithAPIKeyFile(file)} {
		var log bytes.Buffer
		logger := slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
		c, err := wiggle.Dial("http://127.0.0.1:1", option, wiggle.WithLogger(logger), wiggle.WithRetries(2, time.Millisecond, time.Millisecond))
		if err != nil {
			t.Fatal(err)
		}
		_, err = c.Shards(t.Context())
		logger.Info("it", slog.Any("client", c), slog.Any("error", err))
		w := wiggle.NewWorker(c, wiggle.WorkerOptions{})
		text := fmt.Sprintf("%v %+v %#v %v %+v %#v %+v %#v", c, *c, c, err, err, err, w, w) + log.String()
		if strings.Contains(text, "secret") {
			t.Errorf("printed: %s", text)
		}
		c.Close()
	}
}

func TestPlainHTTPIsWarnedOf(t *testing.T) {
	t.Parallel()
	for url, want := range map[string]int{
		"http://wiggle.example.com:8420": 1, "http://10.0.0.1": 1, "http://localhost.example.com": 1,
		"http://localhost:8420": 0, "http://127.0.0.9": 0, "http://[::1]:8420": 0, "http://a.localhost": 0, "https://wiggle.example.com": 0,
	} {
		var log bytes.Buffer
		c, err := wiggle.Dial(url, wiggle.WithAPIKey(secret), wiggle.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
		if err != nil {
			t.Fatal(err)
		}
		c.Close()
		if n := strings.Count(log.String(), "plain http"); n != want || strings.Contains(log.String(), "secret") {
			t.Errorf("%s: %d warnings, want %d:\n%s", url, n, want, &log)
		}
	}
}

// A worker whose key is revoked says so once, goes on asking, and works on when it is let in again.
func TestWorkerWithARevokedKey(t *testing.T) {
	denied := faultErr(&wigglev1.Fault{
		Code: int32(connect.CodePermissionDenied), Message: "not allowed",
		Kind: &wigglev1.Fault_PermissionMissing{PermissionMissing: &wigglev1.PermissionMissing{Permission: "task.poll:default/gpu"}},
	})
	unknown := connect.NewError(connect.CodeUnauthenticated, errors.New("the key is not known"))
	for want, broken := range map[string]error{
		"does not accept the worker's API key": unknown, "may not do what it asks for": denied,
	} {
		inBothWays(t, func(t *testing.T, f *fake) {
			var log bytes.Buffer
			_, c := gatedClient(t, f, wiggle.WithAPIKey(secret), wiggle.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
			w := wiggle.NewWorker(c, wiggle.WorkerOptions{SkipCheck: true, Unary: f.unary, PollWait: time.Second})
			handleSleep(w)
			stop := start(t, w)
			f.push(work("1", 100*time.Millisecond))
			f.pass(50 * time.Millisecond)
			f.fail(broken)
			f.pass(5 * time.Second)
			f.fail(nil)
			f.push(work("2", time.Millisecond))
			f.pass(15 * time.Second)
			stop()
			ids := []string{}
			for _, r := range f.reports {
				ids = append(ids, r.GetTaskId())
			}
			if slices.Sort(ids); !slices.Equal(ids, []string{"1", "2"}) {
				t.Errorf("reported %v", ids)
			}
			text := log.String()
			if strings.Count(text, want) != 1 || strings.Count(text, "lets the worker in again") != 1 || strings.Contains(text, "calls fail") ||
				errors.Is(broken, denied) != strings.Contains(text, "task.poll:default/gpu is missing") {
				t.Errorf("logged:\n%s", text)
			}
		})
	}
}

// WithTLSConfig: roots that the system does not know, and a certificate of the client's, for calls and streams.
func TestTLSConfig(t *testing.T) {
	t.Parallel()
	f := newFake()
	g, greeted := newGate(f.handler()), make(chan struct{}, 1)
	f.onMessage = func(context.Context, *wigglev1.WorkRequest) error { wake(greeted); return errDown }
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if len(r.TLS.PeerCertificates) != 1 || r.ProtoMajor != 2 {
			t.Errorf("%s: %d certificates over %s", r.URL.Path, len(r.TLS.PeerCertificates), r.Proto)
		}
		g.ServeHTTP(w, r)
	}))
	srv.EnableHTTP2 = true
	srv.TLS = &tls.Config{ClientAuth: tls.RequireAnyClientCert, MinVersion: tls.VersionTLS12}
	srv.StartTLS()
	defer srv.Close()
	roots := x509.NewCertPool()
	roots.AddCert(srv.Certificate())
	config := &tls.Config{RootCAs: roots, Certificates: srv.TLS.Certificates}
	c, err := wiggle.Dial(srv.URL, wiggle.WithTLSConfig(config), wiggle.WithAPIKey(secret), wiggle.WithLogger(slog.New(slog.DiscardHandler)))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Workflow(t.Context(), "nothing", 0); !errors.Is(err, wiggle.ErrNotFound) {
		t.Errorf("got %v", err)
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- wiggle.NewWorker(c, wiggle.WorkerOptions{SkipCheck: true}).Run(ctx) }()
	<-greeted
	stop()
	if err := <-done; err != nil || g.last("Work") != "Bearer "+secret {
		t.Errorf("a worker: %v, shows %q", err, g.last("Work"))
	}
	if config.MinVersion != 0 {
		t.Error("the configuration has been changed")
	}
	plain, err := wiggle.Dial(srv.URL, wiggle.WithAPIKey(secret), wiggle.WithRetries(1, 0, 0))
	if err != nil {
		t.Fatal(err)
	}
	defer plain.Close()
	if _, err := plain.Workflow(t.Context(), "nothing", 0); !errors.Is(err, wiggle.ErrUnavailable) || !strings.Contains(err.Error(), "certificate") {
		t.Errorf("a server of unknown roots: %v", err)
	}
}

// An error names the permission that is missing, also if the message does not.
func TestPermissionDenied(t *testing.T) {
	t.Parallel()
	for message, want := range map[string]string{
		"no":                      "wiggle: cancel: permission_denied: no (instance.cancel:a/b is missing)",
		"instance.cancel:a/b, no": "wiggle: cancel: permission_denied: instance.cancel:a/b, no",
	} {
		err := wiggle.AsError("cancel", faultErr(&wigglev1.Fault{
			Code: int32(connect.CodePermissionDenied), Message: message,
			Kind: &wigglev1.Fault_PermissionMissing{PermissionMissing: &wigglev1.PermissionMissing{Permission: "instance.cancel:a/b"}},
		}))
		e := new(wiggle.Error)
		if !errors.Is(err, wiggle.ErrPermissionDenied) || !errors.As(err, &e) || e.Permission != "instance.cancel:a/b" || err.Error() != want {
			t.Errorf("got %v, want %s", err, want)
		}
	}
	if wiggle.AsError("x", nil) != nil {
		t.Error("nil is an error")
	}
}
