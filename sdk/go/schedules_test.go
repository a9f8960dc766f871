package wiggle_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	"github.com/wiggle-run/wiggle/proto/gen/wiggle/v1/wigglev1connect"
	wiggle "github.com/wiggle-run/wiggle/sdk/go"
)

// fakeSchedules keeps schedules, and fires none.
type fakeSchedules struct {
	wigglev1connect.UnimplementedScheduleServiceHandler

	mu   sync.Mutex
	kept map[string]*wigglev1.Schedule
	fail int // so many calls
}

var fakeDue = time.Date(2026, 1, 2, 1, 30, 0, 0, time.UTC)

func scheduleClient(t *testing.T, f *fakeSchedules) *wiggle.Client {
	t.Helper()
	f.kept = map[string]*wigglev1.Schedule{}
	mux := http.NewServeMux()
	mux.Handle(wigglev1connect.NewScheduleServiceHandler(f))
	n := newNetwork()
	n.serve(t, mux)
	c, err := wiggle.Dial("http://fake", wiggle.WithHTTPClient(n.httpClient(t, true)), wiggle.WithNamespace("acme"),
		wiggle.WithLogger(slog.New(slog.DiscardHandler)), wiggle.WithRetries(3, time.Millisecond, time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func (f *fakeSchedules) enter(namespace string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.fail--; f.fail >= 0 {
		return connect.NewError(connect.CodeUnavailable, errors.New("come back"))
	}
	if namespace != "acme" {
		return connect.NewError(connect.CodeInvalidArgument, fmt.Errorf("namespace %q", namespace))
	}
	return nil
}

func (f *fakeSchedules) status(id string) *wigglev1.ScheduleStatus {
	s := &wigglev1.ScheduleStatus{
		Fired: 3, Skipped: 2, Missed: 1, LastInstanceId: "wfi.s0.x", LastAt: timestamppb.New(fakeDue.AddDate(0, 0, -1)), Problem: "p",
	}
	if !f.kept[id].GetPaused() {
		s.NextAt = timestamppb.New(fakeDue)
	}
	return s
}

func (f *fakeSchedules) PutSchedule(_ context.Context, r *wigglev1.PutScheduleRequest) (*wigglev1.PutScheduleResponse, error) {
	s := r.GetSchedule()
	if err := f.enter(s.GetNamespace()); err != nil {
		return nil, err
	}
	_, known := f.kept[s.GetId()]
	f.kept[s.GetId()] = s
	return &wigglev1.PutScheduleResponse{Created: !known, Status: f.status(s.GetId())}, nil
}

func (f *fakeSchedules) GetSchedule(_ context.Context, r *wigglev1.GetScheduleRequest) (*wigglev1.GetScheduleResponse, error) {
	if err := f.enter(r.GetNamespace()); err != nil {
		return nil, err
	}
	s := f.kept[r.GetId()]
	if s == nil {
		return nil, connect.NewError(connect.CodeNotFound, errors.New("no such schedule"))
	}
	return &wigglev1.GetScheduleResponse{
		Schedule: s, Status: f.status(r.GetId()), Upcoming: []*timestamppb.Timestamp{timestamppb.New(fakeDue), timestamppb.New(fakeDue.AddDate(0, 0, 1))},
	}, nil
}

func (f *fakeSchedules) ListSchedules(_ context.Context, r *wigglev1.ListSchedulesRequest) (*wigglev1.ListSchedulesResponse, error) {
	if err := f.enter(r.GetNamespace()); err != nil {
		return nil, err
	}
	var ids []string
	for id, s := range f.kept {
		if id > r.GetPageToken() && (r.GetWorkflow() == "" || s.GetWorkflow() == r.GetWorkflow()) {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	res := &wigglev1.ListSchedulesResponse{}
	if len(ids) > 2 { // a page
		ids, res.NextPageToken = ids[:2], ids[1]
	}
	for _, id := range ids {
		res.Schedules = append(res.Schedules, &wigglev1.ListedSchedule{Schedule: f.kept[id], Status: f.status(id)})
	}
	return res, nil
}

func (f *fakeSchedules) PauseSchedule(_ context.Context, r *wigglev1.PauseScheduleRequest) (*wigglev1.PauseScheduleResponse, error) {
	if err := f.enter(r.GetNamespace()); err != nil {
		return nil, err
	}
	f.kept[r.GetId()].Paused = r.GetPaused()
	return &wigglev1.PauseScheduleResponse{Status: f.status(r.GetId())}, nil
}

func (f *fakeSchedules) DeleteSchedule(_ context.Context, r *wigglev1.DeleteScheduleRequest) (*wigglev1.DeleteScheduleResponse, error) {
	if err := f.enter(r.GetNamespace()); err != nil {
		return nil, err
	}
	_, known := f.kept[r.GetId()]
	delete(f.kept, r.GetId())
	return &wigglev1.DeleteScheduleResponse{Deleted: known}, nil
}

// TestSchedules: what is put is what is read, in every field.
func TestSchedules(t *testing.T) {
	t.Parallel()
	f := &fakeSchedules{fail: 1}
	c := scheduleClient(t, f)
	priority := 0
	cron := wiggle.Schedule{
		ID: "nightly", Cron: "30 2 * * *", TimeZone: "Europe/Berlin", Workflow: "report", Version: 3, Input: order{ID: 7}, Priority: &priority,
		Jitter: time.Minute, StartAt: fakeDue, EndAt: fakeDue.AddDate(1, 0, 0), CatchUp: time.Hour, Overlap: wiggle.OverlapQueueOne, Paused: true,
	}
	status, created, err := c.PutSchedule(t.Context(), cron)
	if err != nil || !created || !status.NextAt.IsZero() || status.Fired != 3 || status.Skipped != 2 || status.Missed != 1 || status.Problem != "p" {
		t.Fatalf("put: %+v, %t, %v", status, created, err)
	}
	if _, created, err := c.PutSchedule(t.Context(), cron); created || err != nil {
		t.Errorf("put again: %t, %v", created, err)
	}
	got, err := c.GetSchedule(t.Context(), "nightly")
	if err != nil {
		t.Fatal(err)
	}
	if input, ok := got.Input.(wiggle.Payload); !ok || string(input.Data) != `{"id":7}` || *got.Priority != 0 {
		t.Errorf("read input %v, priority %v", got.Input, got.Priority)
	}
	if again := f.kept["nightly"]; len(got.Upcoming) != 2 || got.Namespace != "acme" || got.Overlap.String() != "QUEUE_ONE" {
		t.Errorf("read %+v of %v", got, again)
	}
	kept := proto.CloneOf(f.kept["nightly"])
	if _, _, err := c.PutSchedule(t.Context(), got.Schedule); err != nil || !proto.Equal(f.kept["nightly"], kept) {
		t.Errorf("what was read and is put is %v, was %v: %v", f.kept["nightly"], kept, err)
	}
	status, err = c.PauseSchedule(t.Context(), "nightly", false)
	if err != nil || !status.NextAt.Equal(fakeDue) {
		t.Errorf("resumed: %+v, %v", status, err)
	}
	if deleted, err := c.DeleteSchedule(t.Context(), "nightly"); !deleted || err != nil {
		t.Errorf("deleted: %t, %v", deleted, err)
	}
	if _, err := c.GetSchedule(t.Context(), "nightly"); !errors.Is(err, wiggle.ErrNotFound) {
		t.Errorf("read after it was deleted: %v", err)
	}
}

func TestScheduleIntervals(t *testing.T) {
	t.Parallel()
	f := &fakeSchedules{}
	c := scheduleClient(t, f)
	s := wiggle.Schedule{ID: "poll", Every: 5 * time.Minute, Offset: time.Minute, Workflow: "poll"}
	if _, _, err := c.PutSchedule(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	got, err := c.GetSchedule(t.Context(), "poll")
	if err != nil || got.Every != s.Every || got.Offset != s.Offset || got.Input != nil || got.Priority != nil || got.Overlap.String() != "SKIP" {
		t.Errorf("read %+v, %v", got, err)
	}
	for name, wrong := range map[string]wiggle.Schedule{
		"both":             {ID: "x", Cron: "* * * * *", Every: time.Minute},
		"zone of interval": {ID: "x", TimeZone: "UTC", Every: time.Minute},
		"offset of cron":   {ID: "x", Cron: "* * * * *", Offset: time.Minute},
		"input":            {ID: "x", Every: time.Minute, Input: make(chan int)},
	} {
		if _, _, err := c.PutSchedule(t.Context(), wrong); err == nil {
			t.Errorf("%s: taken", name)
		}
	}
}

// TestListSchedules reads page by page, and ends when the reader does.
func TestListSchedules(t *testing.T) {
	t.Parallel()
	f := &fakeSchedules{}
	c := scheduleClient(t, f)
	for i := range 5 {
		s := wiggle.Schedule{ID: fmt.Sprint("s", i), Every: time.Minute, Workflow: fmt.Sprint("w", i%2)}
		if _, _, err := c.PutSchedule(t.Context(), s); err != nil {
			t.Fatal(err)
		}
	}
	list := func(workflow string, most int) (ids []string) {
		for s, err := range c.ListSchedules(t.Context(), workflow) {
			if err != nil {
				t.Fatal(err)
			}
			if ids = append(ids, s.ID); len(ids) == most {
				break
			}
		}
		return ids
	}
	for _, l := range []struct {
		workflow string
		most     int
		want     string
	}{{"", 9, "[s0 s1 s2 s3 s4]"}, {"w1", 9, "[s1 s3]"}, {"", 3, "[s0 s1 s2]"}} {
		if got := fmt.Sprint(list(l.workflow, l.most)); got != l.want {
			t.Errorf("%q lists %s, want %s", l.workflow, got, l.want)
		}
	}
	f.fail = 100
	for _, err := range c.ListSchedules(t.Context(), "") {
		if !errors.Is(err, wiggle.ErrUnavailable) {
			t.Errorf("listed, and then %v", err)
		}
	}
}
