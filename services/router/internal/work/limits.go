package work

import (
	"context"

	"github.com/wiggle-run/wiggle/pkg/faults"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	"github.com/wiggle-run/wiggle/services/router/internal/guard"
	"github.com/wiggle-run/wiggle/services/router/internal/subject"
)

// limited refuses a hello of a worker that may not take tasks of its queues.
func limited(ctx context.Context, limits *guard.Limits, hello *wigglev1.WorkHello) error {
	if limits == nil {
		return nil
	}
	return limits.Queues(ctx, hello.GetNamespace(), hello.GetQueues())
}

// heldOn is what the worker said that it holds of a shard's tasks, as far as it may have to do with them: the shard does not
// learn of the others. It fails if that cannot be found out now. A worker whose permission is not limited costs nothing.
func (s *session) heldOn(ctx context.Context, shard int) ([]*wigglev1.TaskLease, error) {
	s.mu.Lock()
	kept, judged := s.judged[shard]
	s.mu.Unlock()
	if judged {
		return kept, nil
	}
	var held []*wigglev1.TaskLease
	for _, t := range s.held {
		if of, err := s.hub.cluster().Task(t.GetTaskId()); err == nil && of == shard {
			held = append(held, t)
		}
	}
	if s.limits == nil || len(held) == 0 {
		return held, nil
	}
	ids := make([]string, len(held))
	for i, t := range held {
		ids[i] = subject.Task(t.GetTaskId(), t.GetLease())
	}
	for i, err := range s.limits.Tasks(ctx, ids) {
		switch faults.CodeOf(err) {
		case faults.CodeOK:
			kept = append(kept, held[i])
		case faults.CodePermissionDenied:
		default:
			return nil, err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.judged[shard] = kept
	return kept, nil
}

// judge holds a message to what its worker may do, item by item. A worker whose permission is not limited costs nothing.
func (s *session) judge(items []item) {
	if s.limits == nil || len(items) == 0 {
		return
	}
	ids := make([]string, len(items))
	for i, it := range items {
		ids[i] = subject.Task(it.taskID, string(it.lease))
	}
	for i, err := range s.limits.Tasks(s.ctx, ids) {
		items[i].denied = err
	}
}
