package router_test

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/wiggle-run/wiggle/pkg/faults"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
)

// refusing makes a process refuse starts while busy is set.
func refusing(busy *atomic.Bool) func(ctx context.Context, method string, shard int) error {
	return func(_ context.Context, method string, shard int) error {
		if method == "StartInstances" && busy.Load() {
			return faults.Overloaded(time.Second, "shard %d has more starts waiting than it takes", shard)
		}
		return nil
	}
}

// startOf starts an instance of a shard.
func (c *cluster) startOf(shard int) error {
	_, err := c.instances.StartInstance(c.t.Context(), &wigglev1.StartInstanceRequest{Workflow: "w", Ulid: c.ulidOn(shard)})
	return err
}

func checkRefusal(t *testing.T, err error) {
	t.Helper()
	fault, ok := errors.AsType[*faults.Error](err)
	if !ok || !errors.Is(err, faults.ErrResourceExhausted) {
		t.Fatalf("%v, want a refusal", err)
	}
	if after, again := fault.RetryAfter(); !again || after != time.Second {
		t.Errorf("the pause is %v, %v", after, again)
	}
}

// A shard that refuses starts is not asked for a moment, and others are (WRK-15).
func TestStartsThatAreRefused(t *testing.T) {
	t.Parallel()
	inBubble(t, oneEach, func(c *cluster) {
		t := c.t
		var busy atomic.Bool
		c.processes["p0"].setHook(refusing(&busy))
		busy.Store(true)
		checkRefusal(t, c.startOf(0))
		busy.Store(false)
		checkRefusal(t, c.startOf(0)) // it is not asked
		if err := c.startOf(1); err != nil {
			t.Errorf("another shard: %v", err)
		}
		// A call for both is answered item by item; one for the busy one alone as a whole.
		res, err := c.instances.StartInstances(t.Context(), &wigglev1.StartInstancesRequest{Starts: []*wigglev1.StartInstanceRequest{
			{Workflow: "w", Ulid: c.ulidOn(0)}, {Workflow: "w", Ulid: c.ulidOn(1)},
		}})
		if err != nil {
			t.Fatal(err)
		}
		checkRefusal(t, faults.FromProto(res.GetOutcomes()[0].GetFault()))
		if res.GetOutcomes()[1].GetStarted() == nil {
			t.Errorf("beside a refusal: %v", res.GetOutcomes()[1])
		}
		_, err = c.instances.StartInstances(t.Context(), &wigglev1.StartInstancesRequest{Starts: []*wigglev1.StartInstanceRequest{
			{Workflow: "w", Ulid: c.ulidOn(0)}, {Workflow: "w", Ulid: c.ulidOn(0)},
		}})
		checkRefusal(t, err)
		if calls := c.processes["p0"].took("StartInstances"); len(calls) != 1 {
			t.Errorf("the busy shard was asked %d times", len(calls))
		}
		<-time.After(210 * time.Millisecond) // by the time of the bubble
		if err := c.startOf(0); err != nil {
			t.Errorf("a while later: %v", err)
		}
	})
}

// While every shard refuses, starts are refused before they are read.
func TestStartsAreRefusedUnread(t *testing.T) {
	t.Parallel()
	inBubble(t, oneEach, func(c *cluster) {
		t := c.t
		var busy atomic.Bool
		busy.Store(true)
		for _, p := range c.processes {
			p.setHook(refusing(&busy))
		}
		invalid := func() error {
			_, err := c.instances.StartInstances(t.Context(), &wigglev1.StartInstancesRequest{})
			return err
		}
		for shard := range 3 {
			if err := invalid(); !errors.Is(err, faults.ErrInvalidArgument) {
				t.Fatalf("with %d busy shards an empty call: %v", shard, err)
			}
			checkRefusal(t, c.startOf(shard))
		}
		checkRefusal(t, invalid())
		if _, err := c.workers.Heartbeat(t.Context(), &wigglev1.HeartbeatRequest{}); !errors.Is(err, faults.ErrInvalidArgument) {
			t.Errorf("another call: %v", err) // it is read
		}
	})
}

// A poll that a shard turns away looks at it again: it was not told that there is nothing.
func TestPollThatIsTurnedAway(t *testing.T) {
	t.Parallel()
	inBubble(t, map[string][]int{"p0": {0, 1, 2}}, func(c *cluster) {
		t := c.t
		p := c.processes["p0"]
		p.turnAway.Store(true)
		poll := &wigglev1.PollTasksRequest{Worker: "w", Queues: []string{"q"}, MaxTasks: 1}
		res, err := c.workers.PollTasks(t.Context(), poll)
		if err != nil || res.GetRetryAfter().AsDuration() != time.Second {
			t.Fatalf("a poll that is turned away: %v, %v", res, err)
		}
		p.turnAway.Store(false)
		c.databases[1].addTasks("q", 1) // without a hint
		poll.Wait = durationpb.New(time.Second)
		if res, err := c.workers.PollTasks(t.Context(), poll); err != nil || len(res.GetTasks()) != 1 {
			t.Errorf("the next poll: %v, %v", res, err)
		}
		if calls := p.took("PollTasks"); !slices.Contains(calls, "PollTasks@1") {
			t.Errorf("%v", calls)
		}
	})
}
