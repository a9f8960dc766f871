package rpc_test

import (
	"compress/gzip"
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"connectrpc.com/connect"

	"github.com/wiggle-run/wiggle/pkg/faults"
	"github.com/wiggle-run/wiggle/pkg/rpc"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	"github.com/wiggle-run/wiggle/proto/gen/wiggle/v1/wigglev1connect"
	internalv1 "github.com/wiggle-run/wiggle/proto/gen/wiggleinternal/v1"
	"github.com/wiggle-run/wiggle/proto/gen/wiggleinternal/v1/wiggleinternalv1connect"
)

// holding is a worker service whose polls wait until they are let go.
func holding() (w workers, entered chan struct{}, release chan struct{}) {
	entered, release = make(chan struct{}), make(chan struct{})
	w.poll = func(ctx context.Context, _ *wigglev1.PollTasksRequest) (*wigglev1.PollTasksResponse, error) {
		entered <- struct{}{}
		select {
		case <-release:
		case <-ctx.Done():
		}
		return &wigglev1.PollTasksResponse{}, nil
	}
	w.report = func(context.Context, *wigglev1.ReportStepsRequest) (*wigglev1.ReportStepsResponse, error) {
		return &wigglev1.ReportStepsResponse{}, nil
	}
	return w, entered, release
}

func checkOverloaded(t *testing.T, what string, err error) {
	t.Helper()
	fault, ok := errors.AsType[*faults.Error](err)
	if !ok || !errors.Is(err, faults.ErrResourceExhausted) {
		t.Errorf("%s: %v, want a refusal", what, err)
		return
	}
	if after, again := fault.RetryAfter(); !again || after <= 0 {
		t.Errorf("%s: refused without a time to come back", what)
	}
}

func report(bytes int) *wigglev1.ReportStepsRequest {
	return &wigglev1.ReportStepsRequest{Worker: "w", Reports: []*wigglev1.StepReport{{
		TaskId: "wft.s0.01arz3ndektsv4rrffq69g5fav", Lease: "1",
		Outcome: &wigglev1.StepReport_Result{Result: &wigglev1.Payload{Data: []byte(`"` + strings.Repeat("x", bytes) + `"`)}},
	}}}
}

// TestCallsAreBounded: beyond so many calls further ones are refused, those first that only make more work, and never those
// by which processes look after each other (WRK-15).
func TestCallsAreBounded(t *testing.T) {
	t.Parallel()
	for name, option := range map[string]connect.ClientOption{
		"connect": connect.WithClientOptions(), "grpc": connect.WithGRPC(), "grpc-web": connect.WithGRPCWeb(),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, entered, release := holding()
			f := start(t, w, shards{}, func(c *rpc.ServerConfig) {
				c.MaxCalls = 4
				c.Yielding = []string{wigglev1connect.WorkerServiceReportStepsProcedure}
				c.Exempt = []string{wiggleinternalv1connect.ShardServiceName}
			}, option)
			var calls sync.WaitGroup
			defer calls.Wait()
			defer close(release)
			poll := func() error {
				_, err := f.workers.PollTasks(t.Context(), &wigglev1.PollTasksRequest{Worker: "w"})
				return err
			}
			for n := range 4 {
				_, err := f.workers.ReportSteps(t.Context(), report(1))
				if n < 2 {
					must(t, err)
				} else {
					checkOverloaded(t, "a call that yields", err)
				}
				calls.Go(func() {
					if err := poll(); err != nil {
						t.Error(err)
					}
				})
				<-entered
			}
			checkOverloaded(t, "one too many", poll())
			if _, err := f.shards.Status(t.Context(), &internalv1.StatusRequest{}); !errors.Is(err, faults.ErrUnimplemented) {
				t.Errorf("a call that is exempt: %v", err)
			}
			res, err := f.http.Get(f.network.URL(serverName) + "/healthz")
			must(t, err)
			_ = res.Body.Close()
			if res.StatusCode != http.StatusOK || f.server.InFlight() != 4 {
				t.Errorf("health is %s with %d calls under way", res.Status, f.server.InFlight())
			}
		})
	}
}

