package rpc

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/wiggle-run/wiggle/pkg/faults"
	"github.com/wiggle-run/wiggle/pkg/postgres"
	"github.com/wiggle-run/wiggle/pkg/postgres/replica"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	"github.com/wiggle-run/wiggle/services/instances/internal/dispatch"
	"github.com/wiggle-run/wiggle/services/instances/internal/machine"
	"github.com/wiggle-run/wiggle/services/instances/internal/store"
)

// retryAfter is what a caller is asked to wait for a shard that does not answer.
const retryAfter = 500 * time.Millisecond

// Fault says in a client's terms what went wrong on a shard, for the services beside this package's.
func Fault(shard int, err error) error { return fault(shard, err) }

// fault says in a client's terms what went wrong on a shard.
func fault(shard int, err error) error {
	if err == nil {
		return nil
	}
	var own *faults.Error
	var limit *machine.LimitError
	var outcome *machine.OutcomeError
	var batch *machine.BatchError
	var emit *machine.EmitError
	var overload *dispatch.OverloadError
	switch {
	case errors.As(err, &own):
		return own
	case errors.As(err, &limit):
		return faults.LimitExceeded(limit.Limit, limit.Setting, int64(limit.Maximum), int64(limit.Actual))
	case errors.As(err, &outcome):
		return faults.InvalidArgument("%s", outcome.Error())
	case errors.As(err, &emit):
		return faults.InvalidArgument("%s", emit.Error())
	case errors.As(err, &batch):
		return faults.FailedPrecondition("%s", batch.Error())
	case errors.As(err, &overload):
		return overloaded(shard, overload)
	case errors.Is(err, replica.ErrNone):
		return faults.NoReplica(shard, retryAfter).WithCause(err)
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return faults.ShardUnavailable(shard, retryAfter).WithCause(err)
	}
	switch postgres.Classify(err) {
	case postgres.Unknown:
		return faults.OutcomeUnknown(shard).WithCause(err)
	case postgres.Unavailable, postgres.ReadOnly, postgres.NotApplied, postgres.Interrupted:
		return faults.ShardUnavailable(shard, retryAfter).WithCause(err)
	default:
		return faults.Internal(err)
	}
}

// overloaded is the fault of what a shard does not take for having too much to do. A start is refused as such. What belongs to
// work under way is told to come back, as it would be if the shard were away: it is to be sent until it is taken.
func overloaded(shard int, err *dispatch.OverloadError) error {
	if err.Start {
		return faults.Overloaded(err.RetryAfter, "shard %d has more starts waiting than it takes; try again later", shard).WithCause(err)
	}
	return faults.Unavailable(err.RetryAfter, "shard %d has more waiting than it takes; try again", shard).WithCause(err)
}

// instanceFault is fault for a call about one instance.
func instanceFault(shard int, id string, state machine.InstanceState, err error) error {
	switch {
	case errors.Is(err, store.ErrNotFound):
		return faults.NotFound("instance", id)
	case errors.Is(err, machine.ErrEnded):
		return faults.WrongState(id, state.String())
	}
	return fault(shard, err)
}

// taskFault is fault for a call about one task.
func taskFault(shard int, taskID string, err error) error {
	if errors.Is(err, machine.ErrLeaseLost) {
		return faults.LeaseLost(taskID)
	}
	return fault(shard, err)
}

// item turns the error of one item of a batch into its fault. What an internal
// fault hides is logged here, as no interceptor sees it.
func (s *Server) item(ctx context.Context, err error) *wigglev1.Fault {
	if err == nil {
		return nil
	}
	f := faults.FromError(err)
	if f.Code() == faults.CodeInternal {
		s.log.LogAttrs(ctx, slog.LevelError, "item of a batch failed", slog.Any("error", f))
	}
	return f.ToProto()
}
