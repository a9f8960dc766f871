package dispatch

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"log/slog"
	mathrand "math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/oklog/ulid/v2"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/wiggle-run/wiggle/pkg/clock"
	"github.com/wiggle-run/wiggle/pkg/postgres"
	"github.com/wiggle-run/wiggle/pkg/wake"
	"github.com/wiggle-run/wiggle/services/instances/internal/machine"
	"github.com/wiggle-run/wiggle/services/instances/internal/store"
)

// Config bounds what one shard does in one process.
type Config struct {
	// Lanes is how many batches may be under way at the same time, of each way. More than
	// one makes batches smaller, which costs more than it gains unless the database has
	// many processors or is far away.
	Lanes int
	// BatchSize is how many operations a batch may hold.
	BatchSize int
	// BatchBytes is how much payload a batch may hold, unless one operation has more.
	BatchBytes int
	// QueueLength is how many operations may wait in one lane, and QueueBytes how much
	// payload they may hold.
	QueueLength, QueueBytes int
	// StartWait is about how long a start may wait in a lane: where as many wait as are
	// taken in that time, further ones are refused.
	StartWait time.Duration
	// CommitTimeout bounds one batch, with its repetitions.
	CommitTimeout time.Duration
	// Claims is how many claims may be under way at the same time, and Polls how many
	// may wait for their turn or for something to claim.
	Claims, Polls int
	// HeldBytes bounds what is kept of leased tokens, so that their reports need no
	// read; 0 keeps nothing.
	HeldBytes int
	// Limits bound what users send.
	Limits machine.Limits
	// Tracer makes the spans of operations. Nil: none.
	Tracer trace.Tracer
	// SameClock says that the store goes by the clock that the shard is given.
	SameClock bool
}

// DefaultConfig is what holds where nothing else is set.
func DefaultConfig() Config {
	return Config{
		Lanes: 1, BatchSize: 256, BatchBytes: 16 << 20, QueueLength: 20_000, QueueBytes: 64 << 20, StartWait: time.Second,
		CommitTimeout: 20 * time.Second, Claims: 4, Polls: 10_000,
		HeldBytes: 64 << 20, Limits: machine.DefaultLimits(),
	}
}

// Shard is one shard as one process runs it.
type Shard struct {
	id      int
	store   store.Store
	clock   clock.Clock
	cfg     Config
	log     *slog.Logger
	metrics *shardMetrics
	tracer  trace.Tracer

	lanes    []*lane // the locked way
	fast     []*lane // the guarded way
	held     heldTokens
	claims   chan struct{} // a slot for each claim under way
	polls    atomic.Int64  // claims under way and waiting
	machines machines
	ids      idSource

	parked wake.Hub[store.QueueKey]
	crews  crews
	hints  hints
	ends   ends
	times  func(due time.Time, ref store.TokenRef) // told of every timer that is set
	lease  func(until time.Time)                   // told of every lease that is given
	logged func()                                  // told of commits that wrote to the event log

	drain   sync.Once
	drained chan struct{}

	// failures counts calls that the database did not take, for those who must
	// know whether it was away meanwhile.
	failures atomic.Uint64
	// ended counts instances that ended here.
	ended atomic.Int64
	// ahead is how far the store's clock is ahead of ours, in nanoseconds.
	ahead  atomic.Int64
	seen   sync.Mutex
	seenAt time.Time // when that was learnt
}

// trustClock is how long the best sample of the store's clock counts.
const trustClock = 10 * time.Second

// New makes a shard over its store. Run must be running for calls to be answered.
func New(id int, st store.Store, c clock.Clock, cfg Config, m *Metrics, log *slog.Logger) *Shard {
	s := &Shard{
		id: id, store: st, clock: c, cfg: cfg, metrics: m.of(id), tracer: cfg.Tracer, log: log,
		claims: make(chan struct{}, cfg.Claims), drained: make(chan struct{}),
		times: func(time.Time, store.TokenRef) {},
		lease: func(time.Time) {}, logged: func() {},
	}
	if s.tracer == nil {
		s.tracer = noop.Tracer{}
	}
	s.machines.load, s.held.limit = st.Definition, cfg.HeldBytes
	s.machines.looked = func(hits, misses int) { s.metrics.looked(&s.metrics.definitions, hits, misses) }
	for range cfg.Lanes {
		locked, guarded := newLane(s, s.commit), newLane(s, s.advance)
		guarded.startsIn = locked
		s.lanes, s.fast = append(s.lanes, locked), append(s.fast, guarded)
	}
	return s
}

// OnTimes registers who is told of timers and leases. It must be called before Run.
func (s *Shard) OnTimes(times func(due time.Time, ref store.TokenRef), lease func(until time.Time)) {
	s.times, s.lease = times, lease
}

