package router_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/wiggle-run/wiggle/pkg/faults"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	"github.com/wiggle-run/wiggle/services/router"
)

// TestStreamOutlivesADrainingProcess: what a process that goes down was sent is answered by
// it, and the stream goes on with another.
func TestStreamOutlivesADrainingProcess(t *testing.T) {
	t.Parallel()
	inBubble(t, map[string][]int{"a": {0}, "b": {0}}, func(c *cluster) {
		t := c.t
		w := c.work().reading()
		w.send(&wigglev1.WorkRequest{Credits: 1})
		c.databases[0].addTasks("q", 1)
		own, other := c.preferred(0)
		other.hint(0, "q")
		got := w.got()
		own.drain()
		c.settle()
		req := reports(got.GetTasks()...)
		req.Credits, req.Received = 1, 1
		w.send(req)
		if got := w.got(); len(got.GetReported()) != 1 || got.GetReported()[0].GetFault() != nil || got.GetDraining() {
			t.Fatalf("got %v", got)
		}
		if words := other.words(0); words != "reports=1 credits=1" {
			t.Errorf("the other process was told %q", words)
		}
		c.databases[0].addTasks("q", 1)
		own.hint(0, "q")
		if got := w.got(); len(got.GetTasks()) != 1 {
			t.Errorf("got %v", got)
		}
	})
}

// TestStreamEndsWithAShards: when the stream of a shard breaks, the worker is asked to
// connect again with what it holds; meanwhile the shard's items are answered UNAVAILABLE,
// and when it is back they go to it.
func TestStreamEndsWithAShards(t *testing.T) {
	t.Parallel()
	inBubble(t, oneEach, func(c *cluster) {
		t := c.t
		c.databases[1].addTasks("q", 1)
		w := c.work().reading()
		w.send(&wigglev1.WorkRequest{Credits: 3})
		task := w.got().GetTasks()[0]
		c.kill("p1")
		err := w.over()
		if after, ok := faults.FromError(err).RetryAfter(); !errors.Is(err, faults.ErrUnavailable) || !ok || after > time.Second {
			t.Fatalf("the stream ended with %v, again after %v", err, after)
		}
		w = c.work(&wigglev1.TaskLease{TaskId: task.GetId(), Lease: task.GetLease()}, &wigglev1.TaskLease{TaskId: tokenOn(0)}).reading()
		w.send(&wigglev1.WorkRequest{Credits: 3})
		w.send(reports(task))
		if got := w.got(); len(got.GetReported()) != 1 || !errors.Is(faults.FromProto(got.GetReported()[0].GetFault()), faults.ErrShardUnavailable) {
			t.Fatalf("got %v", got)
		}
		p := c.startProcess("p1", 1)
		time.Sleep(2 * time.Second)
		w.send(reports(task))
		if got := w.got(); len(got.GetReported()) != 1 || got.GetReported()[0].GetFault() != nil {
			t.Errorf("got %v", got)
		}
		if held := p.streams.all[0].held; len(held) != 1 || held[0].GetTaskId() != task.GetId() {
			t.Errorf("the shard was told of %v", held)
		}
		if words := p.words(1); !strings.Contains(words, "credits=1") {
			t.Errorf("the shard that is back was told %q", words)
		}
	})
}

// TestStreamOfASilentShard: what waits for a shard that does not take the stream is
// answered UNAVAILABLE in the end; others are not held up, and it is tried again.
func TestStreamOfASilentShard(t *testing.T) {
	t.Parallel()
	inBubble(t, oneEach, func(c *cluster) {
		t := c.t
		c.processes["p1"].setHook(func(ctx context.Context, method string, _ int) error {
			if method == "Work" {
				<-ctx.Done()
				return ctx.Err()
			}
			return nil
		})
		c.databases[0].addTasks("q", 5)
		w := c.work().reading()
		w.send(&wigglev1.WorkRequest{Credits: 9})
		w.send(&wigglev1.WorkRequest{Reports: []*wigglev1.StepReport{{TaskId: tokenOn(1), Lease: "x"}}})
		got := w.got()
		if n := len(got.GetTasks()); n < 3 || len(got.GetReported()) != 0 {
			t.Errorf("got %v", got)
		}
		time.Sleep(6 * time.Second)
		if got := w.got(); len(got.GetReported()) != 1 || !errors.Is(faults.FromProto(got.GetReported()[0].GetFault()), faults.ErrShardUnavailable) {
			t.Errorf("got %v", got)
		}
		c.processes["p1"].setHook(nil)
		time.Sleep(10 * time.Second)
		c.databases[1].addTasks("q", 1)
		time.Sleep(10 * time.Second)
		if got := w.got(); len(got.GetTasks()) != 1 {
			t.Errorf("got %v", got)
		}
	})
}

// TestStreamWithoutAnyShard: a worker may come before its shards.
func TestStreamWithoutAnyShard(t *testing.T) {
	t.Parallel()
	inBubble(t, oneEach, func(c *cluster) {
		t := c.t
		for i := range 3 {
			c.kill(fmt.Sprintf("p%d", i))
		}
		c.settle()
		w := c.work().reading()
		w.send(&wigglev1.WorkRequest{Credits: 3})
		w.send(&wigglev1.WorkRequest{Revoke: 1})
		if got := w.got(); got.GetRevoked() != 1 {
			t.Errorf("of 3 credits that no shard has %d are given back", got.GetRevoked())
		}
		c.databases[2].addTasks("q", 5)
		c.startProcess("p2", 2)
		time.Sleep(2 * time.Second)
		if got := w.got(); len(got.GetTasks()) != 2 {
			t.Errorf("got %v", got)
		}
	})
}

