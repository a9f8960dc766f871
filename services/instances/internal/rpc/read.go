package rpc

import (
	"context"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/wiggle-run/wiggle/pkg/postgres/replica"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	"github.com/wiggle-run/wiggle/services/instances/internal/reads"
	"github.com/wiggle-run/wiggle/services/instances/internal/store"
)

// read has a call read a shard where the table of package reads says (REP-4). It is the only way in which handlers read
// what is stored. do may run several times.
func read[T any](
	ctx context.Context, s *Server, shard int, c reads.Call, do func(ctx context.Context, r store.Reader) (T, error),
) (T, replica.Source, error) {
	of, err := s.shards.Reads(shard)
	if err != nil {
		var zero T
		return zero, replica.Source{}, err
	}
	return reads.Do(ctx, of, c, do)
}

// outcome tells of a shard that answered.
func outcome(shard int, count int64, from replica.Source) []*wigglev1.ShardOutcome {
	out := &wigglev1.ShardOutcome{Shard: int32(shard), Count: count, Source: from.String()} //nolint:gosec // a shard fits
	if !from.Primary() {
		out.Staleness = durationpb.New(from.Lag)
	}
	return []*wigglev1.ShardOutcome{out}
}
