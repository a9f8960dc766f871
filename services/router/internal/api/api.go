package api

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/wiggle-run/wiggle/pkg/faults"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	"github.com/wiggle-run/wiggle/proto/gen/wiggle/v1/wigglev1connect"
	"github.com/wiggle-run/wiggle/services/router/internal/backends"
	"github.com/wiggle-run/wiggle/services/router/internal/definitions"
	"github.com/wiggle-run/wiggle/services/router/internal/guard"
	"github.com/wiggle-run/wiggle/services/router/internal/peers"
	"github.com/wiggle-run/wiggle/services/router/internal/poll"
	"github.com/wiggle-run/wiggle/services/router/internal/route"
)

// Config bounds calls.
type Config struct {
	// CallTimeout bounds a call to one shard, all tries together.
	CallTimeout time.Duration
	// FanOutTimeout bounds each shard's part in a call over all of them.
	FanOutTimeout time.Duration
	// PayloadBytes is the largest payload; PayloadSetting is the name of the setting that says so.
	PayloadBytes   int64
	PayloadSetting string
	// Schedules are the leader processes.
	Schedules *peers.Peers[wigglev1connect.ScheduleServiceClient]
}

// Services implements the public services, but for WorkerService.Work, whose messages are passed on as bytes by
// package work and which is mounted apart.
type Services struct {
	wigglev1connect.UnimplementedWorkerServiceHandler

	cfg     Config
	forward *route.Forwarder
	cluster func() *route.Cluster
	keeper  *definitions.Keeper
	poller  *poll.Poller
	logger  *slog.Logger

	refusals refusals
}

// New makes the services.
func New(
	cfg Config, forward *route.Forwarder, cluster func() *route.Cluster, keeper *definitions.Keeper, poller *poll.Poller,
	logger *slog.Logger,
) *Services {
	return &Services{cfg: cfg, forward: forward, cluster: cluster, keeper: keeper, poller: poller, logger: logger}
}

// call makes a call to one shard.
func call[T any](
	ctx context.Context, s *Services, shard int, method string,
	do func(ctx context.Context, c backends.Client) (T, error),
) (T, error) {
	return route.Do(ctx, s.forward, route.Call{Shard: shard, Method: method, Timeout: s.cfg.CallTimeout}, do)
}

// scatter answers the items of a batch: it groups them by shard, sends each group at once, and puts the outcomes into the
// order of the items. What fails for a whole group fails for each of its items. Items that the caller may not do are not sent.
func scatter[Item, Outcome any](
	ctx context.Context,
	items []Item,
	shardOf func(Item) (int, error),
	send func(shard int, group []Item) ([]Outcome, error),
	failed func(Item, error) Outcome,
) []Outcome {
	outcomes := make([]Outcome, len(items))
	groups := make(map[int][]int)
	denied := guard.Denied(ctx)
	for i, item := range items {
		if denied != nil && denied[i] != nil {
			outcomes[i] = failed(item, denied[i])
			continue
		}
		shard, err := shardOf(item)
		if err != nil {
			outcomes[i] = failed(item, err)
			continue
		}
		groups[shard] = append(groups[shard], i)
	}
	one := func(shard int, indexes []int) {
		group := make([]Item, len(indexes))
		for n, i := range indexes {
			group[n] = items[i]
		}
		got, err := send(shard, group)
		if err == nil && len(got) != len(group) {
			err = faults.Internal(fmt.Errorf("shard %d answered %d items with %d outcomes", shard, len(group), len(got)))
		}
		for n, i := range indexes {
			if err != nil {
				outcomes[i] = failed(items[i], err)
			} else {
				outcomes[i] = got[n]
			}
		}
	}
	var wg sync.WaitGroup
	for shard, indexes := range groups {
		if len(groups) == 1 {
			one(shard, indexes)
			break
		}
		wg.Go(func() { one(shard, indexes) })
	}
	wg.Wait()
	return outcomes
}

// fault is an error as the outcome of an item. Internal ones are logged here, as nobody else sees their cause.
func (s *Services) fault(ctx context.Context, err error) *wigglev1.Fault {
	fault := faults.FromError(err)
	if fault.Code() == faults.CodeInternal {
		s.logger.WarnContext(ctx, "an item of a call failed", slog.Any("fault", fault))
	}
	return fault.ToProto()
}

// checkPayload refuses a payload that is too large.
func (s *Services) checkPayload(p *wigglev1.Payload) error {
	if size := int64(len(p.GetData())); size > s.cfg.PayloadBytes {
		return faults.LimitExceeded("payload", s.cfg.PayloadSetting, s.cfg.PayloadBytes, size)
	}
	return nil
}
