package relay_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/oklog/ulid/v2"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/wiggle-run/wiggle/internal/devstack"
	"github.com/wiggle-run/wiggle/internal/pgtest"
	"github.com/wiggle-run/wiggle/pkg/bus"
	"github.com/wiggle-run/wiggle/pkg/postgres"
	"github.com/wiggle-run/wiggle/pkg/postgres/eventlog"
	"github.com/wiggle-run/wiggle/pkg/shardid"
	"github.com/wiggle-run/wiggle/services/leader/internal/election"
	"github.com/wiggle-run/wiggle/services/leader/internal/heartbeat"
	"github.com/wiggle-run/wiggle/services/leader/internal/relay"
	"github.com/wiggle-run/wiggle/services/leader/internal/store"
	"github.com/wiggle-run/wiggle/services/leader/internal/store/storetest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// database is a shard of a test.
type database struct {
	*store.Shard
	pool  *postgres.Pool
	crash atomic.Bool // writing the cursor fails
}

var errCrash = errors.New("crashed before the cursor was written")

func (d *database) Open(context.Context) error  { return nil }
func (d *database) NewReader() *eventlog.Reader { return eventlog.NewReader(d.pool) }

func (d *database) WriteCursor(ctx context.Context, term int64, c store.Cursor) error {
	if d.crash.Load() {
		return errCrash
	}
	return d.Shard.WriteCursor(ctx, term, c)
}

func newDatabase(t *testing.T, change ...func(*postgres.MemberConfig)) *database {
	t.Helper()
	pool := pgtest.OpenPool(t, pgtest.NewDatabaseFrom(t, storetest.Key, storetest.Setup), change...)
	return &database{Shard: store.NewShard(pool, true), pool: pool}
}

