package rpc_test

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"connectrpc.com/connect"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/wiggle-run/wiggle/pkg/faults"
	"github.com/wiggle-run/wiggle/pkg/rpc"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	"github.com/wiggle-run/wiggle/proto/gen/wiggle/v1/wigglev1connect"
	internalv1 "github.com/wiggle-run/wiggle/proto/gen/wiggleinternal/v1"
)

func TestOneTraceOverTheCall(t *testing.T) {
	t.Parallel()
	spans := tracetest.NewSpanRecorder()
	tracers := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans))
	reader := sdkmetric.NewManualReader()
	telemetry := rpc.Telemetry{
		TracerProvider: tracers, MeterProvider: sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader)),
	}
	seen := make(chan trace.SpanContext, 1)
	f := start(t, workers{poll: func(
		ctx context.Context, _ *wigglev1.PollTasksRequest,
	) (*wigglev1.PollTasksResponse, error) {
		seen <- trace.SpanContextFromContext(ctx)
		return nil, faults.LeaseLost("t")
	}}, shards{}, func(cfg *rpc.ServerConfig) { cfg.Telemetry = telemetry })
	options, err := rpc.NewClientOptions(rpc.ClientConfig{Telemetry: telemetry})
	must(t, err)
	client := wigglev1connect.NewWorkerServiceClient(f.http, f.network.URL(serverName), options...)
	ctx, root := tracers.Tracer("test").Start(t.Context(), "root")
	if _, err := client.PollTasks(ctx, &wigglev1.PollTasksRequest{Worker: "w"}); !errors.Is(err, faults.ErrLeaseLost) {
		t.Errorf("got %v", err)
	}
	root.End()
	if got := <-seen; got.TraceID() != root.SpanContext().TraceID() {
		t.Error("the handler is in another trace")
	}
	ended := spans.Ended()
	if len(ended) != 3 || ended[0].SpanKind() != trace.SpanKindServer || ended[0].Parent().SpanID() !=
		ended[1].SpanContext().SpanID() {
		t.Errorf("spans: %v", ended)
	}
	var metrics metricdata.ResourceMetrics
	must(t, reader.Collect(t.Context(), &metrics))
	names := map[string]bool{}
	for _, scope := range metrics.ScopeMetrics {
		for _, m := range scope.Metrics {
			names[m.Name] = true
		}
	}
	if !names["rpc.server.duration"] || !names["rpc.client.duration"] {
		t.Errorf("metrics: %v", names)
	}
}

// A service that passes an internal error on hides it under the same reference, and does not log it again.
func TestInternalErrorsOverTwoHops(t *testing.T) {
	t.Parallel()
	back := start(t, workers{poll: func(
		context.Context, *wigglev1.PollTasksRequest,
	) (*wigglev1.PollTasksResponse, error) {
		return nil, errors.New("relation token")
	}}, shards{}, nil)
	front := start(t, workers{poll: func(
		ctx context.Context, req *wigglev1.PollTasksRequest,
	) (*wigglev1.PollTasksResponse, error) {
		return back.workers.PollTasks(ctx, req)
	}}, shards{}, nil)
	_, err := front.workers.PollTasks(t.Context(), &wigglev1.PollTasksRequest{Worker: "w"})
	fault, ok := errors.AsType[*faults.Error](err)
	if !ok || !strings.Contains(back.logs.String(), fault.ReferenceID()) || strings.Contains(err.Error(), "token") {
		t.Errorf("got %v", err)
	}
	if front.logs.String() != "" {
		t.Errorf("the second log: %s", front.logs)
	}
}

// Every call that a handler has begun is answered, however many there are when the server goes down (OPS-4).
func TestShutdownUnderLoad(t *testing.T) {
	t.Parallel()
	var begun, answered atomic.Int64
	busy := make(chan struct{}, 1)
	f := start(t, workers{poll: func(
		context.Context, *wigglev1.PollTasksRequest,
	) (*wigglev1.PollTasksResponse, error) {
		if begun.Add(1) == 500 {
			busy <- struct{}{}
		}
		return &wigglev1.PollTasksResponse{}, nil
	}}, shards{}, nil)
	var callers sync.WaitGroup
	for range 16 {
		callers.Go(func() {
			for {
				_, err := f.workers.PollTasks(t.Context(), &wigglev1.PollTasksRequest{Worker: "w"})
				if err != nil {
					if !errors.Is(err, faults.ErrUnavailable) {
						t.Errorf("got %v", err)
					}
					return
				}
				answered.Add(1)
			}
		})
	}
	<-busy
	must(t, f.server.Shutdown(t.Context()))
	callers.Wait()
	if begun.Load() != answered.Load() {
		t.Errorf("%d calls were begun, %d answered", begun.Load(), answered.Load())
	}
	if f.server.InFlight() != 0 {
		t.Errorf("%d calls are under way", f.server.InFlight())
	}
}

func TestStreamsThroughTheStack(t *testing.T) {
	t.Parallel()
	f := start(t, workers{}, shards{watch: func(
		ctx context.Context, _ *connect.ServerStream[internalv1.WatchWorkResponse],
	) error {
		if shard, ok := rpc.ShardFromContext(ctx); ok {
			return faults.ShardUnknown(shard)
		}
		panic("db7.internal")
	}}, nil)
	for _, c := range []struct {
		ctx  context.Context
		want error
	}{{t.Context(), faults.ErrInternal}, {rpc.WithShard(t.Context(), 9), faults.ErrShardUnknown}} {
		stream, err := f.shards.WatchWork(c.ctx, &internalv1.WatchWorkRequest{})
		must(t, err)
		if stream.Receive() || !errors.Is(stream.Err(), c.want) || strings.Contains(stream.Err().Error(), "db7.internal") {
			t.Errorf("got %v", stream.Err())
		}
		_ = stream.Close()
	}
}

