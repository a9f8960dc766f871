package instances

import (
	"context"
	"fmt"
	"log/slog"
	"slices"

	"github.com/wiggle-run/wiggle/pkg/lifecycle"
	"github.com/wiggle-run/wiggle/pkg/process"
	"github.com/wiggle-run/wiggle/pkg/topology"
)

// Main is an instances service as a process of its own: it is configured by an environment as os.Environ returns it, and
// serves until ctx is done.
func Main(ctx context.Context, environ []string) error {
	var cfg Config
	p, err := process.Load(process.Spec{
		Name: "wiggle-instances", Port: process.Port{Setting: settingAddr, Addr: &cfg.Addr}, Declare: cfg.Declare, Check: cfg.Check,
	}, environ)
	if err != nil {
		return err
	}
	return p.Run(ctx, func(ctx context.Context, e process.Equipment) (process.Wiring, error) {
		cfg.Topology, cfg.Release, cfg.Logger, cfg.Telemetry = p.Topology, e.Release, e.Logger, e.Telemetry
		cfg.Transport = e.Transport
		LogConnections(ctx, e.Logger, p.Topology, cfg.Shards)
		var err error
		if cfg.Listener, err = p.Listen(ctx, settingAddr, cfg.Addr); err != nil {
			return process.Wiring{}, err
		}
		s, err := New(cfg)
		if err != nil {
			return process.Wiring{}, err
		}
		return process.Wiring{
			Services: []lifecycle.Component{{Name: "instances", Run: s.Run}},
			Grace:    cfg.Grace, Mount: s.Handler().Handle, Close: s.Close,
		}, nil
	})
}

// Close gives back what New has opened, for a service that may not have come to Run, which does so by itself.
func (s *Service) Close() { s.close() }

// LogConnections logs how many connections a process opens to each shard, and their sum (SHD-15). No shards stands for
// all. A process that does not serve home opens a few to it for definitions, which are not counted.
func LogConnections(ctx context.Context, logger *slog.Logger, t *topology.Topology, shards []int) {
	total := 0
	for _, c := range t.Connections().Shards {
		shard, _ := t.Shard(c.Shard)
		if !shard.Roles.Has(topology.RoleInstances) || len(shards) > 0 && !slices.Contains(shards, c.Shard) {
			continue
		}
		total += c.Total()
		logger.InfoContext(ctx, "connections of the shard",
			slog.Int("shard", c.Shard), slog.Int("primary", c.Primary), slog.Int("replicas", c.Replicas))
	}
	logger.InfoContext(ctx, "connections of this process; max_connections of a server must exceed what all processes open to it",
		slog.Int("sum", total))
}

// Check says what is wrong with the shards to serve. Without a topology there is nothing to say.
func (c *Config) Check(t *topology.Topology) []process.Problem {
	if t == nil {
		return nil
	}
	var found []process.Problem
	refuse := func(id int, why string) {
		found = append(found, process.Problem{Where: settingShards, Message: fmt.Sprintf("names shard %d, which %s", id, why)})
	}
	for _, id := range c.Shards {
		shard, ok := t.Shard(id)
		switch {
		case !ok:
			refuse(id, "the topology does not list")
		case shard.State == topology.StateRetired:
			refuse(id, "is retired")
		case !shard.Roles.Has(topology.RoleInstances):
			refuse(id, "has no role instances")
		}
	}
	return found
}
