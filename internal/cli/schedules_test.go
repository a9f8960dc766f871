package cli

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/wiggle-run/wiggle/internal/cli/shell"
	"github.com/wiggle-run/wiggle/pkg/faults"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
)

// fakeNightly is a schedule that has fired.
func fakeNightly() *wigglev1.Schedule {
	return &wigglev1.Schedule{
		Id: "nightly", Namespace: "default", Workflow: "report", Version: 2, Input: payload(`{"n":12345678901234567890}`),
		When:    &wigglev1.Schedule_Cron{Cron: &wigglev1.CronTimes{Expression: "30 2 * * mon-fri", TimeZone: "Europe/Berlin"}},
		Overlap: wigglev1.OverlapPolicy_OVERLAP_POLICY_QUEUE_ONE, CatchUp: durationpb.New(time.Hour), Jitter: durationpb.New(time.Minute),
	}
}

func fakePoll() *wigglev1.Schedule {
	return &wigglev1.Schedule{
		Id: "poll", Namespace: "default", Workflow: "poll", Paused: true,
		When: &wigglev1.Schedule_Interval{Interval: &wigglev1.IntervalTimes{Every: durationpb.New(5 * time.Minute), Offset: durationpb.New(time.Minute)}},
	}
}

func fakeScheduleStatus(s *wigglev1.Schedule) *wigglev1.ScheduleStatus {
	status := &wigglev1.ScheduleStatus{CreatedAt: at(-86400), UpdatedAt: at(-3600)}
	if !s.GetPaused() {
		status.NextAt, status.LastAt, status.LastInstanceId = at(60), at(-60), "wfi.s0.01k6j00000000000000000000a"
		status.Fired, status.Skipped, status.Missed = 41, 2, 1
	} else {
		status.Problem = `start: workflow "poll" does not exist`
	}
	return status
}

func (f *fakeServer) PutSchedule(_ context.Context, req *wigglev1.PutScheduleRequest) (*wigglev1.PutScheduleResponse, error) {
	s := req.GetSchedule()
	if s.GetCron().GetExpression() == "99 * * * *" {
		return nil, faults.Invalid(faults.Problem("cron.expression", `minute "99": "99" is not a number from 0 to 59`))
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.put = proto.CloneOf(s)
	return &wigglev1.PutScheduleResponse{Created: s.GetId() == "new", Status: fakeScheduleStatus(s)}, nil
}

func (f *fakeServer) GetSchedule(_ context.Context, req *wigglev1.GetScheduleRequest) (*wigglev1.GetScheduleResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := map[string]*wigglev1.Schedule{"nightly": fakeNightly(), "poll": fakePoll()}[req.GetId()]
	if f.put.GetId() == req.GetId() {
		s = f.put
	}
	if s == nil {
		return nil, faults.NotFound("schedule", req.GetId())
	}
	res := &wigglev1.GetScheduleResponse{Schedule: s, Status: fakeScheduleStatus(s)}
	for i := range 5 {
		if !s.GetPaused() {
			res.Upcoming = append(res.Upcoming, timestamppb.New(now.AddDate(0, 0, i)))
		}
	}
	return res, nil
}

func (*fakeServer) ListSchedules(context.Context, *wigglev1.ListSchedulesRequest) (*wigglev1.ListSchedulesResponse, error) {
	res := &wigglev1.ListSchedulesResponse{}
	for _, s := range []*wigglev1.Schedule{fakeNightly(), fakePoll()} {
		res.Schedules = append(res.Schedules, &wigglev1.ListedSchedule{Schedule: s, Status: fakeScheduleStatus(s)})
	}
	return res, nil
}

func (*fakeServer) PauseSchedule(_ context.Context, req *wigglev1.PauseScheduleRequest) (*wigglev1.PauseScheduleResponse, error) {
	s := fakePoll()
	s.Paused = req.GetPaused()
	return &wigglev1.PauseScheduleResponse{Status: fakeScheduleStatus(s)}, nil
}

func (*fakeServer) DeleteSchedule(_ context.Context, req *wigglev1.DeleteScheduleRequest) (*wigglev1.DeleteScheduleResponse, error) {
	return &wigglev1.DeleteScheduleResponse{Deleted: req.GetId() == "nightly"}, nil
}

func TestScheduleOutputs(t *testing.T) {
	t.Parallel()
	for name, args := range map[string][]string{
		"help":          {"put", "--help"},
		"which":         {},
		"put-cron":      {"put", "new", "--cron", "30 2 * * *", "--time-zone", "Asia/Kolkata", "--workflow", "report"},
		"put-every":     {"put", "other", "--every", "90s", "--workflow", "poll", "--input", `{"a":1}`, "--overlap", "cancel-running"},
		"put-json":      {"put", "new", "--every", "1h", "--workflow", "report", "-o", "json"},
		"put-paused":    {"put", "new", "--every", "1h", "--workflow", "report", "--paused"},
		"put-nothing":   {"put"},
		"put-workflow":  {"put", "x", "--every", "1h"},
		"put-both":      {"put", "x", "--every", "1h", "--cron", "* * * * *", "--workflow", "w"},
		"put-overlap":   {"put", "x", "--every", "1h", "--workflow", "w", "--overlap", "stop"},
		"put-time":      {"put", "x", "--every", "1h", "--workflow", "w", "--start-at", "2h"},
		"put-invalid":   {"put", "x", "--cron", "99 * * * *", "--workflow", "w"},
		"get":           {"get", "nightly"},
		"get-json":      {"get", "nightly", "-o", "json"},
		"get-paused":    {"get", "poll"},
		"get-missing":   {"get", "nothing"},
		"list":          {"list"},
		"list-json":     {"list", "-o", "json"},
		"pause":         {"pause", "nightly"},
		"resume":        {"resume", "nightly"},
		"resume-json":   {"resume", "nightly", "-o", "json"},
		"delete":        {"delete", "nightly"},
		"delete-nobody": {"delete", "nothing"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := newFakeServer(t)
			args := append([]string{"schedules"}, args...)
			golden(t, filepath.Join("schedules", name+".txt"), transcript(run(t, []string{"WIGGLE_SERVER=" + server.URL}, "", args...), args...))
		})
	}
}

