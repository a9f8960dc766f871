package rpc_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"
	"connectrpc.com/grpchealth"
	"connectrpc.com/grpcreflect"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/wiggle-run/wiggle/pkg/faults"
	"github.com/wiggle-run/wiggle/pkg/rpc"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	"github.com/wiggle-run/wiggle/proto/gen/wiggle/v1/wigglev1connect"
	internalv1 "github.com/wiggle-run/wiggle/proto/gen/wiggleinternal/v1"
	"github.com/wiggle-run/wiggle/proto/gen/wiggleinternal/v1/wiggleinternalv1connect"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// workers is a WorkerService whose poll is the test's.
type workers struct {
	wigglev1connect.UnimplementedWorkerServiceHandler

	poll   func(context.Context, *wigglev1.PollTasksRequest) (*wigglev1.PollTasksResponse, error)
	report func(context.Context, *wigglev1.ReportStepsRequest) (*wigglev1.ReportStepsResponse, error)
}

func (w workers) PollTasks(
	ctx context.Context, req *wigglev1.PollTasksRequest,
) (*wigglev1.PollTasksResponse, error) {
	return w.poll(ctx, req)
}

func (w workers) ReportSteps(
	ctx context.Context, req *wigglev1.ReportStepsRequest,
) (*wigglev1.ReportStepsResponse, error) {
	return w.report(ctx, req)
}

// shards is a ShardService whose watch is the test's.
type shards struct {
	wiggleinternalv1connect.UnimplementedShardServiceHandler

	watch func(context.Context, *connect.ServerStream[internalv1.WatchWorkResponse]) error
}

func (s shards) WatchWork(
	ctx context.Context, _ *internalv1.WatchWorkRequest, stream *connect.ServerStream[internalv1.WatchWorkResponse],
) error {
	return s.watch(ctx, stream)
}

// fixture is a server on a memory network with clients for it.
type fixture struct {
	network *rpc.MemoryNetwork
	server  *rpc.Server
	http    *http.Client
	workers wigglev1connect.WorkerServiceClient
	shards  wiggleinternalv1connect.ShardServiceClient
	logs    *syncBuffer
}

const serverName = "instances-0.mem"

func start(t *testing.T, w workers, s shards, change func(*rpc.ServerConfig), options ...connect.ClientOption) fixture {
	t.Helper()
	f := fixture{network: rpc.NewMemoryNetwork(), logs: &syncBuffer{}}
	validator, err := rpc.NewValidator()
	must(t, err)
	cfg := rpc.ServerConfig{
		Logger: slog.New(slog.NewTextHandler(f.logs, nil)), Validator: validator, Release: "1.2.3",
	}
	if change != nil {
		change(&cfg)
	}
	f.server, err = rpc.NewServer(cfg)
	must(t, err)
	f.server.Mount(wigglev1connect.NewWorkerServiceHandler(w, f.server.Options()...))
	f.server.Mount(wiggleinternalv1connect.NewShardServiceHandler(s, f.server.Options()...))
	listener, err := f.network.Listen(serverName)
	must(t, err)
	served := make(chan error, 1)
	go func() { served <- f.server.Serve(listener) }()

	clientConfig := rpc.ClientConfig{DialContext: f.network.DialContext, Release: "1.2.2"}
	f.http = rpc.NewHTTPClient(clientConfig)
	own, err := rpc.NewClientOptions(clientConfig)
	must(t, err)
	options = append(own, options...)
	f.workers = wigglev1connect.NewWorkerServiceClient(f.http, f.network.URL(serverName), options...)
	f.shards = wiggleinternalv1connect.NewShardServiceClient(f.http, f.network.URL(serverName), options...)
	t.Cleanup(func() {
		f.http.CloseIdleConnections()
		_ = f.server.Close()
		if err := <-served; err != nil {
			t.Errorf("serve: %v", err)
		}
	})
	return f
}

