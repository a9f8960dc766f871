package rpc_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"connectrpc.com/connect"
	"connectrpc.com/grpchealth"
	"connectrpc.com/grpcreflect"

	"github.com/wiggle-run/wiggle/pkg/faults"
	"github.com/wiggle-run/wiggle/pkg/rpc"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	"github.com/wiggle-run/wiggle/proto/gen/wiggle/v1/wigglev1connect"
	internalv1 "github.com/wiggle-run/wiggle/proto/gen/wiggleinternal/v1"
	"github.com/wiggle-run/wiggle/proto/gen/wiggleinternal/v1/wiggleinternalv1connect"
)

const (
	newKey = "the-new-key-of-this-cluster-0123456789"
	oldKey = "the-old-key-of-this-cluster-0123456789"
)

// whoCalls is a service whose answers tell what it knows of the caller, and whether it has seen the key.
func whoCalls() (workers, shards) {
	tell := func(ctx context.Context, header http.Header) string {
		if header.Get(rpc.ServiceKeyHeader) != "" {
			return "saw the key"
		}
		if rpc.CalledByService(ctx) {
			return "service"
		}
		return "stranger"
	}
	poll := func(ctx context.Context, _ *wigglev1.PollTasksRequest) (*wigglev1.PollTasksResponse, error) {
		info, _ := connect.CallInfoForHandlerContext(ctx)
		return &wigglev1.PollTasksResponse{Tasks: []*wigglev1.Task{{Id: tell(ctx, info.RequestHeader())}}}, nil
	}
	watch := func(ctx context.Context, stream *connect.ServerStream[internalv1.WatchWorkResponse]) error {
		if got := tell(ctx, stream.Conn().RequestHeader()); got != "service" {
			return faults.FailedPrecondition("the stream comes from a %s", got)
		}
		return stream.Send(&internalv1.WatchWorkResponse{})
	}
	return workers{poll: poll}, shards{watch: watch}
}

// callWith polls as a client with a key does, and returns who the server takes it for.
func (f fixture) callWith(t *testing.T, key string, options ...connect.ClientOption) (string, error) {
	t.Helper()
	own, err := rpc.NewClientOptions(rpc.ClientConfig{ServiceKey: key})
	must(t, err)
	client := wigglev1connect.NewWorkerServiceClient(f.http, f.network.URL(serverName), append(own, options...)...)
	res, err := client.PollTasks(t.Context(), &wigglev1.PollTasksRequest{Worker: "w"})
	if err != nil {
		return "", err
	}
	return res.GetTasks()[0].GetId(), nil
}

// AUT-4: services accept calls only from services, over every protocol, for unary calls and streams.
func TestServiceKey(t *testing.T) {
	t.Parallel()
	for name, option := range map[string]connect.ClientOption{
		"connect": connect.WithClientOptions(), "grpc": connect.WithGRPC(), "grpc-web": connect.WithGRPCWeb(),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, s := whoCalls()
			f := start(t, w, s, func(cfg *rpc.ServerConfig) {
				cfg.ServiceKeys, cfg.RequireService = []string{newKey, oldKey}, true
			})
			for _, key := range []string{newKey, oldKey} {
				if who, err := f.callWith(t, key, option); err != nil || who != "service" {
					t.Errorf("with a key that is accepted: %q, %v", who, err)
				}
			}
			for _, key := range []string{"", "another", newKey + "0", newKey[1:]} {
				_, err := f.callWith(t, key, option)
				if faults.CodeOf(err) != faults.CodeUnauthenticated || !strings.Contains(err.Error(), "WIGGLE_SERVICE_KEY") {
					t.Errorf("with the key %q: %v", key, err)
				}
				if err != nil && key != "" && strings.Contains(err.Error(), key) {
					t.Errorf("the error tells the key: %v", err)
				}
			}
			own, err := rpc.NewClientOptions(rpc.ClientConfig{ServiceKey: newKey})
			must(t, err)
			for _, c := range []struct {
				options []connect.ClientOption
				code    faults.Code
			}{{own, faults.CodeOK}, {nil, faults.CodeUnauthenticated}} {
				client := wiggleinternalv1connect.NewShardServiceClient(f.http, f.network.URL(serverName), append(c.options, option)...)
				stream, err := client.WatchWork(t.Context(), &internalv1.WatchWorkRequest{})
				if err == nil {
					stream.Receive()
					err = stream.Err()
					_ = stream.Close()
				}
				if got := codeOf(err); got != c.code {
					t.Errorf("a stream ended with %v (%s), want %s", err, got, c.code)
				}
			}
			if strings.Contains(f.logs.String(), oldKey) || strings.Contains(f.logs.String(), newKey) {
				t.Error("the log has the key")
			}
			if n := strings.Count(f.logs.String(), "a call was refused"); n != 1 {
				t.Errorf("refusals were logged %d times", n)
			}
		})
	}
}