func startNATS(t *testing.T) *devstack.NATS {
	t.Helper()
	n, err := devstack.StartNATS(devstack.NATSConfig{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(n.Stop)
	return n
}

// running is a leader's duties on one shard.
type running struct {
	hub   *relay.Hub
	meter *sdkmetric.ManualReader
	ended chan struct{} // closed when the relay has returned
	err   error         // valid after ended
	stop  func() error
}

// run runs heartbeat and relay of a shard, as a leader of that term.
func run(t *testing.T, n *devstack.NATS, shard int, db *database, term int64) *running {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	r := &running{hub: relay.NewHub(bus.Config{URLs: []string{n.URL()}}, log), ended: make(chan struct{})}
	pulse := heartbeat.NewPulse()
	duty := relay.New(shard, db, r.hub, pulse, log)
	r.meter = sdkmetric.NewManualReader()
	meter := sdkmetric.NewMeterProvider(sdkmetric.WithReader(r.meter)).Meter("test")
	if err := relay.Observe(meter, r.hub, []*relay.Relay{duty}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var both sync.WaitGroup
	both.Go(func() { _ = heartbeat.New(db, pulse).Run(ctx, term) })
	both.Go(func() {
		defer close(r.ended)
		r.err = duty.Run(ctx, term)
	})
	r.stop = sync.OnceValue(func() error {
		cancel()
		both.Wait()
		r.hub.Close()
		return r.err
	})
	t.Cleanup(func() { _ = r.stop() })
	return r
}

// log is what was written on a shard: how many entries each instance has.
type log struct {
	shard int
	db    *database
	mu    sync.Mutex
	count map[string]int
	ids   []ulid.ULID
}

func newLog(shard int, db *database, instances int) *log {
	l := &log{shard: shard, db: db, count: map[string]int{}}
	for range instances {
		l.ids = append(l.ids, ulid.Make())
	}
	return l
}

// write writes some entries for each instance, in a transaction each.
func (l *log) write(t *testing.T, entries int) {
	t.Helper()
	for _, id := range l.ids {
		name := shardid.NewInstance(l.shard, id).String()
		l.mu.Lock()
		first := l.count[name]
		l.count[name] += entries
		l.mu.Unlock()
		if err := storetest.Insert(context.Background(), l.db.pool, id, first, entries); err != nil {
			t.Error(err)
		}
	}
}

// follow reads the stream from its beginning, with a group of its own, until everything that was written is there, and
// checks the order of each instance: an entry that is new comes right behind the one before.
func (l *log) follow(t *testing.T, n *devstack.NATS) (extra int) {
	t.Helper()
	b, err := bus.Open(bus.Config{URLs: []string{n.URL()}})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	f := b.Follow("test-" + ulid.Make().String())
	deadline := time.Now().Add(time.Minute)
	seen, left := map[string]int{}, 0
	l.mu.Lock()
	for _, count := range l.count {
		left += count
	}
	l.mu.Unlock()
	for left > 0 {
		got, err := f.Fetch(t.Context(), 1000, time.Second)
		if err != nil && !errors.Is(err, bus.ErrUnavailable) || time.Now().After(deadline) {
			t.Fatalf("%d entries are missing, %v", left, err)
		}
		for _, d := range got {
			if d.Shard != l.shard {
				continue
			}
			switch revision := int(d.Revision); {
			case revision < seen[d.Instance]:
				extra++
			case revision > seen[d.Instance]:
				t.Fatalf("%s: entry %d after %d", d.Instance, revision, seen[d.Instance])
			default:
				seen[d.Instance]++
				left--
			}
			if err := d.Ack(); err != nil {
				t.Error(err)
			}
			if want := fmt.Sprintf(`{"r":%d}`, d.Revision); string(d.Payload) != want || d.Type != "paid" || d.Key != "k" ||
				d.Workflow != "order" || d.Node != "pay" || d.Version != 1 || d.Namespace != "default" || d.Time.IsZero() {
				t.Fatalf("got %+v, payload %s", d.Event, d.Payload)
			}
		}
	}
	return extra
}

// until tries again and again until something is so.
func until(t *testing.T, what string, is func() bool) {
	t.Helper()
	again := time.NewTicker(5 * time.Millisecond)
	defer again.Stop()
	deadline := time.After(30 * time.Second)
	for !is() {
		select {
		case <-again.C:
		case <-deadline:
			t.Fatalf("%s: not so in 30 s", what)
		}
	}
}

// TestRelays: what is there and what comes is in the stream once, in order, from every shard (EVT-4).
func TestRelays(t *testing.T) {
	t.Parallel()
	n := startNATS(t)
	one, other := newDatabase(t), newDatabase(t)
	first, second := newLog(1, one, 7), newLog(2, other, 3)
	first.write(t, 300)
	a, b := run(t, n, 1, one, 1), run(t, n, 2, other, 1)
	for range 20 {
		first.write(t, 1)
		second.write(t, 2)
	}
	if extra := first.follow(t, n) + second.follow(t, n); extra != 0 {
		t.Errorf("%d entries came twice", extra)
	}
	if err := errors.Join(a.stop(), b.stop()); err != nil {
		t.Error(err)
	}
	c, err := one.TakeCursor(t.Context(), 1)
	if want := int64(7 * 320); err != nil || c.Seq != want || c.Stream == "" {
		t.Errorf("the cursor is %+v, want %d; %v", c, want, err)
	}
	// A leader that takes over goes on behind it.
	first.write(t, 5)
	run(t, n, 1, one, 2)
	if extra := first.follow(t, n); extra != 0 {
		t.Errorf("%d entries came twice", extra)
	}
}

// TestNATSAway: NATS goes away and comes back while entries are written; afterwards the stream has all of them (EVT-4).
func TestNATSAway(t *testing.T) {
	t.Parallel()
	n := startNATS(t)
	db := newDatabase(t)
	l := newLog(0, db, 5)
	r := run(t, n, 0, db, 1)
	ctx, stop := context.WithCancel(t.Context())
	var writing sync.WaitGroup
	writing.Go(func() {
		for ctx.Err() == nil {
			l.write(t, 3)
		}
	})
	for range 3 {
		until(t, "NATS is connected", r.hub.Connected)
		n.Stop()
		until(t, "NATS is away", func() bool { return !r.hub.Connected() })
		if err := n.Restart(); err != nil {
			t.Fatal(err)
		}
	}
	stop()
	writing.Wait()
	l.follow(t, n)
	if err := r.stop(); err != nil {
		t.Error(err)
	}
}

// TestStorageLost: a stream that is made anew gets everything that the shard keeps, also while nothing new is written.
func TestStorageLost(t *testing.T) {
	t.Parallel()
	n := startNATS(t)
	db := newDatabase(t)
	l := newLog(0, db, 5)
	l.write(t, 200)
	run(t, n, 0, db, 1)
	l.follow(t, n)
	n.Stop()
	if err := os.RemoveAll(n.Dir()); err != nil {
		t.Fatal(err)
	}
	if err := n.Restart(); err != nil {
		t.Fatal(err)
	}
	l.follow(t, n)
	l.write(t, 10)
	l.follow(t, n)
}

// TestKilledBeforeTheCursor: a leader that dies between publishing and moving the cursor costs nothing: its successor
// publishes again, and the stream drops it.
func TestKilledBeforeTheCursor(t *testing.T) {
	t.Parallel()
	n := startNATS(t)
	db := newDatabase(t)
	l := newLog(0, db, 4)
	for term := int64(1); term <= 3; term++ {
		l.write(t, 200)
		db.crash.Store(true)
		killed := run(t, n, 0, db, term)
		if <-killed.ended; !errors.Is(killed.err, errCrash) {
			t.Fatalf("term %d: %v", term, killed.err)
		}
		db.crash.Store(false)
	}
	if c, err := db.TakeCursor(t.Context(), 3); err != nil || c.Seq != 0 {
		t.Errorf("the cursor is %+v, %v", c, err)
	}
	run(t, n, 0, db, 4)
	l.write(t, 1)
	if extra := l.follow(t, n); extra != 0 {
		t.Errorf("%d entries came twice", extra)
	}
}

// TestTwoAtOnce: a leader that does not know yet that it was replaced publishes beside its successor: nothing is lost, the
// order is kept, and its cursor is refused.
func TestTwoAtOnce(t *testing.T) {
	t.Parallel()
	n := startNATS(t)
	db := newDatabase(t)
	l := newLog(0, db, 5)
	l.write(t, 50)
	old := run(t, n, 0, db, 1)
	l.write(t, 50)
	run(t, n, 0, db, 2)
	for range 30 {
		l.write(t, 3)
	}
	<-old.ended
	if fenced, ok := errors.AsType[*election.FencedError](old.err); !ok || fenced.Term != 2 {
		t.Errorf("the first ended with %v", old.err)
	}
	l.write(t, 3)
	l.follow(t, n)
}

// TestOpenTransaction: what a transaction that is still open may write is not passed over (EVT-3).
func TestOpenTransaction(t *testing.T) {
	t.Parallel()
	n := startNATS(t)
	db := newDatabase(t)
	early, late := newLog(0, db, 1), newLog(0, db, 3)
	run(t, n, 0, db, 1)
	tx, err := db.pool.Raw().Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := storetest.InsertIn(t.Context(), tx, early.ids[0], 0, 2); err != nil {
		t.Fatal(err)
	}
	late.write(t, 5)
	var beat int64
	const beats = "select beat from wiggle_heartbeat"
	if err := db.pool.QueryRow(t.Context(), beats).Scan(&beat); err != nil {
		t.Fatal(err)
	}
	until(t, "two more heartbeats", func() bool {
		var now int64
		return db.pool.QueryRow(t.Context(), beats).Scan(&now) == nil && now >= beat+2
	})
	b, err := bus.Open(bus.Config{URLs: []string{n.URL()}})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	if s, err := b.EnsureStream(t.Context()); err != nil || s.Messages != 0 {
		t.Errorf("with a transaction open: %+v, %v", s, err)
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	early.count[shardid.NewInstance(0, early.ids[0]).String()] = 2
	early.follow(t, n)
	late.follow(t, n)
}

// counter counts the statements of a pool.
type counter struct{ statements atomic.Int64 }

func (c *counter) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	c.statements.Add(1)
	return ctx
}
func (c *counter) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}
func (c *counter) TraceBatchStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceBatchStartData) context.Context {
	c.statements.Add(1)
	return ctx
}
func (c *counter) TraceBatchQuery(context.Context, *pgx.Conn, pgx.TraceBatchQueryData) {}
func (c *counter) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData)     {}

