package scheduleapi_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/wiggle-run/wiggle/internal/pgtest"
	"github.com/wiggle-run/wiggle/pkg/faults"
	"github.com/wiggle-run/wiggle/pkg/postgres"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	"github.com/wiggle-run/wiggle/services/leader/internal/schedule"
	"github.com/wiggle-run/wiggle/services/leader/internal/scheduleapi"
	"github.com/wiggle-run/wiggle/services/leader/internal/schedulestore"
	"github.com/wiggle-run/wiggle/services/leader/migrations"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// service is the service with a clock that the test moves, and how often it has told of changes.
type service struct {
	*scheduleapi.Server

	now     time.Time
	ready   bool
	changes int
}

func newService(t *testing.T) *service {
	t.Helper()
	pool := pgtest.NewPool(t)
	if _, err := postgres.Migrate(t.Context(), pool, migrations.Set(), postgres.Apply); err != nil {
		t.Fatal(err)
	}
	s := &service{now: time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC), ready: true}
	s.Server = scheduleapi.New(schedulestore.New(pool).WithNow(func() time.Time { return s.now }), scheduleapi.Config{
		Home: 3, Zones: schedule.NewZones(), Ready: func() bool { return s.ready }, Changed: func() { s.changes++ },
	})
	return s
}

func nightly() *wigglev1.Schedule {
	return &wigglev1.Schedule{
		Id: "nightly", Workflow: "report", Input: &wigglev1.Payload{Data: []byte(`{"a":1}`)},
		When: &wigglev1.Schedule_Cron{Cron: &wigglev1.CronTimes{Expression: "30 2 * * *", TimeZone: "Europe/Berlin"}},
	}
}

func (s *service) put(t *testing.T, p *wigglev1.Schedule) *wigglev1.PutScheduleResponse {
	t.Helper()
	res, err := s.PutSchedule(t.Context(), &wigglev1.PutScheduleRequest{Schedule: p})
	if err != nil {
		t.Fatal(err)
	}
	return res
}

// TestPutAndGet: a schedule is made, put again, changed, paused, resumed and deleted; each answer tells its next due time.
func TestPutAndGet(t *testing.T) {
	t.Parallel()
	s := newService(t)
	first := time.Date(2026, 1, 2, 1, 30, 0, 0, time.UTC)
	if res := s.put(t, nightly()); !res.GetCreated() || !res.GetStatus().GetNextAt().AsTime().Equal(first) {
		t.Errorf("made: %v", res)
	}
	if res := s.put(t, nightly()); res.GetCreated() || !res.GetStatus().GetNextAt().AsTime().Equal(first) || s.changes != 1 {
		t.Errorf("put again: %v, %d changes", res, s.changes)
	}
	got, err := s.GetSchedule(t.Context(), &wigglev1.GetScheduleRequest{Id: "nightly"})
	if err != nil {
		t.Fatal(err)
	}
	want := nightly()
	want.Namespace = "default"
	if !proto.Equal(got.GetSchedule(), want) || len(got.GetUpcoming()) != 5 || !got.GetUpcoming()[4].AsTime().Equal(first.AddDate(0, 0, 4)) {
		t.Errorf("read: %v", got)
	}
	changed := nightly()
	changed.GetCron().Expression = "0 3 * * *"
	if res := s.put(t, changed); res.GetCreated() || !res.GetStatus().GetNextAt().AsTime().Equal(first.Add(30*time.Minute)) || s.changes != 2 {
		t.Errorf("changed: %v", res)
	}
	for _, paused := range []bool{true, true, false} {
		res, err := s.PauseSchedule(t.Context(), &wigglev1.PauseScheduleRequest{Id: "nightly", Paused: paused})
		if err != nil || (res.GetStatus().GetNextAt() == nil) != paused {
			t.Errorf("paused %t: %v, %v", paused, res, err)
		}
	}
	if s.changes != 4 {
		t.Errorf("%d changes", s.changes)
	}
	for _, there := range []bool{true, false} {
		res, err := s.DeleteSchedule(t.Context(), &wigglev1.DeleteScheduleRequest{Id: "nightly"})
		if err != nil || res.GetDeleted() != there {
			t.Errorf("deleted: %v, %v", res, err)
		}
	}
	_, getErr := s.GetSchedule(t.Context(), &wigglev1.GetScheduleRequest{Id: "nightly"})
	_, pauseErr := s.PauseSchedule(t.Context(), &wigglev1.PauseScheduleRequest{Id: "nightly"})
	if !errors.Is(getErr, faults.ErrNotFound) || !errors.Is(pauseErr, faults.ErrNotFound) {
		t.Errorf("read: %v, paused: %v", getErr, pauseErr)
	}
}

