package schedule

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/oklog/ulid/v2"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"
	"pgregory.net/rapid"

	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
)

func byInterval(every, offset time.Duration) *wigglev1.Schedule {
	return &wigglev1.Schedule{
		Id: "s", Namespace: "default", Workflow: "w",
		When: &wigglev1.Schedule_Interval{Interval: &wigglev1.IntervalTimes{Every: durationpb.New(every), Offset: durationpb.New(offset)}},
	}
}

func TestIntervalTimes(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		every, offset time.Duration
		after, want   string
	}{
		{time.Minute, 0, "2026-01-01T00:00:00Z", "2026-01-01T00:01:00Z"},
		{time.Minute, 0, "2025-12-31T23:59:59.9999Z", "2026-01-01T00:00:00Z"},
		{time.Hour, 20 * time.Minute, "2026-01-01T00:00:00Z", "2026-01-01T00:20:00Z"},
		{time.Hour, -20 * time.Minute, "2026-01-01T00:00:00Z", "2026-01-01T00:40:00Z"},
		{time.Hour, 25 * time.Hour, "2026-01-01T00:30:00Z", "2026-01-01T01:00:00Z"},
		{1500 * time.Millisecond, 0, "1970-01-01T00:00:00Z", "1970-01-01T00:00:01.5Z"},
		{7 * 24 * time.Hour, 0, "1969-12-24T00:00:00Z", "1969-12-25T00:00:00Z"},
	} {
		if got := compile(t, byInterval(c.every, c.offset)).Next(utc(t, c.after)); !got.Equal(utc(t, c.want)) {
			t.Errorf("every %v at %v after %s: %v, want %s", c.every, c.offset, c.after, got, c.want)
		}
	}
}

// TestBounds: no due time before the start, none at or after the end, jitter or not.
func TestBounds(t *testing.T) {
	t.Parallel()
	s := byInterval(time.Hour, 0)
	s.StartAt, s.EndAt = timestamppb.New(utc(t, "2026-01-01T03:00:00Z")), timestamppb.New(utc(t, "2026-01-01T05:00:00Z"))
	got := fmt.Sprint(compile(t, s).Upcoming(compile(t, s).Next(utc(t, "2025-01-01T00:00:00Z")), 9))
	if want := "[2026-01-01 03:00:00 +0000 UTC 2026-01-01 04:00:00 +0000 UTC]"; got != want {
		t.Errorf("due at %s, want %s", got, want)
	}
	s.Jitter = durationpb.New(24 * time.Hour)
	due := compile(t, s).Upcoming(compile(t, s).Next(utc(t, "2025-01-01T00:00:00Z")), 9)
	if len(due) != 2 || due[0].Before(s.GetStartAt().AsTime()) || !due[1].Before(s.GetEndAt().AsTime()) {
		t.Errorf("with jitter due at %v", due)
	}
}

// TestJitter: due times are spread over the jitter, differently for each schedule, and the same for whoever computes them.
func TestJitter(t *testing.T) {
	t.Parallel()
	nominal := utc(t, "2026-01-01T00:00:00Z")
	var early, late int
	for i := range 1000 {
		s := byInterval(time.Hour, 0)
		s.Id, s.Jitter = fmt.Sprint("s", i), durationpb.New(10*time.Minute)
		due := compile(t, s).Next(nominal.Add(-time.Minute))
		if again := compile(t, s).Next(nominal.Add(-time.Second)); !again.Equal(due) {
			t.Fatalf("%s is due at %v and at %v", s.GetId(), due, again)
		}
		switch late10 := due.Sub(nominal); {
		case late10 < 0 || late10 >= 10*time.Minute:
			t.Fatalf("%s is put off by %v", s.GetId(), late10)
		case late10 < 5*time.Minute:
			early++
		default:
			late++
		}
	}
	if early < 400 || late < 400 {
		t.Errorf("%d of 1000 are in the first half of their jitter, %d in the second", early, late)
	}
}

// zones of the property tests: whole, half and quarter hours, clocks that are set by an hour and by half of one.
var zones = []string{
	"", "Europe/Berlin", "America/New_York", "Asia/Kolkata", "Australia/Lord_Howe", "Pacific/Apia", "Asia/Kathmandu", "America/Sao_Paulo",
}

