package scheduleapi

import (
	"context"

	"github.com/wiggle-run/wiggle/pkg/faults"
	"github.com/wiggle-run/wiggle/pkg/identity"
)

// The actions of the calls, as their protos have them.
const (
	actionRead   = "schedule.read"
	actionManage = "schedule.manage"
)

// A schedule belongs to whoever may do the action to its workflow. Calls name it by its id, so the router cannot check them:
// this is the only place that does.

// check refuses a call about a schedule of a workflow that the caller may not do it to, without telling which that is.
func check(ctx context.Context, action, namespace, workflow, id string) error {
	if identity.Allows(ctx, action, namespace, workflow) {
		return nil
	}
	return identity.Denied(ctx, action, "schedule", id)
}

// notFound tells that there is no such schedule. To a caller who is limited it is the same as one that it may not touch, so
// that names cannot be tried.
func notFound(ctx context.Context, action, id string) error {
	if identity.FromContext(ctx) != nil {
		return identity.Denied(ctx, action, "schedule", id)
	}
	return faults.NotFound("schedule", id)
}

// remove deletes a schedule if the caller may. There being none is no error: a repeated call must not become one.
func (s *Server) remove(ctx context.Context, namespace, id string) (bool, error) {
	if identity.FromContext(ctx) == nil {
		return s.store.Delete(ctx, namespace, id)
	}
	return s.store.DeleteIf(ctx, namespace, id, func(workflow string) error {
		return check(ctx, actionManage, namespace, workflow, id)
	})
}