// TestRouterDrains: workers are told, get all credits back and no more tasks; what they
// report is answered until they leave. New ones are sent elsewhere.
func TestRouterDrains(t *testing.T) {
	t.Parallel()
	inBubble(t, oneEach, func(c *cluster) {
		t := c.t
		c.databases[1].addTasks("q", 1)
		w := c.work().reading()
		w.send(&wigglev1.WorkRequest{Credits: 9})
		task := w.got().GetTasks()[0]
		c.stop()
		if got := w.got(); !got.GetDraining() || got.GetRevoked() != 8 {
			t.Errorf("got %v", got)
		}
		c.databases[1].addTasks("q", 1)
		c.processes["p1"].hint(1, "q")
		req := reports(task)
		req.Credits = 1
		w.send(req)
		if got := w.got(); len(got.GetReported()) != 1 || got.GetReported()[0].GetFault() != nil || got.GetRevoked() != 1 || len(got.GetTasks()) > 0 {
			t.Errorf("got %v", got)
		}
		if err := w.inner.CloseRequest(); err != nil {
			t.Error(err)
		}
		if err := w.over(); !errors.Is(err, io.EOF) {
			t.Errorf("the stream ended with %v", err)
		}
	})
}

// TestStreamFollowsTheTopology: a shard that is added is served on streams that are open,
// one that is retired no longer.
func TestStreamFollowsTheTopology(t *testing.T) {
	t.Parallel()
	inBubble(t, oneEach, func(c *cluster) {
		t := c.t
		c.kill("p2")
		c.databases[3] = newDatabase(3)
		c.databases[3].addTasks("q", 1)
		c.startProcess("p2", 2, 3)
		time.Sleep(time.Second)
		w := c.work().reading()
		w.send(&wigglev1.WorkRequest{Credits: 3})
		if got := w.got(); len(got.GetTasks()) != 0 {
			t.Errorf("a shard that the topology does not list was asked: %v", got)
		}
		more := strings.Replace(threeShards, `{"id": 9,`,
			`{"id": 3, "state": "active", "roles": ["instances"], "primary": {"url": "postgres://s3/w"}}, {"id": 9,`, 1)
		if err := c.router.SetTopology(parse(t, more)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Second)
		if got := w.got(); len(got.GetTasks()) != 1 {
			t.Errorf("got %v", got)
		}
		c.processes["p2"].words(3)
		last := strings.Replace(more, `"id": 3, "state": "active"`, `"id": 3, "state": "retired"`, 1)
		last = strings.Replace(last, `"roles": ["instances"], "primary": {"url": "postgres://s3/w"}`, `"roles": ["instances"]`, 1)
		if err := c.router.SetTopology(parse(t, last)); err != nil {
			t.Fatal(err)
		}
		c.settle()
		w.send(&wigglev1.WorkRequest{Credits: 30})
		if words := c.processes["p2"].words(3); words != "" {
			t.Errorf("a shard that is retired was told %q", words)
		}
	})
}

// TestStreamsAreBounded: beyond as many streams as a router takes, workers are told when
// to come back (WRK-15).
func TestStreamsAreBounded(t *testing.T) {
	t.Parallel()
	inBubble(t, oneEach, func(c *cluster) {
		t := c.t
		first := c.work().reading()
		c.work().reading()
		err := c.work().reading().over()
		if _, ok := faults.FromError(err).RetryAfter(); !ok || !errors.Is(err, faults.ErrUnavailable) {
			t.Errorf("the third of two streams ended with %v", err)
		}
		first.leave()
		_ = first.over()
		c.work().reading().send(&wigglev1.WorkRequest{Credits: 1})
	}, func(cfg *router.Config) { cfg.MaxParkedPolls = 2 })
}

// idBefore is the id of a process that comes before another for a shard's calls: of two the one whose id has the greater hash.
func idBefore(other string, shard uint64) string {
	for i := 0; ; i++ {
		if id := fmt.Sprintf("b-%d", i); xxh3.HashStringSeed(id, shard) > xxh3.HashStringSeed(other, shard) {
			return id
		}
	}
}

// TestStreamMoves: a stream follows when a shard's calls go to another process for a while,
// so that batches stay large (ARC-2).
func TestStreamMoves(t *testing.T) {
	t.Parallel()
	inBubble(t, map[string][]int{"a": {0}, "b": {}}, func(c *cluster) {
		t := c.t
		w := c.work().reading()
		w.send(&wigglev1.WorkRequest{Credits: 2})
		c.processes["a"].words(0)
		c.kill("b")
		c.settle()
		c.startProcessAs("b", idBefore(c.processes["a"].id, 0), 0)
		time.Sleep(time.Second)
		if _, err := c.workers.PollTasks(t.Context(), &wigglev1.PollTasksRequest{Worker: "other"}); err != nil {
			t.Fatal(err)
		}
		if len(c.processes["b"].took("PollTasks")) == 0 {
			t.Fatal("the second process does not come first")
		}
		time.Sleep(10 * time.Second)
		if words := c.processes["b"].words(0); !strings.HasPrefix(words, "credits=2") {
			t.Errorf("the process that comes first was told %q", words)
		}
		c.processes["a"].words(0)
		w.send(&wigglev1.WorkRequest{Beats: []*wigglev1.Beat{{TaskId: tokenOn(0)}}})
		if got, old := c.processes["b"].words(0), c.processes["a"].words(0); got != "beats=1" || old != "" {
			t.Errorf("the two processes were told %q and %q", got, old)
		}
		if got := w.got(); len(got.GetBeats()) != 1 || got.GetDraining() {
			t.Errorf("got %v", got)
		}
	})
}
