package tlsfiles_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.uber.org/goleak"

	"github.com/wiggle-run/wiggle/pkg/rpc"
	"github.com/wiggle-run/wiggle/pkg/tlsfiles"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// clock is a clock that the test moves.
type clock struct {
	mu  sync.Mutex
	now time.Time
}

func newClock() *clock { return &clock{now: time.Now()} }

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) add(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

// open reads the files of a folder, which must be right.
func open(t *testing.T, f folder, change func(*tlsfiles.Config)) *tlsfiles.Files {
	t.Helper()
	cfg := tlsfiles.Config{Certificate: f.path("tls.crt"), Key: f.path("tls.key")}
	change(&cfg)
	files, err := tlsfiles.Open(cfg)
	must(t, err)
	return files
}

// serve serves over TLS, and returns the address. Below /guarded it answers those who show a certificate.
func serve(t *testing.T, files *tlsfiles.Files) string {
	t.Helper()
	server, err := rpc.NewServer(rpc.Transport{
		ServerTLS: files.Server(), RequireService: true, ServiceCertificates: true,
	}.Server(rpc.ServerConfig{}))
	must(t, err)
	server.Handle("/guarded", http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	must(t, err)
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	t.Cleanup(func() {
		_ = server.Close()
		must(t, <-served)
	})
	return listener.Addr().String()
}

// call calls over a new connection, and returns the name in the server's certificate.
func call(t *testing.T, address string, current func() *tls.Config) (string, error) {
	t.Helper()
	name, _, err := get(t, address+"/healthz", current)
	return name, err
}

func get(t *testing.T, path string, current func() *tls.Config) (name string, status int, err error) {
	t.Helper()
	client := rpc.NewHTTPClient(rpc.Transport{ClientTLS: current}.Client(rpc.ClientConfig{}))
	defer client.CloseIdleConnections()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+path, nil)
	must(t, err)
	res, err := client.Do(req)
	if err != nil {
		return "", 0, err
	}
	must(t, res.Body.Close())
	if res.ProtoMajor != 2 {
		t.Errorf("over %s", res.Proto)
	}
	return res.TLS.PeerCertificates[0].Subject.CommonName, res.StatusCode, nil
}

// AUT-10: a certificate is replaced while the service serves, and a broken one is not used.
func TestRotation(t *testing.T) {
	t.Parallel()
	ca, f, now, logs := newAuthority(t, "ca"), folder{t.TempDir()}, newClock(), &bytes.Buffer{}
	f.writePair(t, ca.pair(t, "first", 100*time.Hour))
	reader := metric.NewManualReader()
	files := open(t, f, func(cfg *tlsfiles.Config) {
		cfg.CA, cfg.Now = f.write(t, "ca.crt", ca.pem), now.Now
		cfg.Logger = slog.New(slog.NewTextHandler(logs, nil))
		cfg.Meter = metric.NewMeterProvider(metric.WithReader(reader)).Meter("test")
	})
	address := serve(t, files)
	expect := func(want string) {
		t.Helper()
		if got, err := call(t, address, files.Client); err != nil || got != want {
			t.Errorf("the certificate is %q, %v; want %q", got, err, want)
		}
	}
	expect("first")
	second := ca.pair(t, "second", 100*time.Hour)
	f.write(t, "tls.crt", second.cert) // its key is not there yet
	expect("first")                    // nobody has looked
	now.add(2 * time.Second)
	expect("first")
	now.add(2 * time.Second)
	expect("first")
	if w := files.Warnings(); len(w) != 1 || !strings.Contains(w[0], "tls.crt") {
		t.Errorf("of files that do not fit each other it warns by %q", w)
	}
	f.write(t, "tls.key", second.key)
	now.add(2 * time.Second)
	expect("second")
	must(t, os.Remove(f.path("tls.key")))
	now.add(2 * time.Second)
	expect("second")
	if w := files.Warnings(); len(w) != 1 {
		t.Errorf("of a file that is gone it warns by %q", w)
	}
	f.write(t, "tls.key", second.key)
	now.add(2 * time.Second)
	if w := files.Warnings(); len(w) != 0 {
		t.Errorf("when all is well it warns by %q", w)
	}
	if n := strings.Count(logs.String(), "are not right"); n != 2 {
		t.Errorf("two failures were logged %d times:\n%s", n, logs)
	}
	if got := measured(t, reader); got["read"] != 1 || got["failed"] != 2 || got["remaining"] < 99*3600 || got["remaining"] > 100*3600 {
		t.Errorf("metrics: %v", got)
	}
}

// measured collects the counts of reloads by outcome, and the time that remains.
func measured(t *testing.T, reader metric.Reader) map[string]int64 {
	t.Helper()
	var all metricdata.ResourceMetrics
	must(t, reader.Collect(context.Background(), &all))
	got := map[string]int64{}
	for _, m := range all.ScopeMetrics[0].Metrics {
		switch data := m.Data.(type) {
		case metricdata.Sum[int64]:
			for _, point := range data.DataPoints {
				outcome, _ := point.Attributes.Value("outcome")
				got[outcome.AsString()] = point.Value
			}
		case metricdata.Gauge[float64]:
			got["remaining"] = int64(data.DataPoints[0].Value)
		}
	}
	return got
}

// Roots that change are those of the next connection, on both sides.
func TestAuthoritiesChange(t *testing.T) {
	t.Parallel()
	old, fresh, f, now := newAuthority(t, "old"), newAuthority(t, "new"), folder{t.TempDir()}, newClock()
	f.writePair(t, old.pair(t, "service", 100*time.Hour))
	files := open(t, f, func(cfg *tlsfiles.Config) {
		cfg.CA, cfg.ClientCA, cfg.Now = f.write(t, "ca.crt", old.pem), f.path("ca.crt"), now.Now
	})
	address := serve(t, files)
	stale := files.Client().Clone()
	if _, err := call(t, address, files.Client); err != nil {
		t.Fatal(err)
	}
	f.write(t, "ca.crt", fresh.pem)
	f.writePair(t, fresh.pair(t, "service", 100*time.Hour))
	now.add(2 * time.Second)
	if _, err := call(t, address, files.Client); err != nil {
		t.Errorf("with the new authority: %v", err)
	}
	if _, err := call(t, address, func() *tls.Config { return stale }); err == nil {
		t.Error("who goes by the old authority still gets through")
	}
}

// Who shows a certificate of another authority does not get through; who shows none can ask how the service is, and no more.
func TestClientCertificates(t *testing.T) {
	t.Parallel()
	ca, other := newAuthority(t, "ca"), newAuthority(t, "other")
	f := folder{t.TempDir()}
	f.writePair(t, ca.pair(t, "service", 100*time.Hour))
	f.write(t, "ca.crt", ca.pem)
	f.write(t, "other.crt", other.pem)
	client := func(p *pair, ca string) func() *tls.Config {
		own := folder{t.TempDir()}
		cfg := tlsfiles.Config{CA: f.path(ca)}
		if p != nil {
			own.writePair(t, *p)
			cfg.Certificate, cfg.Key = own.path("tls.crt"), own.path("tls.key")
		}
		files, err := tlsfiles.Open(cfg)
		must(t, err)
		return func() *tls.Config {
			cfg := files.Client().Clone()
			if p != nil { // also one that the server has not asked for
				cfg.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &cfg.Certificates[0], nil }
			}
			return cfg
		}
	}
	right, wrong := ca.pair(t, "caller", time.Hour), other.pair(t, "caller", time.Hour)
	ended := ca.pair(t, "caller", -time.Minute)
	files := open(t, f, func(cfg *tlsfiles.Config) { cfg.ClientCA = f.path("ca.crt") })
	address := serve(t, files)
	for _, c := range []struct {
		name            string
		client          func() *tls.Config
		health, guarded int // 0: no connection
	}{
		{"a certificate", client(&right, "ca.crt"), http.StatusOK, http.StatusOK},
		{"none", client(nil, "ca.crt"), http.StatusOK, http.StatusUnauthorized},
		{"another authority's", client(&wrong, "ca.crt"), 0, 0},
		{"one that has ended", client(&ended, "ca.crt"), 0, 0},
		{"the server is another authority's", client(&right, "other.crt"), 0, 0},
	} {
		for path, want := range map[string]int{"/healthz": c.health, "/guarded": c.guarded} {
			if _, status, err := get(t, address+path, c.client); status != want || (err != nil) != (want == 0) {
				t.Errorf("%s: %s is answered with %d, %v; want %d", c.name, path, status, err, want)
			}
		}
	}
}