// TestIdleShardSeesTheHeartbeatAlone: heartbeat and relay cost an idle shard one statement a second together, and what is
// written then is relayed all the same.
func TestIdleShardSeesTheHeartbeatAlone(t *testing.T) {
	t.Parallel()
	n := startNATS(t)
	count := &counter{}
	db := newDatabase(t, func(c *postgres.MemberConfig) { c.Tracer = count })
	watch := pgtest.OpenPool(t, db.pool.Raw().Config().ConnString())
	beat := func() (beat int64) {
		if err := watch.QueryRow(t.Context(), "select beat from wiggle_heartbeat").Scan(&beat); err != nil {
			t.Fatal(err)
		}
		return beat
	}
	l := newLog(0, db, 1)
	l.write(t, 3)
	run(t, n, 0, db, 1)
	l.follow(t, n)
	var beats, before int64
	until(t, "idle", func() bool { // a second without another statement than the heartbeat
		beats, before = beat(), count.statements.Load()
		until(t, "a beat", func() bool { return beat() > beats })
		return count.statements.Load()-before == beat()-beats
	})
	beats, before = beat(), count.statements.Load()
	until(t, "three beats", func() bool { return beat() >= beats+3 })
	if got := count.statements.Load() - before; got > 4 {
		t.Errorf("%d statements in three seconds", got)
	}
	l.write(t, 3)
	l.follow(t, n)
}

