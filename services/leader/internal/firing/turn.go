package firing

import (
	"strings"
	"time"

	"go.opentelemetry.io/otel/trace"

	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	"github.com/wiggle-run/wiggle/services/leader/internal/schedule"
	"github.com/wiggle-run/wiggle/services/leader/internal/schedulestore"
)

// maxProblem bounds a problem's text, in bytes.
const maxProblem = 1024

// turn is what is done about one schedule in a pass.
type turn struct {
	row   schedulestore.Row
	times *schedule.Times // nil: they cannot be made
	look  schedule.Look
	due   time.Time // what is to be fired, zero: nothing
	// running tells that the instance before still runs, where that matters; problem, why the due time could not be fired;
	// instance, what it started.
	running  bool
	problem  string
	instance string
	// span is that of the firing, where it is sampled.
	span trace.Span
}

func (l *Loop) newTurn(row schedulestore.Row, now time.Time) *turn {
	t := &turn{row: row}
	times, problems := schedule.Compile(row.Schedule, l.zones)
	if problems != nil { // an older release knew a time zone, or allowed what this one does not
		t.problem = problems[0].GetWhere() + ": " + problems[0].GetMessage()
		return t
	}
	t.times, t.look = times, times.Look(row.State, now)
	if t.due = t.look.Due; !row.Queued.IsZero() {
		t.due = row.Queued
	}
	return t
}

func (t *turn) queued() bool { return !t.row.Queued.IsZero() }

func (t *turn) overlap() wigglev1.OverlapPolicy {
	if policy := t.row.Schedule.GetOverlap(); policy != wigglev1.OverlapPolicy_OVERLAP_POLICY_UNSPECIFIED {
		return policy
	}
	return wigglev1.OverlapPolicy_OVERLAP_POLICY_SKIP
}

// asks tells whether it matters what became of the instance before.
func (t *turn) asks() bool {
	return !t.due.IsZero() && t.row.LastInstance != "" && t.overlap() != wigglev1.OverlapPolicy_OVERLAP_POLICY_ALLOW
}

// starts tells whether the due time is to be started, after it was asked.
func (t *turn) starts() bool { return !t.due.IsZero() && !t.running && t.problem == "" }

// request is the start of the due time.
func (t *turn) request() *wigglev1.StartInstanceRequest {
	s := t.row.Schedule
	return &wigglev1.StartInstanceRequest{
		Namespace: s.GetNamespace(), Workflow: s.GetWorkflow(), Version: s.GetVersion(), Input: s.GetInput(), Priority: s.Priority,
		Ulid: schedule.ULID(s.GetNamespace(), s.GetId(), t.due),
	}
}

// outcome is what is to be recorded.
func (t *turn) outcome(now time.Time) schedulestore.Outcome {
	o := schedulestore.Outcome{Read: t.row, Missed: t.look.Missed, Next: t.look.Next, Queued: t.row.Queued, Problem: t.problem}
	switch {
	case t.times == nil:
		o.Next, o.Wake = t.row.Next, now.Add(brokenPause)
		return o
	case t.due.IsZero(): // all that was due is too old, or was fired before: the problem of that stays
		o.Problem = t.row.Problem
	case t.problem != "" && t.queued():
		return t.queueFailed(o, now)
	case t.problem != "":
		o.Next, o.Wake = t.due, t.times.Retry(t.due, now)
		return o
	case t.running:
		return t.heldBack(o, now)
	default:
		o.Fired, o.Instance = t.due, t.instance
		if t.queued() {
			o.Queued, o.Next = time.Time{}, t.pending()
		}
	}
	o.Wake = earliest(o.Next, o.Queued)
	return o
}

// pending is the due time that follows the queued one.
func (t *turn) pending() time.Time {
	if !t.look.Due.IsZero() {
		return t.look.Due
	}
	return t.look.Next
}

// heldBack is the outcome of a due time that comes while the instance before still runs.
func (t *turn) heldBack(o schedulestore.Outcome, now time.Time) schedulestore.Outcome {
	switch {
	case t.look.Due.IsZero(): // the queued one waits on
	case t.overlap() == wigglev1.OverlapPolicy_OVERLAP_POLICY_QUEUE_ONE && !t.queued():
		o.Queued = t.look.Due
	default:
		o.Skipped = 1
	}
	if o.Wake = o.Next; !o.Queued.IsZero() {
		o.Wake = earliest(o.Next, now.Add(lookEvery))
	}
	return o
}

// queueFailed is the outcome of a queued due time that could not be fired. It is tried again until another is due, and then
// gives way to that.
func (t *turn) queueFailed(o schedulestore.Outcome, now time.Time) schedulestore.Outcome {
	if t.look.Due.IsZero() {
		o.Wake = earliest(o.Next, t.times.Retry(t.row.Queued, now))
		return o
	}
	o.Missed++
	o.Queued, o.Next, o.Wake = time.Time{}, t.look.Due, t.look.Due
	return o
}

// failed notes why the due time could not be fired.
func (t *turn) failed(doing string, err error) {
	text := doing + ": " + err.Error()
	t.problem = strings.ToValidUTF8(text[:min(len(text), maxProblem)], "")
}

// earliest of two times, of which zero is none.
func earliest(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}
