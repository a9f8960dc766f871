package api

import (
	"context"

	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	"github.com/wiggle-run/wiggle/proto/gen/wiggle/v1/wigglev1connect"
	"github.com/wiggle-run/wiggle/services/router/internal/peers"
)

// onLeader makes a call to a leader process. Each may be made again on the next.
func onLeader[Req, Res any](
	ctx context.Context, s *Services, req *Req,
	do func(c wigglev1connect.ScheduleServiceClient, ctx context.Context, req *Req) (*Res, error),
) (*Res, error) {
	return peers.Do(ctx, s.cfg.Schedules, s.cfg.CallTimeout,
		func(ctx context.Context, c wigglev1connect.ScheduleServiceClient) (*Res, error) {
			return do(c, ctx, req)
		})
}

// PutSchedule implements wigglev1connect.ScheduleServiceHandler. The input is held to the limit that it has at each start.
func (s *Services) PutSchedule(ctx context.Context, req *wigglev1.PutScheduleRequest) (*wigglev1.PutScheduleResponse, error) {
	if err := s.checkPayload(req.GetSchedule().GetInput()); err != nil {
		return nil, err
	}
	return onLeader(ctx, s, req, wigglev1connect.ScheduleServiceClient.PutSchedule)
}

// GetSchedule implements wigglev1connect.ScheduleServiceHandler.
func (s *Services) GetSchedule(ctx context.Context, req *wigglev1.GetScheduleRequest) (*wigglev1.GetScheduleResponse, error) {
	return onLeader(ctx, s, req, wigglev1connect.ScheduleServiceClient.GetSchedule)
}

// ListSchedules implements wigglev1connect.ScheduleServiceHandler.
func (s *Services) ListSchedules(
	ctx context.Context, req *wigglev1.ListSchedulesRequest,
) (*wigglev1.ListSchedulesResponse, error) {
	return onLeader(ctx, s, req, wigglev1connect.ScheduleServiceClient.ListSchedules)
}

// PauseSchedule implements wigglev1connect.ScheduleServiceHandler.
func (s *Services) PauseSchedule(
	ctx context.Context, req *wigglev1.PauseScheduleRequest,
) (*wigglev1.PauseScheduleResponse, error) {
	return onLeader(ctx, s, req, wigglev1connect.ScheduleServiceClient.PauseSchedule)
}

// DeleteSchedule implements wigglev1connect.ScheduleServiceHandler. Made again because the first answer was lost, it answers
// that there was none.
func (s *Services) DeleteSchedule(
	ctx context.Context, req *wigglev1.DeleteScheduleRequest,
) (*wigglev1.DeleteScheduleResponse, error) {
	return onLeader(ctx, s, req, wigglev1connect.ScheduleServiceClient.DeleteSchedule)
}
