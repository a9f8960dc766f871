package leader_test

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/oklog/ulid/v2"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/wiggle-run/wiggle/internal/pgtest"
	"github.com/wiggle-run/wiggle/pkg/faults"
	"github.com/wiggle-run/wiggle/pkg/rpc"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	"github.com/wiggle-run/wiggle/proto/gen/wiggle/v1/wigglev1connect"
	"github.com/wiggle-run/wiggle/services/leader"
)

// starter is a router that starts instances.
type starter struct {
	wigglev1connect.UnimplementedInstanceServiceHandler

	url   string
	mu    *sync.Mutex
	times []time.Time // of what was started, in order
	known map[string]bool
	away  bool
}

func startRouter(t *testing.T) *starter {
	t.Helper()
	s := &starter{mu: &sync.Mutex{}, known: map[string]bool{}}
	server, err := rpc.NewServer(rpc.ServerConfig{})
	if err != nil {
		t.Fatal(err)
	}
	server.Mount(wigglev1connect.NewInstanceServiceHandler(s, server.Options()...))
	l := listen(t)
	s.url = "http://" + l.Addr().String()
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	t.Cleanup(func() {
		if err := server.Close(); err != nil {
			t.Error(err)
		}
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return s
}

func (s *starter) StartInstances(_ context.Context, req *wigglev1.StartInstancesRequest) (*wigglev1.StartInstancesResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.away {
		return nil, faults.Unavailable(time.Second, "this router has left")
	}
	res := &wigglev1.StartInstancesResponse{}
	for _, start := range req.GetStarts() {
		id := start.GetUlid()
		if !s.known[id] {
			u, err := ulid.ParseStrict(strings.ToUpper(id))
			if err != nil {
				return nil, faults.InvalidArgument("%v", err)
			}
			s.times = append(s.times, ulid.Time(u.Time()))
		}
		res.Outcomes = append(res.Outcomes, &wigglev1.StartOutcome{Outcome: &wigglev1.StartOutcome_Started{
			Started: &wigglev1.StartInstanceResponse{InstanceId: "wfi.s0." + id, Created: !s.known[id]},
		}})
		s.known[id] = true
	}
	return res, nil
}

// started are the times of what was started so far.
func (s *starter) started() []time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]time.Time(nil), s.times...)
}

// schedules is a client of a process's ScheduleService.
func schedules(t *testing.T, url string) wigglev1connect.ScheduleServiceClient {
	t.Helper()
	options, err := rpc.NewClientOptions(rpc.ClientConfig{})
	if err != nil {
		t.Fatal(err)
	}
	client := rpc.NewHTTPClient(rpc.ClientConfig{})
	t.Cleanup(client.CloseIdleConnections)
	return wigglev1connect.NewScheduleServiceClient(client, url, options...)
}

// TestSchedulesFailOver: schedules are put at a process that stands by, and fired by the one that leads; when that stops the
// other goes on where it was, and no second is left out or fired twice (EVT-8). Of two routers one is away by turns.
func TestSchedulesFailOver(t *testing.T) {
	t.Parallel()
	home := instancesShard(t, 0)
	topo := describe(t, shard{url: home})
	routers := []*starter{startRouter(t), startRouter(t)}
	routers[1].known, routers[1].mu = routers[0].known, routers[0].mu // both place a start on the same shard
	routers[1].away = true
	urls := []string{routers[0].url, routers[1].url}
	first := start(t, leader.Config{Topology: topo, RouterURLs: urls})
	until(t, "the first leads", first.leads)
	second := start(t, leader.Config{Topology: topo, RouterURLs: urls})
	until(t, "the second is ready", func() bool { code, _ := second.readyz(); return code == 200 })
	client := schedules(t, "http://"+second.address)
	_, err := client.PutSchedule(t.Context(), &wigglev1.PutScheduleRequest{Schedule: &wigglev1.Schedule{
		Id: "s", Workflow: "w", Overlap: wigglev1.OverlapPolicy_OVERLAP_POLICY_ALLOW,
		When: &wigglev1.Schedule_Interval{Interval: &wigglev1.IntervalTimes{Every: durationpb.New(time.Second)}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	until(t, "some are started", func() bool { return len(routers[0].started()) >= 2 })
	routers[0].mu.Lock()
	routers[0].away, routers[1].away = true, false
	routers[0].mu.Unlock()
	if err := first.stop(); err != nil {
		t.Error(err)
	}
	before := len(routers[1].started())
	until(t, "more are started by the second", func() bool { return len(routers[1].started()) >= before+3 })
	if err := second.stop(); err != nil {
		t.Error(err)
	}
	all := append(routers[0].started(), routers[1].started()...)
	for i := range all[1:] {
		if gap := all[i+1].Sub(all[i]); gap != time.Second {
			t.Errorf("between %v and %v lie %v", all[i], all[i+1], gap)
		}
	}
	var fired, missed int
	if err := pgtest.OpenPool(t, home).QueryRow(t.Context(), "select fired, missed from schedules").Scan(&fired, &missed); err != nil {
		t.Fatal(err)
	}
	if missed != 0 || fired < len(all)-1 || fired > len(all) {
		t.Errorf("%d were started, %d recorded as fired, %d as missed", len(all), fired, missed)
	}
}
