package rpc_test

import (
	"context"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"

	"connectrpc.com/grpchealth"

	"github.com/wiggle-run/wiggle/pkg/rpc"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	"github.com/wiggle-run/wiggle/proto/gen/wiggle/v1/wigglev1connect"
)

// AUT-10: the size of messages and the time of calls are in TestMessageLimit and TestCallsAreCapped, these are the others.
func TestHeaderLimit(t *testing.T) {
	t.Parallel()
	const limit = 8 << 10
	f := start(t, workers{}, shards{}, func(cfg *rpc.ServerConfig) {
		*cfg = rpc.Transport{Limits: rpc.Limits{HeaderBytes: limit}}.Server(*cfg)
	})
	one := &http.Client{Transport: &http.Transport{DialContext: f.network.DialContext}}
	defer one.CloseIdleConnections()
	for name, client := range map[string]*http.Client{"HTTP/1.1": one, "HTTP/2": f.http} {
		for size, refused := range map[int]bool{limit / 2: false, 3 * limit: true} {
			req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, f.network.URL(serverName)+"/healthz", nil)
			must(t, err)
			req.Header.Set("Padding", strings.Repeat("p", size))
			res, err := client.Do(req)
			if err == nil {
				must(t, res.Body.Close())
			}
			if got := err != nil || res.StatusCode == http.StatusRequestHeaderFieldsTooLarge; got != refused {
				t.Errorf("%s with %d bytes: refused is %t, %v", name, size, got, err)
			}
		}
	}
}

// Calls beyond the streams of a connection go over another one: none waits for the others to end.
func TestStreamLimit(t *testing.T) {
	t.Parallel()
	const limit, calls = 3, 10
	var arrived sync.WaitGroup
	arrived.Add(calls)
	f := start(t, workers{poll: func(context.Context, *wigglev1.PollTasksRequest) (*wigglev1.PollTasksResponse, error) {
		arrived.Done()
		arrived.Wait() // for all
		return &wigglev1.PollTasksResponse{}, nil
	}}, shards{}, func(cfg *rpc.ServerConfig) {
		*cfg = rpc.Transport{Limits: rpc.Limits{Streams: limit}}.Server(*cfg)
	})
	var mu sync.Mutex
	dialed := 0
	client := rpc.NewHTTPClient(rpc.ClientConfig{DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
		mu.Lock()
		dialed++
		mu.Unlock()
		return f.network.DialContext(ctx, network, address)
	}})
	defer client.CloseIdleConnections()
	polls := wigglev1connect.NewWorkerServiceClient(client, f.network.URL(serverName))
	var all sync.WaitGroup
	for range calls {
		all.Go(func() {
			if _, err := polls.PollTasks(t.Context(), &wigglev1.PollTasksRequest{Worker: "w"}); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	mu.Lock()
	defer mu.Unlock()
	if least := (calls + limit - 1) / limit; dialed < least {
		t.Errorf("%d calls at the same time took %d connections, fewer than %d", calls, dialed, least)
	}
}

// gRPC health follows the shards without anybody asking for readiness (OPS-4).
func TestHealthFollowsShards(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	ready := false
	f := start(t, workers{}, shards{}, func(cfg *rpc.ServerConfig) {
		cfg.Shards = func() []rpc.ShardState {
			mu.Lock()
			defer mu.Unlock()
			return []rpc.ShardState{{Shard: 7, Ready: ready, Reason: "opening"}}
		}
		cfg.Warnings = func() []string { return []string{"the certificate ends soon"} }
	})
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, f.network.URL(serverName)+"/readyz", nil)
	must(t, err)
	status, text := do(t, f.http, req)
	if status != http.StatusServiceUnavailable || !strings.Contains(text, "shard 7: opening") || !strings.Contains(text, "ends soon") {
		t.Errorf("readyz: %d %s", status, text)
	}
	mu.Lock()
	ready = true
	mu.Unlock()
	for changed := make(chan struct{}, 1); ; <-changed {
		stop, err := f.server.Health().Watch(t.Context(), &grpchealth.CheckRequest{Service: rpc.HealthOfShard(7)}, func() {
			select {
			case changed <- struct{}{}:
			default:
			}
		})
		must(t, err)
		res, err := f.server.Health().Check(t.Context(), &grpchealth.CheckRequest{Service: rpc.HealthOfShard(7)})
		must(t, err)
		if res.Status == grpchealth.StatusServing {
			stop()
			break
		}
		defer stop()
	}
}
