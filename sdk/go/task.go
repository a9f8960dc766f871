package wiggle

import (
	"context"
	"time"

	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
)

// TaskInfo says what a handler is working on.
type TaskInfo struct {
	// ID of the task: the same for every attempt of the step.
	ID string
	// InstanceID of the instance, of Workflow at Version, in Namespace.
	InstanceID string
	Namespace  string
	Workflow   string
	Version    int
	// Node, the name of its Step, and the Activity that the handler is bound to.
	Node     string
	Step     string
	Activity string
	// Attempt, from 1.
	Attempt int
	// Queue that it waited in, since QueuedAt, until it was leased at DispatchedAt,
	// by the clock of the database.
	Queue                  string
	QueuedAt, DispatchedAt time.Time
	// Element tells which branch of a fork or for_each this is. nil outside of one.
	Element *Element
	// Cases that a choose may answer with.
	Cases []string
	// TraceContext of the caller that started the instance (W3C).
	TraceContext map[string]string
}

// Element tells which branch a task is in.
type Element struct {
	// Index of the branch or element, from 0.
	Index int
	// Key is the name of the fork's branch, or the key of the map's element. Empty
	// for a list.
	Key string
}

type heldKey struct{}

func heldFrom(ctx context.Context) *held {
	h, _ := ctx.Value(heldKey{}).(*held)
	return h
}

// TaskFrom says what the handler that was given ctx is working on. Outside of a
// handler, as in its unit test, it is the zero value.
func TaskFrom(ctx context.Context) TaskInfo {
	h := heldFrom(ctx)
	if h == nil {
		return TaskInfo{}
	}
	t := h.task
	info := TaskInfo{
		ID: t.GetId(), InstanceID: t.GetInstanceId(), Namespace: t.GetNamespace(),
		Workflow: t.GetWorkflow(), Version: int(t.GetVersion()),
		Node: t.GetNode(), Step: t.GetStep(), Activity: t.GetActivity(), Attempt: int(t.GetAttempt()),
		Queue: t.GetQueue(), QueuedAt: timeOf(t.GetQueuedAt()), DispatchedAt: timeOf(t.GetDispatchedAt()),
		Cases: t.GetCases(), TraceContext: t.GetTraceContext(),
	}
	if e := t.GetElement(); e != nil {
		info.Element = &Element{Index: int(e.GetIndex()), Key: e.GetKey()}
	}
	return info
}

// BaseContext reads, in a branch, the context around it: what the fork or for_each
// saw. Outside of a branch it is the zero value.
func BaseContext[T any](ctx context.Context) (T, error) {
	return decodeAs[T]("the base context", taskOf(ctx).GetBaseContext())
}

// Progress reads what the last attempt sent with its last [Heartbeat]. It is false
// if there is none.
func Progress[T any](ctx context.Context) (T, bool, error) {
	p := taskOf(ctx).GetProgress()
	if p == nil {
		var zero T
		return zero, false, nil
	}
	v, err := decodeAs[T]("the progress", p)
	return v, err == nil, err
}

func taskOf(ctx context.Context) *wigglev1.Task {
	if h := heldFrom(ctx); h != nil {
		return h.task
	}
	return nil
}

// Heartbeat hands progress to the next attempt, should this one fail or its worker
// die. It does not wait for the server: the progress goes out at once or, where
// calls come fast, the latest about once a second. Leases need no heartbeat, the
// worker keeps them. Errors: progress that is no JSON; the cause of ctx once that
// is cancelled, so that a long loop may end on it. Outside of a handler it does
// nothing.
func Heartbeat(ctx context.Context, progress any) error {
	h := heldFrom(ctx)
	if h == nil {
		return nil
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	p, err := encode(progress)
	if err != nil {
		return ErrorType(typePayload, &payloadError{"the progress", err})
	}
	h.session.progress(h, p)
	return nil
}
