package router_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/wiggle-run/wiggle/pkg/faults"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
)

const partial = wigglev1.MissingShards_MISSING_SHARDS_PARTIAL

// Pages over all shards repeat and skip nothing, while instances are started between them.
func TestListPages(t *testing.T) {
	t.Parallel()
	inBubble(t, oneEach, func(c *cluster) {
		t := c.t
		var want []string
		for i := range 23 {
			want = append(want, c.start(i*i%3))
			time.Sleep(time.Millisecond)
		}
		slices.Reverse(want)
		var got []string
		req := &wigglev1.ListInstancesRequest{PageSize: 4}
		for {
			res, err := c.instances.ListInstances(t.Context(), req)
			if err != nil {
				t.Fatal(err)
			}
			for _, i := range res.GetInstances() {
				got = append(got, i.GetId())
			}
			if len(res.GetShards()) != 3 {
				t.Errorf("outcomes %v", res.GetShards())
			}
			if req.PageToken = res.GetNextPageToken(); req.GetPageToken() == "" {
				break
			}
			c.start(len(got) % 3) // newer than every page
		}
		if !slices.Equal(got, want) {
			t.Errorf("got  %v\nwant %v", got, want)
		}
	})
}

func TestPageTokens(t *testing.T) {
	t.Parallel()
	inBubble(t, oneEach, func(c *cluster) {
		t := c.t
		for range 3 {
			c.start(1)
		}
		res, err := c.instances.ListInstances(t.Context(), &wigglev1.ListInstancesRequest{PageSize: 2})
		if err != nil || res.GetNextPageToken() == "" {
			t.Fatalf("got %v, %v", res, err)
		}
		for _, req := range []*wigglev1.ListInstancesRequest{
			{PageToken: res.GetNextPageToken(), Filter: &wigglev1.InstanceFilter{Workflow: "other"}},
			{PageToken: "made up"},
		} {
			if _, err := c.instances.ListInstances(t.Context(), req); !errors.Is(err, faults.ErrInvalidArgument) {
				t.Errorf("%v: got %v", req, err)
			}
		}
		req := &wigglev1.ListInstancesRequest{PageToken: res.GetNextPageToken(), Filter: &wigglev1.InstanceFilter{Namespace: "default"}}
		if res, err := c.instances.ListInstances(t.Context(), req); err != nil || len(res.GetInstances()) != 1 {
			t.Errorf("the same filter, spelt out: %v, %v", res, err)
		}
	})
}

// What a shard that is dead, down or slow does to calls over all shards.
func TestMissingShards(t *testing.T) {
	t.Parallel()
	for name, breakShard := range map[string]func(c *cluster){
		"dead": func(c *cluster) { c.kill("p1") },
		"down": func(c *cluster) { c.databases[1].update(func() { c.databases[1].down = "it is down" }) },
		"slow": func(c *cluster) {
			c.processes["p1"].setHook(func(ctx context.Context, method string, _ int) error {
				if method == "Status" {
					return nil
				}
				<-ctx.Done()
				return ctx.Err()
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inBubble(t, oneEach, func(c *cluster) {
				t := c.t
				for shard := range 3 {
					c.start(shard)
				}
				breakShard(c)
				c.settle()
				begin := time.Now()
				_, err := c.instances.ListInstances(t.Context(), &wigglev1.ListInstancesRequest{})
				fault := faults.FromError(err)
				if !errors.Is(err, faults.ErrShardsMissing) || !slices.Equal(fault.ToProto().GetShardsMissing().GetShards(), []int32{1}) {
					t.Errorf("list: %v", err)
				}
				if _, err := c.instances.CountInstances(t.Context(), &wigglev1.CountInstancesRequest{}); !errors.Is(err, faults.ErrShardsMissing) {
					t.Errorf("count: %v", err)
				}
				list, err := c.instances.ListInstances(t.Context(), &wigglev1.ListInstancesRequest{MissingShards: partial})
				if err != nil || len(list.GetInstances()) != 2 {
					t.Fatalf("partial list: %v, %v", list, err)
				}
				count, err := c.instances.CountInstances(t.Context(), &wigglev1.CountInstancesRequest{MissingShards: partial})
				if err != nil || count.GetTotal() != 2 || count.GetByState()[0].GetCount() != 2 {
					t.Fatalf("partial count: %v, %v", count, err)
				}
				for _, shards := range [][]*wigglev1.ShardOutcome{list.GetShards(), count.GetShards()} {
					for i, s := range shards {
						if s.GetShard() != int32(i) || (s.GetFault() != nil) != (i == 1) || (i != 1) != (s.GetCount() == 1) {
							t.Errorf("outcome %v", s)
						}
					}
				}
				if d := time.Since(begin); d > 8*time.Second+time.Millisecond { // four calls, two seconds each at most
					t.Errorf("took %v", d)
				}
			})
		})
	}
}