// measured reads the figures of a relay.
func (r *running) measured(t *testing.T) map[string]float64 {
	t.Helper()
	var data metricdata.ResourceMetrics
	if err := r.meter.Collect(t.Context(), &data); err != nil {
		t.Fatal(err)
	}
	figures := map[string]float64{}
	for _, scope := range data.ScopeMetrics {
		for _, m := range scope.Metrics {
			switch d := m.Data.(type) {
			case metricdata.Sum[int64]:
				figures[m.Name] = float64(d.DataPoints[0].Value)
			case metricdata.Gauge[int64]:
				figures[m.Name] = float64(d.DataPoints[0].Value)
			case metricdata.Gauge[float64]:
				figures[m.Name] = d.DataPoints[0].Value
			}
		}
	}
	return figures
}

// TestMeasures: the relay tells how much it has relayed, and by how much it is behind; numbers that nobody used do not
// count as missing for ever.
func TestMeasures(t *testing.T) {
	t.Parallel()
	n := startNATS(t)
	db := newDatabase(t)
	l := newLog(0, db, 2)
	l.write(t, 10)
	r := run(t, n, 0, db, 1)
	l.follow(t, n)
	tx, err := db.pool.Raw().Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(storetest.InsertIn(t.Context(), tx, l.ids[0], 10, 3), tx.Rollback(t.Context())); err != nil {
		t.Fatal(err)
	}
	is := func(events, behind, delay, connected bool) func() bool {
		return func() bool {
			m := r.measured(t)
			return (m["wiggle.relay.events"] == 20) == events && (m["wiggle.relay.behind"] > 0) == behind &&
				(m["wiggle.relay.delay"] > 0) == delay && (m["wiggle.relay.connected"] == 1) == connected
		}
	}
	until(t, "the numbers that were rolled back are seen", is(true, true, true, true))
	until(t, "and passed", is(true, false, false, true))
	n.Stop()
	until(t, "NATS is away", is(true, false, false, false))
	l.write(t, 1)
	until(t, "the relay is behind", is(true, true, true, false))
	if err := n.Restart(); err != nil {
		t.Fatal(err)
	}
	until(t, "it has caught up", is(false, false, false, true))
}
