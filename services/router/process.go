package router

import (
	"context"

	"github.com/wiggle-run/wiggle/pkg/lifecycle"
	"github.com/wiggle-run/wiggle/pkg/process"
)

// Main is a router as a process of its own: it is configured by an environment as os.Environ returns it, and runs until
// ctx is done. SIGHUP has it read the topology anew; one that is not right is logged and the old one kept (SHD-16).
func Main(ctx context.Context, environ []string) error {
	var cfg Config
	p, err := process.Load(process.Spec{
		Name: "wiggle-router", Port: process.Port{Setting: SettingAddr, Addr: &cfg.Addr, Public: true},
		Declare: cfg.Declare, Check: cfg.Check,
	}, environ)
	if err != nil {
		return err
	}
	return p.Run(ctx, func(ctx context.Context, e process.Equipment) (process.Wiring, error) {
		cfg.Topology, cfg.Release, cfg.Logger, cfg.Telemetry = p.Topology, e.Release, e.Logger, e.Telemetry
		cfg.Transport = e.Transport
		var err error
		if cfg.Listener, err = p.Listen(ctx, SettingAddr, cfg.Addr); err != nil {
			return process.Wiring{}, err
		}
		r, err := New(cfg)
		if err != nil {
			return process.Wiring{}, err
		}
		return process.Wiring{
			Services: []lifecycle.Component{{Name: "router", Run: r.Run}},
			Grace:    cfg.Grace, Mount: r.Mount, SetTopology: r.SetTopology,
		}, nil
	})
}