// TestNamespaces keep schedules of one id apart.
func TestNamespaces(t *testing.T) {
	t.Parallel()
	s := newService(t)
	other := nightly()
	other.Namespace, other.Workflow = "acme", "another"
	s.put(t, nightly())
	s.put(t, other)
	for namespace, want := range map[string]string{"": "report", "default": "report", "acme": "another"} {
		res, err := s.GetSchedule(t.Context(), &wigglev1.GetScheduleRequest{Namespace: namespace, Id: "nightly"})
		if err != nil || res.GetSchedule().GetWorkflow() != want {
			t.Errorf("%q: %v, %v", namespace, res, err)
		}
		list, err := s.ListSchedules(t.Context(), &wigglev1.ListSchedulesRequest{Namespace: namespace})
		if err != nil || len(list.GetSchedules()) != 1 {
			t.Errorf("%q: %v, %v", namespace, list, err)
		}
	}
}

// TestInvalid: every problem is named at once.
func TestInvalid(t *testing.T) {
	t.Parallel()
	s := newService(t)
	p := nightly()
	p.GetCron().Expression, p.GetCron().TimeZone, p.Jitter = "99 2 * * *", "Europe/Nowhere", durationpb.New(-1)
	_, err := s.PutSchedule(t.Context(), &wigglev1.PutScheduleRequest{Schedule: p})
	if problems := faults.FromError(err).ToProto().GetInvalid().GetProblems(); len(problems) != 3 {
		t.Errorf("problems %v", problems)
	}
	_, err = s.ListSchedules(t.Context(), &wigglev1.ListSchedulesRequest{PageToken: "x"})
	if !errors.Is(err, faults.ErrInvalidArgument) {
		t.Errorf("a page token of no page: %v", err)
	}
}

// TestPages: a list comes page by page, and none twice or left out while others are put.
func TestPages(t *testing.T) {
	t.Parallel()
	s := newService(t)
	for i := range 7 {
		p := nightly()
		p.Id = fmt.Sprint("s", i)
		s.put(t, p)
	}
	var got []string
	req := &wigglev1.ListSchedulesRequest{PageSize: 3}
	for {
		res, err := s.ListSchedules(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range res.GetSchedules() {
			got = append(got, l.GetSchedule().GetId())
		}
		if req.PageToken = res.GetNextPageToken(); req.GetPageToken() == "" {
			break
		}
		p := nightly()
		p.Id = "s0-later"
		s.put(t, p)
	}
	if strings.Join(got, " ") != "s0 s1 s2 s3 s4 s5 s6" {
		t.Errorf("listed %v", got)
	}
}

// TestHomeAway: while home is not open calls are told to come back, and so when it is away.
func TestHomeAway(t *testing.T) {
	t.Parallel()
	s := newService(t)
	s.ready = false
	if _, err := s.PutSchedule(t.Context(), &wigglev1.PutScheduleRequest{Schedule: nightly()}); !errors.Is(err, faults.ErrShardUnavailable) {
		t.Errorf("before home is open: %v", err)
	}
	s.ready = true
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.GetSchedule(ctx, &wigglev1.GetScheduleRequest{Id: "x"}); !errors.Is(err, faults.ErrShardUnavailable) {
		t.Errorf("cut off: %v", err)
	}
}
