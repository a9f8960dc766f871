package work

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"go.opentelemetry.io/otel/metric"
	"google.golang.org/protobuf/proto"

	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	"github.com/wiggle-run/wiggle/services/router/internal/pause"
	"github.com/wiggle-run/wiggle/services/router/internal/route"
)

const (
	// recheckPace is the pause between classes in a re-check.
	recheckPace = 20 * time.Millisecond
	// maxAsked is how many sessions of a class are asked for room before one that has
	// none is told of a hint.
	maxAsked = 64
	// settlePause is how long another process must have been preferred for a shard before
	// streams move to it.
	settlePause = 2 * time.Second
)

// Config bounds what streams cost.
type Config struct {
	// MaxStreams is how many streams may be open at the same time.
	MaxStreams int
	// OpenTimeout bounds how long a shard may take to accept a stream.
	OpenTimeout time.Duration
	// Recheck is how often a class looks at all shards without a hint, about.
	Recheck time.Duration
	// Validate checks a hello against the rules of its schema.
	Validate func(proto.Message) error
}

// Hub serves the streams of workers.
type Hub struct {
	cfg     Config
	forward *route.Forwarder
	cluster func() *route.Cluster
	logger  *slog.Logger
	streams metric.Int64UpDownCounter

	draining chan struct{}
	drain    sync.Once

	mu       sync.Mutex
	sessions map[*session]struct{}
	classes  map[string]*class
	byKey    map[key]map[*class]struct{}
}

// key names a queue.
type key struct{ namespace, queue string }

// class is the sessions that could take the same tasks. It exists while there are any.
type class struct {
	id      string
	keys    []key
	members []*session
	turn    int
}

// New makes a hub over the shards of a cluster, which may change.
func New(
	cfg Config, forward *route.Forwarder, cluster func() *route.Cluster, logger *slog.Logger, meter metric.Meter,
) (*Hub, error) {
	streams, err := meter.Int64UpDownCounter("wiggle.router.work_streams", metric.WithUnit("{stream}"),
		metric.WithDescription("Streams of workers that are open."))
	if err != nil {
		return nil, err
	}
	return &Hub{
		cfg: cfg, forward: forward, cluster: cluster, logger: logger, streams: streams, draining: make(chan struct{}),
		sessions: map[*session]struct{}{}, classes: map[string]*class{}, byKey: map[key]map[*class]struct{}{},
	}, nil
}

// Run re-checks, and moves streams to the processes that shards prefer, until ctx is done.
func (h *Hub) Run(ctx context.Context) {
	var moving sync.WaitGroup
	defer moving.Wait()
	moving.Go(func() { h.moveLoop(ctx) })
	for pause.For(ctx, pause.Jitter(h.cfg.Recheck), nil) {
		for _, c := range h.allClasses() {
			if s := h.pick(c); s != nil {
				s.hint("", h.cluster().Instances()...)
			}
			if !pause.For(ctx, pause.Jitter(recheckPace), nil) {
				return
			}
		}
	}
}

