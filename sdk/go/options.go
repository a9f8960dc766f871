package wiggle

import (
	"math"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
)

// StepOption sets something of one step. [RetryPolicy] is one too, so that it
// can be given as it is: f.Task("charge", wiggle.Retry(5, time.Second)).
type StepOption interface {
	applyStep(*wigglev1.Step)
}

type stepOption func(*wigglev1.Step)

func (o stepOption) applyStep(s *wigglev1.Step) { o(s) }

// Queue names the queue where the step waits for a worker. Without it the step
// waits in the flow's [DefaultQueue], and without that in "default".
func Queue(name string) StepOption {
	return stepOption(func(s *wigglev1.Step) { s.Queue = name })
}

// Activity names the handler that runs the step. Without it the handler is named
// as the step is. Several steps may share one activity.
func Activity(name string) StepOption {
	return stepOption(func(s *wigglev1.Step) { s.Activity = name })
}

// Timeout bounds one attempt of the step, from the moment a worker is given it to
// its report. Passing it spends the attempt. Without it the flow's
// [DefaultTimeout] holds, and without that none: the lease alone bounds a worker
// that is gone.
func Timeout(d time.Duration) StepOption {
	return stepOption(func(s *wigglev1.Step) { s.Timeout = durationpb.New(d) })
}

// Priority of the step within its queue, 0 (lowest) to 9. Without it the step has
// its instance's.
func Priority(p int) StepOption {
	return stepOption(func(s *wigglev1.Step) { v := toInt32(p); s.Priority = &v })
}

// RetryPolicy says what follows a failed attempt of a step. The zero value is the
// default: unlimited attempts, 1 s doubling up to 5 min, jitter 0.2. A policy
// replaces the flow's default as a whole.
type RetryPolicy struct {
	// MaxAttempts is the number of attempts in all: 1 means no retry, 0 unlimited.
	MaxAttempts int
	// InitialBackoff is the pause after the first failed attempt. 0 means 1 s.
	InitialBackoff time.Duration
	// Multiplier makes each further pause longer, at least 1. 0 means 2.
	Multiplier float64
	// MaxBackoff is the longest pause. 0 means 5 min.
	MaxBackoff time.Duration
	// Jitter is how far a pause varies around its value, as a fraction from 0 to
	// 1. 0 means 0.2, unless NoJitter says none.
	Jitter float64
	// NoJitter makes pauses exact.
	NoJitter bool
	// NonRetryable lists error types (see [ErrorType]) that are never retried.
	NonRetryable []string
}

// Retry is the policy of so many attempts in all (1 means no retry, 0 unlimited)
// with the given pause after the first. The pause doubles up to 5 min.
func Retry(attempts int, firstBackoff time.Duration) RetryPolicy {
	return RetryPolicy{MaxAttempts: attempts, InitialBackoff: firstBackoff}
}

func (p RetryPolicy) applyStep(s *wigglev1.Step) { s.Retry = p.proto() }

func (p RetryPolicy) proto() *wigglev1.RetryPolicy {
	out := &wigglev1.RetryPolicy{
		MaxAttempts:        toInt32(p.MaxAttempts),
		Multiplier:         p.Multiplier,
		NonRetryableErrors: p.NonRetryable,
	}
	if p.InitialBackoff != 0 {
		out.InitialBackoff = durationpb.New(p.InitialBackoff)
	}
	if p.MaxBackoff != 0 {
		out.MaxBackoff = durationpb.New(p.MaxBackoff)
	}
	if p.Jitter != 0 || p.NoJitter {
		jitter := p.Jitter
		if p.NoJitter {
			jitter = 0
		}
		out.Jitter = &jitter
	}
	return out
}

// FlowOption sets something of a whole flow.
type FlowOption func(*wigglev1.Definition)

// Version declares the version of a flow, a positive integer. Registering another
// graph under a version that is taken is refused, with the difference. Without
// it the server counts: the same graph keeps its version, a different one gets
// the next.
func Version(v int) FlowOption {
	return func(d *wigglev1.Definition) { d.Version = toInt32(v) }
}

// DefaultQueue names the queue of every step that does not name its own.
func DefaultQueue(name string) FlowOption {
	return func(d *wigglev1.Definition) { defaults(d).Queue = name }
}

// DefaultRetry is the policy of every step that has none of its own.
func DefaultRetry(p RetryPolicy) FlowOption {
	return func(d *wigglev1.Definition) { defaults(d).Retry = p.proto() }
}

// DefaultTimeout bounds an attempt of every step that has no [Timeout] of its own.
func DefaultTimeout(t time.Duration) FlowOption {
	return func(d *wigglev1.Definition) { defaults(d).Timeout = durationpb.New(t) }
}

func defaults(d *wigglev1.Definition) *wigglev1.Defaults {
	if d.GetDefaults() == nil {
		d.Defaults = &wigglev1.Defaults{}
	}
	return d.GetDefaults()
}

// toInt32 keeps a number that is out of range out of range: cut to its low bits it
// might look right.
func toInt32(n int) int32 {
	return int32(min(max(n, math.MinInt32), math.MaxInt32))
}

// RepeatOption sets something of a loop.
type RepeatOption func(*repeatStmt)

// Budget bounds how often the loop may go back, at least 1. Passing it fails the
// instance. Without it: 10 000.
func Budget(n int) RepeatOption {
	return func(r *repeatStmt) {
		r.budget = toInt32(n)
		if n < 1 {
			r.badBudget = true
		}
	}
}

// ForEachOption sets something of a ForEach.
type ForEachOption func(*forEachStmt)

// MaxInFlight bounds how many elements may be under way at the same time. 0, and
// no such option, means all.
func MaxInFlight(n int) ForEachOption {
	return func(s *forEachStmt) { s.maxInFlight = toInt32(n) }
}
