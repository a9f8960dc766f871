package scheduleapi_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/wiggle-run/wiggle/pkg/faults"
	"github.com/wiggle-run/wiggle/pkg/identity"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	wiggleinternalv1 "github.com/wiggle-run/wiggle/proto/gen/wiggleinternal/v1"
)

// Whoever may manage the schedules of some workflows has nothing to do with those of others: not to see, change, take over or
// delete them, nor to learn which there are (AUT-3).
func TestScopes(t *testing.T) {
	t.Parallel()
	s := newService(t)
	foreign, own := nightly(), nightly()
	own.Id, own.Workflow = "own", "mail"
	s.put(t, foreign)
	p, err := identity.New(&wiggleinternalv1.Principal{
		Name: "alice", Permissions: []string{"schedule.read:default/ma*", "schedule.manage:default/mail", "schedule.manage:other/*"},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx := identity.With(t.Context(), p)
	put := func(p *wigglev1.Schedule, change func(*wigglev1.Schedule)) error {
		p = proto.CloneOf(p)
		change(p)
		_, err := s.PutSchedule(ctx, &wigglev1.PutScheduleRequest{Schedule: p})
		return err
	}
	get := func(id string) error {
		_, err := s.GetSchedule(ctx, &wigglev1.GetScheduleRequest{Id: id})
		return err
	}
	pause := func(id string) error {
		_, err := s.PauseSchedule(ctx, &wigglev1.PauseScheduleRequest{Id: id, Paused: true})
		return err
	}
	remove := func(id string) error {
		_, err := s.DeleteSchedule(ctx, &wigglev1.DeleteScheduleRequest{Id: id})
		return err
	}
	as := func(*wigglev1.Schedule) {}
	for name, err := range map[string]error{
		"put":               put(foreign, as),
		"put what it may":   put(own, func(p *wigglev1.Schedule) { p.Workflow = "other" }),
		"take over":         put(own, func(p *wigglev1.Schedule) { p.Id = foreign.GetId() }),
		"get":               get(foreign.GetId()),
		"get what is not":   get("none"),
		"pause":             pause(foreign.GetId()),
		"pause what is not": pause("none"),
		"delete":            remove(foreign.GetId()),
	} {
		if !errors.Is(err, faults.ErrPermissionMissing) || name != "put" && strings.Contains(err.Error(), "report") {
			t.Errorf("%s: %v", name, err)
		}
	}
	listed := func() error {
		res, err := s.ListSchedules(ctx, &wigglev1.ListSchedulesRequest{PageSize: 1})
		if err == nil && (len(res.GetSchedules()) != 1 || res.GetSchedules()[0].GetSchedule().GetId() != own.GetId() || res.GetNextPageToken() != "") {
			err = fmt.Errorf("listed %v", res)
		}
		return err
	}
	steps := []error{put(own, as), listed(), get(own.GetId()), pause(own.GetId()), remove(own.GetId()), remove(own.GetId())}
	for i, err := range steps {
		if err != nil {
			t.Errorf("its own, step %d: %v", i, err)
		}
	}
	row, err := s.GetSchedule(t.Context(), &wigglev1.GetScheduleRequest{Id: foreign.GetId()})
	if err != nil || row.GetSchedule().GetPaused() || row.GetSchedule().GetWorkflow() != "report" {
		t.Errorf("the schedule of others is %v, %v", row, err)
	}
}
