package router_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/wiggle-run/wiggle/pkg/faults"
	"github.com/wiggle-run/wiggle/pkg/rpc"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	"github.com/wiggle-run/wiggle/proto/gen/wiggle/v1/wigglev1connect"
	"github.com/wiggle-run/wiggle/services/router"
)

// leaderProcess answers for schedules, with its name.
type leaderProcess struct {
	wigglev1connect.UnimplementedScheduleServiceHandler

	name   string
	calls  atomic.Int32
	server *rpc.Server
}

func (l *leaderProcess) PutSchedule(context.Context, *wigglev1.PutScheduleRequest) (*wigglev1.PutScheduleResponse, error) {
	l.calls.Add(1)
	return &wigglev1.PutScheduleResponse{Created: true}, nil
}

func (l *leaderProcess) GetSchedule(_ context.Context, req *wigglev1.GetScheduleRequest) (*wigglev1.GetScheduleResponse, error) {
	if l.calls.Add(1); req.GetId() == "nothing" {
		return nil, faults.NotFound("schedule", req.GetId())
	}
	return &wigglev1.GetScheduleResponse{Schedule: &wigglev1.Schedule{Id: req.GetId(), Workflow: l.name}}, nil
}

func (l *leaderProcess) ListSchedules(context.Context, *wigglev1.ListSchedulesRequest) (*wigglev1.ListSchedulesResponse, error) {
	return &wigglev1.ListSchedulesResponse{NextPageToken: l.name}, nil
}

func (l *leaderProcess) PauseSchedule(context.Context, *wigglev1.PauseScheduleRequest) (*wigglev1.PauseScheduleResponse, error) {
	return &wigglev1.PauseScheduleResponse{Status: &wigglev1.ScheduleStatus{LastInstanceId: l.name}}, nil
}

func (l *leaderProcess) DeleteSchedule(context.Context, *wigglev1.DeleteScheduleRequest) (*wigglev1.DeleteScheduleResponse, error) {
	return &wigglev1.DeleteScheduleResponse{Deleted: true}, nil
}

// startLeader starts a leader process.
func (c *cluster) startLeader(name string) *leaderProcess {
	c.t.Helper()
	l := &leaderProcess{name: name}
	var err error
	if l.server, err = rpc.NewServer(rpc.ServerConfig{}); err != nil {
		c.t.Fatal(err)
	}
	l.server.Mount(wigglev1connect.NewScheduleServiceHandler(l, l.server.Options()...))
	listener, err := c.net.Listen(name)
	if err != nil {
		c.t.Fatal(err)
	}
	go l.server.Serve(listener)
	return l
}

func (c *cluster) schedules() wigglev1connect.ScheduleServiceClient {
	c.t.Helper()
	opts, err := rpc.NewClientOptions(rpc.ClientConfig{})
	if err != nil {
		c.t.Fatal(err)
	}
	return wigglev1connect.NewScheduleServiceClient(c.http, "http://router", opts...)
}

func twoLeaders(cfg *router.Config) { cfg.LeaderURLs = []string{"http://leader-a", "http://leader-b"} }

// TestSchedulesGoToALeader: calls go to a leader process, whichever leads, and to the next while one is away (ARC-5).
func TestSchedulesGoToALeader(t *testing.T) {
	t.Parallel()
	inBubble(t, map[string][]int{"p": {0, 1, 2}}, func(c *cluster) {
		a, b := c.startLeader("leader-a"), c.startLeader("leader-b")
		defer b.server.Close()
		schedules := c.schedules()
		who := func() string {
			c.t.Helper()
			res, err := schedules.GetSchedule(c.t.Context(), &wigglev1.GetScheduleRequest{Id: "s"})
			if err != nil {
				c.t.Fatal(err)
			}
			return res.GetSchedule().GetWorkflow()
		}
		if got := who(); got != "leader-a" {
			c.t.Errorf("%s answers", got)
		}
		put := &wigglev1.PutScheduleRequest{Schedule: &wigglev1.Schedule{
			Id: "s", Workflow: "w", Input: &wigglev1.Payload{Data: make([]byte, 1<<20)},
		}}
		if _, err := schedules.PutSchedule(c.t.Context(), put); err != nil {
			c.t.Error(err)
		}
		put.Schedule.Input.Data = append(put.Schedule.Input.Data, 1)
		calls := a.calls.Load()
		if _, err := schedules.PutSchedule(c.t.Context(), put); !errors.Is(err, faults.ErrLimitExceeded) || a.calls.Load() != calls {
			c.t.Errorf("an input over the limit: %v", err)
		}
		if _, err := schedules.GetSchedule(c.t.Context(), &wigglev1.GetScheduleRequest{Id: "nothing"}); !errors.Is(err, faults.ErrNotFound) {
			c.t.Errorf("no schedule: %v", err)
		}
		put.Schedule.Id = "not an id"
		if _, err := schedules.PutSchedule(c.t.Context(), put); !errors.Is(err, faults.ErrInvalid) {
			c.t.Errorf("a wrong id: %v", err)
		}
		if err := a.server.Close(); err != nil {
			c.t.Error(err)
		}
		for range 2 {
			if got := who(); got != "leader-b" {
				c.t.Errorf("%s answers", got)
			}
		}
		list, listErr := schedules.ListSchedules(c.t.Context(), &wigglev1.ListSchedulesRequest{})
		paused, pauseErr := schedules.PauseSchedule(c.t.Context(), &wigglev1.PauseScheduleRequest{Id: "s"})
		deleted, deleteErr := schedules.DeleteSchedule(c.t.Context(), &wigglev1.DeleteScheduleRequest{Id: "s"})
		if list.GetNextPageToken() != "leader-b" || paused.GetStatus().GetLastInstanceId() != "leader-b" || !deleted.GetDeleted() {
			c.t.Errorf("%v %v, %v %v, %v %v", list, listErr, paused, pauseErr, deleted, deleteErr)
		}
		if err := b.server.Close(); err != nil {
			c.t.Error(err)
		}
		_, err := schedules.GetSchedule(c.t.Context(), &wigglev1.GetScheduleRequest{Id: "s"})
		if after, _ := faults.FromError(err).RetryAfter(); !errors.Is(err, faults.ErrUnavailable) || after != time.Second {
			c.t.Errorf("without a leader: %v", err)
		}
	}, twoLeaders)
}

// TestSchedulesWithoutLeader: a router that knows no leader says so.
func TestSchedulesWithoutLeader(t *testing.T) {
	t.Parallel()
	inBubble(t, map[string][]int{"p": {0, 1, 2}}, func(c *cluster) {
		_, err := c.schedules().GetSchedule(c.t.Context(), &wigglev1.GetScheduleRequest{Id: "s"})
		if !errors.Is(err, faults.ErrUnimplemented) {
			c.t.Errorf("without leaders: %v", err)
		}
	})
}
