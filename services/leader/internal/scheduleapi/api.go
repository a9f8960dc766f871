// Package scheduleapi is the ScheduleService of a leader process. Active or standing by, each serves it: schedules are
// rows of the home shard, and firing them is another's work (package firing).
package scheduleapi

import (
	"context"
	"encoding/base64"
	"errors"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/wiggle-run/wiggle/pkg/faults"
	"github.com/wiggle-run/wiggle/pkg/identity"
	"github.com/wiggle-run/wiggle/pkg/postgres"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	"github.com/wiggle-run/wiggle/services/leader/internal/schedule"
	"github.com/wiggle-run/wiggle/services/leader/internal/schedulestore"
)

const (
	// retryAfter is what a caller is asked to wait for a home shard that does not answer.
	retryAfter = 500 * time.Millisecond
	// upcoming is how many due times GetSchedule tells.
	upcoming = 5
	// Pages of a list. pageBytes ends one before its time: schedules have inputs.
	defaultPage = 100
	maxPage     = 1000
	pageBytes   = 4 << 20
)

// Store is what the service needs of a store of schedules.
type Store interface {
	Get(ctx context.Context, namespace, id string) (schedulestore.Row, error)
	List(ctx context.Context, l schedulestore.Listing) (list []schedulestore.Row, more bool, err error)
	Change(ctx context.Context, namespace, id string,
		change func(now time.Time, old *schedulestore.Row) (*schedulestore.Row, error)) (*schedulestore.Row, bool, error)
	Delete(ctx context.Context, namespace, id string) (bool, error)
	DeleteIf(ctx context.Context, namespace, id string, allowed func(workflow string) error) (bool, error)
}

// Config says what the service is part of.
type Config struct {
	// Home is the number of the home shard.
	Home int
	// Zones may be shared with others.
	Zones *schedule.Zones
	// Ready tells whether the home shard can be used.
	Ready func() bool
	// Changed is called when a schedule may have another next due time.
	Changed func()
}

// Server implements wigglev1connect.ScheduleServiceHandler.
type Server struct {
	store Store
	cfg   Config
}

// New makes the service.
func New(store Store, cfg Config) *Server { return &Server{store: store, cfg: cfg} }

// opened is an error until the home shard can be used.
func (s *Server) opened() error {
	if s.cfg.Ready() {
		return nil
	}
	return faults.ShardUnavailable(s.cfg.Home, retryAfter)
}

// PutSchedule implements wigglev1connect.ScheduleServiceHandler. A schedule that is put as it is changes nothing.
func (s *Server) PutSchedule(ctx context.Context, req *wigglev1.PutScheduleRequest) (*wigglev1.PutScheduleResponse, error) {
	if err := s.opened(); err != nil {
		return nil, err
	}
	put := proto.CloneOf(req.GetSchedule())
	put.Namespace = namespace(put.GetNamespace())
	if err := identity.Check(ctx, actionManage, put.GetNamespace(), put.GetWorkflow()); err != nil {
		return nil, err
	}
	times, problems := schedule.Compile(put, s.cfg.Zones)
	if problems != nil {
		return nil, faults.Invalid(problems...)
	}
	var kept schedulestore.Row
	change := func(now time.Time, old *schedulestore.Row) (*schedulestore.Row, error) {
		if old != nil { // it may be another workflow's
			if err := check(ctx, actionManage, old.Schedule.GetNamespace(), old.Schedule.GetWorkflow(), old.Schedule.GetId()); err != nil {
				return nil, err
			}
		}
		row, changed := apply(now, old, put, times)
		kept = *row
		if !changed {
			return nil, nil //nolint:nilnil // nothing is to be written
		}
		return row, nil
	}
	created, err := s.change(ctx, put.GetNamespace(), put.GetId(), change, &kept)
	if err != nil {
		return nil, err
	}
	return &wigglev1.PutScheduleResponse{Created: created, Status: statusOf(kept)}, nil
}