// anyField draws the text of a field.
func anyField(t *rapid.T, low, high int) string {
	value := rapid.IntRange(low, high)
	switch rapid.IntRange(0, 4).Draw(t, "kind") {
	case 0, 1:
		return "*"
	case 2:
		return fmt.Sprintf("*/%d", rapid.IntRange(1, high).Draw(t, "step"))
	case 3:
		a, b := value.Draw(t, "from"), value.Draw(t, "to")
		return fmt.Sprintf("%d-%d/%d", min(a, b), max(a, b), rapid.IntRange(1, high).Draw(t, "step"))
	default:
		return fmt.Sprintf("%d,%d", value.Draw(t, "first"), value.Draw(t, "second"))
	}
}

// anySchedule draws a schedule that begins and ends, if it does, not too far from a time.
func anySchedule(t *rapid.T, near time.Time) *wigglev1.Schedule {
	var s *wigglev1.Schedule
	if rapid.Bool().Draw(t, "cron") {
		s = byCron(strings.Join([]string{
			anyField(t, 0, 59), anyField(t, 0, 23), anyField(t, 1, 28), anyField(t, 1, 12), anyField(t, 0, 6),
		}, " "), rapid.SampledFrom(zones).Draw(t, "zone"))
	} else {
		s = byInterval(time.Duration(rapid.IntRange(1000, 200_000_000).Draw(t, "every"))*time.Millisecond,
			time.Duration(rapid.IntRange(-100_000_000, 100_000_000).Draw(t, "offset"))*time.Millisecond)
	}
	if rapid.Bool().Draw(t, "jittered") {
		s.Jitter = durationpb.New(time.Duration(rapid.IntRange(1, 86_400_000).Draw(t, "jitter")) * time.Millisecond)
	}
	if rapid.Bool().Draw(t, "starts") {
		s.StartAt = timestamppb.New(near.Add(time.Duration(rapid.Int64Range(int64(-50*time.Hour), int64(50*time.Hour)).Draw(t, "start"))))
	}
	if rapid.Bool().Draw(t, "ends") {
		s.EndAt = timestamppb.New(near.Add(time.Duration(rapid.Int64Range(int64(50*time.Hour), int64(5000*time.Hour)).Draw(t, "end"))))
	}
	return s
}

// anyTime draws a time, often one near a change of some clock.
func anyTime(t *rapid.T, label string) time.Time {
	near := rapid.SampledFrom([]string{
		"2026-03-29T01:00:00Z", "2026-10-25T01:00:00Z", "2026-03-08T07:00:00Z", "2026-11-01T06:00:00Z", "2026-04-04T15:00:00Z",
		"2026-10-03T15:30:00Z", "2011-12-30T10:00:00Z", "2028-02-29T00:00:00Z", "1969-12-31T23:59:59Z", "2018-11-04T03:00:00Z",
	}).Draw(t, label+" near")
	at, err := time.Parse(time.RFC3339, near)
	if err != nil {
		t.Fatal(err)
	}
	return at.Add(time.Duration(rapid.Int64Range(int64(-50*time.Hour), int64(50*time.Hour)).Draw(t, label+" beside")))
}

// TestNextProperties: the next due time is after, due times rise, are the same from wherever they are counted, and none is left
// out.
func TestNextProperties(t *testing.T) {
	t.Parallel()
	known := NewZones()
	rapid.Check(t, func(t *rapid.T) {
		at := anyTime(t, "at")
		s := anySchedule(t, at)
		times, problems := Compile(s, known)
		if problems != nil {
			t.Fatal(problems)
		}
		for range 5 {
			due := times.Next(at)
			if due.IsZero() {
				return
			}
			switch {
			case !due.After(at):
				t.Fatalf("%v is due after %v", due, at)
			case s.GetStartAt() != nil && due.Before(s.GetStartAt().AsTime()), s.GetEndAt() != nil && !due.Before(s.GetEndAt().AsTime()):
				t.Fatalf("%v lies outside of the schedule", due)
			case due.Nanosecond()%int(time.Millisecond) != 0:
				t.Fatalf("%v is not a whole millisecond", due)
			}
			between := at.Add(time.Duration(rapid.Int64Range(0, int64(due.Sub(at))-1).Draw(t, "between")))
			if got := times.Next(between); !got.Equal(due) {
				t.Fatalf("after %v comes %v, but after %v, before that, %v", at, due, between, got)
			}
			if s.GetJitter() == nil && s.GetCron() != nil {
				checkCron(t, times, at, due)
			}
			at = due
		}
	})
}

