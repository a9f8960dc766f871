package rpc_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"connectrpc.com/connect"
	"github.com/oklog/ulid/v2"
	"go.opentelemetry.io/otel/metric/noop"

	"github.com/wiggle-run/wiggle/pkg/clock"
	"github.com/wiggle-run/wiggle/pkg/faults"
	"github.com/wiggle-run/wiggle/pkg/identity"
	wirerpc "github.com/wiggle-run/wiggle/pkg/rpc"
	"github.com/wiggle-run/wiggle/proto/definition"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	"github.com/wiggle-run/wiggle/proto/gen/wiggle/v1/wigglev1connect"
	internalv1 "github.com/wiggle-run/wiggle/proto/gen/wiggleinternal/v1"
	"github.com/wiggle-run/wiggle/services/instances/internal/dispatch"
	"github.com/wiggle-run/wiggle/services/instances/internal/machine"
	"github.com/wiggle-run/wiggle/services/instances/internal/reads"
	"github.com/wiggle-run/wiggle/services/instances/internal/registry"
	"github.com/wiggle-run/wiggle/services/instances/internal/rpc"
	"github.com/wiggle-run/wiggle/services/instances/internal/store"
	"github.com/wiggle-run/wiggle/services/instances/internal/store/memstore"
)

const home = 3

// twoSteps is a chain of two tasks, which workers may report together.
func twoSteps() *wigglev1.Definition {
	return &wigglev1.Definition{Name: "two", Version: 1, Start: "a", Nodes: map[string]*wigglev1.Node{
		"a":   {Kind: &wigglev1.Node_Task{Task: &wigglev1.TaskNode{Next: "b"}}},
		"b":   {Kind: &wigglev1.Node_Task{Task: &wigglev1.TaskNode{Next: "end"}}},
		"end": {Kind: &wigglev1.Node_End{End: &wigglev1.EndNode{}}},
	}}
}

// hooked lets a test hold the store's updates.
type hooked struct {
	store.Store

	mu     sync.Mutex
	before func()
	claims int
}

func (h *hooked) hook(f func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.before = f
}

func (h *hooked) wait() {
	h.mu.Lock()
	f := h.before
	h.mu.Unlock()
	if f != nil {
		f()
	}
}

func (h *hooked) Update(ctx context.Context, keys store.Keys, apply func(*store.World) error) error {
	h.wait()
	return h.Store.Update(ctx, keys, apply)
}

func (h *hooked) Advance(ctx context.Context, now time.Time, moves []store.Move) ([]bool, error) {
	h.wait()
	return h.Store.Advance(ctx, now, moves)
}

func (h *hooked) Claim(ctx context.Context, c store.Claim) ([]store.Claimed, error) {
	h.mu.Lock()
	h.claims++
	h.mu.Unlock()
	return h.Store.Claim(ctx, c)
}

// oneShard is a process with one shard.
type oneShard struct{ *dispatch.Shard }

func (o oneShard) Serving(id int) (*dispatch.Shard, error) {
	if id != home {
		return nil, faults.ShardUnknown(id)
	}
	return o.Shard, nil
}

func (o oneShard) Definitions(id int) (*registry.Copy, error) { return nil, faults.ShardUnknown(id) }

func (o oneShard) Catalogue(id int) (*registry.Catalogue, error) { return nil, faults.ShardUnknown(id) }

func (o oneShard) Reads(id int) (*reads.Shard, error) { return nil, faults.ShardUnknown(id) }
func (o oneShard) Home() int                          { return home }
func (o oneShard) Status() *internalv1.StatusResponse { return &internalv1.StatusResponse{} }

func (o oneShard) All() []*dispatch.Shard { return []*dispatch.Shard{o.Shard} }

// scene is an instances process with one shard in memory, in a bubble of time.
type scene struct {
	*testing.T

	shard   *dispatch.Shard
	store   *hooked
	server  *wirerpc.Server
	workers wigglev1connect.WorkerServiceClient
}

func play(t *testing.T, cfg dispatch.Config, test func(s *scene)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		mem := memstore.New(time.Now)
		def := twoSteps()
		if _, _, err := mem.Register(t.Context(), "default", "two", func([]store.Definition) (store.Definition, error) {
			return store.Definition{Namespace: "default", Workflow: "two", Version: 1, Fingerprint: definition.Fingerprint(def), Graph: def}, nil
		}); err != nil {
			t.Fatal(err)
		}
		metrics, err := dispatch.NewMetrics(noop.Meter{})
		if err != nil {
			t.Fatal(err)
		}
		s := &scene{T: t, store: &hooked{Store: mem}}
		s.shard = dispatch.New(home, s.store, clock.Real{}, cfg, metrics, slog.New(slog.DiscardHandler))
		ctx, stop := context.WithCancel(context.Background())
		var lanes sync.WaitGroup
		lanes.Go(func() { _ = s.shard.Run(ctx) })
		defer lanes.Wait()
		defer stop()
		defer s.serve()()
		test(s)
	})
}

