package schedule

import (
	"slices"
	"strings"
	"testing"
	"time"

	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
)

func utc(t *testing.T, text string) time.Time {
	t.Helper()
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		t.Fatal(err)
	}
	return at
}

func byCron(expression, zone string) *wigglev1.Schedule {
	return &wigglev1.Schedule{
		Id: "s", Namespace: "default", Workflow: "w",
		When: &wigglev1.Schedule_Cron{Cron: &wigglev1.CronTimes{Expression: expression, TimeZone: zone}},
	}
}

func compile(t *testing.T, s *wigglev1.Schedule) *Times {
	t.Helper()
	times, problems := Compile(s, NewZones())
	if problems != nil {
		t.Fatal(problems)
	}
	return times
}

// TestCronTimes: the times of an expression, by the clock of its zone (EVT-8). A time that the clock skips is due when it has
// moved on, one that comes twice is due once.
func TestCronTimes(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, expression, zone, after string
		want                          []string
	}{
		{"every five minutes", "*/5 * * * *", "", "2026-01-01T00:03:20Z", []string{"2026-01-01T00:05:00Z", "2026-01-01T00:10:00Z"}},
		{"not the time itself", "0 0 * * *", "UTC", "2026-01-01T00:00:00Z", []string{"2026-01-02T00:00:00Z"}},
		{"a moment before", "0 0 * * *", "UTC", "2025-12-31T23:59:59.999Z", []string{"2026-01-01T00:00:00Z"}},
		{"lists, ranges, steps", "15,45 8-10/2 * * *", "", "2026-01-01T08:20:00Z", []string{
			"2026-01-01T08:45:00Z", "2026-01-01T10:15:00Z", "2026-01-01T10:45:00Z", "2026-01-02T08:15:00Z",
		}},
		{"names", "0 9 * JAN,dec mon-Fri", "", "2026-01-30T09:00:00Z", []string{"2026-12-01T09:00:00Z", "2026-12-02T09:00:00Z"}},
		{"either day is enough", "0 0 13 * fri", "", "2026-01-01T00:00:00Z", []string{
			"2026-01-02T00:00:00Z", "2026-01-09T00:00:00Z", "2026-01-13T00:00:00Z", "2026-01-16T00:00:00Z",
		}},
		{"a step names days too", "0 0 */10 * mon", "", "2026-01-01T00:00:00Z", []string{
			"2026-01-05T00:00:00Z", "2026-01-11T00:00:00Z", "2026-01-12T00:00:00Z",
		}},
		{"Sunday is 7 too", "0 0 * * 7", "", "2026-01-01T00:00:00Z", []string{"2026-01-04T00:00:00Z", "2026-01-11T00:00:00Z"}},
		{"the weekend", "0 0 * * sat-sun", "", "2026-01-01T00:00:00Z", []string{
			"2026-01-03T00:00:00Z", "2026-01-04T00:00:00Z", "2026-01-10T00:00:00Z",
		}},
		{"the 31st", "0 0 31 * *", "", "2026-01-31T00:00:00Z", []string{"2026-03-31T00:00:00Z", "2026-05-31T00:00:00Z"}},
		{"leap days", "0 0 29 2 *", "", "2026-01-01T00:00:00Z", []string{"2028-02-29T00:00:00Z", "2032-02-29T00:00:00Z"}},
		{"leap days around 2100", "0 0 29 feb *", "", "2096-02-29T00:00:00Z", []string{"2104-02-29T00:00:00Z"}},
		{"hourly", "@hourly", "", "2026-01-01T00:30:00Z", []string{"2026-01-01T01:00:00Z", "2026-01-01T02:00:00Z"}},
		{"daily", "@Daily", "Europe/Berlin", "2026-01-01T00:00:00Z", []string{"2026-01-01T23:00:00Z"}},
		{"weekly", "@weekly", "", "2026-01-01T00:00:00Z", []string{"2026-01-04T00:00:00Z"}},
		{"monthly", "@monthly", "", "2026-01-01T00:00:00Z", []string{"2026-02-01T00:00:00Z"}},
		{"yearly", "@yearly", "", "2026-01-01T00:00:00Z", []string{"2027-01-01T00:00:00Z"}},

		{"Berlin skips it", "30 2 * * *", "Europe/Berlin", "2026-03-28T00:00:00Z", []string{
			"2026-03-28T01:30:00Z", "2026-03-29T01:00:00Z", "2026-03-30T00:30:00Z",
		}},
		{"Berlin skips some", "*/30 * * * *", "Europe/Berlin", "2026-03-29T00:00:00Z", []string{
			"2026-03-29T00:30:00Z", "2026-03-29T01:00:00Z", "2026-03-29T01:30:00Z",
		}},
		{"Berlin has it twice", "30 2 * * *", "Europe/Berlin", "2026-10-24T12:00:00Z", []string{
			"2026-10-25T00:30:00Z", "2026-10-26T01:30:00Z",
		}},
		{"Berlin has some twice", "*/30 * * * *", "Europe/Berlin", "2026-10-24T23:59:00Z", []string{
			"2026-10-25T00:00:00Z", "2026-10-25T00:30:00Z", "2026-10-25T02:00:00Z",
		}},
		{"Berlin, asked in the second hour", "*/30 * * * *", "Europe/Berlin", "2026-10-25T01:10:00Z", []string{"2026-10-25T02:00:00Z"}},
		{"New York skips it", "30 2 * * *", "America/New_York", "2026-03-07T12:00:00Z", []string{
			"2026-03-08T07:00:00Z", "2026-03-09T06:30:00Z",
		}},
		{"New York has it twice", "30 1 * * *", "America/New_York", "2026-10-31T12:00:00Z", []string{
			"2026-11-01T05:30:00Z", "2026-11-02T06:30:00Z",
		}},
		{"half an hour beside", "0 9 * * mon-fri", "Asia/Kolkata", "2026-01-02T12:00:00Z", []string{"2026-01-05T03:30:00Z"}},
		{"a quarter beside", "0 0 * * *", "Asia/Kathmandu", "2026-01-02T12:00:00Z", []string{"2026-01-02T18:15:00Z"}},
		{"Lord Howe skips half an hour", "15 2 * * *", "Australia/Lord_Howe", "2026-10-03T00:00:00Z", []string{
			"2026-10-03T15:30:00Z", "2026-10-04T15:15:00Z",
		}},
		{"Lord Howe has half an hour twice", "45 1 * * *", "Australia/Lord_Howe", "2026-04-04T00:00:00Z", []string{
			"2026-04-04T14:45:00Z", "2026-04-05T15:15:00Z",
		}},
		{"Apia skips a day", "0 12 * * *", "Pacific/Apia", "2011-12-29T00:00:00Z", []string{
			"2011-12-29T22:00:00Z", "2011-12-30T10:00:00Z", "2011-12-30T22:00:00Z",
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			times := compile(t, byCron(c.expression, c.zone))
			var got []string
			for at := times.Next(utc(t, c.after)); len(got) < len(c.want); at = times.Next(at) {
				got = append(got, at.Format(time.RFC3339Nano))
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("%s %s after %s\n got %v\nwant %v", c.expression, c.zone, c.after, got, c.want)
			}
		})
	}
}

