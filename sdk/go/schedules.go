package wiggle

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
)

// Overlap says what a due time does while the instance that its schedule started
// before still runs.
type Overlap int32

// What a due time may do.
const (
	// OverlapSkip: it is left out. What a schedule does that says nothing.
	OverlapSkip = Overlap(wigglev1.OverlapPolicy_OVERLAP_POLICY_SKIP)
	// OverlapQueueOne: one waits until that instance has ended; further ones are left
	// out.
	OverlapQueueOne = Overlap(wigglev1.OverlapPolicy_OVERLAP_POLICY_QUEUE_ONE)
	// OverlapAllow: another instance is started beside it.
	OverlapAllow = Overlap(wigglev1.OverlapPolicy_OVERLAP_POLICY_ALLOW)
	// OverlapCancelRunning: that instance is cancelled, and another started.
	OverlapCancelRunning = Overlap(wigglev1.OverlapPolicy_OVERLAP_POLICY_CANCEL_RUNNING)
)

// String is the policy in capitals: QUEUE_ONE.
func (o Overlap) String() string {
	if o == 0 {
		o = OverlapSkip
	}
	return trimEnum(wigglev1.OverlapPolicy(o).String(), "OVERLAP_POLICY_")
}

// Schedule says when instances of a workflow start by themselves: at the times of
// Cron, or at regular distances, Every. Exactly one of the two is set.
type Schedule struct {
	// ID within the client's namespace: letters, digits, '.', '_' and '-'.
	ID string

	// Cron is five fields (minute, hour, day of month, month and day of week) with *,
	// ranges, lists, steps and names, or @hourly, @daily, @weekly, @monthly, @yearly.
	Cron string
	// TimeZone of Cron by its IANA name, such as "Europe/Berlin". Empty means UTC. A
	// time that the clock skips fires when the clock has moved on; one that comes
	// twice fires once.
	TimeZone string
	// Every is the distance, at least a second. Due times lie at whole distances from
	// 1970-01-01T00:00:00Z plus Offset.
	Every, Offset time.Duration

	// Workflow to start, and its Version. 0 means the latest at the due time.
	Workflow string
	Version  int
	// Input is the first context of each instance. Read back it is a [Payload].
	Input any
	// Priority 0 (lowest) to 9. nil means 5.
	Priority *int

	// Jitter puts each due time off by a random part of it, the same whoever computes
	// it. At most a day.
	Jitter time.Duration
	// StartAt, and EndAt: no due time before the one, at or after the other. Zero
	// means no bound.
	StartAt, EndAt time.Time
	// CatchUp is how late a due time may be fired when nobody could at its time. Older
	// ones are left out. 0 means one minute.
	CatchUp time.Duration
	// Overlap says what a due time does while the instance before still runs.
	Overlap Overlap
	// Paused schedules do not fire.
	Paused bool
}

// ScheduleStatus tells what became of a schedule.
type ScheduleStatus struct {
	// NextAt is the next due time. Zero if there is none, or it is paused.
	NextAt time.Time
	// LastAt is the last due time that was fired, and LastInstanceID what it started.
	LastAt         time.Time
	LastInstanceID string
	// Fired, Skipped and Missed are how many due times were fired, were left out
	// because an instance still ran, and because nobody could fire them in time.
	Fired, Skipped, Missed int64
	// Problem says why the last due time could not be fired. It is tried again until
	// its time to catch up is over.
	Problem string
	// QueuedAt is a due time that waits until the instance before has ended.
	QueuedAt time.Time
	// CreatedAt and UpdatedAt are when it was made and changed.
	CreatedAt, UpdatedAt time.Time
}

// KeptSchedule is a schedule with what became of it.
type KeptSchedule struct {
	Schedule
	ScheduleStatus

	// Namespace that it is in.
	Namespace string
	// Upcoming are its next due times, at most five. Only GetSchedule fills it.
	Upcoming []time.Time
}

// PutSchedule makes a schedule, or changes the one with its id. What has fired stays
// fired; new times count from now on. It reports whether there was none. Errors:
// [ErrInvalid] with the [Error.Problems]; and what [encoding/json] says about the
// input.
func (c *Client) PutSchedule(ctx context.Context, s Schedule) (status ScheduleStatus, created bool, err error) {
	op := "put schedule " + s.ID
	p, err := c.scheduleProto(s)
	if err != nil {
		return ScheduleStatus{}, false, fmt.Errorf("wiggle: %s: %w", op, err)
	}
	res, err := call(ctx, c, op, callTimeout, c.schedules.PutSchedule, &wigglev1.PutScheduleRequest{Schedule: p})
	if err != nil {
		return ScheduleStatus{}, false, err
	}
	return scheduleStatusOf(res.GetStatus()), res.GetCreated(), nil
}

// GetSchedule reads a schedule. [ErrNotFound] if there is none.
func (c *Client) GetSchedule(ctx context.Context, id string) (*KeptSchedule, error) {
	req := &wigglev1.GetScheduleRequest{Namespace: c.namespace, Id: id}
	res, err := call(ctx, c, "read schedule "+id, callTimeout, c.schedules.GetSchedule, req)
	if err != nil {
		return nil, err
	}
	out := keptScheduleOf(res.GetSchedule(), res.GetStatus())
	for _, t := range res.GetUpcoming() {
		out.Upcoming = append(out.Upcoming, t.AsTime())
	}
	return out, nil
}

