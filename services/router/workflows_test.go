package router_test

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/wiggle-run/wiggle/pkg/faults"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
)

func (c *cluster) register(name string) *wigglev1.RegisterWorkflowResponse {
	c.t.Helper()
	res, err := c.workflows.RegisterWorkflow(c.t.Context(), &wigglev1.RegisterWorkflowRequest{
		Definition: &wigglev1.Definition{Name: name, Start: "a"},
	})
	if err != nil {
		c.t.Fatal(err)
	}
	return res
}

func (c *cluster) revisionOf(shard int) int64 {
	d := c.databases[shard]
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.revision()
}

func TestRegisterReachesEveryShard(t *testing.T) {
	t.Parallel()
	inBubble(t, oneEach, func(c *cluster) {
		t := c.t
		res := c.register("w")
		if res.GetVersion() != 1 || !res.GetCreated() || res.GetFingerprint() != "ab" || len(res.GetShardsBehind()) > 0 {
			t.Errorf("got %v", res)
		}
		for shard := range 3 {
			if c.revisionOf(shard) != 1 {
				t.Errorf("shard %d is at %d", shard, c.revisionOf(shard))
			}
		}
		list, err := c.workflows.ListWorkflows(t.Context(), &wigglev1.ListWorkflowsRequest{})
		if err != nil || len(list.GetWorkflows()) != 1 || len(list.GetShardsBehind()) > 0 {
			t.Errorf("got %v, %v", list, err)
		}
	})
}

// A dead shard does not block a registration; it is brought what it missed when it is back, and shards that are idle cost
// nothing.
func TestCatchUp(t *testing.T) {
	t.Parallel()
	inBubble(t, oneEach, func(c *cluster) {
		t := c.t
		c.kill("p1")
		for _, name := range []string{"a", "b", "c", "d", "e"} {
			begin := time.Now()
			if res := c.register(name); !slices.Equal(res.GetShardsBehind(), []int32{1}) {
				t.Errorf("%s: behind %v", name, res.GetShardsBehind())
			}
			if d := time.Since(begin); d > time.Second {
				t.Errorf("took %v", d)
			}
		}
		list, err := c.workflows.ListWorkflows(t.Context(), &wigglev1.ListWorkflowsRequest{})
		if err != nil || !slices.Equal(list.GetShardsBehind(), []int32{1}) {
			t.Errorf("got %v, %v", list, err)
		}
		c.startProcess("p1", 1)
		time.Sleep(3 * time.Second)
		if got := c.revisionOf(1); got != 5 {
			t.Errorf("shard 1 is at %d, want 5", got)
		}
		list, err = c.workflows.ListWorkflows(t.Context(), &wigglev1.ListWorkflowsRequest{})
		if err != nil || len(list.GetShardsBehind()) > 0 {
			t.Errorf("got %v, %v", list, err)
		}
		c.called("PutDefinitions")
		c.called("ListDefinitions")
		time.Sleep(time.Minute)
		if n := len(c.called("PutDefinitions")) + len(c.called("ListDefinitions")); n > 0 {
			t.Errorf("%d calls although nobody is behind", n)
		}
	})
}

// A shard that is behind receives what it missed before it serves a start of it.
func TestStartOnAShardThatIsBehind(t *testing.T) {
	t.Parallel()
	inBubble(t, oneEach, func(c *cluster) {
		t := c.t
		c.register("w")
		c.databases[1].update(func() { c.databases[1].down = "it is down" })
		time.Sleep(time.Second)
		c.register("new")
		c.databases[1].update(func() { c.databases[1].down = "" })
		time.Sleep(700 * time.Millisecond) // a status, perhaps before the loop
		res, err := c.instances.StartInstance(t.Context(), &wigglev1.StartInstanceRequest{Workflow: "new", Ulid: c.ulidOn(1)})
		if err != nil || !res.GetCreated() {
			t.Errorf("got %v, %v", res, err)
		}
	})
}

// With home down: everything but registering goes on. What a shard does not know it may only not have received.
func TestHomeDown(t *testing.T) {
	t.Parallel()
	inBubble(t, oneEach, func(c *cluster) {
		t := c.t
		c.register("w")
		c.databases[1].update(func() { c.databases[1].down = "it is down" })
		time.Sleep(time.Second)
		c.register("new")
		c.kill("p0")
		c.databases[1].update(func() { c.databases[1].down = "" })
		time.Sleep(time.Second)

		if _, err := c.instances.StartInstance(t.Context(), &wigglev1.StartInstanceRequest{Workflow: "w", Ulid: c.ulidOn(1)}); err != nil {
			t.Errorf("a start with home down: %v", err)
		}
		_, err := c.instances.StartInstance(t.Context(), &wigglev1.StartInstanceRequest{Workflow: "new", Ulid: c.ulidOn(1)})
		if !errors.Is(err, faults.ErrUnavailable) {
			t.Errorf("a start of what the shard lacks: %v", err)
		}
		_, err = c.workflows.RegisterWorkflow(t.Context(), &wigglev1.RegisterWorkflowRequest{Definition: &wigglev1.Definition{Name: "x"}})
		if !errors.Is(err, faults.ErrShardUnavailable) {
			t.Errorf("register: %v", err)
		}
		for name, ok := range map[string]bool{"new": true, "nobody": false} {
			_, err := c.workflows.GetWorkflow(t.Context(), &wigglev1.GetWorkflowRequest{Name: name, Version: 1})
			if ok != (err == nil) || !ok && !errors.Is(err, faults.ErrUnavailable) {
				t.Errorf("get %s: %v", name, err)
			}
		}
		list, err := c.workflows.ListWorkflows(t.Context(), &wigglev1.ListWorkflowsRequest{})
		if err != nil || len(list.GetWorkflows()) != 2 {
			t.Errorf("list: %v, %v", list, err)
		}
	})
}