// TestCallBytesAreBounded: requests that hold too many bytes together are refused while they are read, and what they held
// is free when they are answered.
func TestCallBytesAreBounded(t *testing.T) {
	t.Parallel()
	w, entered, release := holding()
	report1 := w.report
	w.report = func(ctx context.Context, req *wigglev1.ReportStepsRequest) (*wigglev1.ReportStepsResponse, error) {
		if req.GetWorker() == "holds" {
			_, _ = w.poll(ctx, nil)
		}
		return report1(ctx, req)
	}
	f := start(t, w, shards{}, func(c *rpc.ServerConfig) { c.MaxCallBytes = 10_000 })
	var calls sync.WaitGroup
	calls.Go(func() {
		req := report(6000)
		req.Worker = "holds"
		if _, err := f.workers.ReportSteps(t.Context(), req); err != nil {
			t.Error(err)
		}
	})
	<-entered
	_, err := f.workers.ReportSteps(t.Context(), report(6000))
	checkOverloaded(t, "what is too much together", err)
	_, err = f.workers.ReportSteps(t.Context(), report(1000))
	must(t, err)
	close(release)
	calls.Wait()
	for range 10 { // nothing is held that was answered, or refused
		_, err = f.workers.ReportSteps(t.Context(), report(6000))
		must(t, err)
	}
}

// TestCompressedCallsCountForMore: nobody knows what they become.
func TestCompressedCallsCountForMore(t *testing.T) {
	t.Parallel()
	w, _, _ := holding()
	f := start(t, w, shards{}, func(c *rpc.ServerConfig) { c.MaxCallBytes = 500_000 },
		connect.WithAcceptCompression("gzip",
			func() connect.Decompressor { return &gzip.Reader{} }, func() connect.Compressor { return gzip.NewWriter(io.Discard) }),
		connect.WithSendGzip())
	_, err := f.workers.ReportSteps(t.Context(), report(10_000))
	checkOverloaded(t, "a compressed call", err)
}

// TestRefuse: a call is refused before its request is read.
func TestRefuse(t *testing.T) {
	t.Parallel()
	w, _, _ := holding()
	f := start(t, w, shards{}, func(c *rpc.ServerConfig) {
		c.Refuse = func(procedure string) error {
			if procedure == wigglev1connect.WorkerServiceReportStepsProcedure {
				return faults.Overloaded(3, "not now")
			}
			return nil
		}
	})
	_, err := f.workers.ReportSteps(t.Context(), &wigglev1.ReportStepsRequest{}) // which is not valid
	checkOverloaded(t, "a call that is refused", err)
	if _, err := f.workers.Heartbeat(t.Context(), &wigglev1.HeartbeatRequest{}); !errors.Is(err, faults.ErrInvalidArgument) {
		t.Errorf("another: %v", err)
	}
}

// TestConnectionsAreBounded: one too many waits until another ends.
func TestConnectionsAreBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w, _, _ := holding()
		f := start(t, w, shards{}, func(c *rpc.ServerConfig) { c.MaxConnections = 1 })
		_, err := f.workers.ReportSteps(t.Context(), report(1))
		must(t, err)
		other := rpc.NewHTTPClient(rpc.ClientConfig{DialContext: f.network.DialContext})
		defer other.CloseIdleConnections()
		answered := make(chan error, 1)
		go func() {
			res, err := other.Get(f.network.URL(serverName) + "/healthz")
			if err == nil {
				_ = res.Body.Close()
			}
			answered <- err
		}()
		synctest.Wait()
		select {
		case err := <-answered:
			t.Fatalf("a second connection is served: %v", err)
		default:
		}
		f.http.CloseIdleConnections()
		must(t, <-answered)
	})
}
