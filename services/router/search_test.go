package router_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	"github.com/wiggle-run/wiggle/pkg/faults"
	"github.com/wiggle-run/wiggle/pkg/rpc"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	"github.com/wiggle-run/wiggle/proto/gen/wiggle/v1/wigglev1connect"
	wiggleinternalv1 "github.com/wiggle-run/wiggle/proto/gen/wiggleinternal/v1"
	"github.com/wiggle-run/wiggle/proto/gen/wiggleinternal/v1/wiggleinternalv1connect"
	"github.com/wiggle-run/wiggle/services/router"
)

func (p *process) GetInstances(ctx context.Context, req *wigglev1.GetInstancesRequest) (*wigglev1.GetInstancesResponse, error) {
	d, err := p.enter(ctx, "GetInstances")
	if err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	res := &wigglev1.GetInstancesResponse{}
	for _, ref := range req.GetInstances() {
		o := &wigglev1.InstanceOutcome{}
		if in := d.instances[ref.GetInstanceId()]; in != nil {
			o.Outcome = &wigglev1.InstanceOutcome_Instance{Instance: proto.CloneOf(in)}
		} else {
			o.Outcome = &wigglev1.InstanceOutcome_Fault{Fault: faults.NotFound("instance", ref.GetInstanceId()).ToProto()}
		}
		res.Outcomes = append(res.Outcomes, o)
	}
	return res, nil
}

// scans is a process's ScanService.
type scans struct{ *process }

func (s scans) ScanInstances(
	ctx context.Context, req *wiggleinternalv1.ScanInstancesRequest,
) (*wiggleinternalv1.ScanInstancesResponse, error) {
	d, err := s.enter(ctx, "ScanInstances")
	if err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	res := &wiggleinternalv1.ScanInstancesResponse{Last: true}
	for _, in := range d.instances {
		res.Instances = append(res.Instances, in)
	}
	if int(req.GetShard()) != d.shard {
		return nil, faults.InvalidArgument("the header names shard %d, the request %d", d.shard, req.GetShard())
	}
	return res, nil
}

// Instances are read from their shards, each with an outcome of its own, in the order of the request; what is wrong with
// one, or its shard, is no other's.
func TestGetInstances(t *testing.T) {
	t.Parallel()
	inBubble(t, map[string][]int{"a": {0, 1, 2}}, func(c *cluster) {
		var refs []*wigglev1.InstanceRef
		for _, shard := range []int{2, 0, 1, 0} {
			id := fmt.Sprintf("wfi.s%d.%s", shard, c.ulidOn(shard))
			c.databases[shard].update(func() { c.databases[shard].instances[id] = &wigglev1.Instance{Id: id, Revision: 3} })
			refs = append(refs, &wigglev1.InstanceRef{InstanceId: id})
		}
		refs = append(refs, &wigglev1.InstanceRef{InstanceId: "wfi.s0." + c.ulidOn(0)}, &wigglev1.InstanceRef{InstanceId: "nonsense"},
			&wigglev1.InstanceRef{InstanceId: "wfi.s9." + c.ulidOn(0)}, &wigglev1.InstanceRef{InstanceId: "wfi.s5." + c.ulidOn(0)})
		c.called("GetInstances")
		check := func(want ...faults.Code) {
			t.Helper()
			res, err := c.instances.GetInstances(c.t.Context(), &wigglev1.GetInstancesRequest{Instances: refs})
			if err != nil || len(res.GetOutcomes()) != len(refs) {
				t.Fatalf("got %v, %v", res, err)
			}
			for i, o := range res.GetOutcomes() {
				if got := faults.Code(o.GetFault().GetCode()); got != want[i] ||
					got == faults.CodeOK && (o.GetInstance().GetId() != refs[i].GetInstanceId() || o.GetInstance().GetRevision() != 3) {
					t.Errorf("outcome %d is %v, want %v", i, o, want[i])
				}
			}
		}
		const ok, gone, bad, away = faults.CodeOK, faults.CodeNotFound, faults.CodeInvalidArgument, faults.CodeUnavailable
		check(ok, ok, ok, ok, gone, bad, gone, away)
		if got := c.called("GetInstances"); !slices.Equal(got, []string{"GetInstances@0", "GetInstances@1", "GetInstances@2"}) {
			t.Errorf("called %v", got)
		}
		c.databases[0].update(func() { c.databases[0].down = "away" })
		time.Sleep(time.Second) // of the bubble
		check(ok, away, ok, away, away, bad, gone, away)
		if _, err := c.instances.GetInstances(c.t.Context(), &wigglev1.GetInstancesRequest{}); !errors.Is(err, faults.ErrInvalidArgument) {
			t.Errorf("none: %v", err)
		}
	})
}

