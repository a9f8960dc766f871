package poll

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"go.opentelemetry.io/otel/metric"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/wiggle-run/wiggle/pkg/wake"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	"github.com/wiggle-run/wiggle/services/router/internal/pause"
	"github.com/wiggle-run/wiggle/services/router/internal/route"
)

const (
	// maxWait bounds how long a poll may wait.
	maxWait = time.Minute
	// patience is how long a poll waits for one shard's claim before it goes on to the next; with tasks in hand it waits
	// shortPatience only.
	patience      = time.Second
	shortPatience = 100 * time.Millisecond
	// slowFor is how long a shard that tried a poll's patience is tried last.
	slowFor = time.Second
	// recheckPace is the pause between classes in a re-check.
	recheckPace = 20 * time.Millisecond
	// comeBack is when a poll that is turned away should come back, spread over twice that.
	comeBack = time.Second
	// comeBackDraining is the same while the router goes down: another one is at hand.
	comeBackDraining = 50 * time.Millisecond
)

// Config bounds what polls cost.
type Config struct {
	// MaxParked is how many polls may wait at the same time.
	MaxParked int
	// ClaimTimeout bounds one shard's claim.
	ClaimTimeout time.Duration
	// Recheck is how often a class looks at all shards without a hint, about.
	Recheck time.Duration
}

// Poller serves polls.
type Poller struct {
	cfg     Config
	forward *route.Forwarder
	cluster func() *route.Cluster
	logger  *slog.Logger
	parked  metric.Int64UpDownCounter

	hub      wake.Hub[key]
	draining chan struct{}
	drain    sync.Once
	// background counts claims and releases, which outlive their polls.
	background sync.WaitGroup

	mu      sync.Mutex
	classes map[string]*class
	byKey   map[key]map[*class]struct{}
	hinted  map[key]map[int]struct{}
	slow    map[int]time.Time
	cursor  uint64
	waiting int
}

// New makes a poller over the shards of a cluster, which may change.
func New(
	cfg Config, forward *route.Forwarder, cluster func() *route.Cluster, logger *slog.Logger, meter metric.Meter,
) (*Poller, error) {
	parked, err := meter.Int64UpDownCounter("wiggle.router.parked_polls", metric.WithUnit("{poll}"),
		metric.WithDescription("Polls that wait for a task."))
	if err != nil {
		return nil, err
	}
	return &Poller{
		cfg: cfg, forward: forward, cluster: cluster, logger: logger, parked: parked,
		draining: make(chan struct{}),
		classes:  make(map[string]*class), byKey: make(map[key]map[*class]struct{}),
		hinted: make(map[key]map[int]struct{}), slow: make(map[int]time.Time),
	}, nil
}

// Run re-checks until ctx is done, and then waits for what polls left running.
func (p *Poller) Run(ctx context.Context) {
	defer p.background.Wait()
	for {
		if !pause.For(ctx, pause.Jitter(p.cfg.Recheck), nil) {
			return
		}
		p.recheck(ctx)
	}
}

// recheck has one poll of each class look at all shards.
func (p *Poller) recheck(ctx context.Context) {
	for _, c := range p.recheckTargets() {
		p.wakeClass(c, p.shards()...)
		if !pause.For(ctx, pause.Jitter(recheckPace), nil) {
			return
		}
	}
}

// Drain answers all waiting polls at once, and those that come from now on too.
func (p *Poller) Drain() { p.drain.Do(func() { close(p.draining) }) }

// Parked tells how many polls wait.
func (p *Poller) Parked() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.waiting
}

// Poll serves one poll. If ctx ends, what was claimed for it is handed back.
func (p *Poller) Poll(ctx context.Context, req *wigglev1.PollTasksRequest) (*wigglev1.PollTasksResponse, error) {
	select {
	case <-p.draining:
		return turnedAway(comeBackDraining), nil
	default:
	}
	wait := min(max(req.GetWait().AsDuration(), 0), maxWait)
	if deadline, ok := ctx.Deadline(); ok { // an answer after the deadline is none
		left := time.Until(deadline)
		wait = max(min(wait, left-min(left/10, 250*time.Millisecond)), 0)
	}
	s := newSession(ctx, p, claimRequest(req))
	defer s.close()
	if err := s.sweep(wait == 0); err != nil {
		return s.finish(err)
	}
	if len(s.tasks) > 0 || wait == 0 {
		return s.finish(s.awaitLate())
	}
	if !p.park(ctx) {
		return turnedAway(comeBack), nil
	}
	defer p.unpark(ctx)
	if err := s.wait(wait); err != nil {
		return s.finish(err)
	}
	return s.finish(s.awaitLate())
}

// claimRequest is the poll as shards get it: everything spelt out, and no waiting.
func claimRequest(req *wigglev1.PollTasksRequest) *wigglev1.PollTasksRequest {
	queues := slices.Clone(req.GetQueues())
	if len(queues) == 0 {
		queues = []string{""}
	}
	for i := range queues {
		queues[i] = orDefault(queues[i])
	}
	return &wigglev1.PollTasksRequest{
		Namespace: orDefault(req.GetNamespace()), Worker: req.GetWorker(), Queues: queues,
		Workflows: req.GetWorkflows(), MaxTasks: max(req.GetMaxTasks(), 1), Lease: req.GetLease(),
		ShareBaseContexts: req.GetShareBaseContexts(),
	}
}

func (p *Poller) shards() []int { return p.cluster().Instances() }

func (p *Poller) home() int { return p.cluster().Home() }

func (p *Poller) park(ctx context.Context) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.waiting >= p.cfg.MaxParked {
		return false
	}
	p.waiting++
	p.parked.Add(ctx, 1)
	return true
}

func (p *Poller) unpark(ctx context.Context) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.waiting--
	p.parked.Add(ctx, -1)
}

func turnedAway(after time.Duration) *wigglev1.PollTasksResponse {
	return &wigglev1.PollTasksResponse{RetryAfter: durationpb.New(pause.Between(after, 3*after))}
}
