package api

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"sync"

	"github.com/wiggle-run/wiggle/pkg/faults"
	"github.com/wiggle-run/wiggle/pkg/pagetoken"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	"github.com/wiggle-run/wiggle/services/router/internal/backends"
	"github.com/wiggle-run/wiggle/services/router/internal/merge"
	"github.com/wiggle-run/wiggle/services/router/internal/route"
)

const defaultPageSize = 100

// ListInstances implements wigglev1connect.InstanceServiceHandler. Every instance shard that is not retired is asked for
// a page of its own with the same token; see package merge. With PARTIAL, a shard that is missing from one page is missing
// from the list there: the rows that it would have given are not on later pages either.
func (s *Services) ListInstances(
	ctx context.Context, req *wigglev1.ListInstancesRequest,
) (*wigglev1.ListInstancesResponse, error) {
	if token := req.GetPageToken(); token != "" {
		if _, err := pagetoken.DecodeFor(token, req.GetFilter()); err != nil {
			return nil, faults.InvalidArgument("%v", err)
		}
	}
	size := req.GetPageSize()
	if size == 0 {
		size = defaultPageSize
	}
	part := &wigglev1.ListInstancesRequest{
		Filter: req.GetFilter(), PageSize: size, PageToken: req.GetPageToken(),
		MissingShards: wigglev1.MissingShards_MISSING_SHARDS_FAIL,
	}
	answers, err := overAll(ctx, s, "ListInstances", req.GetMissingShards(),
		func(ctx context.Context, c backends.Client) (*wigglev1.ListInstancesResponse, error) {
			return c.Instances.ListInstances(ctx, part)
		})
	if err != nil {
		return nil, err
	}
	var pages []merge.Page
	for _, a := range answers {
		pages = append(pages, merge.Page{Rows: a.res.GetInstances(), Next: a.res.GetNextPageToken()})
	}
	merged, err := merge.Merge(pages, int(size), pagetoken.FilterHash(req.GetFilter()))
	if err != nil {
		return nil, faults.Internal(err)
	}
	res := &wigglev1.ListInstancesResponse{Instances: merged.Rows, NextPageToken: merged.Next}
	for i, a := range answers {
		res.Shards = append(res.Shards, s.outcome(ctx, a.shard, a.err, merged.Counts[i], a.res.GetShards()))
	}
	return res, nil
}

// CountInstances implements wigglev1connect.InstanceServiceHandler. Counts are summed over the shards that answered.
func (s *Services) CountInstances(
	ctx context.Context, req *wigglev1.CountInstancesRequest,
) (*wigglev1.CountInstancesResponse, error) {
	part := &wigglev1.CountInstancesRequest{
		Filter: req.GetFilter(), MissingShards: wigglev1.MissingShards_MISSING_SHARDS_FAIL,
	}
	answers, err := overAll(ctx, s, "CountInstances", req.GetMissingShards(),
		func(ctx context.Context, c backends.Client) (*wigglev1.CountInstancesResponse, error) {
			return c.Instances.CountInstances(ctx, part)
		})
	if err != nil {
		return nil, err
	}
	res := &wigglev1.CountInstancesResponse{}
	byState := make(map[wigglev1.InstanceState]int64)
	for _, a := range answers {
		res.Total += a.res.GetTotal()
		for _, c := range a.res.GetByState() {
			byState[c.GetState()] += c.GetCount()
		}
		res.Shards = append(res.Shards, s.outcome(ctx, a.shard, a.err, a.res.GetTotal(), a.res.GetShards()))
	}
	for _, state := range slices.SortedFunc(maps.Keys(byState), cmp.Compare[wigglev1.InstanceState]) {
		res.ByState = append(res.ByState, &wigglev1.StateCount{State: state, Count: byState[state]})
	}
	return res, nil
}

// answer is what one shard said.
type answer[T any] struct {
	shard int
	res   T
	err   error
}

// overAll asks every instance shard at once, each with a deadline of its own. Unless the caller takes a partial result, a
// shard that does not answer fails the call. An error that is about the request, not the shard, always does.
func overAll[T any](
	ctx context.Context, s *Services, method string, policy wigglev1.MissingShards,
	do func(ctx context.Context, c backends.Client) (T, error),
) ([]answer[T], error) {
	return overShards(ctx, s, s.cluster().Instances(), method, policy, do)
}

// overShards is overAll for some of the shards.
func overShards[T any](
	ctx context.Context, s *Services, shards []int, method string, policy wigglev1.MissingShards,
	do func(ctx context.Context, c backends.Client) (T, error),
) ([]answer[T], error) {
	answers := make([]answer[T], len(shards))
	var wg sync.WaitGroup
	for i, shard := range shards {
		wg.Go(func() {
			c := route.Call{Shard: shard, Method: method, Timeout: s.cfg.FanOutTimeout}
			res, err := route.Do(ctx, s.forward, c, do)
			answers[i] = answer[T]{shard: shard, res: res, err: err}
		})
	}
	wg.Wait()
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if err := missingOf(answers, policy); err != nil {
		return nil, err
	}
	return answers, nil
}

// missingOf is why answers do not do: one that is about the request, or a shard that did not answer where the caller takes
// no partial result.
func missingOf[T any](answers []answer[T], policy wigglev1.MissingShards) error {
	var missing []int
	for _, a := range answers {
		switch faults.CodeOf(a.err) {
		case faults.CodeOK:
		case faults.CodeInvalidArgument, faults.CodeUnimplemented, faults.CodePermissionDenied, faults.CodeUnauthenticated:
			return a.err
		default:
			missing = append(missing, a.shard)
		}
	}
	if len(missing) > 0 && policy != wigglev1.MissingShards_MISSING_SHARDS_PARTIAL {
		return faults.ShardsMissing(missing...)
	}
	return nil
}

// outcome tells what became of a shard. What it says of itself is where its answer comes from.
func (s *Services) outcome(
	ctx context.Context, shard int, err error, count int64, itself []*wigglev1.ShardOutcome,
) *wigglev1.ShardOutcome {
	out := &wigglev1.ShardOutcome{Shard: route.Wire(shard), Count: count}
	if err != nil {
		out.Fault = s.fault(ctx, err)
	} else if len(itself) == 1 {
		out.Source, out.Staleness = itself[0].GetSource(), itself[0].GetStaleness()
	}
	return out
}