// A scan goes to a process that serves the shard of the request.
func TestScanInstances(t *testing.T) {
	t.Parallel()
	inBubble(t, map[string][]int{"a": {0}, "b": {1, 2}}, func(c *cluster) {
		id := "wfi.s1." + c.ulidOn(1)
		c.databases[1].update(func() { c.databases[1].instances[id] = &wigglev1.Instance{Id: id} })
		options, err := rpc.NewClientOptions(rpc.ClientConfig{})
		if err != nil {
			t.Fatal(err)
		}
		client := wiggleinternalv1connect.NewScanServiceClient(c.http, "http://router", options...)
		res, err := client.ScanInstances(c.t.Context(), &wiggleinternalv1.ScanInstancesRequest{Shard: 1})
		if err != nil || len(res.GetInstances()) != 1 || !res.GetLast() {
			t.Errorf("got %v, %v", res, err)
		}
		for shard, want := range map[int32]error{9: faults.ErrNotFound, 5: faults.ErrShardUnknown, -1: faults.ErrShardUnknown} {
			if _, err := client.ScanInstances(c.t.Context(), &wiggleinternalv1.ScanInstancesRequest{Shard: shard}); !errors.Is(err, want) {
				t.Errorf("shard %d: %v, want %v", shard, err, want)
			}
		}
		if _, err := client.ScanInstances(c.t.Context(), &wiggleinternalv1.ScanInstancesRequest{Limit: -1}); !errors.Is(err, faults.ErrInvalidArgument) {
			t.Errorf("a limit below none: %v", err)
		}
	})
}

// searcher is a search process.
type searcher struct {
	wigglev1connect.UnimplementedSearchServiceHandler

	name    string
	calls   atomic.Int32
	fault   atomic.Pointer[faults.Error] // of every call, before it has begun
	later   atomic.Pointer[faults.Error] // of a stream, after its second message
	release chan struct{}
}

func (s *searcher) Search(context.Context, *wigglev1.SearchRequest) (*wigglev1.SearchResponse, error) {
	s.calls.Add(1)
	if f := s.fault.Load(); f != nil {
		return nil, f
	}
	return &wigglev1.SearchResponse{Hits: []*wigglev1.SearchHit{{InstanceId: s.name}}}, nil
}

func (s *searcher) Reindex(
	ctx context.Context, req *wigglev1.ReindexRequest, stream *connect.ServerStream[wigglev1.ReindexResponse],
) error {
	s.calls.Add(1)
	if f := s.fault.Load(); f != nil {
		return f
	}
	for n := range int64(3) {
		if f := s.later.Load(); f != nil && n == 2 {
			return f
		}
		if err := stream.Send(&wigglev1.ReindexResponse{Read: n, Resume: req.GetResume() + s.name}); err != nil {
			return err
		}
	}
	if s.release == nil {
		return nil
	}
	select {
	case <-s.release:
	case <-ctx.Done():
		close(s.release)
	}
	return ctx.Err()
}

// withSearch runs a test against a router with two search processes.
func withSearch(t *testing.T, test func(c *cluster, client wigglev1connect.SearchServiceClient, a, b *searcher)) {
	t.Helper()
	a, b := &searcher{name: "a"}, &searcher{name: "b"}
	inBubble(t, map[string][]int{"instances": {0, 1, 2}}, func(c *cluster) {
		for _, s := range []*searcher{a, b} {
			server, err := rpc.NewServer(rpc.ServerConfig{})
			if err != nil {
				t.Fatal(err)
			}
			server.Mount(wigglev1connect.NewSearchServiceHandler(s, server.Options()...))
			listener, err := c.net.Listen("search-" + s.name)
			if err != nil {
				t.Fatal(err)
			}
			served := make(chan error, 1)
			go func() { served <- server.Serve(listener) }()
			defer func() {
				if err := errors.Join(server.Close(), <-served); err != nil {
					t.Error(err)
				}
			}()
		}
		options, err := rpc.NewClientOptions(rpc.ClientConfig{})
		if err != nil {
			t.Fatal(err)
		}
		test(c, wigglev1connect.NewSearchServiceClient(c.http, "http://router", options...), a, b)
	}, func(cfg *router.Config) { cfg.SearchURLs = []string{"http://search-a", "http://search-b"} })
}

