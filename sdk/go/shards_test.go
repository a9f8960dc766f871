package wiggle_test

import (
	"context"
	"reflect"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	wiggle "github.com/wiggle-run/wiggle/sdk/go"
)

func (f *fake) ListShards(context.Context, *wigglev1.ListShardsRequest) (*wigglev1.ListShardsResponse, error) {
	return &wigglev1.ListShardsResponse{Shards: []*wigglev1.Shard{
		{
			Shard: 2, State: "active", Roles: []string{"instances"}, Ready: true, Processes: 3,
			Replicas: []*wigglev1.Replica{
				{
					Zone: "b", Serving: true, Lag: durationpb.New(time.Second), Replayed: "0/1", Reads: 7,
					ProbedAt: timestamppb.New(time.Unix(9, 0)),
				},
				{Index: 1, Reason: "failed: connection refused"},
			},
		},
		{Shard: 3, State: "draining", Reason: "no process serves it"},
	}}, nil
}

func TestShards(t *testing.T) {
	t.Parallel()
	got, err := newFake().client(t).Shards(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	want := []wiggle.Shard{
		{
			Shard: 2, State: "active", Roles: []string{"instances"}, Ready: true, Processes: 3,
			Replicas: []wiggle.Replica{
				{Zone: "b", Serving: true, Lag: time.Second, Replayed: "0/1", Reads: 7, ProbedAt: time.Unix(9, 0).UTC()},
				{Index: 1, Reason: "failed: connection refused", Lag: -1},
			},
		},
		{Shard: 3, State: "draining", Reason: "no process serves it"},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v", got)
	}
}
