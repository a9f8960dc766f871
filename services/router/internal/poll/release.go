package poll

import (
	"context"
	"log/slog"

	"github.com/wiggle-run/wiggle/pkg/shardid"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	"github.com/wiggle-run/wiggle/services/router/internal/backends"
	"github.com/wiggle-run/wiggle/services/router/internal/route"
)

// release hands tasks back to their shards and has the class look there again. A shard that does not take them back
// gives them to another worker when their leases run out.
func (s *session) release(c *class, tasks []*wigglev1.Task) {
	byShard := make(map[int][]*wigglev1.TaskLease)
	for _, task := range tasks {
		id, err := shardid.ParseToken(task.GetId())
		if err != nil {
			s.p.logger.Error("a shard leased a task whose id is none", slog.Any("error", err))
			continue
		}
		shard := id.Route(s.p.home())
		byShard[shard] = append(byShard[shard], &wigglev1.TaskLease{TaskId: task.GetId(), Lease: task.GetLease()})
	}
	for shard, leases := range byShard {
		call := route.Call{Shard: shard, Method: "ReleaseTasks", Timeout: s.p.cfg.ClaimTimeout}
		req := &wigglev1.ReleaseTasksRequest{Worker: s.req.GetWorker(), Tasks: leases}
		_, err := route.Do(context.WithoutCancel(s.ctx), s.p.forward, call,
			func(ctx context.Context, client backends.Client) (*wigglev1.ReleaseTasksResponse, error) {
				return client.Workers.ReleaseTasks(ctx, req)
			})
		if err != nil {
			s.p.logger.Warn("tasks of a worker that left are not handed back; their leases will run out",
				slog.Int("shard", shard), slog.Int("tasks", len(leases)), slog.Any("error", err))
			continue
		}
		s.p.wakeClass(c, shard)
	}
}
