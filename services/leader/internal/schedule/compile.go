package schedule

import (
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
)

// Bounds of a schedule.
const (
	// DefaultCatchUp is how late a due time may be fired where the schedule does not say.
	DefaultCatchUp = time.Minute

	minEvery   = time.Second
	maxEvery   = 10 * 365 * 24 * time.Hour
	maxJitter  = 24 * time.Hour
	minCatchUp = time.Second
	maxCatchUp = 365 * 24 * time.Hour
)

// compiler gathers what is wrong with a schedule.
type compiler struct {
	problems []*wigglev1.Problem
}

func (c *compiler) refuse(where, format string, args ...any) {
	c.problems = append(c.problems, &wigglev1.Problem{Where: where, Message: fmt.Sprintf(format, args...)})
}

// Compile makes the due times of a schedule whose namespace is filled. If something is wrong with it, the answer is every
// problem, by field.
func Compile(s *wigglev1.Schedule, zones *Zones) (*Times, []*wigglev1.Problem) {
	c := &compiler{}
	t := &Times{namespace: s.GetNamespace(), id: s.GetId(), catchUp: DefaultCatchUp}
	switch when := s.GetWhen().(type) {
	case *wigglev1.Schedule_Cron:
		t.named = c.cron(when.Cron, zones)
	case *wigglev1.Schedule_Interval:
		t.named = c.interval(when.Interval)
	default:
		c.refuse("when", "is missing: say the times, by cron or interval")
	}
	t.jitter = c.duration("jitter", s.GetJitter(), 0, maxJitter)
	if s.GetCatchUp() != nil {
		t.catchUp = c.duration("catch_up", s.GetCatchUp(), minCatchUp, maxCatchUp)
	}
	t.start, t.end = c.instant("start_at", s.GetStartAt()), c.instant("end_at", s.GetEndAt())
	if !t.start.IsZero() && !t.end.IsZero() && !t.start.Before(t.end) {
		c.refuse("end_at", "is not after start_at")
	}
	if c.problems != nil {
		return nil, c.problems
	}
	return t, nil
}

func (c *compiler) cron(times *wigglev1.CronTimes, zones *Zones) named {
	parsed, problems := parseCron(times.GetExpression())
	for _, problem := range problems {
		c.refuse("cron.expression", "%s", problem)
	}
	zone, err := zones.Find(times.GetTimeZone())
	if err != nil {
		c.refuse("cron.time_zone", "%.64q is no time zone: want an IANA name such as Europe/Berlin", times.GetTimeZone())
	}
	return cronTimes{cron: parsed, zone: zone}
}

func (c *compiler) interval(times *wigglev1.IntervalTimes) named {
	every := c.duration("interval.every", times.GetEvery(), minEvery, maxEvery)
	offset := c.duration("interval.offset", times.GetOffset(), -maxEvery, maxEvery)
	return intervalTimes{every: every.Milliseconds(), offset: offset.Milliseconds()}
}

// duration reads a duration in whole milliseconds, within bounds. Absent means zero.
func (c *compiler) duration(where string, d *durationpb.Duration, low, high time.Duration) time.Duration {
	value := d.AsDuration()
	switch {
	case d != nil && d.CheckValid() != nil:
		c.refuse(where, "is no valid duration")
	case value < low || value > high:
		c.refuse(where, "is %v; want %v to %v", value, low, high)
	case value%time.Millisecond != 0:
		c.refuse(where, "is %v; want whole milliseconds", value)
	}
	return value
}

func (c *compiler) instant(where string, t *timestamppb.Timestamp) time.Time {
	if t == nil {
		return time.Time{}
	}
	if t.CheckValid() != nil {
		c.refuse(where, "is no valid time")
	}
	return t.AsTime()
}

// SameTimes tells whether two schedules have the same due times, as far as what they say of them goes.
func SameTimes(a, b *wigglev1.Schedule) bool { return proto.Equal(timesOf(a), timesOf(b)) }

// timesOf is the part of a schedule that its due times depend on.
func timesOf(s *wigglev1.Schedule) *wigglev1.Schedule {
	return &wigglev1.Schedule{
		Namespace: s.GetNamespace(), Id: s.GetId(), When: s.GetWhen(), Jitter: s.GetJitter(), StartAt: s.GetStartAt(), EndAt: s.GetEndAt(),
	}
}
