package schedule

import (
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
)

// TestCompileNamesEveryProblem at once, by field.
func TestCompileNamesEveryProblem(t *testing.T) {
	t.Parallel()
	s := byCron("61 * * * 9", "Europe/Berlinn")
	s.Jitter, s.CatchUp = durationpb.New(-time.Second), durationpb.New(0)
	s.StartAt, s.EndAt = timestamppb.New(time.Unix(10, 0)), timestamppb.New(time.Unix(10, 0))
	expect(t, s, "cron.expression", "cron.expression", "cron.time_zone", "jitter", "catch_up", "end_at")

	s = byInterval(999*time.Millisecond, 1500*time.Microsecond)
	s.Jitter, s.CatchUp = durationpb.New(25*time.Hour), durationpb.New(400*24*time.Hour)
	s.StartAt = &timestamppb.Timestamp{Seconds: 1 << 60}
	expect(t, s, "interval.every", "interval.offset", "jitter", "catch_up", "start_at")

	expect(t, byInterval(20*365*24*time.Hour, 0), "interval.every")
	expect(t, &wigglev1.Schedule{Id: "s"}, "when")
	expect(t, byCron("* * * * *", "Local"), "cron.time_zone")
	expect(t, byCron("* * * * *", "../zoneinfo"), "cron.time_zone")
	expect(t, &wigglev1.Schedule{When: &wigglev1.Schedule_Interval{}}, "interval.every")
	expect(t, byCron("* * * * *", ""))
}

func expect(t *testing.T, s *wigglev1.Schedule, want ...string) {
	t.Helper()
	times, problems := Compile(s, NewZones())
	var got []string
	for _, p := range problems {
		got = append(got, p.GetWhere())
		if p.GetMessage() == "" {
			t.Errorf("%s says nothing", p.GetWhere())
		}
	}
	if !slices.Equal(got, want) || (times == nil) != (want != nil) {
		t.Errorf("%v: problems %v, want those of %v", s, problems, want)
	}
}

func TestSameTimes(t *testing.T) {
	t.Parallel()
	s := byCron("0 0 * * *", "Europe/Berlin")
	other := proto.CloneOf(s)
	other.Workflow, other.Paused, other.Input = "another", true, &wigglev1.Payload{Data: []byte("1")}
	if !SameTimes(s, other) {
		t.Error("what is started has no say in the times")
	}
	other.Jitter = durationpb.New(time.Second)
	if SameTimes(s, other) {
		t.Error("jitter has")
	}
}