// Searches go to one process for as long as it answers; what it says is passed on, and only its silence, or a shard that it
// lacks, has another asked.
func TestSearchIsPassedOn(t *testing.T) { // ARC-5
	t.Parallel()
	withSearch(t, func(c *cluster, client wigglev1connect.SearchServiceClient, a, b *searcher) {
		search := func() (string, error) {
			res, err := client.Search(c.t.Context(), &wigglev1.SearchRequest{})
			if err != nil {
				return "", err
			}
			return res.GetHits()[0].GetInstanceId(), nil
		}
		for range 3 {
			if got, err := search(); got != "a" || err != nil {
				t.Errorf("answered %q, %v", got, err)
			}
		}
		c.net.Partition(rpc.AnyName, "search-a", rpc.Refused)
		for range 3 {
			if got, err := search(); got != "b" || err != nil {
				t.Errorf("while a is away answered %q, %v", got, err)
			}
		}
		c.net.Heal()
		b.fault.Store(faults.InvalidArgument("no"))
		if _, err := search(); !errors.Is(err, faults.ErrInvalidArgument) {
			t.Errorf("what the process says: %v", err)
		}
		b.fault.Store(faults.ShardsMissing(20))
		if got, err := search(); got != "a" || err != nil {
			t.Errorf("while b lacks a shard answered %q, %v", got, err)
		}
		a.fault.Store(faults.ShardsMissing(21))
		if _, err := search(); !errors.Is(err, faults.ErrShardsMissing) {
			t.Errorf("while both lack a shard: %v", err)
		}
		c.net.Partition(rpc.AnyName, "search-a", rpc.Refused)
		c.net.Partition(rpc.AnyName, "search-b", rpc.Refused)
		if _, err := search(); !errors.Is(err, faults.ErrUnavailable) {
			t.Errorf("while both are away: %v", err)
		}
		c.net.Heal()
	})
}

// A stream goes to another process until it has begun; after that its end is the caller's to see, and the caller's end its.
func TestSearchStreams(t *testing.T) {
	t.Parallel()
	withSearch(t, func(c *cluster, client wigglev1connect.SearchServiceClient, a, b *searcher) {
		read := func() (n int, from string, err error) {
			stream, err := client.Reindex(c.t.Context(), &wigglev1.ReindexRequest{Resume: "x"})
			if err != nil {
				return 0, "", err
			}
			defer stream.Close()
			for stream.Receive() {
				n, from = n+1, stream.Msg().GetResume()
			}
			return n, from, stream.Err()
		}
		if n, from, err := read(); n != 3 || from != "xa" || err != nil {
			t.Errorf("%d messages of %q, %v", n, from, err)
		}
		a.fault.Store(faults.Unavailable(time.Second, "going down"))
		if n, from, err := read(); n != 3 || from != "xb" || err != nil {
			t.Errorf("while a goes down %d messages of %q, %v", n, from, err)
		}
		b.later.Store(faults.Unavailable(time.Second, "going down"))
		if n, _, err := read(); n != 2 || !errors.Is(err, faults.ErrUnavailable) {
			t.Errorf("of b, which goes down then, %d messages, %v", n, err)
		}
		b.later.Store(nil)
		b.fault.Store(faults.FailedPrecondition("one runs"))
		if n, _, err := read(); n != 0 || !errors.Is(err, faults.ErrFailedPrecondition) {
			t.Errorf("%d messages, %v", n, err)
		}
		b.fault.Store(nil)
		b.release = make(chan struct{})
		ctx, cancel := context.WithCancel(c.t.Context())
		stream, err := client.Reindex(ctx, &wigglev1.ReindexRequest{})
		if err != nil || !stream.Receive() {
			t.Fatal(err)
		}
		cancel()
		<-b.release // the process sees that its caller is gone
		_ = stream.Close()
	})
}

// A router that knows no search process says so.
func TestNoSearch(t *testing.T) {
	t.Parallel()
	inBubble(t, map[string][]int{"a": {0, 1, 2}}, func(c *cluster) {
		options, err := rpc.NewClientOptions(rpc.ClientConfig{})
		if err != nil {
			t.Fatal(err)
		}
		client := wigglev1connect.NewSearchServiceClient(c.http, "http://router", options...)
		if _, err := client.Search(c.t.Context(), &wigglev1.SearchRequest{}); !errors.Is(err, faults.ErrUnimplemented) {
			t.Errorf("got %v", err)
		}
		stream, err := client.Verify(c.t.Context(), &wigglev1.VerifyRequest{})
		if err != nil || stream.Receive() || !errors.Is(stream.Err(), faults.ErrUnimplemented) {
			t.Errorf("got %v, %v", err, stream.Err())
		}
		_ = stream.Close()
	})
}
