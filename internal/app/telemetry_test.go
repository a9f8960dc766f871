package app_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/wiggle-run/wiggle/internal/app"
	"github.com/wiggle-run/wiggle/internal/devstack"
	"github.com/wiggle-run/wiggle/internal/pgtest"
	"github.com/wiggle-run/wiggle/pkg/lifecycle"
	"github.com/wiggle-run/wiggle/pkg/postgres"
	"github.com/wiggle-run/wiggle/pkg/process"
	"github.com/wiggle-run/wiggle/pkg/rpc"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	"github.com/wiggle-run/wiggle/proto/gen/wiggle/v1/wigglev1connect"
	wiggle "github.com/wiggle-run/wiggle/sdk/go"
)

// collector is where a test's spans go.
type collector struct {
	mu    sync.Mutex
	spans []sdktrace.ReadOnlySpan
	more  chan struct{} // closed when there is one more
}

func newCollector() *collector { return &collector{more: make(chan struct{})} }

func (c *collector) OnStart(context.Context, sdktrace.ReadWriteSpan) {}
func (c *collector) Shutdown(context.Context) error                  { return nil }
func (c *collector) ForceFlush(context.Context) error                { return nil }

func (c *collector) OnEnd(s sdktrace.ReadOnlySpan) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.spans = append(c.spans, s)
	close(c.more)
	c.more = make(chan struct{})
}

// all are the spans of a trace; of every one, if it is zero.
func (c *collector) all(of trace.TraceID) (list []sdktrace.ReadOnlySpan, more <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range c.spans {
		if !of.IsValid() || s.SpanContext().TraceID() == of {
			list = append(list, s)
		}
	}
	return list, c.more
}

// await waits until the spans of a trace are as they should be.
func (c *collector) await(t *testing.T, of trace.TraceID, done func([]sdktrace.ReadOnlySpan) bool) []sdktrace.ReadOnlySpan {
	t.Helper()
	for {
		list, more := c.all(of)
		if done(list) {
			return list
		}
		select {
		case <-more:
		case <-t.Context().Done():
			t.Fatal("stopped")
		case <-time.After(time.Minute):
			t.Fatalf("spans are missing; there are:\n%s", strings.Join(lines(list), "\n"))
		}
	}
}

func (c *collector) provider(sampler sdktrace.Sampler) *sdktrace.TracerProvider {
	return sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(c), sdktrace.WithSampler(sampler))
}

// lines describe spans: kind, name and parent.
func lines(spans []sdktrace.ReadOnlySpan) []string {
	names := map[trace.SpanID]string{}
	for _, s := range spans {
		names[s.SpanContext().SpanID()] = s.Name()
	}
	list := make([]string, len(spans))
	for i, s := range spans {
		var links []string
		for _, l := range s.Links() {
			links = append(links, " -> "+names[l.SpanContext.SpanID()])
		}
		slices.Sort(links)
		list[i] = fmt.Sprintf("%s %s < %s%s", s.SpanKind(), s.Name(), names[s.Parent().SpanID()], strings.Join(links, ""))
	}
	slices.Sort(list)
	return slices.Compact(list)
}

func count(spans []sdktrace.ReadOnlySpan, name string) (n int) {
	for _, s := range spans {
		if s.Name() == name {
			n++
		}
	}
	return n
}

// traced is a cluster of all services in this process whose spans and figures a test sees.
type traced struct {
	*collector

	client   *wiggle.Client
	reader   *sdkmetric.ManualReader
	made     *sync.Map // instruments by name
	database string
	url      string
}

