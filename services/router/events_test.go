package router_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/wiggle-run/wiggle/pkg/eventcursor"
	"github.com/wiggle-run/wiggle/pkg/faults"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
)

// pollEvents asks for events, and tells them with the cursor of the answer.
func (c *cluster) pollEvents(req *wigglev1.PollEventsRequest) (found, cursor string) {
	c.t.Helper()
	res, err := c.events.PollEvents(c.t.Context(), req)
	if err != nil {
		c.t.Fatal(err)
	}
	var all []string
	for _, e := range res.GetEvents() {
		all = append(all, fmt.Sprintf("%d/%d", e.GetShard(), e.GetSeq()))
	}
	return strings.Join(all, " "), res.GetCursor()
}

func vector(t *testing.T, cursor string) string {
	t.Helper()
	v, err := eventcursor.Decode(cursor)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprint(v)
}

func atOnce(consumer, after string) *wigglev1.PollEventsRequest {
	return &wigglev1.PollEventsRequest{Consumer: consumer, After: after, Wait: durationpb.New(0)}
}

func fromEarliest(req *wigglev1.PollEventsRequest) *wigglev1.PollEventsRequest {
	req.Start = wigglev1.EventStart_EVENT_START_EARLIEST
	return req
}

func (c *cluster) ack(consumer, cursor string) error {
	_, err := c.events.AckEvents(c.t.Context(), &wigglev1.AckEventsRequest{Consumer: consumer, Cursor: cursor})
	return err
}

// logs writes events on shards, a millisecond apart.
func (c *cluster) logs(shards ...int) {
	for _, shard := range shards {
		time.Sleep(time.Millisecond)
		c.databases[shard].log("x")
	}
}

// Events of all shards come by time; a consumer goes on behind what it has acknowledged, wherever that is on each shard
// (EVT-5).
func TestEvents(t *testing.T) {
	t.Parallel()
	inBubble(t, oneEach, func(c *cluster) {
		t := c.t
		c.logs(2, 0, 1, 0, 2)
		found, cursor := c.pollEvents(fromEarliest(atOnce("billing", "")))
		if found != "2/1 0/1 1/1 0/2 2/2" || vector(t, cursor) != "map[0:2 1:1 2:2]" {
			t.Errorf("found %s, up to %s", found, vector(t, cursor))
		}
		res, err := c.events.PollEvents(t.Context(), atOnce("billing", ""))
		if err != nil || len(res.GetEvents()) != 5 || res.GetShards()[1].GetCount() != 1 {
			t.Fatalf("again: %v, %v", res, err)
		}
		if err := c.ack("billing", res.GetEvents()[2].GetCursor()); err != nil {
			t.Error(err)
		}
		if found, _ := c.pollEvents(atOnce("billing", "")); found != "0/2 2/2" {
			t.Errorf("behind the third came %s", found)
		}
		c.logs(1)
		req := atOnce("billing", cursor)
		if found, _ := c.pollEvents(req); found != "1/2" {
			t.Errorf("behind the cursor came %s", found)
		}
		req = atOnce("billing", "")
		req.MaxEvents = 2
		if found, cursor := c.pollEvents(req); found != "0/2 2/2" || vector(t, cursor) != "map[0:2 1:1 2:2]" {
			t.Errorf("of two came %s, up to %s", found, vector(t, cursor))
		}
		list, err := c.events.ListEventConsumers(t.Context(), &wigglev1.ListEventConsumersRequest{})
		if err != nil || len(list.GetConsumers()) != 1 || len(list.GetConsumers()[0].GetPositions()) != 3 || len(list.GetShards()) != 3 {
			t.Errorf("consumers: %v, %v", list, err)
		}
		if _, err := c.events.DeleteEventConsumer(t.Context(), &wigglev1.DeleteEventConsumerRequest{Consumer: "billing"}); err != nil {
			t.Error(err)
		}
		if found, _ := c.pollEvents(atOnce("billing", "")); found != "" {
			t.Errorf("a consumer that is new again was given %s", found)
		}
	})
}

// A poll that finds nothing waits on all shards, and the first that has something ends it.
func TestEventsAreWaitedFor(t *testing.T) {
	t.Parallel()
	inBubble(t, oneEach, func(c *cluster) {
		t := c.t
		go func() {
			time.Sleep(20 * time.Second)
			c.databases[2].log("x")
		}()
		began := time.Now()
		if found, cursor := c.pollEvents(&wigglev1.PollEventsRequest{}); found != "2/1" || vector(t, cursor) != "map[0:0 1:0 2:1]" {
			t.Errorf("found %s, up to %s", found, vector(t, cursor))
		}
		if d := time.Since(began); d != 20*time.Second {
			t.Errorf("it took %s", d)
		}
		if n := len(c.called("PollEvents")); n > 9 { // where to begin, what there is, and to wait, on each shard
			t.Errorf("%d calls were made", n)
		}
		began = time.Now()
		if found, _ := c.pollEvents(&wigglev1.PollEventsRequest{Wait: durationpb.New(7 * time.Second)}); found != "" || time.Since(began) != 7*time.Second {
			t.Errorf("after %s came %q", time.Since(began), found)
		}
	})
}