// checkCron goes minute by minute over what a clock on the wall shows, to see that no time was left out.
func checkCron(t *rapid.T, times *Times, at, due time.Time) {
	cron, ok := times.named.(cronTimes)
	if !ok || due.Sub(at) > 72*time.Hour {
		return
	}
	if !times.start.IsZero() && at.Before(times.start) {
		at = times.start.Add(-1)
	}
	for wall := wallOf(at.In(cron.zone)).Truncate(time.Minute); wall.Before(wallOf(due.In(cron.zone))); wall = wall.Add(time.Minute) {
		c := cron.cron
		if c.minutes>>wall.Minute()&1 == 0 || c.hours>>wall.Hour()&1 == 0 || c.months>>wall.Month()&1 == 0 || !c.onDay(wall) {
			continue
		}
		if named := instant(wall, cron.zone); named.After(at) && named.Before(due) {
			t.Fatalf("%v was left out between %v and %v", named, at, due)
		}
	}
}

// TestInstantProperties: the instant of a time on the wall shows that time for the first time, or is the moment at which the clock
// moves over it.
func TestInstantProperties(t *testing.T) {
	t.Parallel()
	known := NewZones()
	rapid.Check(t, func(t *rapid.T) {
		zone, err := known.Find(rapid.SampledFrom(zones).Draw(t, "zone"))
		if err != nil {
			t.Fatal(err)
		}
		wall := wallOf(anyTime(t, "wall")).Truncate(time.Minute)
		at := instant(wall, zone)
		before, shown := wallOf(at.Add(-time.Second).In(zone)), wallOf(at.In(zone))
		if !shown.Equal(wall) && (!before.Before(wall) || !shown.After(wall)) {
			t.Fatalf("%v is %v: the clock shows %v, and %v a second before", wall, at, shown, before)
		}
		for _, back := range []time.Duration{30 * time.Minute, time.Hour, 24 * time.Hour} {
			if earlier := wallOf(at.Add(-back).In(zone)); earlier.Equal(wall) {
				t.Fatalf("%v is %v, but %v before shows the same", wall, at, back)
			}
		}
	})
}

// TestULID: the id of a due time's instance is a ulid of that time, one for each schedule and due time (EVT-8).
func TestULID(t *testing.T) {
	t.Parallel()
	due := utc(t, "2026-01-01T00:00:00.123Z")
	seen := map[string]bool{}
	for _, namespace := range []string{"default", "other"} {
		for _, id := range []string{"a", "b"} {
			for _, at := range []time.Time{due, due.Add(time.Millisecond)} {
				text := ULID(namespace, id, at)
				u, err := ulid.ParseStrict(strings.ToUpper(text))
				if err != nil || !ulid.Time(u.Time()).Equal(at) || text != strings.ToLower(text) || seen[text] {
					t.Errorf("%s of %v: %v", text, at, err)
				}
				seen[text] = true
			}
		}
	}
	// A release that made another would start a due time twice while it takes over.
	if got := ULID("default", "nightly", due.In(time.FixedZone("x", 3600))); got != "01kdvdna3vqhpv3zgv2hrnq2vw" {
		t.Errorf("the ulid is %s", got)
	}
}

func BenchmarkNext(b *testing.B) {
	for name, s := range map[string]*wigglev1.Schedule{
		"interval": byInterval(time.Minute, 0), "minutes": byCron("* * * * *", "Europe/Berlin"), "leap": byCron("0 0 29 2 *", ""),
	} {
		times, _ := Compile(s, NewZones())
		at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				times.Next(at)
			}
		})
	}
}