func TestPeerRelease(t *testing.T) {
	t.Parallel()
	f := start(t, workers{poll: func(
		context.Context, *wigglev1.PollTasksRequest,
	) (*wigglev1.PollTasksResponse, error) {
		return &wigglev1.PollTasksResponse{}, nil
	}}, shards{}, nil)
	var got string
	options, err := rpc.NewClientOptions(rpc.ClientConfig{PeerRelease: func(peer, release string) { got = peer + " " + release }})
	must(t, err)
	client := wigglev1connect.NewWorkerServiceClient(f.http, f.network.URL(serverName), options...)
	_, err = client.PollTasks(t.Context(), &wigglev1.PollTasksRequest{Worker: "w"})
	must(t, err)
	if got != serverName+" 1.2.3" {
		t.Errorf("got %q", got)
	}
}

func TestTLS(t *testing.T) {
	t.Parallel()
	lent := httptest.NewTLSServer(http.NotFoundHandler()) // for its certificate
	defer lent.Close()
	server, err := rpc.NewServer(rpc.ServerConfig{TLS: &tls.Config{
		Certificates: lent.TLS.Certificates, MinVersion: tls.VersionTLS13,
	}})
	must(t, err)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	transport, ok := lent.Client().Transport.(*http.Transport)
	if !ok {
		t.Fatal("no transport")
	}
	client := rpc.NewHTTPClient(rpc.ClientConfig{TLS: &tls.Config{
		RootCAs: transport.TLSClientConfig.RootCAs, MinVersion: tls.VersionTLS13,
	}})
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+listener.Addr().String()+"/healthz", nil)
	must(t, err)
	res, err := client.Do(req)
	must(t, err)
	must(t, res.Body.Close())
	if res.ProtoMajor != 2 {
		t.Errorf("over %s", res.Proto)
	}
	client.CloseIdleConnections()
	must(t, server.Shutdown(t.Context()))
	must(t, <-served)
}

func TestSizedMessagesOverMemory(t *testing.T) {
	t.Parallel()
	f := start(t, workers{poll: func(
		_ context.Context, req *wigglev1.PollTasksRequest,
	) (*wigglev1.PollTasksResponse, error) {
		return &wigglev1.PollTasksResponse{Tasks: []*wigglev1.Task{{Node: strings.Join(req.GetQueues(), "")}}}, nil
	}}, shards{}, nil)
	for _, size := range []int{0, 1, 100_000, 3 << 20} {
		res, err := f.workers.PollTasks(t.Context(), &wigglev1.PollTasksRequest{
			Worker: "w", Queues: []string{strings.Repeat("x", size)},
		})
		must(t, err)
		if got := len(res.GetTasks()[0].GetNode()); got != size {
			t.Errorf("%d bytes came as %d", size, got)
		}
	}
}

func BenchmarkCallOverMemory(b *testing.B) {
	validator, err := rpc.NewValidator()
	if err != nil {
		b.Fatal(err)
	}
	network := rpc.NewMemoryNetwork()
	server, err := rpc.NewServer(rpc.ServerConfig{Validator: validator, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		b.Fatal(err)
	}
	server.Mount(wigglev1connect.NewWorkerServiceHandler(workers{poll: func(
		context.Context, *wigglev1.PollTasksRequest,
	) (*wigglev1.PollTasksResponse, error) {
		return &wigglev1.PollTasksResponse{}, nil
	}}, server.Options()...))
	listener, err := network.Listen(serverName)
	if err != nil {
		b.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	cfg := rpc.ClientConfig{DialContext: network.DialContext}
	options, err := rpc.NewClientOptions(cfg)
	if err != nil {
		b.Fatal(err)
	}
	httpClient := rpc.NewHTTPClient(cfg)
	client := wigglev1connect.NewWorkerServiceClient(httpClient, network.URL(serverName), options...)
	b.ReportAllocs()
	b.SetParallelism(16)
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if _, err := client.PollTasks(b.Context(), &wigglev1.PollTasksRequest{Worker: "w"}); err != nil {
				b.Error(err)
			}
		}
	})
	b.StopTimer()
	httpClient.CloseIdleConnections()
	_ = server.Close()
	<-served
}

// TestConnectionDropped: a service whose connection is dropped does not answer; nobody has cancelled the call.
func TestConnectionDropped(t *testing.T) {
	t.Parallel()
	for _, errno := range []syscall.Errno{syscall.EPIPE, syscall.ECONNRESET} {
		dropped := connect.NewError(connect.CodeCanceled, &net.OpError{Op: "write", Net: "tcp", Err: os.NewSyscallError("write", errno)})
		if got := rpc.FromConnect(dropped); got.Code() != faults.CodeUnavailable {
			t.Errorf("%v: %v", errno, got)
		}
	}
	if got := rpc.FromConnect(connect.NewError(connect.CodeCanceled, context.Canceled)); got.Code() != faults.CodeCanceled {
		t.Errorf("a call that was cancelled: %v", got)
	}
}
