package cli

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/wiggle-run/wiggle/pkg/faults"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
)

// fakeEvents are one of each kind.
func fakeEvents() []*wigglev1.Event {
	return []*wigglev1.Event{
		{
			Cursor: "c1", Shard: 0, Seq: 11, InstanceId: "wfi.s0.01k6j00000000000000000000a", Namespace: "default", Workflow: "order",
			Version: 2, Type: "wf.started", Time: at(0), Revision: 1,
		},
		{
			Cursor: "c2", Shard: 1, Seq: 7, InstanceId: "wfi.s1.01k6j00000000000000000000b", Namespace: "default", Workflow: "order",
			Version: 2, Type: "order.priced", Node: "price", Time: at(0.5), Revision: 1, Payload: payload(`{ "total": 12345678901234567890, "a": "<b>" }`),
		},
		{
			Cursor: "c3", Shard: 0, Seq: 13, InstanceId: "wfi.s0.01k6j00000000000000000000a", Namespace: "default", Workflow: "order",
			Version: 2, Type: "wf.completed", Time: at(1), Revision: 2,
		},
	}
}

func (f *fakeServer) PollEvents(ctx context.Context, req *wigglev1.PollEventsRequest) (*wigglev1.PollEventsResponse, error) {
	switch req.GetAfter() {
	case "":
	case "c3":
		<-ctx.Done()
		return nil, ctx.Err()
	default:
		return nil, faults.InvalidArgument("the cursor is not one that this server gave")
	}
	res := &wigglev1.PollEventsResponse{Events: fakeEvents(), Cursor: "c3", Shards: []*wigglev1.ShardOutcome{{Shard: 0}, {Shard: 1}}}
	if req.GetMissingShards() == wigglev1.MissingShards_MISSING_SHARDS_PARTIAL {
		res.Events = res.GetEvents()[:2]
		res.Shards = append(res.Shards, &wigglev1.ShardOutcome{Shard: 3, Fault: &wigglev1.Fault{
			Code: int32(connect.CodeUnavailable), Message: "shard 3 does not answer",
		}})
		if len(req.GetFilter().GetTypes()) != 1 || req.GetStart() != wigglev1.EventStart_EVENT_START_EARLIEST {
			return nil, faults.InvalidArgument("asked for %v", req)
		}
		res.Cursor = ""
	}
	return res, nil
}

func (f *fakeServer) AckEvents(_ context.Context, req *wigglev1.AckEventsRequest) (*wigglev1.AckEventsResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.acks = append(f.acks, req.GetConsumer()+" "+req.GetCursor())
	return &wigglev1.AckEventsResponse{}, nil
}

func (f *fakeServer) ListEventConsumers(context.Context, *wigglev1.ListEventConsumersRequest) (*wigglev1.ListEventConsumersResponse, error) {
	return &wigglev1.ListEventConsumersResponse{Consumers: []*wigglev1.EventConsumer{
		{Name: "billing", Positions: []*wigglev1.EventPosition{
			{Shard: 0, Seq: 11, Behind: 2, AckedAt: at(1)}, {Shard: 1, Seq: 7, AckedAt: at(2)},
		}},
		{Name: "wiggle.relay", Positions: []*wigglev1.EventPosition{{Shard: 0, Seq: 13, AckedAt: at(3)}}},
	}}, nil
}

func (f *fakeServer) DeleteEventConsumer(context.Context, *wigglev1.DeleteEventConsumerRequest) (*wigglev1.DeleteEventConsumerResponse, error) {
	return &wigglev1.DeleteEventConsumerResponse{}, nil
}

// closing cancels when something was written to it.
type closing struct {
	mu   sync.Mutex
	text strings.Builder
	most int
	stop context.CancelFunc
}

func (c *closing) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.most--; c.most == 0 {
		defer c.stop()
	}
	return c.text.Write(p)
}

// Ctrl-C is a good end of following, and what was printed is acknowledged (EVT-5).
func TestEventsTailEnds(t *testing.T) {
	t.Parallel()
	server := newFakeServer(t)
	ctx, stop := context.WithCancel(t.Context())
	out := &closing{most: 3, stop: stop}
	p := &Program{Out: out, Err: &strings.Builder{}, Environ: []string{"WIGGLE_SERVER=" + server.URL}, Location: time.UTC, Now: time.Now}
	if code := Run(ctx, p, []string{"events", "tail", "--consumer", "billing"}); code != 0 {
		t.Errorf("exit code %d", code)
	}
	if n := strings.Count(out.text.String(), "\n"); n != 3 {
		t.Errorf("printed %q", out.text.String())
	}
	server.mu.Lock()
	defer server.mu.Unlock()
	if got := strings.Join(server.acks, ", "); got != "billing c3" {
		t.Errorf("acknowledged %q", got)
	}
}
