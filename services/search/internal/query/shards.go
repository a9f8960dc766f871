package query

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/wiggle-run/wiggle/pkg/faults"
	"github.com/wiggle-run/wiggle/pkg/postgres"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	"github.com/wiggle-run/wiggle/services/search/internal/index"
)

// retryAfter is what a caller is asked to wait for a search shard that does not answer.
const retryAfter = 500 * time.Millisecond

// Fault says in a client's terms what went wrong on a search shard.
func Fault(shard int, err error) error {
	if err == nil {
		return nil
	}
	if own, ok := errors.AsType[*faults.Error](err); ok {
		return own
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return faults.ShardUnavailable(shard, retryAfter).WithCause(err)
	}
	switch postgres.Classify(err) {
	case postgres.Unknown, postgres.Unavailable, postgres.ReadOnly, postgres.NotApplied, postgres.Interrupted:
		return faults.ShardUnavailable(shard, retryAfter).WithCause(err)
	default:
		return faults.Internal(err)
	}
}

// call is one call over the search shards: it remembers which of them failed, and does not ask those again.
type call struct {
	shards []*index.Shard
	policy wigglev1.MissingShards
	log    *slog.Logger

	mu     sync.Mutex
	failed map[int]error
}

// over asks some shards at once. Those that failed before are not asked.
func over[T any](ctx context.Context, c *call, which func(shard int) bool, ask func(context.Context, *index.Shard) (T, error)) map[int]T {
	answers := make(map[int]T, len(c.shards))
	var wg sync.WaitGroup
	for _, shard := range c.shards {
		if !which(shard.ID) || c.failure(shard.ID) != nil {
			continue
		}
		wg.Go(func() {
			var res T
			err := error(faults.ShardUnavailable(shard.ID, retryAfter))
			if shard.Ready() {
				res, err = ask(ctx, shard)
			}
			c.mu.Lock()
			defer c.mu.Unlock()
			if err != nil {
				c.failed[shard.ID] = Fault(shard.ID, err)
				return
			}
			answers[shard.ID] = res
		})
	}
	wg.Wait()
	return answers
}

func (c *call) failure(shard int) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.failed[shard]
}

// err is the error of the call so far: the caller's end, or that shards are missing and all are wanted.
func (c *call) err(ctx context.Context) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if len(c.failed) == 0 || c.policy == wigglev1.MissingShards_MISSING_SHARDS_PARTIAL {
		return nil
	}
	var missing []int
	for _, shard := range c.shards {
		err := c.failed[shard.ID]
		if err == nil {
			continue
		}
		if faults.CodeOf(err) == faults.CodeInternal {
			return err
		}
		missing = append(missing, shard.ID)
	}
	return faults.ShardsMissing(missing...)
}

// outcomes tells what became of each shard. Internal faults are logged here, as nobody else sees their cause.
func (c *call) outcomes(ctx context.Context, count func(shard int) int64) []*wigglev1.ShardOutcome {
	list := make([]*wigglev1.ShardOutcome, 0, len(c.shards))
	for _, shard := range c.shards {
		out := &wigglev1.ShardOutcome{Shard: int32(shard.ID)} //nolint:gosec // a shard fits
		if err := c.failed[shard.ID]; err != nil {
			fault := faults.FromError(err)
			if fault.Code() == faults.CodeInternal {
				c.log.LogAttrs(ctx, slog.LevelError, "a search shard failed", slog.Int("shard", shard.ID), slog.Any("error", fault))
			}
			out.Fault = fault.ToProto()
		} else {
			out.Count, out.Source = count(shard.ID), "primary"
		}
		list = append(list, out)
	}
	return list
}

func all(int) bool   { return true }
func none(int) int64 { return 0 }
