package wiggle

import (
	"context"
	"fmt"
	"iter"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"

	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
)

// Run is a handle on one instance.
type Run struct {
	// ID of the instance. Keep it to come back later with [Client.Run].
	ID string
	// Version that it runs. 0 on a handle from [Client.Run].
	Version int
	// Created is false if the same start was applied before.
	Created bool

	client *Client
}

// Run is a handle on an instance that was started elsewhere. It makes no call.
func (c *Client) Run(id string) *Run { return &Run{ID: id, client: c} }

// Get reads the instance as it is now.
func (r *Run) Get(ctx context.Context) (*Instance, error) { return r.client.Get(ctx, r.ID) }

// Wait waits until the instance has ended. See [Client.Wait].
func (r *Run) Wait(ctx context.Context) (*Instance, error) { return r.client.Wait(ctx, r.ID) }

// Cancel ends the instance. See [Client.Cancel].
func (r *Run) Cancel(ctx context.Context, reason string) error {
	return r.client.Cancel(ctx, r.ID, reason)
}

// History reads what happened. See [Client.History].
func (r *Run) History(ctx context.Context) iter.Seq2[HistoryEntry, error] {
	return r.client.History(ctx, r.ID)
}

// Result waits until the instance has ended and reads its result. An instance that
// did not end well is an [*InstanceError].
func Result[T any](ctx context.Context, r *Run) (T, error) {
	var out T
	inst, err := r.Wait(ctx)
	if err != nil {
		return out, err
	}
	if inst.State != Completed {
		return out, &InstanceError{Instance: inst}
	}
	if err := inst.Decode(&out); err != nil {
		return out, fmt.Errorf("wiggle: result of %s: %w", r.ID, err)
	}
	return out, nil
}

// InstanceError tells of an instance that ended otherwise than COMPLETED.
type InstanceError struct {
	// Instance at its end. Its Failure says why.
	Instance *Instance
}

// Error is the state and the failure.
func (e *InstanceError) Error() string {
	s := fmt.Sprintf("wiggle: instance %s of %s ended %s", e.Instance.ID, e.Instance.Workflow, e.Instance.State)
	if e.Instance.Failure != nil {
		s += ": " + e.Instance.Failure.String()
	}
	return s
}

// Get reads one instance as its own shard has it now. [ErrNotFound] if there is
// none.
func (c *Client) Get(ctx context.Context, id string) (*Instance, error) {
	res, err := call(ctx, c, "get "+id, callTimeout, c.instances.GetInstance, &wigglev1.GetInstanceRequest{InstanceId: id})
	if err != nil {
		return nil, err
	}
	return instanceOf(res.GetInstance()), nil
}

// waitChunk is how long one call waits for an instance's end, and waitMargin what
// its answer may take beyond that.
const (
	waitChunk  = 30 * time.Second
	waitMargin = 15 * time.Second
)

// Wait waits until the instance has ended, for as long as ctx allows, and reads it.
// It does not judge how it ended; [Result] does.
func (c *Client) Wait(ctx context.Context, id string) (*Instance, error) {
	req := &wigglev1.WaitInstanceRequest{InstanceId: id, Wait: durationpb.New(waitChunk)}
	for {
		begin := time.Now()
		res, err := call(ctx, c, "wait for "+id, waitChunk+waitMargin, c.instances.WaitInstance, req)
		if err != nil {
			return nil, err
		}
		if res.GetEnded() {
			return instanceOf(res.GetInstance()), nil
		}
		if time.Since(begin) >= quickAnswer {
			continue
		}
		if err := sleep(ctx, jittered(quickPause)); err != nil {
			return nil, &Error{Op: "wait for " + id, Code: connect.CodeOf(ctx.Err()), Message: err.Error(), err: err}
		}
	}
}

// Cancel ends a running instance, with the reason for people. Cancelling one that
// is cancelled already changes nothing; one that ended otherwise is
// [ErrFailedPrecondition].
func (c *Client) Cancel(ctx context.Context, id, reason string) error {
	_, err := call(ctx, c, "cancel "+id, callTimeout, c.instances.CancelInstance,
		&wigglev1.CancelInstanceRequest{InstanceId: id, Reason: reason})
	return err
}

// History reads what happened to an instance, oldest first, page by page as it is
// iterated. An error ends it.
func (c *Client) History(ctx context.Context, id string) iter.Seq2[HistoryEntry, error] {
	return func(yield func(HistoryEntry, error) bool) {
		req := &wigglev1.GetHistoryRequest{InstanceId: id}
		for {
			res, err := call(ctx, c, "history of "+id, callTimeout, c.instances.GetHistory, req)
			if err != nil {
				yield(HistoryEntry{}, err)
				return
			}
			for _, e := range res.GetEntries() {
				if !yield(historyOf(e), nil) {
					return
				}
			}
			if res.GetNextPageToken() == "" {
				return
			}
			req.PageToken = res.GetNextPageToken()
		}
	}
}

// missingOutcome is the error for an item that a batch's answer does not mention.
func missingOutcome(op string) *Error {
	return &Error{Op: op, Code: connect.CodeInternal, Message: "the answer has no outcome for it"}
}
