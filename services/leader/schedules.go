package leader

import (
	"fmt"

	"connectrpc.com/connect"

	"github.com/wiggle-run/wiggle/pkg/rpc"
	"github.com/wiggle-run/wiggle/proto/gen/wiggle/v1/wigglev1connect"
	"github.com/wiggle-run/wiggle/services/leader/internal/duty"
	"github.com/wiggle-run/wiggle/services/leader/internal/firing"
	"github.com/wiggle-run/wiggle/services/leader/internal/routers"
	"github.com/wiggle-run/wiggle/services/leader/internal/schedule"
	"github.com/wiggle-run/wiggle/services/leader/internal/scheduleapi"
	"github.com/wiggle-run/wiggle/services/leader/internal/schedulestore"
)

// addSchedules adds the duty that fires schedules, and mounts the service by which users change them. Without routers there
// is nobody to start instances, and the duty is left out.
func (s *Service) addSchedules() error {
	store, zones := schedulestore.New(s.home.pool), schedule.NewZones()
	wake := func() {}
	if len(s.cfg.RouterURLs) == 0 {
		s.log.Info("no routers are configured: schedules are kept, and do not fire")
	} else {
		clients, err := s.routers()
		if err != nil {
			return err
		}
		loop, err := firing.New(store, clients, zones, s.log, s.cfg.meter())
		if err != nil {
			return fmt.Errorf("make metrics: %w", err)
		}
		loop.Tracer = s.cfg.tracer()
		wake = loop.Wake
		s.duties = append(s.duties, duty.Duty{Name: "schedules", Shard: s.home.id, Run: loop.Run})
	}
	api := scheduleapi.New(store, scheduleapi.Config{Home: s.home.id, Zones: zones, Ready: s.ready, Changed: wake})
	s.server.Mount(wigglev1connect.NewScheduleServiceHandler(api, s.server.Options()...))
	return nil
}

// routers makes clients of the routers.
func (s *Service) routers() (*routers.Routers, error) {
	cfg := s.cfg.Transport.Client(rpc.ClientConfig{
		DialContext: s.cfg.DialContext, Telemetry: s.cfg.Telemetry, Release: s.cfg.Release,
	})
	options, err := rpc.NewClientOptions(cfg)
	if err != nil {
		return nil, fmt.Errorf("make clients: %w", err)
	}
	options = append(options, connect.WithGRPC())
	client := rpc.NewHTTPClient(cfg)
	s.closers = append(s.closers, client.CloseIdleConnections)
	var clients []wigglev1connect.InstanceServiceClient
	for _, baseURL := range s.cfg.RouterURLs {
		clients = append(clients, wigglev1connect.NewInstanceServiceClient(client, baseURL, options...))
	}
	return routers.New(clients...), nil
}