func TestCallOverEveryProtocol(t *testing.T) {
	t.Parallel()
	for name, option := range map[string]connect.ClientOption{
		"connect": connect.WithClientOptions(), "grpc": connect.WithGRPC(), "grpc-web": connect.WithGRPCWeb(),
		"json": connect.WithCodec(rpc.NewClientJSONCodec(rpc.NewPayloads())),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := start(t, workers{poll: func(
				ctx context.Context, req *wigglev1.PollTasksRequest,
			) (*wigglev1.PollTasksResponse, error) {
				if req.GetWorker() == "lost" {
					return nil, fmt.Errorf("poll: %w", faults.LeaseLost("t1"))
				}
				shard, ok := rpc.ShardFromContext(ctx)
				release, _ := rpc.ReleaseFromContext(ctx)
				return &wigglev1.PollTasksResponse{Tasks: []*wigglev1.Task{{
					Id: fmt.Sprintf("%d %t %s", shard, ok, release), Context: &wigglev1.Payload{Data: []byte(`{"n": 9007199254740993}`)},
				}}}, nil
			}}, shards{watch: func(
				_ context.Context, stream *connect.ServerStream[internalv1.WatchWorkResponse],
			) error {
				if err := stream.Send(&internalv1.WatchWorkResponse{}); err != nil {
					return err
				}
				return faults.ShardUnavailable(4, time.Second)
			}}, nil, option)

			res, err := f.workers.PollTasks(rpc.WithShard(t.Context(), 3), &wigglev1.PollTasksRequest{Worker: "w"})
			must(t, err)
			if got := res.GetTasks()[0].GetId(); got != "3 true 1.2.2" {
				t.Errorf("handler saw %q", got)
			}
			if got := string(res.GetTasks()[0].GetContext().GetData()); !strings.Contains(got, "9007199254740993") {
				t.Errorf("payload came as %q", got)
			}
			res, err = f.workers.PollTasks(t.Context(), &wigglev1.PollTasksRequest{Worker: "w"})
			must(t, err)
			if got := res.GetTasks()[0].GetId(); got != "0 false 1.2.2" {
				t.Errorf("handler without a shard saw %q", got)
			}
			if _, err = f.workers.PollTasks(t.Context(), &wigglev1.PollTasksRequest{Worker: "lost"}); !errors.Is(
				err, faults.ErrLeaseLost) {
				t.Errorf("got %v", err)
			}
			_, err = f.workers.PollTasks(t.Context(), &wigglev1.PollTasksRequest{MaxTasks: -1})
			fault, _ := errors.AsType[*faults.Error](err)
			if problems := fault.ToProto().GetInvalid().GetProblems(); len(problems) != 2 ||
				problems[0].GetWhere() != "worker" || problems[1].GetWhere() != "max_tasks" {
				t.Errorf("got %v", fault.ToProto())
			}

			stream, err := f.shards.WatchWork(t.Context(), &internalv1.WatchWorkRequest{})
			must(t, err)
			if !stream.Receive() || stream.Receive() {
				t.Errorf("want one message, got %v", stream.Err())
			}
			if !errors.Is(stream.Err(), faults.ErrShardUnavailable) {
				t.Errorf("got %v", stream.Err())
			}
			must(t, stream.Close())
		})
	}
}

func TestStreamThatEndsWell(t *testing.T) {
	t.Parallel()
	f := start(t, workers{}, shards{watch: func(
		_ context.Context, stream *connect.ServerStream[internalv1.WatchWorkResponse],
	) error {
		return stream.Send(&internalv1.WatchWorkResponse{})
	}}, nil)
	stream, err := f.shards.WatchWork(t.Context(), &internalv1.WatchWorkRequest{})
	must(t, err)
	if !stream.Receive() || stream.Receive() || stream.Err() != nil {
		t.Errorf("want one message and no error, got %v", stream.Err())
	}
	must(t, stream.Close())
}

func TestInternalErrorsAreHidden(t *testing.T) {
	t.Parallel()
	f := start(t, workers{poll: func(
		_ context.Context, req *wigglev1.PollTasksRequest,
	) (*wigglev1.PollTasksResponse, error) {
		if req.GetWorker() == "panic" {
			panic("relation \"token\" on db7.internal")
		}
		return nil, errors.New("relation \"token\" on db7.internal")
	}}, shards{}, nil)
	for _, worker := range []string{"panic", "error"} {
		_, err := f.workers.PollTasks(t.Context(), &wigglev1.PollTasksRequest{Worker: worker})
		fault, ok := errors.AsType[*faults.Error](err)
		if !ok || fault.Code() != faults.CodeInternal || fault.ReferenceID() == "" {
			t.Fatalf("got %v", err)
		}
		if strings.Contains(fault.ToProto().String(), "token") || strings.Contains(err.Error(), "db7.internal") {
			t.Errorf("the client learns %v", fault.ToProto())
		}
		if logs := f.logs.String(); !strings.Contains(logs, fault.ReferenceID()) || !strings.Contains(logs, "db7.internal") ||
			!strings.Contains(logs, "level=WARN") {
			t.Errorf("log: %s", logs)
		}
	}
	if !strings.Contains(f.logs.String(), "server_test.go") {
		t.Error("the log has no stack")
	}
}