// moveLoop moves streams to where the other calls of a shard go, if that does not change
// for a while.
func (h *Hub) moveLoop(ctx context.Context) {
	before := map[int]string{}
	for {
		changed := h.forward.Set().Changed()
		now := map[int]string{}
		for _, shard := range h.cluster().Instances() {
			list := h.forward.Set().Shard(shard).Accepting
			if len(list) < 2 {
				continue // there is no choice
			}
			now[shard] = list[0].Name()
			if before[shard] != now[shard] {
				continue
			}
			for _, s := range h.all() {
				s.move(shard, now[shard])
			}
		}
		before = now
		if !pause.For(ctx, settlePause, nil) {
			return
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

// Drain tells every worker to go elsewhere, and those that come from now on too.
func (h *Hub) Drain() {
	h.drain.Do(func() { close(h.draining) })
	for _, s := range h.all() {
		s.drain()
	}
}

// Hint says that a queue of a shard has tasks. process is who says so. It does not block.
func (h *Hub) Hint(process string, shard int, namespace, queue string) {
	h.mu.Lock()
	var told []*session
	for c := range h.byKey[key{orDefault(namespace), orDefault(queue)}] {
		told = append(told, c.next())
	}
	h.mu.Unlock()
	for _, s := range told {
		s.hint(process, shard)
	}
}

// Ready says that a shard can be used from now on, or that hints of it may have been
// missed. It does not block.
func (h *Hub) Ready(shard int) {
	for _, s := range h.all() {
		s.ready(shard)
	}
	for _, c := range h.allClasses() {
		if s := h.pick(c); s != nil {
			s.hint("", shard)
		}
	}
}

// Sync has every session follow the cluster, which has changed.
func (h *Hub) Sync() {
	for _, s := range h.all() {
		s.sync()
	}
}

// join adds a session; false if there are too many.
func (h *Hub) join(s *session) bool {
	id, keys := classOf(s.hello)
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.sessions) >= h.cfg.MaxStreams {
		return false
	}
	c := h.classes[id]
	if c == nil {
		c = &class{id: id, keys: keys}
		h.classes[id] = c
		for _, k := range keys {
			if h.byKey[k] == nil {
				h.byKey[k] = map[*class]struct{}{}
			}
			h.byKey[k][c] = struct{}{}
		}
	}
	c.members = append(c.members, s)
	s.class = c
	h.sessions[s] = struct{}{}
	h.streams.Add(s.ctx, 1)
	return true
}

// leave takes a session out.
func (h *Hub) leave(s *session) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.streams.Add(context.WithoutCancel(s.ctx), -1)
	delete(h.sessions, s)
	c := s.class
	c.members = slices.DeleteFunc(c.members, func(o *session) bool { return o == s })
	if len(c.members) > 0 {
		return
	}
	delete(h.classes, c.id)
	for _, k := range c.keys {
		if delete(h.byKey[k], c); len(h.byKey[k]) == 0 {
			delete(h.byKey, k)
		}
	}
}

// next is the session of a class that is to be told of tasks: one that has room, if it
// is found soon. The hub's mutex is held.
func (c *class) next() *session {
	for range min(len(c.members), maxAsked) {
		c.turn = (c.turn + 1) % len(c.members)
		if s := c.members[c.turn]; s.credits.Load() > 0 {
			return s
		}
	}
	return c.members[c.turn]
}

// pick is next for a class that may be over: nil then.
func (h *Hub) pick(c *class) *session {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(c.members) == 0 {
		return nil
	}
	return c.next()
}

func (h *Hub) all() []*session {
	h.mu.Lock()
	defer h.mu.Unlock()
	list := make([]*session, 0, len(h.sessions))
	for s := range h.sessions {
		list = append(list, s)
	}
	return list
}

func (h *Hub) allClasses() []*class {
	h.mu.Lock()
	defer h.mu.Unlock()
	list := make([]*class, 0, len(h.classes))
	for _, c := range h.classes {
		list = append(list, c)
	}
	return list
}

// classOf spells out what decides which tasks a worker can take.
func classOf(hello *wigglev1.WorkHello) (id string, keys []key) {
	namespace := orDefault(hello.GetNamespace())
	queues := slices.Clone(hello.GetQueues())
	if len(queues) == 0 {
		queues = []string{""}
	}
	for i := range queues {
		queues[i] = orDefault(queues[i])
	}
	slices.Sort(queues)
	parts := []string{namespace}
	for _, q := range slices.Compact(queues) {
		parts = append(parts, "q"+q)
		keys = append(keys, key{namespace, q})
	}
	bindings := make([]string, 0, len(hello.GetWorkflows()))
	for _, w := range hello.GetWorkflows() {
		bindings = append(bindings, fmt.Sprintf("w%d %s", w.GetVersion(), w.GetWorkflow()))
	}
	slices.Sort(bindings)
	parts = append(parts, slices.Compact(bindings)...)
	return strings.Join(parts, "\x00"), keys
}

func orDefault(s string) string {
	if s == "" {
		return "default"
	}
	return s
}