// apply is a schedule that was put, and whether that changes anything.
func apply(now time.Time, old *schedulestore.Row, put *wigglev1.Schedule, times *schedule.Times) (*schedulestore.Row, bool) {
	if old == nil {
		row := &schedulestore.Row{Schedule: put, State: times.Begin(now)}
		if put.GetPaused() {
			row.State = row.Pause()
		}
		return row, true
	}
	if proto.Equal(old.Schedule, put) {
		return old, false
	}
	row := *old
	row.Schedule, row.Problem = put, ""
	switch {
	case put.GetPaused():
		pause(&row)
	case old.Schedule.GetPaused():
		row.State = times.Resume(row.State, now)
	case !schedule.SameTimes(old.Schedule, put):
		row.State = times.Change(row.State, now)
	}
	return &row, true
}

// pause stops a schedule. A due time that waited is left out.
func pause(row *schedulestore.Row) {
	if !row.Queued.IsZero() {
		row.Skipped++
	}
	row.State = row.Pause()
}

// PauseSchedule implements wigglev1connect.ScheduleServiceHandler.
func (s *Server) PauseSchedule(ctx context.Context, req *wigglev1.PauseScheduleRequest) (*wigglev1.PauseScheduleResponse, error) {
	if err := s.opened(); err != nil {
		return nil, err
	}
	var kept schedulestore.Row
	change := func(now time.Time, old *schedulestore.Row) (*schedulestore.Row, error) {
		if old == nil {
			return nil, schedulestore.ErrNotFound
		}
		if err := check(ctx, actionManage, old.Schedule.GetNamespace(), old.Schedule.GetWorkflow(), old.Schedule.GetId()); err != nil {
			return nil, err
		}
		kept = *old
		if old.Schedule.GetPaused() == req.GetPaused() {
			return nil, nil //nolint:nilnil // nothing is to be written
		}
		put := proto.CloneOf(old.Schedule)
		put.Paused = req.GetPaused()
		times, problems := schedule.Compile(put, s.cfg.Zones)
		if problems != nil && !req.GetPaused() {
			return nil, faults.Invalid(problems...)
		}
		row, _ := apply(now, old, put, times)
		kept = *row
		return row, nil
	}
	_, err := s.change(ctx, namespace(req.GetNamespace()), req.GetId(), change, &kept)
	if errors.Is(err, schedulestore.ErrNotFound) {
		return nil, notFound(ctx, actionManage, req.GetId())
	}
	if err != nil {
		return nil, err
	}
	return &wigglev1.PauseScheduleResponse{Status: statusOf(kept)}, nil
}

// change changes a row, and tells whoever fires. What was written is in kept; what was not, the function has put there.
func (s *Server) change(
	ctx context.Context, namespace, id string, do func(time.Time, *schedulestore.Row) (*schedulestore.Row, error), kept *schedulestore.Row,
) (created bool, err error) {
	row, created, err := s.store.Change(ctx, namespace, id, do)
	if err != nil {
		if errors.Is(err, schedulestore.ErrNotFound) {
			return false, err
		}
		return false, s.fault(err)
	}
	if row != nil {
		*kept = *row
		s.cfg.Changed()
	}
	return created, nil
}

// GetSchedule implements wigglev1connect.ScheduleServiceHandler.
func (s *Server) GetSchedule(ctx context.Context, req *wigglev1.GetScheduleRequest) (*wigglev1.GetScheduleResponse, error) {
	if err := s.opened(); err != nil {
		return nil, err
	}
	row, err := s.store.Get(ctx, namespace(req.GetNamespace()), req.GetId())
	if errors.Is(err, schedulestore.ErrNotFound) {
		return nil, notFound(ctx, actionRead, req.GetId())
	}
	if err != nil {
		return nil, s.fault(err)
	}
	if err := check(ctx, actionRead, row.Schedule.GetNamespace(), row.Schedule.GetWorkflow(), row.Schedule.GetId()); err != nil {
		return nil, err
	}
	res := &wigglev1.GetScheduleResponse{Schedule: row.Schedule, Status: statusOf(row)}
	if times, problems := schedule.Compile(row.Schedule, s.cfg.Zones); problems == nil {
		for _, due := range times.Upcoming(row.Next, upcoming) {
			res.Upcoming = append(res.Upcoming, timestamppb.New(due))
		}
	}
	return res, nil
}

