package feed_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"connectrpc.com/connect"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/wiggle-run/wiggle/pkg/eventcursor"
	"github.com/wiggle-run/wiggle/pkg/identity"
	wirerpc "github.com/wiggle-run/wiggle/pkg/rpc"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	"github.com/wiggle-run/wiggle/proto/gen/wiggle/v1/wigglev1connect"
	"github.com/wiggle-run/wiggle/services/instances/internal/feed"
	"github.com/wiggle-run/wiggle/services/instances/internal/machine"
	"github.com/wiggle-run/wiggle/services/instances/internal/store"
	"github.com/wiggle-run/wiggle/services/instances/internal/store/memstore"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const shard = 3

// watched is a log that counts what is asked of it, and fails if it is told to.
type watched struct {
	store.Events

	looks, reads atomic.Int64
	open         atomic.Bool
	fails        atomic.Pointer[error]
}

func (w *watched) DecidedEvents(ctx context.Context) (int64, bool, error) {
	w.looks.Add(1)
	if err := w.fails.Load(); err != nil {
		return 0, false, *err
	}
	seq, _, err := w.Events.DecidedEvents(ctx)
	return seq, w.open.Load(), err
}

func (w *watched) ReadEvents(ctx context.Context, after int64, limit int) (store.EventPage, error) {
	w.reads.Add(1)
	if err := w.fails.Load(); err != nil {
		return store.EventPage{}, *err
	}
	return w.Events.ReadEvents(ctx, after, limit)
}

// scene is the feed of one shard in memory, in a bubble of time.
type scene struct {
	*testing.T

	store  *memstore.Store
	log    *watched
	feed   *feed.Feed
	drain  chan struct{}
	client wigglev1connect.EventServiceClient
	next   byte
}

func play(t *testing.T, test func(s *scene)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := &scene{T: t, store: memstore.New(time.Now), drain: make(chan struct{})}
		s.log = &watched{Events: s.store}
		s.feed = feed.New(shard, s.log, s.drain)
		ctx, stop := context.WithCancel(context.Background())
		var running sync.WaitGroup
		running.Go(func() { _ = s.feed.Run(ctx) })
		defer running.Wait()
		defer stop()
		defer s.serve()()
		test(s)
	})
}

func (s *scene) serve() (stop func()) {
	s.Helper()
	server, err := wirerpc.NewServer(wirerpc.ServerConfig{Interceptors: []connect.Interceptor{identity.Receive{}}})
	if err != nil {
		s.Fatal(err)
	}
	api := feed.NewServer(func(int) (*feed.Feed, error) { return s.feed, nil })
	server.Mount(wigglev1connect.NewEventServiceHandler(api, server.Options()...))
	net := wirerpc.NewMemoryNetwork()
	listener, err := net.Listen("instances")
	if err != nil {
		s.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	cfg := wirerpc.ClientConfig{DialContext: net.DialContext}
	client := wirerpc.NewHTTPClient(cfg)
	opts, err := wirerpc.NewClientOptions(cfg)
	if err != nil {
		s.Fatal(err)
	}
	s.client = wigglev1connect.NewEventServiceClient(client, net.URL("instances"), opts...)
	return func() {
		if err := server.Close(); err != nil {
			s.Error(err)
		}
		if err := <-served; err != nil {
			s.Error(err)
		}
		client.CloseIdleConnections()
	}
}

func (s *scene) ctx() context.Context { return wirerpc.WithShard(s.Context(), shard) }

// write writes events, each of an instance of its own, of a workflow in a namespace.
func (s *scene) write(namespace, workflow string, kinds ...string) {
	s.Helper()
	err := s.store.Update(s.Context(), store.Keys{}, func(w *store.World) error {
		for _, kind := range kinds {
			s.next++
			id := machine.ID{1, s.next}
			in := &machine.Instance{ID: id, Namespace: namespace, Workflow: workflow, Version: 2, State: machine.Running}
			w.Put(&machine.Changes{Instance: in, Events: []machine.Event{{Type: kind, Revision: 7}}}, id)
		}
		return nil
	})
	if err != nil {
		s.Fatal(err)
	}
}

func request(change ...func(*wigglev1.PollEventsRequest)) *wigglev1.PollEventsRequest {
	req := &wigglev1.PollEventsRequest{Start: wigglev1.EventStart_EVENT_START_EARLIEST, Wait: durationpb.New(0)}
	for _, c := range change {
		c(req)
	}
	return req
}

func consumer(name string) func(*wigglev1.PollEventsRequest) {
	return func(q *wigglev1.PollEventsRequest) { q.Consumer = name }
}

func from(start wigglev1.EventStart) func(*wigglev1.PollEventsRequest) {
	return func(q *wigglev1.PollEventsRequest) { q.Start = start }
}

func waits(d time.Duration) func(*wigglev1.PollEventsRequest) {
	return func(q *wigglev1.PollEventsRequest) { q.Wait = durationpb.New(d) }
}

func after(seq int64) func(*wigglev1.PollEventsRequest) {
	return func(q *wigglev1.PollEventsRequest) { q.After = eventcursor.Encode(eventcursor.Cursor{shard: seq}) }
}

func most(n int32) func(*wigglev1.PollEventsRequest) {
	return func(q *wigglev1.PollEventsRequest) { q.MaxEvents = n }
}

func only(f *wigglev1.EventFilter) func(*wigglev1.PollEventsRequest) {
	return func(q *wigglev1.PollEventsRequest) { q.Filter = f }
}

// poll polls and tells what came, and up to where: "" if the shard does not know where to begin.
func (s *scene) poll(change ...func(*wigglev1.PollEventsRequest)) (found []string, upTo int64) {
	s.Helper()
	res, err := s.client.PollEvents(s.ctx(), request(change...))
	if err != nil {
		s.Error(err)
		return nil, -1
	}
	if res.GetCursor() == "" {
		return nil, -1
	}
	c, err := eventcursor.Decode(res.GetCursor())
	if err != nil || len(c) != 1 {
		s.Errorf("the cursor is %v, %v", c, err)
	}
	for _, e := range res.GetEvents() {
		found = append(found, fmt.Sprintf("%d %s", e.GetSeq(), e.GetType()))
	}
	return found, c[shard]
}

func (s *scene) expect(what string, upTo int64, want []string, change ...func(*wigglev1.PollEventsRequest)) {
	s.Helper()
	if got, at := s.poll(change...); !slices.Equal(got, want) || at != upTo {
		s.Errorf("%s: got %q up to %d, want %q up to %d", what, got, at, want, upTo)
	}
}