// OnEvents registers who is told, from within a lane, that a commit has written to the event log. It must be called before
// Run.
func (s *Shard) OnEvents(logged func()) { s.logged = logged }

// ID is the shard's number.
func (s *Shard) ID() int { return s.id }

// Store is the shard's database, for what is only read.
func (s *Shard) Store() store.Store { return s.store }

// Failures counts calls that the database did not take.
func (s *Shard) Failures() uint64 { return s.failures.Load() }

// Run commits batches until ctx is done.
func (s *Shard) Run(ctx context.Context) error {
	var running sync.WaitGroup
	for _, l := range slices.Concat(s.fast, s.lanes) {
		running.Go(func() { l.run(ctx) })
	}
	running.Wait()
	return nil
}

// Drain sends every parked poll and every caller that waits for an end home, now
// and from now on. Reports go on.
func (s *Shard) Drain() { s.drain.Do(func() { close(s.drained) }) }

func (s *Shard) draining() <-chan struct{} { return s.drained }

// Draining is closed when callers that wait are sent home.
func (s *Shard) Draining() <-chan struct{} { return s.drained }

// Now is the time by the store's clock, as far as this process knows it.
func (s *Shard) Now() time.Time {
	return s.clock.Now().Add(time.Duration(s.ahead.Load()))
}

// Saw takes note of the store's time. The answer took a while to get here, so each
// sample is at most the truth, and the largest of the last seconds is the best.
func (s *Shard) Saw(now time.Time) {
	if s.cfg.SameClock {
		return
	}
	local := s.clock.Now()
	sample := int64(now.Sub(local))
	s.seen.Lock()
	defer s.seen.Unlock()
	if sample >= s.ahead.Load() || local.Sub(s.seenAt) > trustClock {
		s.ahead.Store(sample)
		s.seenAt = local
	}
}

// noteFailure counts what the database did not take.
func (s *Shard) noteFailure(err error) {
	if c := postgres.Classify(err); c != postgres.OK && c != postgres.NotApplied && c != postgres.Permanent {
		s.failures.Add(1)
	}
}

// announce tells who may wait for what a batch has made.
func (s *Shard) announce(w *store.World) {
	if w == nil {
		return
	}
	s.Saw(w.Now)
	writes := w.Writes()
	ready := set[store.QueueKey]{}
	for _, tokens := range []map[machine.ID]*machine.Token{writes.NewTokens, writes.Tokens} {
		for _, t := range tokens {
			switch {
			case !t.DueAt.IsZero():
				s.times(t.DueAt, store.TokenRef{Instance: t.Instance, Token: t.ID, DueAt: t.DueAt})
			case t.State == machine.Ready:
				ready[store.QueueKey{Namespace: w.Instance(t.Instance).Namespace, Queue: t.Queue}] = struct{}{}
			}
		}
	}
	for _, in := range writes.LetIn {
		if !in.Token.IsZero() {
			s.times(in.DueAt, store.TokenRef{Instance: in.Instance, Token: in.Token, DueAt: in.DueAt})
		}
	}
	for key := range ready {
		s.Ready(key)
	}
	if len(writes.Events) > 0 {
		s.logged()
	}
	s.ended.Add(int64(len(writes.Ended)))
	s.metrics.ends(w)
	for id := range writes.Ended {
		s.ends.notify(id)
	}
}

// Ready tells that a queue has tasks: a worker with room or a poll that is parked here,
// else the routers.
func (s *Shard) Ready(key store.QueueKey) {
	if !s.crews.ready(key) && s.parked.Notify(key) == 0 {
		s.hints.publish(key)
	}
}

// env is what the machine gets from outside.
func (s *Shard) env(now time.Time) machine.Env {
	return machine.Env{Now: now, NewID: func() machine.ID { return s.ids.next(now) }, Random: mathrand.Float64, Limits: s.cfg.Limits}
}

// idSource mints ulids: random in every bit but the time's, drawn from the system
// in blocks, as a wide fan-out takes thousands at once.
type idSource struct {
	mu   sync.Mutex
	seed mathrand.Source
}

func (g *idSource) next(now time.Time) machine.ID {
	var id ulid.ULID
	_ = id.SetTime(ulid.Timestamp(now)) // fails after the year 10889
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.seed == nil {
		var key [32]byte
		_, _ = rand.Read(key[:]) // never fails, says its documentation
		g.seed = mathrand.NewChaCha8(key)
	}
	var entropy [16]byte
	binary.BigEndian.PutUint64(entropy[:8], g.seed.Uint64())
	binary.BigEndian.PutUint64(entropy[8:], g.seed.Uint64())
	_ = id.SetEntropy(entropy[:10]) // ten bytes, as it wants
	return machine.ID(id)
}