// ListSchedules iterates over the schedules of a workflow, by id; an empty one stands
// for all. An error ends it.
func (c *Client) ListSchedules(ctx context.Context, workflow string) iter.Seq2[*KeptSchedule, error] {
	return func(yield func(*KeptSchedule, error) bool) {
		req := &wigglev1.ListSchedulesRequest{Namespace: c.namespace, Workflow: workflow}
		for {
			res, err := call(ctx, c, "list schedules", callTimeout, c.schedules.ListSchedules, req)
			if err != nil {
				yield(nil, err)
				return
			}
			for _, s := range res.GetSchedules() {
				if !yield(keptScheduleOf(s.GetSchedule(), s.GetStatus()), nil) {
					return
				}
			}
			if res.GetNextPageToken() == "" {
				return
			}
			req.PageToken = res.GetNextPageToken()
		}
	}
}

// PauseSchedule stops a schedule from firing, or lets it go on. Times that pass while
// it is paused are not made up for. [ErrNotFound] if there is none.
func (c *Client) PauseSchedule(ctx context.Context, id string, paused bool) (ScheduleStatus, error) {
	req := &wigglev1.PauseScheduleRequest{Namespace: c.namespace, Id: id, Paused: paused}
	res, err := call(ctx, c, "pause schedule "+id, callTimeout, c.schedules.PauseSchedule, req)
	if err != nil {
		return ScheduleStatus{}, err
	}
	return scheduleStatusOf(res.GetStatus()), nil
}

// DeleteSchedule removes a schedule. Instances that it started go on. It reports false
// if there was none, also where the call was repeated because its first answer was
// lost.
func (c *Client) DeleteSchedule(ctx context.Context, id string) (deleted bool, err error) {
	req := &wigglev1.DeleteScheduleRequest{Namespace: c.namespace, Id: id}
	res, err := call(ctx, c, "delete schedule "+id, callTimeout, c.schedules.DeleteSchedule, req)
	if err != nil {
		return false, err
	}
	return res.GetDeleted(), nil
}

func (c *Client) scheduleProto(s Schedule) (*wigglev1.Schedule, error) {
	out := &wigglev1.Schedule{
		Id: s.ID, Namespace: c.namespace, Workflow: s.Workflow, Version: toInt32(s.Version),
		Jitter: durationOrNil(s.Jitter), StartAt: stampOrNil(s.StartAt), EndAt: stampOrNil(s.EndAt), CatchUp: durationOrNil(s.CatchUp),
		Overlap: wigglev1.OverlapPolicy(s.Overlap), Paused: s.Paused,
	}
	switch {
	case s.Cron != "" && s.Every != 0:
		return nil, errors.New("both Cron and Every are set: a schedule has one of them")
	case s.TimeZone != "" && s.Cron == "", s.Offset != 0 && s.Every == 0:
		return nil, errors.New("TimeZone goes with Cron, and Offset with Every")
	case s.Cron != "":
		out.When = &wigglev1.Schedule_Cron{Cron: &wigglev1.CronTimes{Expression: s.Cron, TimeZone: s.TimeZone}}
	case s.Every != 0:
		out.When = &wigglev1.Schedule_Interval{
			Interval: &wigglev1.IntervalTimes{Every: durationpb.New(s.Every), Offset: durationOrNil(s.Offset)},
		}
	}
	if s.Input != nil {
		payload, err := encode(s.Input)
		if err != nil {
			return nil, err
		}
		out.Input = payload
	}
	if s.Priority != nil {
		v := toInt32(*s.Priority)
		out.Priority = &v
	}
	return out, nil
}

func keptScheduleOf(p *wigglev1.Schedule, status *wigglev1.ScheduleStatus) *KeptSchedule {
	out := &KeptSchedule{Namespace: p.GetNamespace(), ScheduleStatus: scheduleStatusOf(status)}
	out.Schedule = Schedule{
		ID: p.GetId(), Cron: p.GetCron().GetExpression(), TimeZone: p.GetCron().GetTimeZone(),
		Every: p.GetInterval().GetEvery().AsDuration(), Offset: p.GetInterval().GetOffset().AsDuration(),
		Workflow: p.GetWorkflow(), Version: int(p.GetVersion()), Jitter: p.GetJitter().AsDuration(),
		StartAt: timeOf(p.GetStartAt()), EndAt: timeOf(p.GetEndAt()), CatchUp: p.GetCatchUp().AsDuration(),
		Overlap: Overlap(p.GetOverlap()), Paused: p.GetPaused(),
	}
	if p.GetInput() != nil {
		out.Input = Payload{ContentType: p.GetInput().GetContentType(), Data: p.GetInput().GetData()}
	}
	if p.Priority != nil {
		v := int(p.GetPriority())
		out.Priority = &v
	}
	return out
}

func scheduleStatusOf(p *wigglev1.ScheduleStatus) ScheduleStatus {
	return ScheduleStatus{
		NextAt: timeOf(p.GetNextAt()), LastAt: timeOf(p.GetLastAt()), LastInstanceID: p.GetLastInstanceId(),
		Fired: p.GetFired(), Skipped: p.GetSkipped(), Missed: p.GetMissed(), Problem: p.GetProblem(),
		QueuedAt: timeOf(p.GetQueuedAt()), CreatedAt: timeOf(p.GetCreatedAt()), UpdatedAt: timeOf(p.GetUpdatedAt()),
	}
}

func durationOrNil(d time.Duration) *durationpb.Duration {
	if d == 0 {
		return nil
	}
	return durationpb.New(d)
}

func stampOrNil(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}
