package process_test

import (
	"context"
	"errors"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/wiggle-run/wiggle/pkg/lifecycle"
	"github.com/wiggle-run/wiggle/pkg/process"
	"github.com/wiggle-run/wiggle/pkg/settings"
	"github.com/wiggle-run/wiggle/pkg/topology"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const database = "WIGGLE_DATABASE_URL=postgres://db/wiggle"

// load loads a process with one setting of its own.
func load(t *testing.T, environ ...string) (*process.Process, int, error) {
	t.Helper()
	lanes := 0
	p, err := process.Load(process.Spec{
		Name:    "wiggle-some",
		Declare: func(r *settings.Registry) { r.Section("some"); r.Int(&lanes, "WIGGLE_SOME_LANES", 2, "How many.") },
		Check: func(t *topology.Topology) []process.Problem {
			if t == nil || lanes == 13 {
				return []process.Problem{{Message: "checked"}}
			}
			return nil
		},
	}, environ)
	return p, lanes, err
}

func TestLoad(t *testing.T) {
	t.Parallel()
	document := filepath.Join(t.TempDir(), "topology.json")
	text := `{"defaults":{"password":"${WIGGLE_OUR_SECRET}"},
		"generations":[{"id":1,"activeFrom":"2020-01-01T00:00:00Z","weights":{"0":1}}],
		"shards":[{"id":0,"state":"active","roles":["instances","home","auth"],"primary":{"url":"postgres://db/w"}}]}`
	if err := os.WriteFile(document, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	p, lanes, err := load(t,
		"WIGGLE_STORAGE_TOPOLOGY=/overwritten", "WIGGLE_STORAGE_TOPOLOGY="+document, "WIGGLE_OUR_SECRET=x", "WIGGLE_SOME_LANES=5",
		"WIGGLE_LOG_FORMAT=text", "WIGGLE_LOG_LEVEL=warn", "WIGGLE_METRICS_ADDR=:1", "WIGGLE_ROUTER_ADDR=:2", "WIGGLE_SERVER=http://x",
		"WIGGLE_CRASH_SEED=1", "HOME=/")
	if err != nil {
		t.Fatal(err)
	}
	if lanes != 5 || p.LogFormat != "text" || p.LogLevel.String() != "WARN" || p.MetricsAddr != ":1" || len(p.Topology.Shards) != 1 {
		t.Errorf("got %+v", p)
	}
}

func TestEveryProblemAtOnce(t *testing.T) { // OPS-2, SHD-17
	t.Parallel()
	_, _, err := load(t,
		"WIGGLE_COORD_X=1", "WIGGLE_REGION=eu", "WIGGLE_LOG_LEVEL=loud", "WIGGLE_SOME_LANES=many", "WIGGLE_SOME_LANE=1",
		"WIGGLE_ROUTER_ADR=x", "WIGGLE_STORAGE_TOPOLOGY={}")
	e, ok := errors.AsType[*process.ConfigError](err)
	if !ok {
		t.Fatalf("got %v", err)
	}
	text := e.Error() + "\n"
	for _, want := range []string{
		"\n  WIGGLE_COORD_X: is a setting of the coordinator", "\n  WIGGLE_REGION: is a setting of the coordinator",
		"\n  WIGGLE_LOG_LEVEL: is \"loud\"", "\n  WIGGLE_SOME_LANES: is \"many\"", "did you mean WIGGLE_SOME_LANES?\n",
		"did you mean WIGGLE_ROUTER_ADDR?\n", "document: has no shards", "\n  checked\n",
	} {
		if strings.Count(text, want) != 1 {
			t.Errorf("%q is not there once in\n%s", want, text)
		}
	}
	if !strings.HasPrefix(e.Problems[0].Where, "WIGGLE_COORD_X") {
		t.Errorf("removed settings do not come first:\n%s", text)
	}
	if _, _, err := load(t, database, "WIGGLE_SOME_LANES=13"); err == nil || !strings.HasSuffix(err.Error(), "\n  checked") {
		t.Errorf("got %v", err)
	}
}

// A URL with a password in it is refused, whether or not it is one, and not repeated.
func TestURLsWithPasswords(t *testing.T) {
	t.Parallel()
	const secret = "s3cr3t"
	for _, text := range []string{
		"http://u:" + secret + "@h:8420", "http://" + secret + "@h", "http://u:" + secret + "@h:port", "http://u:" + secret + "%zz@h", "x://u:" + secret + "@h",
	} {
		problems := process.CheckURLs("WIGGLE_ROUTER_URLS", "http://h:8420", text)
		if len(problems) != 1 || strings.Contains(problems[0].String(), secret) {
			t.Errorf("%s: %v", text, problems)
		}
	}
	if problems := process.CheckURLs("WIGGLE_ROUTER_URLS", "ftp://h"); len(problems) != 1 || !strings.Contains(problems[0].Message, "ftp://h") {
		t.Errorf("a harmless one: %v", problems)
	}
}

func TestRun(t *testing.T) { // SHD-16; not parallel: it signals the whole process
	ignored := make(chan os.Signal, 1) // a SIGHUP that comes before the process listens would end the test
	signal.Notify(ignored, syscall.SIGHUP)
	defer signal.Stop(ignored)
	p, _, err := load(t, database, "WIGGLE_LOG_LEVEL=error")
	if err != nil {
		t.Fatal(err)
	}
	mounted, applied := "", make(chan *topology.Topology, 1)
	ctx, stop := context.WithCancel(t.Context())
	err = p.Run(ctx, func(context.Context, process.Equipment) (process.Wiring, error) {
		return process.Wiring{
			Services: []lifecycle.Component{{Name: "some", Run: func(ctx context.Context) error {
				if again := hangUp(t, applied); len(again.Shards) != 1 {
					t.Errorf("read anew: %+v", again)
				}
				stop()
				<-ctx.Done()
				return nil
			}}},
			Mount: func(pattern string, _ http.Handler) { mounted = pattern },
			SetTopology: func(t *topology.Topology) error {
				select {
				case applied <- t:
				default: // one is enough
				}
				return nil
			},
		}, nil
	})
	if err != nil || mounted != "GET /metrics" {
		t.Errorf("mounted %q, %v", mounted, err)
	}
}

// hangUp sends SIGHUP until it is heard: the one who listens for it may just be starting.
func hangUp(t *testing.T, applied <-chan *topology.Topology) *topology.Topology {
	t.Helper()
	again := time.NewTicker(10 * time.Millisecond)
	defer again.Stop()
	for {
		select {
		case <-again.C:
			if err := syscall.Kill(os.Getpid(), syscall.SIGHUP); err != nil {
				t.Error(err)
			}
		case topo := <-applied:
			return topo
		}
	}
}

func TestMetricsOnAPortOfTheirOwn(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	p, _, err := load(t, database, "WIGGLE_LOG_LEVEL=error", "WIGGLE_METRICS_ADDR="+address)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	service := lifecycle.Component{Name: "some", Run: func(ctx context.Context) error {
		client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
		res, err := client.Get("http://" + address + "/metrics")
		if err != nil || res.StatusCode != http.StatusOK || res.Body.Close() != nil {
			t.Errorf("got %v, %v", res, err)
		}
		stop()
		<-ctx.Done()
		return nil
	}}
	wire := func(context.Context, process.Equipment) (process.Wiring, error) {
		return process.Wiring{Services: []lifecycle.Component{service}}, nil
	}
	if err := p.Run(ctx, wire); err == nil || !strings.Contains(err.Error(), "choose another address with WIGGLE_METRICS_ADDR") {
		t.Errorf("the port is taken: %v", err)
	}
	_ = l.Close()
	if err := p.Run(ctx, wire); err != nil {
		t.Error(err)
	}
}

func TestWhatFailsIsClosed(t *testing.T) {
	t.Parallel()
	p, _, err := load(t, database, "WIGGLE_LOG_LEVEL=error")
	if err != nil {
		t.Fatal(err)
	}
	var address string
	broken := errors.New("broken")
	err = p.Run(t.Context(), func(ctx context.Context, e process.Equipment) (process.Wiring, error) {
		l, err := p.Listen(ctx, "WIGGLE_SOME_ADDR", "127.0.0.1:0")
		if err != nil || e.Release == "" || e.Telemetry.MeterProvider == nil {
			t.Errorf("got %+v, %v", e, err)
			return process.Wiring{}, err
		}
		address = l.Addr().String()
		return process.Wiring{}, broken
	})
	if !errors.Is(err, broken) {
		t.Errorf("got %v", err)
	}
	if _, err := net.Dial("tcp", address); err == nil {
		t.Error("the port is still open")
	}
}

func TestServicesThatNeverRunAreClosed(t *testing.T) {
	t.Parallel()
	p, _, err := load(t, database, "WIGGLE_LOG_LEVEL=error")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ran, closed := false, false
	err = p.Run(ctx, func(context.Context, process.Equipment) (process.Wiring, error) {
		stop()
		return process.Wiring{
			Services: []lifecycle.Component{{Name: "some", Run: func(context.Context) error { ran = true; return nil }}},
			Mount:    func(string, http.Handler) {},
			Close:    func() { closed = true },
		}, nil
	})
	if err != nil || ran || !closed {
		t.Errorf("ran %v, closed %v, %v", ran, closed, err)
	}
}
