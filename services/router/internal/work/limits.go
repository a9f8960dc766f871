package work

import (
	"context"

	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	"github.com/wiggle-run/wiggle/services/router/internal/guard"
	"github.com/wiggle-run/wiggle/services/router/internal/subject"
)

// limited holds a hello to what its worker may do, and returns what of the tasks that it still holds is its to hold. The others
// are taken for not held: they are handed back, for somebody who may run them.
func limited(ctx context.Context, limits *guard.Limits, hello *wigglev1.WorkHello) ([]*wigglev1.TaskLease, error) {
	held := hello.GetHeld()
	if limits == nil {
		return held, nil
	}
	if err := limits.Queues(ctx, hello.GetNamespace(), hello.GetQueues()); err != nil {
		return nil, err
	}
	ids := make([]string, len(held))
	for i, t := range held {
		ids[i] = subject.Task(t.GetTaskId(), t.GetLease())
	}
	denied, err := limits.Tasks(ctx, ids)
	if err != nil {
		return nil, err
	}
	var kept []*wigglev1.TaskLease
	for i, t := range held {
		if denied[i] == nil {
			kept = append(kept, t)
		}
	}
	return kept, nil
}

// judge holds a message to what its worker may do, item by item. A worker whose permission is not limited costs nothing.
func (s *session) judge(items []item) error {
	if s.limits == nil || len(items) == 0 {
		return nil
	}
	ids := make([]string, len(items))
	for i, it := range items {
		ids[i] = subject.Task(it.taskID, string(it.lease))
	}
	denied, err := s.limits.Tasks(s.ctx, ids)
	if err != nil {
		return err
	}
	for i := range items {
		items[i].denied = denied[i]
	}
	return nil
}
