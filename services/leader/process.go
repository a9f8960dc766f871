package leader

import (
	"context"

	"github.com/wiggle-run/wiggle/pkg/lifecycle"
	"github.com/wiggle-run/wiggle/pkg/process"
)

// Main is a leader as a process of its own: it is configured by an environment as os.Environ returns it, and runs until ctx
// is done.
func Main(ctx context.Context, environ []string) error {
	var cfg Config
	p, err := process.Load(process.Spec{
		Name: "wiggle-leader", Port: process.Port{Setting: settingAddr, Addr: &cfg.Addr}, Declare: cfg.Declare, Check: cfg.Check,
	}, environ)
	if err != nil {
		return err
	}
	return p.Run(ctx, func(ctx context.Context, e process.Equipment) (process.Wiring, error) {
		cfg.Topology, cfg.Release, cfg.Logger, cfg.Telemetry = p.Topology, e.Release, e.Logger, e.Telemetry
		cfg.Transport = e.Transport
		var err error
		if cfg.Listener, err = p.Listen(ctx, settingAddr, cfg.Addr); err != nil {
			return process.Wiring{}, err
		}
		s, err := New(cfg)
		if err != nil {
			return process.Wiring{}, err
		}
		return process.Wiring{
			Services: []lifecycle.Component{{Name: "leader", Run: s.Run}},
			Grace:    cfg.Grace, Mount: s.Handler().Handle, Close: s.Close,
		}, nil
	})
}
