package router_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
)

// describeShards writes what ListShards answers, a shard a line.
func (c *cluster) describeShards() string {
	c.t.Helper()
	res, err := c.shards.ListShards(c.t.Context(), &wigglev1.ListShardsRequest{})
	if err != nil {
		c.t.Fatal(err)
	}
	var text strings.Builder
	for _, s := range res.GetShards() {
		fmt.Fprintf(&text, "%d %s %v ready=%v processes=%d %q", s.GetShard(), s.GetState(), s.GetRoles(), s.GetReady(), s.GetProcesses(), s.GetReason())
		for _, r := range s.GetReplicas() {
			fmt.Fprintf(&text, " (%d %s serving=%v lag=%v %q)", r.GetIndex(), r.GetZone(), r.GetServing(), r.GetLag().AsDuration(), r.GetReason())
		}
		text.WriteString("\n")
	}
	return text.String()
}

// TestListShards: what the topology says, with what the processes tell (REP-6).
func TestListShards(t *testing.T) {
	t.Parallel()
	inBubble(t, map[string][]int{"a": {0, 1}, "b": {1, 2}}, func(c *cluster) {
		t := c.t
		top := strings.Replace(threeShards, `"primary": {"url": "postgres://s1/w"}`,
			`"primary": {"url": "postgres://s1/w"}, "replicas": [{"url": "postgres://r0/w", "zone": "x"}, {"url": "postgres://r1/w", "zone": "y"}]`, 1)
		if err := c.router.SetTopology(parse(t, top)); err != nil {
			t.Fatal(err)
		}
		c.databases[1].update(func() {
			c.databases[1].replicas = []*wigglev1.Replica{{Zone: "x", Serving: true, Lag: durationpb.New(time.Second)}}
		})
		time.Sleep(time.Second)
		want := `0 active [instances home auth] ready=true processes=1 ""
1 active [instances] ready=true processes=2 "" (0 x serving=true lag=1s "") (1 y serving=false lag=0s "no process that serves the shard tells of it")
2 active [instances] ready=true processes=1 ""
9 retired [instances] ready=false processes=0 ""
`
		if got := c.describeShards(); got != want {
			t.Errorf("got\n%swant\n%s", got, want)
		}
		c.databases[1].update(func() { c.databases[1].down = "the database does not answer" })
		c.kill("a")
		time.Sleep(time.Second)
		want = `0 active [instances home auth] ready=false processes=0 "no process serves it"
1 active [instances] ready=false processes=0 "the database does not answer" (0 x serving=true lag=1s "") (1 y serving=false lag=0s "no process that serves the shard tells of it")
2 active [instances] ready=true processes=1 ""
9 retired [instances] ready=false processes=0 ""
`
		if got := c.describeShards(); got != want {
			t.Errorf("with one process gone: got\n%swant\n%s", got, want)
		}
	})
}

// TestSourceIsTold: each shard's outcome tells who has answered, and how old that may be.
func TestSourceIsTold(t *testing.T) {
	t.Parallel()
	inBubble(t, oneEach, func(c *cluster) {
		t := c.t
		c.databases[2].replicas = []*wigglev1.Replica{{Lag: durationpb.New(3 * time.Second)}}
		list, err := c.instances.ListInstances(t.Context(), &wigglev1.ListInstancesRequest{})
		if err != nil {
			t.Fatal(err)
		}
		count, err := c.instances.CountInstances(t.Context(), &wigglev1.CountInstancesRequest{})
		if err != nil {
			t.Fatal(err)
		}
		for _, shards := range [][]*wigglev1.ShardOutcome{list.GetShards(), count.GetShards()} {
			for i, want := range []string{"primary", "primary", "replica 0"} {
				if got := shards[i]; got.GetSource() != want || (got.GetStaleness() != nil) != (i == 2) {
					t.Errorf("shard %d: %v", i, got)
				}
			}
		}
	})
}