// serve offers the services in memory until the function that it returns is called.
func (s *scene) serve() func() {
	s.Helper()
	var err error
	if s.server, err = wirerpc.NewServer(wirerpc.ServerConfig{Interceptors: []connect.Interceptor{identity.Receive{}}}); err != nil {
		s.Fatal(err)
	}
	api := rpc.New(oneShard{s.shard}, definition.DefaultLimits(), slog.New(slog.DiscardHandler))
	s.server.Mount(wigglev1connect.NewWorkerServiceHandler(api, s.server.Options()...))
	net := wirerpc.NewMemoryNetwork()
	listener, err := net.Listen("instances")
	if err != nil {
		s.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- s.server.Serve(listener) }()
	cfg := wirerpc.ClientConfig{DialContext: net.DialContext}
	client := wirerpc.NewHTTPClient(cfg)
	opts, err := wirerpc.NewClientOptions(cfg)
	if err != nil {
		s.Fatal(err)
	}
	s.workers = wigglev1connect.NewWorkerServiceClient(client, net.URL("instances"), opts...)
	return func() {
		if err := s.server.Close(); err != nil {
			s.Error(err)
		}
		if err := <-served; err != nil {
			s.Error(err)
		}
		client.CloseIdleConnections()
	}
}

// start starts n instances with an input of some bytes.
func (s *scene) start(n, size int) {
	s.Helper()
	items := make([]dispatch.StartItem, n)
	for i := range items {
		items[i] = dispatch.StartItem{Workflow: "two", Event: machine.Start{
			ID: machine.ID(ulid.Make()), Namespace: "default", Priority: 5, Input: machine.Payload{Data: make([]byte, size)},
		}}
	}
	for _, r := range s.shard.Start(items) {
		if r.Err != nil {
			s.Fatal(r.Err)
		}
	}
	synctest.Wait()
}

// stream is a worker's stream.
type stream struct {
	*scene

	inner *connect.BidiStreamForClientSimple[wigglev1.WorkRequest, wigglev1.WorkResponse]
	leave context.CancelFunc
	in    chan *wigglev1.WorkResponse
	ended chan error
}

// open opens a stream.
func (s *scene) open(hello *wigglev1.WorkHello) *stream {
	s.Helper()
	ctx, leave := context.WithCancel(wirerpc.WithShard(s.Context(), home))
	inner, err := s.workers.Work(ctx)
	if err != nil {
		s.Fatal(err)
	}
	// The transport sees that ctx is done when it has something to send.
	context.AfterFunc(ctx, func() { _ = inner.CloseRequest() })
	st := &stream{scene: s, inner: inner, leave: leave, in: make(chan *wigglev1.WorkResponse, 10_000), ended: make(chan error, 1)}
	if hello != nil {
		st.send(&wigglev1.WorkRequest{Hello: hello})
	}
	return st
}

// worker opens the stream of worker w and reads it.
func (s *scene) worker(held ...*wigglev1.TaskLease) *stream {
	s.Helper()
	return s.open(&wigglev1.WorkHello{Worker: "w", Held: held}).reading()
}

func (st *stream) reading() *stream {
	go func() {
		for {
			res, err := st.inner.Receive()
			if err != nil {
				st.ended <- err
				return
			}
			st.in <- res
		}
	}()
	synctest.Wait()
	return st
}

// send sends a message and comes to rest.
func (st *stream) send(req *wigglev1.WorkRequest) {
	st.Helper()
	if err := st.inner.Send(req); err != nil && !errors.Is(err, io.EOF) {
		st.Fatal(err)
	}
	synctest.Wait()
}

// got adds up what has come.
func (st *stream) got() *wigglev1.WorkResponse {
	synctest.Wait()
	all := &wigglev1.WorkResponse{}
	for {
		select {
		case res := <-st.in:
			all.Tasks = append(all.Tasks, res.GetTasks()...)
			all.Reported = append(all.Reported, res.GetReported()...)
			all.Failed = append(all.Failed, res.GetFailed()...)
			all.Beats = append(all.Beats, res.GetBeats()...)
			all.Released = append(all.Released, res.GetReleased()...)
			all.Revoked += res.GetRevoked()
			all.Draining = all.GetDraining() || res.GetDraining()
		default:
			return all
		}
	}
}

// over returns the error with which the stream has ended.
func (st *stream) over() error {
	st.Helper()
	synctest.Wait()
	select {
	case err := <-st.ended:
		return err
	default:
		st.Fatal("the stream goes on")
		return nil
	}
}

// ready tells how many tasks another worker can have now.
func (s *scene) ready() int {
	s.Helper()
	claimed, err := s.shard.Claim(s.Context(), store.Claim{
		Namespace: "default", Queues: []string{"default"}, Worker: "other", Lease: time.Minute, Max: 1000,
	}, 0)
	if err != nil {
		s.Fatal(err)
	}
	s.shard.HandBack(claimed)
	return len(claimed)
}

func leaseOf(t *wigglev1.Task) *wigglev1.TaskLease {
	return &wigglev1.TaskLease{TaskId: t.GetId(), Lease: t.GetLease()}
}

func reports(tasks ...*wigglev1.Task) *wigglev1.WorkRequest {
	req := &wigglev1.WorkRequest{}
	for _, t := range tasks {
		req.Reports = append(req.Reports, &wigglev1.StepReport{
			TaskId: t.GetId(), Lease: t.GetLease(), Outcome: &wigglev1.StepReport_Unchanged{Unchanged: &wigglev1.Unchanged{}},
		})
	}
	return req
}
