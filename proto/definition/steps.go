package definition

import (
	"fmt"
	"math"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
)

// longest is the longest duration a definition may state: what time.Duration
// holds, about 292 years.
const longest = time.Duration(math.MaxInt64)

// resolveDefaults works out what holds for steps that do not say otherwise.
func (b *builder) resolveDefaults(m *wigglev1.Defaults) {
	report := func(format string, args ...any) { b.add("defaults", format, args...) }
	b.known(m, report)
	b.defaults = Step{
		Queue:    DefaultQueue,
		Retry:    serverRetry(),
		Timeout:  b.duration("timeout", m.GetTimeout(), 0, report),
		Priority: InheritPriority,
	}
	if q := m.GetQueue(); q != "" {
		label("queue", q, report)
		b.defaults.Queue = q
	}
	if m.GetRetry() != nil {
		b.defaults.Retry = b.resolveRetry(m.GetRetry(), report)
	}
	if _, ok := wigglev1.Mode_name[int32(m.GetMode())]; !ok {
		report("mode %d is not known here: it was made for a newer version of Wiggle", m.GetMode())
	}
}

func (b *builder) resolveStep(i int, m *wigglev1.Step) *Step {
	report := b.reporter(i)
	b.known(m, report)
	s := b.defaults
	s.Retry.NonRetryable = slices.Clone(s.Retry.NonRetryable)
	s.Name = b.nodes[i].ID
	if m.GetName() != "" {
		s.Name = m.GetName()
		label("step name", s.Name, report)
	}
	s.Activity = s.Name
	if m.GetActivity() != "" {
		s.Activity = m.GetActivity()
		label("activity", s.Activity, report)
	}
	if m.GetQueue() != "" {
		s.Queue = m.GetQueue()
		label("queue", s.Queue, report)
	}
	if m.GetRetry() != nil {
		s.Retry = b.resolveRetry(m.GetRetry(), report)
	}
	s.Timeout = b.duration("timeout", m.GetTimeout(), s.Timeout, report)
	if m != nil && m.Priority != nil {
		s.Priority = int(m.GetPriority())
		if s.Priority < 0 || s.Priority > 9 {
			report("priority %d must be from 0 to 9", s.Priority)
		}
	}
	return &s
}

// serverRetry is the policy of steps when the definition states none.
func serverRetry() Retry {
	return Retry{
		InitialBackoff: DefaultInitialBackoff,
		Multiplier:     DefaultMultiplier,
		MaxBackoff:     DefaultMaxBackoff,
		Jitter:         DefaultJitter,
	}
}

func (b *builder) resolveRetry(m *wigglev1.RetryPolicy, report reporter) Retry {
	b.known(m, report)
	r := serverRetry()
	if r.MaxAttempts = int(m.GetMaxAttempts()); r.MaxAttempts < 0 {
		report("retry.max_attempts %d must be 0 or more; 0 means unlimited", r.MaxAttempts)
	}
	r.InitialBackoff = b.duration("retry.initial_backoff", m.GetInitialBackoff(), DefaultInitialBackoff, report)
	r.MaxBackoff = b.duration("retry.max_backoff", m.GetMaxBackoff(), max(DefaultMaxBackoff, r.InitialBackoff), report)
	if r.InitialBackoff > r.MaxBackoff {
		report("retry.max_backoff %s is shorter than retry.initial_backoff %s", r.MaxBackoff, r.InitialBackoff)
	}
	if v := m.GetMultiplier(); v != 0 {
		r.Multiplier = v
		if !(v >= 1) || math.IsInf(v, 0) {
			report("retry.multiplier %v must be a finite number of at least 1, or 0 for %v", v, DefaultMultiplier)
		}
	}
	if m.Jitter != nil {
		r.Jitter = m.GetJitter()
		if !(r.Jitter >= 0 && r.Jitter <= 1) {
			report("retry.jitter %v must be from 0 to 1", r.Jitter)
		}
	}
	for _, name := range m.GetNonRetryableErrors() {
		label("retry.non_retryable_errors", name, report)
	}
	r.NonRetryable = slices.Clone(m.GetNonRetryableErrors())
	return r
}

// duration is a stated duration or, when it is absent, the one that then holds.
func (b *builder) duration(field string, m *durationpb.Duration, absent time.Duration, report reporter) time.Duration {
	if m == nil {
		return absent
	}
	b.known(m, report)
	d := m.AsDuration()
	switch {
	case m.GetSeconds() < 0 || m.GetNanos() < 0:
		report("%s %s is negative", field, seconds(m))
	case m.GetNanos() > 999_999_999:
		report("%s has %d nanoseconds, which must be less than a second", field, m.GetNanos())
	case d == longest:
		report("%s %s is longer than 292 years", field, seconds(m))
	}
	return d
}

func label(field, value string, report reporter) {
	if why := badLabel(value); why != "" {
		report("%s %s %s", field, quote(value), why)
	}
}

// seconds is a duration for a message, also one that time.Duration cannot hold.
func seconds(m *durationpb.Duration) string {
	if d := m.AsDuration(); d != longest && d != math.MinInt64 {
		return d.String()
	}
	return fmt.Sprintf("%ds", m.GetSeconds())
}