func TestTransportErrorsNameNoHost(t *testing.T) {
	t.Parallel()
	f := start(t, workers{}, shards{}, nil)
	f.network.Partition(rpc.AnyName, serverName, rpc.Refused)
	_, err := f.workers.PollTasks(t.Context(), &wigglev1.PollTasksRequest{Worker: "w"})
	if !errors.Is(err, faults.ErrUnavailable) || strings.Contains(err.Error(), serverName) {
		t.Errorf("got %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := f.workers.PollTasks(ctx, &wigglev1.PollTasksRequest{}); !errors.Is(err, faults.ErrCanceled) {
		t.Errorf("got %v", err)
	}
}

func TestMalformedShardHeader(t *testing.T) {
	t.Parallel()
	f := start(t, workers{}, shards{}, nil)
	for _, value := range []string{"", "-1", "+1", "01", "1 ", "2147483648", "x"} {
		body := strings.NewReader(`{"worker":"w"}`)
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost,
			f.network.URL(serverName)+wigglev1connect.WorkerServicePollTasksProcedure, body)
		must(t, err)
		req.Header.Set("Content-Type", "application/json")
		req.Header[rpc.ShardHeader] = []string{value}
		status, text := do(t, f.http, req)
		if value != "1 " && status != http.StatusBadRequest { // HTTP itself drops spaces around a value
			t.Errorf("%q: got %d %s", value, status, text)
		}
	}
}

func TestPayloadsOverPlainJSON(t *testing.T) {
	t.Parallel()
	var got *wigglev1.ReportStepsRequest
	f := start(t, workers{report: func(
		_ context.Context, req *wigglev1.ReportStepsRequest,
	) (*wigglev1.ReportStepsResponse, error) {
		got = req
		return &wigglev1.ReportStepsResponse{}, nil
	}}, shards{}, nil)
	post := func(contentType, body string) (int, string) {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost,
			f.network.URL(serverName)+wigglev1connect.WorkerServiceReportStepsProcedure, strings.NewReader(body))
		must(t, err)
		req.Header.Set("Content-Type", contentType)
		return do(t, f.http, req)
	}
	for _, contentType := range []string{"application/json", "application/json; charset=utf-8"} {
		status, text := post(contentType, `{"worker":"w","reports":[{"taskId":"t","result":{"json":{"a": 1e400}}}]}`)
		if status != http.StatusOK {
			t.Fatalf("%s: %d %s", contentType, status, text)
		}
		if data := string(got.GetReports()[0].GetResult().GetData()); data != `{"a":1e400}` {
			t.Errorf("handler saw %q", data)
		}
	}
	status, text := post("application/json", `{"worker":"w","wroker":"w"}`)
	if status != http.StatusBadRequest || !strings.Contains(text, `wroker`) {
		t.Errorf("got %d %s", status, text)
	}
	// A binary client that fills json is normalised, too.
	_, err := f.workers.ReportSteps(t.Context(), &wigglev1.ReportStepsRequest{
		Worker: "w", Reports: []*wigglev1.StepReport{{Outcome: &wigglev1.StepReport_Result{
			Result: &wigglev1.Payload{Json: structpb.NewStringValue("x")},
		}}},
	})
	must(t, err)
	if data := string(got.GetReports()[0].GetResult().GetData()); data != `"x"` {
		t.Errorf("handler saw %q", data)
	}
}