func TestWarnings(t *testing.T) {
	t.Parallel()
	ca, now := newAuthority(t, "ca"), newClock()
	for _, c := range []struct {
		life time.Duration
		want string
	}{
		{1000 * time.Hour, ""},
		{200 * time.Hour, ""}, // of 201
		{13 * 24 * time.Hour, ""},
		{10 * time.Minute, "ends at"}, // of 70
		{-time.Minute, "ended at"},
	} {
		f := folder{t.TempDir()}
		f.writePair(t, ca.pair(t, "service", c.life))
		files := open(t, f, func(cfg *tlsfiles.Config) { cfg.Now = now.Now })
		if w := strings.Join(files.Warnings(), ""); (w == "") != (c.want == "") || !strings.Contains(w, c.want) {
			t.Errorf("%s before its end: %q", c.life, w)
		}
	}
	f := folder{t.TempDir()}
	f.writePair(t, ca.pair(t, "service", 1000*time.Hour))
	files := open(t, f, func(cfg *tlsfiles.Config) { cfg.Now = now.Now })
	now.add((1000 - 200) * time.Hour)
	if w := files.Warnings(); len(w) != 1 {
		t.Errorf("a fifth of its life before the end it warns by %q", w)
	}
}

// What is not right at the start is told at once, all of it.
func TestOpenRefuses(t *testing.T) {
	t.Parallel()
	ca, f := newAuthority(t, "ca"), folder{t.TempDir()}
	one, two := ca.pair(t, "one", time.Hour), ca.pair(t, "two", time.Hour)
	f.writePair(t, pair{one.cert, two.key})
	f.write(t, "empty.crt", nil)
	for _, c := range []struct {
		cfg  tlsfiles.Config
		want []string
	}{
		{tlsfiles.Config{Certificate: f.path("tls.crt")}, []string{"together"}},
		{tlsfiles.Config{ClientCA: f.path("ca.crt")}, []string{"one of its own"}},
		{tlsfiles.Config{Certificate: f.path("a"), Key: f.path("b")}, []string{"/a:", "/b:"}},
		{tlsfiles.Config{Certificate: f.path("tls.crt"), Key: f.path("tls.key"), CA: f.path("empty.crt")}, []string{"tls.key", "empty.crt"}},
	} {
		_, err := tlsfiles.Open(c.cfg)
		for _, want := range c.want {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%+v: %v, want %q", c.cfg, err, want)
			}
		}
	}
}