// A consumer that is new begins at the end of every shard. On one that was away then it begins with the earliest entry, so
// that it misses nothing, unless the request says otherwise.
func TestEventsOfAShardThatWasAway(t *testing.T) {
	t.Parallel()
	inBubble(t, oneEach, func(c *cluster) {
		t := c.t
		c.logs(0, 1, 2)
		c.databases[1].update(func() { c.databases[1].down = "it is down" })
		req := atOnce("billing", "")
		if _, err := c.events.PollEvents(t.Context(), req); !errors.Is(err, faults.ErrShardsMissing) {
			t.Errorf("with a shard missing: %v", err)
		}
		req.MissingShards = partial
		res, err := c.events.PollEvents(t.Context(), req)
		if err != nil || len(res.GetEvents()) != 0 || res.GetShards()[1].GetFault() == nil || vector(t, res.GetCursor()) != "map[0:1 2:1]" {
			t.Errorf("the others: %v, %v", res, err)
		}
		c.databases[1].update(func() { c.databases[1].down = "" })
		c.logs(2)
		time.Sleep(time.Second) // for the router to see it
		if found, cursor := c.pollEvents(atOnce("billing", res.GetCursor())); found != "1/1 2/2" || vector(t, cursor) != "map[0:1 1:1 2:2]" {
			t.Errorf("once it is back: %s, up to %s", found, vector(t, cursor))
		}
		req = atOnce("tail", "")
		req.Start = wigglev1.EventStart_EVENT_START_TAIL
		if found, _ := c.pollEvents(req); found != "" {
			t.Errorf("at the tail: %s", found)
		}
		c.databases[1].update(func() { delete(c.databases[1].events.consumers, "tail") })
		if found, _ := c.pollEvents(req); found != "" {
			t.Errorf("where it says so: %s", found)
		}
	})
}

// Acknowledging tells which shards do not know, and the others do.
func TestAckWithAShardMissing(t *testing.T) {
	t.Parallel()
	inBubble(t, oneEach, func(c *cluster) {
		t := c.t
		c.logs(0, 1, 2)
		_, cursor := c.pollEvents(fromEarliest(atOnce("billing", "")))
		c.databases[1].update(func() { c.databases[1].down = "it is down" })
		err := c.ack("billing", cursor)
		if !errors.Is(err, faults.ErrShardsMissing) || !slices.Equal(faults.FromError(err).ToProto().GetShardsMissing().GetShards(), []int32{1}) {
			t.Errorf("got %v", err)
		}
		c.databases[1].update(func() { c.databases[1].down = "" })
		time.Sleep(time.Second)
		if found, _ := c.pollEvents(atOnce("billing", "")); found != "1/1" {
			t.Errorf("not acknowledged is %s", found)
		}
		if err := c.ack("billing", cursor); err != nil {
			t.Error(err)
		}
		if err := c.ack("billing", eventcursor.Encode(eventcursor.Cursor{9: 5, 77: 5})); err != nil {
			t.Errorf("of a shard that is retired, and one that never was: %v", err)
		}
	})
}

// When the process goes away that waits, another goes on; when the shard does, the poll ends and says so.
func TestEventsWhenAProcessDies(t *testing.T) {
	t.Parallel()
	inBubble(t, map[string][]int{"a": {0, 1, 2}, "b": {0, 1, 2}}, func(c *cluster) {
		t := c.t
		go func() {
			time.Sleep(5 * time.Second)
			c.kill("a")
			time.Sleep(5 * time.Second)
			c.databases[1].log("x")
		}()
		began := time.Now()
		if found, _ := c.pollEvents(&wigglev1.PollEventsRequest{}); found != "1/1" || time.Since(began) > 11*time.Second {
			t.Errorf("after %s came %q", time.Since(began), found)
		}
		go func() {
			time.Sleep(5 * time.Second)
			c.kill("b")
		}()
		began = time.Now()
		_, err := c.events.PollEvents(t.Context(), &wigglev1.PollEventsRequest{Wait: durationpb.New(time.Minute)})
		if !errors.Is(err, faults.ErrShardsMissing) || time.Since(began) > 15*time.Second {
			t.Errorf("after %s: %v", time.Since(began), err)
		}
	})
}

// A router that goes down sends those who wait home, with where to go on.
func TestEventsWhenTheRouterDrains(t *testing.T) {
	t.Parallel()
	inBubble(t, oneEach, func(c *cluster) {
		t := c.t
		c.logs(1)
		done := make(chan string)
		began := time.Now()
		go func() {
			_, cursor := c.pollEvents(&wigglev1.PollEventsRequest{Wait: durationpb.New(time.Minute)})
			done <- cursor
		}()
		time.Sleep(3 * time.Second)
		c.stop()
		if cursor := <-done; vector(t, cursor) != "map[0:0 1:1 2:0]" || time.Since(began) > 4*time.Second {
			t.Errorf("after %s up to %s", time.Since(began), vector(t, cursor))
		}
	})
}

func TestEventRequests(t *testing.T) {
	t.Parallel()
	inBubble(t, oneEach, func(c *cluster) {
		for name, req := range map[string]*wigglev1.PollEventsRequest{
			"Wiggle's own":     {Consumer: "wiggle.relay"},
			"no name":          {Consumer: "a b"},
			"a cursor made up": {After: "made-up"},
			"too many":         {MaxEvents: 1001},
		} {
			if _, err := c.events.PollEvents(c.t.Context(), req); !errors.Is(err, faults.ErrInvalidArgument) {
				c.t.Errorf("%s: %v", name, err)
			}
		}
		if err := c.ack("wiggle.relay", eventcursor.Encode(nil)); !errors.Is(err, faults.ErrInvalidArgument) {
			c.t.Errorf("acknowledged as Wiggle: %v", err)
		}
	})
}