func TestHealthReflectionReadiness(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	missing := []string{"shard 1: the database does not answer"}
	f := start(t, workers{}, shards{}, func(cfg *rpc.ServerConfig) {
		cfg.Ready = func(context.Context) []string {
			mu.Lock()
			defer mu.Unlock()
			return missing
		}
	})
	get := func(path string) (int, string) {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, f.network.URL(serverName)+path, nil)
		must(t, err)
		return do(t, f.http, req)
	}
	if status, text := get("/healthz"); status != http.StatusOK {
		t.Errorf("healthz: %d %s", status, text)
	}
	if status, text := get("/readyz"); status != http.StatusServiceUnavailable || !strings.Contains(text, missing[0]) {
		t.Errorf("readyz: %d %s", status, text)
	}
	mu.Lock()
	missing = nil
	mu.Unlock()
	if status, text := get("/readyz"); status != http.StatusOK {
		t.Errorf("readyz: %d %s", status, text)
	}

	f.server.Health().Set(rpc.HealthOfShard(3), false)
	health := grpchealth.NewClient(f.http, f.network.URL(serverName), connect.WithGRPC())
	for name, want := range map[string]grpchealth.Status{
		"": grpchealth.StatusServing, wigglev1connect.WorkerServiceName: grpchealth.StatusServing,
		"shard/3": grpchealth.StatusNotServing,
	} {
		res, err := health.Check(t.Context(), &grpchealth.CheckRequest{Service: name})
		must(t, err)
		if res.Status != want {
			t.Errorf("health of %q is %v", name, res.Status)
		}
	}
	if _, err := health.Check(t.Context(), &grpchealth.CheckRequest{Service: "shard/9"}); connect.CodeOf(err) !=
		connect.CodeNotFound {
		t.Errorf("got %v", err)
	}
	reflect := grpcreflect.NewClient(f.http, f.network.URL(serverName), connect.WithGRPC())
	stream := reflect.NewStream(t.Context())
	names, err := stream.ListServices()
	must(t, err)
	if _, err := stream.Close(); err != nil {
		t.Error(err)
	}
	if len(names) != 3 {
		t.Errorf("reflection lists %v", names)
	}

	f.server.Drain()
	if status, text := get("/readyz"); status != http.StatusServiceUnavailable || !strings.Contains(text, "draining") {
		t.Errorf("readyz: %d %s", status, text)
	}
}

func TestShutdownWaitsForCalls(t *testing.T) {
	t.Parallel()
	entered := make(chan struct{})
	f := start(t, workers{poll: func(
		ctx context.Context, _ *wigglev1.PollTasksRequest,
	) (*wigglev1.PollTasksResponse, error) {
		close(entered)
		<-rpc.Draining(ctx) // a long poll answers what it has
		return &wigglev1.PollTasksResponse{Tasks: []*wigglev1.Task{{Id: "last"}}}, nil
	}}, shards{}, nil)
	type answer struct {
		res *wigglev1.PollTasksResponse
		err error
	}
	answers := make(chan answer, 1)
	go func() {
		res, err := f.workers.PollTasks(t.Context(), &wigglev1.PollTasksRequest{Worker: "w"})
		answers <- answer{res, err}
	}()
	<-entered
	must(t, f.server.Shutdown(t.Context()))
	got := <-answers
	must(t, got.err)
	if got.res.GetTasks()[0].GetId() != "last" {
		t.Errorf("got %v", got.res)
	}
	if _, err := f.workers.PollTasks(t.Context(), &wigglev1.PollTasksRequest{Worker: "w"}); !errors.Is(
		err, faults.ErrUnavailable) {
		t.Errorf("got %v", err)
	}
}