// Health and readiness are for everybody, reflection and all else for services.
func TestWhatNeedsNoIdentity(t *testing.T) {
	t.Parallel()
	w, s := whoCalls()
	f := start(t, w, s, func(cfg *rpc.ServerConfig) { cfg.ServiceKeys, cfg.RequireService = []string{newKey}, true })
	f.server.Handle("GET /metrics", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) }))
	f.server.Handle("/other", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) }))
	url := f.network.URL(serverName)
	for path, want := range map[string]int{
		"/healthz": http.StatusOK, "/readyz": http.StatusOK, "/metrics": http.StatusOK, "/other": http.StatusUnauthorized,
		"/none": http.StatusUnauthorized,
	} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url+path, nil)
		must(t, err)
		if status, text := do(t, f.http, req); status != want {
			t.Errorf("%s answers %d, want %d: %s", path, status, want, text)
		}
	}
	health := grpchealth.NewClient(f.http, url, connect.WithGRPC())
	if _, err := health.Check(t.Context(), &grpchealth.CheckRequest{}); err != nil {
		t.Errorf("health: %v", err)
	}
	reflection := grpcreflect.NewClient(f.http, url, connect.WithGRPC())
	for key, code := range map[string]connect.Code{"": connect.CodeUnauthenticated, newKey: 0} {
		header := http.Header{}
		if key != "" {
			header.Set(rpc.ServiceKeyHeader, key)
		}
		stream := reflection.NewStream(t.Context(), grpcreflect.WithRequestHeaders(header))
		_, err := stream.ListServices()
		_, _ = stream.Close()
		if (err != nil) != (code != 0) || err != nil && connect.CodeOf(err) != code {
			t.Errorf("reflection with the key %q: %v", key, err)
		}
	}
}

// codeOf is the code of an error of a client, of ours or a plain one.
func codeOf(err error) faults.Code {
	if fault := rpc.FromConnect(err); fault != nil {
		return fault.Code()
	}
	return faults.CodeOK
}

// A server that is for everybody tells services from others, and refuses a key that is not the cluster's.
func TestCalledByService(t *testing.T) {
	t.Parallel()
	w, s := whoCalls()
	f := start(t, w, s, func(cfg *rpc.ServerConfig) { cfg.ServiceKeys = []string{newKey} })
	for key, want := range map[string]string{"": "stranger", newKey: "service"} {
		if who, err := f.callWith(t, key); err != nil || who != want {
			t.Errorf("with the key %q: %q, %v", key, who, err)
		}
	}
	if _, err := f.callWith(t, "another"); faults.CodeOf(err) != faults.CodeUnauthenticated {
		t.Errorf("with another cluster's key: %v", err)
	}
	open := start(t, w, s, nil)
	if who, err := open.callWith(t, newKey); err != nil || who != "stranger" {
		t.Errorf("a server without keys takes a key for %q, %v", who, err)
	}
	if rpc.CalledByService(t.Context()) {
		t.Error("who calls no handler is a service")
	}
}

// Over a listener that only services can reach, the network is the identity.
func TestServeInside(t *testing.T) {
	t.Parallel()
	w, s := whoCalls()
	f := start(t, w, s, func(cfg *rpc.ServerConfig) { cfg.RequireService = true })
	const inside = "inside.mem"
	listener, err := f.network.Listen(inside)
	must(t, err)
	served := make(chan error, 1)
	go func() { served <- f.server.ServeInside(listener) }()
	t.Cleanup(func() {
		_ = f.server.Close()
		must(t, <-served)
	})
	if _, err := f.callWith(t, ""); faults.CodeOf(err) != faults.CodeUnauthenticated {
		t.Errorf("from outside: %v", err)
	}
	for name, option := range map[string]connect.ClientOption{"connect": connect.WithClientOptions(), "grpc": connect.WithGRPC()} {
		client := wigglev1connect.NewWorkerServiceClient(f.http, f.network.URL(inside), option)
		res, err := client.PollTasks(t.Context(), &wigglev1.PollTasksRequest{Worker: "w"})
		if err != nil || res.GetTasks()[0].GetId() != "service" {
			t.Errorf("%s from inside: %v, %v", name, res, err)
		}
	}
}

// The key is for whom it was meant: a redirect to somebody else does not get it.
func TestServiceKeyIsNotRedirected(t *testing.T) {
	t.Parallel()
	stranger := httptest.NewUnstartedServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		t.Errorf("the stranger was called with %q", r.Header.Get(rpc.ServiceKeyHeader))
	}))
	stranger.Config.Protocols = unencrypted()
	stranger.Start()
	defer stranger.Close()
	moved := httptest.NewUnstartedServer(http.RedirectHandler(stranger.URL, http.StatusTemporaryRedirect))
	moved.Config.Protocols = unencrypted()
	moved.Start()
	defer moved.Close()
	cfg := rpc.ClientConfig{ServiceKey: newKey}
	client := rpc.NewHTTPClient(cfg)
	defer client.CloseIdleConnections()
	options, err := rpc.NewClientOptions(cfg)
	must(t, err)
	_, err = wigglev1connect.NewWorkerServiceClient(client, moved.URL, options...).PollTasks(t.Context(), &wigglev1.PollTasksRequest{})
	if err == nil || errors.Is(err, context.Canceled) {
		t.Errorf("a redirect was answered with %v", err)
	}
}

func unencrypted() *http.Protocols {
	var p http.Protocols
	p.SetHTTP1(true)
	p.SetUnencryptedHTTP2(true)
	return &p
}