// TestScheduleFiles: what get prints as JSON, put reads; YAML too; and flags go before.
func TestScheduleFiles(t *testing.T) {
	t.Parallel()
	server := newFakeServer(t)
	environ := []string{"WIGGLE_SERVER=" + server.URL}
	put := func(stdin string, args ...string) *wigglev1.Schedule {
		t.Helper()
		if r := run(t, environ, stdin, append([]string{"schedules", "put"}, args...)...); r.code != shell.ExitOK {
			t.Fatalf("%v: %+v", args, r)
		}
		server.mu.Lock()
		defer server.mu.Unlock()
		return server.put
	}
	printed := run(t, environ, "", "schedules", "get", "nightly", "-o", "json").out
	want := fakeNightly()
	want.Namespace = ""
	if got := put(printed, "-f", "-"); !proto.Equal(got, want) {
		t.Errorf("put what was printed: %v, want %v", got, want)
	}
	want.Id, want.Jitter = "copy", durationpb.New(time.Second)
	want.When = &wigglev1.Schedule_Interval{Interval: &wigglev1.IntervalTimes{Every: durationpb.New(time.Hour)}}
	if got := put(printed, "copy", "-f", "-", "--every", "1h", "--jitter", "1s"); !proto.Equal(got, want) {
		t.Errorf("with flags: %v, want %v", got, want)
	}
	file := filepath.Join(t.TempDir(), "s.yaml")
	text := "id: a\ncron: '@daily'\nworkflow: w\ninput: {n: 9007199254740993}\nstart_at: 2026-10-01T00:00:00Z\npriority: 0\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	got := put("", "-f", file)
	if string(got.GetInput().GetData()) != `{"n":9007199254740993}` || got.Priority == nil || got.GetStartAt().AsTime().Month() != time.October {
		t.Errorf("YAML: %v", got)
	}
	raw := fakeNightly()
	raw.Input = &wigglev1.Payload{ContentType: "image/png", Data: []byte{0x89, 'P'}}
	server.put = raw
	printed = run(t, environ, "", "schedules", "get", "nightly", "-o", "json").out
	if got := put(printed, "-f", "-"); !proto.Equal(got.GetInput(), raw.GetInput()) {
		t.Errorf("input that is not JSON: %v", got.GetInput())
	}
	if r := run(t, environ, "id: a\nevry: 1h\n", "schedules", "put", "-f", "-"); r.code != shell.ExitFailure || !strings.Contains(r.err, "evry") {
		t.Errorf("an unknown field: %+v", r)
	}
}