func TestShutdownCutsWhatDoesNotEnd(t *testing.T) {
	t.Parallel()
	entered, left := make(chan struct{}), make(chan struct{})
	f := start(t, workers{poll: func(
		ctx context.Context, _ *wigglev1.PollTasksRequest,
	) (*wigglev1.PollTasksResponse, error) {
		close(entered)
		<-ctx.Done()
		close(left)
		return nil, ctx.Err()
	}}, shards{}, nil)
	answers := make(chan error, 1)
	go func() {
		_, err := f.workers.PollTasks(t.Context(), &wigglev1.PollTasksRequest{Worker: "w"})
		answers <- err
	}()
	<-entered
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := f.server.Shutdown(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	<-left
	if err := <-answers; !errors.Is(err, faults.ErrUnavailable) {
		t.Errorf("got %v", err)
	}
}

func TestWatchOfHealthEndsWithTheServer(t *testing.T) {
	t.Parallel()
	f := start(t, workers{}, shards{}, nil)
	client := connect.NewClient[structpb.Struct, structpb.Struct](f.http,
		f.network.URL(serverName)+"/grpc.health.v1.Health/Watch", connect.WithGRPC())
	stream, err := client.CallServerStream(t.Context(), connect.NewRequest(&structpb.Struct{}))
	must(t, err)
	if !stream.Receive() {
		t.Fatal(stream.Err())
	}
	must(t, f.server.Shutdown(t.Context()))
	for stream.Receive() { // NOT_SERVING, perhaps
	}
	_ = stream.Close()
}

func TestCORS(t *testing.T) {
	t.Parallel()
	preflight := func(f fixture) http.Header {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodOptions,
			f.network.URL(serverName)+wigglev1connect.WorkerServicePollTasksProcedure, nil)
		must(t, err)
		req.Header.Set("Origin", "https://ops.example.com")
		req.Header.Set("Access-Control-Request-Method", http.MethodPost)
		req.Header.Set("Access-Control-Request-Headers", "content-type")
		res, err := f.http.Do(req)
		must(t, err)
		must(t, res.Body.Close())
		return res.Header
	}
	if got := preflight(start(t, workers{}, shards{}, nil)).Get("Access-Control-Allow-Origin"); got != "" {
		t.Errorf("without origins: %q", got)
	}
	with := start(t, workers{}, shards{}, func(cfg *rpc.ServerConfig) {
		cfg.CORSOrigins = []string{"https://ops.example.com"}
	})
	if got := preflight(with).Get("Access-Control-Allow-Origin"); got != "https://ops.example.com" {
		t.Errorf("with origins: %q", got)
	}
}

func TestTCPOverBothVersionsOfHTTP(t *testing.T) {
	t.Parallel()
	server, err := rpc.NewServer(rpc.ServerConfig{})
	must(t, err)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	one := &http.Transport{}
	two := rpc.NewHTTPClient(rpc.ClientConfig{Connections: 2})
	for major, client := range map[int]*http.Client{1: {Transport: one}, 2: two} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+listener.Addr().String()+"/healthz", nil)
		must(t, err)
		res, err := client.Do(req)
		must(t, err)
		must(t, res.Body.Close())
		if res.ProtoMajor != major || res.StatusCode != http.StatusOK {
			t.Errorf("got %s over %s, want major version %d", res.Status, res.Proto, major)
		}
	}
	one.CloseIdleConnections()
	two.CloseIdleConnections()
	must(t, server.Shutdown(t.Context()))
	must(t, <-served)
}

func TestMessageLimit(t *testing.T) {
	t.Parallel()
	f := start(t, workers{}, shards{}, func(cfg *rpc.ServerConfig) { cfg.MaxMessageBytes = 100 })
	_, err := f.workers.PollTasks(t.Context(), &wigglev1.PollTasksRequest{Worker: strings.Repeat("w", 200)})
	if faults.CodeOf(err) != faults.CodeResourceExhausted {
		t.Errorf("got %v", err)
	}
}

func TestCallsAreCapped(t *testing.T) {
	t.Parallel()
	f := start(t, workers{poll: func(
		ctx context.Context, _ *wigglev1.PollTasksRequest,
	) (*wigglev1.PollTasksResponse, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	}}, shards{}, func(cfg *rpc.ServerConfig) { cfg.MaxCallDuration = time.Millisecond })
	_, err := f.workers.PollTasks(t.Context(), &wigglev1.PollTasksRequest{Worker: "w"})
	if !errors.Is(err, faults.ErrDeadlineExceeded) {
		t.Errorf("got %v", err)
	}
}

func do(t *testing.T, client *http.Client, req *http.Request) (int, string) {
	t.Helper()
	res, err := client.Do(req)
	must(t, err)
	defer func() { _ = res.Body.Close() }()
	text, err := io.ReadAll(res.Body)
	must(t, err)
	if !json.Valid(text) && req.Method == http.MethodPost {
		t.Errorf("not JSON: %s", text)
	}
	return res.StatusCode, string(text)
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// syncBuffer is a buffer that loggers may write to from many goroutines.
type syncBuffer struct {
	mu     sync.Mutex
	buffer bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buffer.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buffer.String()
}