// TestCronRefused: what is wrong is named, all of it.
func TestCronRefused(t *testing.T) {
	t.Parallel()
	for expression, want := range map[string][]string{
		"* * * *":       {"has 4 fields; want five"},
		"":              {"has 0 fields"},
		"0 0 0 * * *":   {"has 6 fields"},
		"@often":        {`"@often" is none of @hourly`},
		"60 24 0 13 8":  {`minute "60"`, `hour "24"`, `day of month "0"`, `month "13"`, `day of week "8"`},
		"5/10 * * * *":  {"a step goes with * or a range: 5-59/10"},
		"*/0 * * * *":   {`step "0" is not a number from 1 to 59`},
		"*/ * * * *":    {`step "" is not`},
		"9-5 * * * *":   {"the range 9-5 ends before it begins"},
		"1- * * * *":    {`"" is not a number from 0 to 59`},
		"-1 * * * *":    {"is not a number"},
		"+1 * * * *":    {"is not a number"},
		"007 * * * *":   {"is not a number"},
		"1,,2 * * * *":  {"is not a number"},
		"0 0 * * fri-a": {`"a" is not a number from 0 to 7`},
		"0 0 * june *":  {`"june" is not a number from 1 to 12`},
		"0 0 30 2 *":    {"names no day that there is"},
		"0 0 31 4,6 *":  {"names no day that there is"},
	} {
		parsed, problems := parseCron(expression)
		if parsed != nil || len(problems) != len(want) {
			t.Errorf("%q: problems %q, want %d", expression, problems, len(want))
			continue
		}
		for i, words := range want {
			if !strings.Contains(problems[i], words) {
				t.Errorf("%q: %q does not say %q", expression, problems[i], words)
			}
		}
	}
}

// FuzzCron: an expression is refused with a reason, or names times that it matches.
func FuzzCron(f *testing.F) {
	for _, seed := range []string{
		"* * * * *", "*/5 1-3 1,2 jan-mar mon", "@daily", "59 23 31 12 7", "0 0 29 2 *", "0 0 30 2 *", "1-2-3 * * * *", "*/99 * * * *", "@",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, expression string) {
		c, problems := parseCron(expression)
		if (c == nil) == (problems == nil) {
			t.Fatalf("%q: %v, problems %q", expression, c, problems)
		}
		if c == nil {
			return
		}
		wall := time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC)
		next, ok := c.next(wall)
		if !ok || next.Before(wall) || c.minutes>>next.Minute()&1 == 0 || c.hours>>next.Hour()&1 == 0 || c.months>>next.Month()&1 == 0 || !c.onDay(next) {
			t.Fatalf("%q: next is %v, %t", expression, next, ok)
		}
	})
}