// startTraced starts the services, which make spans as the sampler says for what begins with them. Without an environment
// they have one database.
func startTraced(t *testing.T, root sdktrace.Sampler, environ ...string) *traced {
	t.Helper()
	nats, err := devstack.StartNATS(devstack.NATSConfig{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nats.Stop)
	c := &traced{collector: newCollector(), reader: sdkmetric.NewManualReader(), made: &sync.Map{}, database: pgtest.NewDatabase(t)}
	if len(environ) == 0 {
		environ = []string{"WIGGLE_DATABASE_URL=" + c.database}
	}
	s, err := app.Load(append(environ, "WIGGLE_NATS_URLS="+nats.URL(), "WIGGLE_GRACE=2s",
		"WIGGLE_AUTH_ADMIN_NAME="+adminName, "WIGGLE_AUTH_ADMIN_PASSWORD="+adminPassword))
	if err != nil {
		t.Fatal(err)
	}
	s.Topology = s.Process.Topology
	if s.Router.Listener, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	c.url = "http://" + s.Router.Listener.Addr().String()
	tracers := c.provider(sdktrace.ParentBased(root))
	note := func(i sdkmetric.Instrument) (sdkmetric.Stream, bool) {
		c.made.Store(i.Name, i)
		return sdkmetric.Stream{}, false
	}
	all, err := app.NewAll(s.Services, process.Equipment{
		Release: "test", Logger: slog.New(slog.DiscardHandler), Telemetry: rpc.Telemetry{
			TracerProvider: tracers,
			MeterProvider:  sdkmetric.NewMeterProvider(sdkmetric.WithReader(c.reader), sdkmetric.WithView(note)),
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	background(t, func(ctx context.Context) error { return lifecycle.Run(ctx, 5*time.Second, all.Components()...) })
	c.client, err = wiggle.Dial(c.url, wiggle.WithRetries(100, 20*time.Millisecond, 200*time.Millisecond),
		wiggle.WithTracerProvider(tracers), wiggle.WithAPIKey(signIn(t, c.url)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.client.Close)
	return c
}

const adminName, adminPassword = "admin", "correct horse battery"

// signIn begins a session of the administrator, who is made as the services start.
func signIn(t *testing.T, url string) string {
	t.Helper()
	nobody, err := wiggle.Dial(url, wiggle.WithAPIKey(""))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nobody.Close)
	auth := wigglev1connect.NewAuthServiceClient(nobody.Generated())
	look := time.NewTicker(20 * time.Millisecond)
	defer look.Stop()
	for {
		res, err := auth.SignIn(t.Context(), &wigglev1.SignInRequest{Name: adminName, Password: adminPassword})
		switch connect.CodeOf(err) {
		case connect.CodeUnavailable: // the auth shard is being opened
		default:
			if err != nil {
				t.Fatal(err)
			}
			return res.GetToken()
		}
		select {
		case <-look.C:
		case <-t.Context().Done():
			t.Fatal(t.Context().Err())
		}
	}
}

// background runs something until the test ends.
func background(t *testing.T, run func(ctx context.Context) error) {
	t.Helper()
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

var errDeclined = errors.New("declined")

// serveOrders registers the workflow of these tests and runs a worker for it. The card is declined once.
func (c *traced) serveOrders(t *testing.T) {
	t.Helper()
	order := wiggle.Define("order", func(f *wiggle.Flow) {
		f.Task("reserve")
		f.Sleep(20 * time.Millisecond)
		f.Task("charge", wiggle.Retry(3, time.Millisecond))
	})
	if _, err := c.client.Register(t.Context(), order); err != nil {
		t.Fatal(err)
	}
	w := wiggle.NewWorker(c.client, wiggle.WorkerOptions{Name: "w", Logger: slog.New(slog.DiscardHandler)})
	wiggle.HandleTask(w, "reserve", func(_ context.Context, in int) (int, error) { return in + 1, nil })
	wiggle.HandleTask(w, "charge", func(ctx context.Context, in int) (int, error) {
		if wiggle.TaskFrom(ctx).Attempt == 1 {
			return 0, errDeclined
		}
		return in + 1, nil
	})
	background(t, w.Run)
}

// run runs an order to its end, and until search finds it so.
func (c *traced) run(t *testing.T, ctx context.Context) string { //nolint:revive // the context is what the test is about
	t.Helper()
	run, err := c.client.Start(ctx, "order", 1)
	if err != nil {
		t.Fatal(err)
	}
	ended, err := run.Wait(t.Context())
	if err != nil || ended.State != wiggle.Completed {
		t.Fatalf("ended as %+v, %v", ended, err)
	}
	look := time.NewTicker(20 * time.Millisecond)
	defer look.Stop()
	for {
		found, err := c.client.SearchFacets(t.Context(), "", wiggle.SearchFilter{
			Workflows: []string{"order"}, States: []wiggle.State{wiggle.Completed}, CreatedFrom: time.Unix(0, 0),
		})
		if err == nil && found.Total > 0 {
			return run.ID
		}
		select {
		case <-look.C:
		case <-t.Context().Done():
			t.Fatal("stopped")
		}
	}
}

// stored counts the rows that hold a trace.
func (c *traced) stored(t *testing.T, sql string) (n int) {
	t.Helper()
	pool, err := postgres.Open(t.Context(), postgres.MemberConfig{Name: "test", URL: c.database})
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	if err := pool.QueryRow(t.Context(), sql).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// TestOneTrace follows an order from its caller to the search index.
func TestOneTrace(t *testing.T) { //nolint:tparallel // OPS-10; the second part counts on what the first has left
	t.Parallel()
	c := startTraced(t, sdktrace.NeverSample())
	c.serveOrders(t)
	const holds = `select (select count(*) from instances where trace is not null) + (select count(*) from events where trace is not null)`

	t.Run("unsampled", func(t *testing.T) {
		ctx, span := c.provider(sdktrace.NeverSample()).Tracer("test").Start(t.Context(), "shop")
		c.run(t, ctx)
		span.End()
		if spans, _ := c.all(trace.TraceID{}); len(spans) > 0 {
			t.Errorf("nothing is sampled, and yet there are spans:\n%s", strings.Join(lines(spans), "\n"))
		}
		if n := c.stored(t, holds); n > 0 {
			t.Errorf("%d rows hold the trace of what is not sampled", n)
		}
	})

	t.Run("sampled", func(t *testing.T) {
		ctx, root := c.provider(sdktrace.AlwaysSample()).Tracer("test").Start(t.Context(), "shop")
		id := c.run(t, ctx)
		root.End()
		spans := c.await(t, root.SpanContext().TraceID(), func(list []sdktrace.ReadOnlySpan) bool {
			indexed := 0
			for _, s := range list {
				if s.Name() == "process wiggle.events" {
					indexed += 1 + len(s.Links())
				}
			}
			return indexed >= 2 && count(list, "task.report") == 2 && count(list, "shop") == 1
		})
		checkTree(t, spans, id)
		all, _ := c.all(trace.TraceID{})
		for _, s := range all {
			if s.SpanContext().TraceID() != root.SpanContext().TraceID() {
				t.Errorf("span %s is in another trace", s.Name())
			}
		}
		if n := c.stored(t, holds); n != 3 {
			t.Errorf("%d rows hold the trace, want the instance and two events", n)
		}
	})
}

// checkTree holds the spans of an order against what they should be.
func checkTree(t *testing.T, spans []sdktrace.ReadOnlySpan, id string) {
	t.Helper()
	const sql = "client BATCH shard 0 primary < "
	got := lines(spans)
	for _, want := range []string{
		"internal shop < ",
		"client start order < shop",
		"server wiggle.v1.InstanceService/StartInstance < start order",
		"internal shard.commit < instance.start",
		"consumer step reserve < start order -> instance.start",
		"internal task.report < step reserve",
		"internal timer.wake < start order",
		"consumer step charge < start order -> timer.wake",
		"internal task.fail < step charge",
		"internal task.report < step charge",
		"internal shard.commit < task.report",
		"internal shard.commit < task.fail",
		"internal shard.commit < timer.wake",
		"producer send wiggle.events < instance.start",
		"producer send wiggle.events < task.report",
		sql + "shard.commit",
		"client WITH shard 0 primary < process wiggle.events",
	} {
		if !slices.Contains(got, want) {
			t.Errorf("%q is not among the spans", want)
		}
	}
	// Which call of the router's a start goes on with, and whether both events came together, is not what this is about.
	for _, part := range []string{"internal instance.start < wiggle.v1.InstanceService/", "consumer process wiggle.events < send wiggle.events"} {
		if !slices.ContainsFunc(got, func(line string) bool { return strings.HasPrefix(line, part) }) {
			t.Errorf("no span is %q", part)
		}
	}
	for _, s := range spans {
		of := map[string]string{}
		for _, a := range s.Attributes() {
			of[string(a.Key)] = a.Value.String()
		}
		switch name := s.Name(); {
		case strings.HasPrefix(name, "step "), strings.HasPrefix(name, "task."), name == "instance.start", name == "timer.wake",
			strings.HasSuffix(name, " wiggle.events"):
			if of["wiggle.instance.id"] != id || of["wiggle.workflow"] != "order" {
				t.Errorf("%s is about %s of %s", name, of["wiggle.instance.id"], of["wiggle.workflow"])
			}
			if strings.HasPrefix(name, "task.") && (of["wiggle.node"] == "" || of["wiggle.attempt"] == "" || of["wiggle.batch.size"] == "" || of["wiggle.shard"] != "0") {
				t.Errorf("%s has %v", name, of)
			}
		case strings.HasPrefix(name, "BATCH"):
			if of["db.system.name"] != "postgresql" || of["db.query.text"] == "" {
				t.Errorf("%s has %v", name, of)
			}
		}
	}
	if t.Failed() {
		t.Logf("the spans are:\n%s", strings.Join(got, "\n"))
	}
}