// ListSchedules implements wigglev1connect.ScheduleServiceHandler. A page ends early where inputs make it large.
func (s *Server) ListSchedules(ctx context.Context, req *wigglev1.ListSchedulesRequest) (*wigglev1.ListSchedulesResponse, error) {
	if err := s.opened(); err != nil {
		return nil, err
	}
	after, err := parseToken(req.GetPageToken())
	if err != nil {
		return nil, err
	}
	size := int(req.GetPageSize())
	if size == 0 {
		size = defaultPage
	}
	size = min(size, maxPage)
	name := namespace(req.GetNamespace())
	rows, more, err := s.store.List(ctx, schedulestore.Listing{
		Namespace: name, Workflow: req.GetWorkflow(), Only: identity.Within(ctx, actionRead, name),
		After: after, Limit: size, Bytes: pageBytes,
	})
	if err != nil {
		return nil, s.fault(err)
	}
	res := &wigglev1.ListSchedulesResponse{}
	for _, row := range rows {
		res.Schedules = append(res.Schedules, &wigglev1.ListedSchedule{Schedule: row.Schedule, Status: statusOf(row)})
	}
	if more {
		res.NextPageToken = token(rows[len(rows)-1].Schedule.GetId())
	}
	return res, nil
}

// DeleteSchedule implements wigglev1connect.ScheduleServiceHandler.
func (s *Server) DeleteSchedule(ctx context.Context, req *wigglev1.DeleteScheduleRequest) (*wigglev1.DeleteScheduleResponse, error) {
	if err := s.opened(); err != nil {
		return nil, err
	}
	deleted, err := s.remove(ctx, namespace(req.GetNamespace()), req.GetId())
	if err != nil {
		return nil, s.fault(err)
	}
	return &wigglev1.DeleteScheduleResponse{Deleted: deleted}, nil
}

// fault says in a client's terms what went wrong on the home shard.
func (s *Server) fault(err error) error {
	if own, ok := errors.AsType[*faults.Error](err); ok {
		return own
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return faults.ShardUnavailable(s.cfg.Home, retryAfter).WithCause(err)
	}
	switch postgres.Classify(err) {
	case postgres.Unknown:
		return faults.OutcomeUnknown(s.cfg.Home).WithCause(err)
	case postgres.Unavailable, postgres.ReadOnly, postgres.NotApplied, postgres.Interrupted:
		return faults.ShardUnavailable(s.cfg.Home, retryAfter).WithCause(err)
	default:
		return faults.Internal(err)
	}
}

func namespace(name string) string {
	if name == "" {
		return "default"
	}
	return name
}

func statusOf(r schedulestore.Row) *wigglev1.ScheduleStatus {
	return &wigglev1.ScheduleStatus{
		NextAt: stamp(r.Next), LastAt: stamp(r.Last), LastInstanceId: r.LastInstance,
		Fired: r.Fired, Skipped: r.Skipped, Missed: r.Missed, Problem: r.Problem, QueuedAt: stamp(r.Queued),
		CreatedAt: stamp(r.CreatedAt), UpdatedAt: stamp(r.UpdatedAt),
	}
}

func stamp(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}

// A page token holds the last id of the page before.
const tokenPrefix = "schedule/"

func token(id string) string { return base64.RawURLEncoding.EncodeToString([]byte(tokenPrefix + id)) }

func parseToken(text string) (after string, err error) {
	if text == "" {
		return "", nil
	}
	b, err := base64.RawURLEncoding.DecodeString(text)
	if id, ok := strings.CutPrefix(string(b), tokenPrefix); err == nil && ok && id != "" {
		return id, nil
	}
	return "", faults.InvalidArgument("malformed page token %.60q: use the next_page_token of the page before", text)
}
