package replica

import (
	"context"
	"fmt"
	"net/url"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/wiggle-run/wiggle/internal/devstack"
	"github.com/wiggle-run/wiggle/internal/pgtest"
	"github.com/wiggle-run/wiggle/pkg/postgres"
	"github.com/wiggle-run/wiggle/pkg/topology"
)

const (
	shardID   = 3
	clusterID = "the-cluster"
	// beats is the interval in tests, for probes and beats alike.
	beats = 50 * time.Millisecond
	// ample is a bound that no machine is too busy for, bound one to be passed.
	ample = time.Minute
	bound = 500 * time.Millisecond
)

// bounded makes replicas leave soon.
func bounded(c *Config) {
	for i := range c.Shard.Replicas {
		c.Shard.Replicas[i].MaxLag = bound
	}
}

// shard is the database of a shard on a server of its own, whose heart the test beats.
type shard struct {
	*testing.T

	server *devstack.Server
	pool   *postgres.Pool
}

func newShard(t *testing.T) *shard {
	t.Helper()
	server, err := pgtest.StartServer(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = pgtest.StopServer(server) })
	s := &shard{T: t, server: server}
	s.pool = s.database(server, "w", shardID)
	return s
}

// database makes a database that a shard has claimed.
func (s *shard) database(server *devstack.Server, name string, shard int) *postgres.Pool {
	s.Helper()
	if err := server.CreateDatabase(s.Context(), name); err != nil {
		s.Fatal(err)
	}
	pool := pgtest.OpenPool(s, server.URL(name))
	if _, err := postgres.Migrate(s.Context(), pool, postgres.ShardMigrations(), postgres.Apply); err != nil {
		s.Fatal(err)
	}
	if _, err := postgres.Claim(s.Context(), pool, shard, clusterID); err != nil {
		s.Fatal(err)
	}
	return pool
}

// replica starts a streaming replica of a server, which may be told to follow another one.
func (s *shard) replica(of *devstack.Server, follows ...*devstack.Server) *devstack.Server {
	s.Helper()
	settings := map[string]string{}
	for _, f := range follows {
		u, err := url.Parse(f.URL("w"))
		if err != nil {
			s.Fatal(err)
		}
		settings["primary_conninfo"] = fmt.Sprintf("host=%s port=%s user=%s", u.Query().Get("host"), u.Query().Get("port"), devstack.Superuser)
	}
	server, err := pgtest.StartReplica(s.Context(), of, settings)
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() { _ = pgtest.StopServer(server) })
	return server
}

// set is the set of replicas at these databases.
func (s *shard) set(change func(*Config), urls ...string) *Set {
	s.Helper()
	cfg := Config{
		Shard:   topology.Shard{ID: shardID, Primary: topology.Member{Fallback: topology.FallbackPrimary}},
		Primary: s.pool, Interval: beats, ClusterID: func() string { return clusterID },
	}
	for i := range urls {
		cfg.Shard.Replicas = append(cfg.Shard.Replicas, topology.Member{
			Shard: shardID, Role: topology.MemberReplica, Index: i, Pool: 4, MaxLag: ample,
		})
	}
	cfg.Member = func(m topology.Member, conns int) postgres.MemberConfig {
		return postgres.MemberConfig{Name: m.Name(), URL: urls[m.Index], MaxConns: conns}
	}
	if change != nil {
		change(&cfg)
	}
	set, err := New(cfg)
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(set.Close)
	return set
}

// beat beats once, as the leader does; by a clock that is so far off.
func (s *shard) beat(off time.Duration) {
	s.Helper()
	_, err := s.pool.Exec(s.Context(),
		"update wiggle_heartbeat set beat = beat + 1, beaten_at = clock_timestamp() + $1::interval", off)
	if err != nil {
		s.Fatal(err)
	}
}

// beating beats until the function that it returns is called, or the test ends.
func (s *shard) beating() (stop func()) {
	ctx, cancel := context.WithCancel(s.Context())
	var done sync.WaitGroup
	done.Go(func() {
		tick := time.NewTicker(beats)
		defer tick.Stop()
		for {
			_, err := s.pool.Exec(ctx, "update wiggle_heartbeat set beat = beat + 1, beaten_at = clock_timestamp()")
			if err != nil && ctx.Err() == nil {
				s.Error(err)
			}
			select {
			case <-tick.C:
			case <-ctx.Done():
				return
			}
		}
	})
	stop = func() { cancel(); done.Wait() }
	s.Cleanup(stop)
	return stop
}

// running runs the set until the function that it returns is called, or the test ends.
func (s *shard) running(set *Set) (stop func()) {
	ctx, cancel := context.WithCancel(s.Context())
	var done sync.WaitGroup
	done.Go(func() {
		if err := set.Run(ctx); err != nil {
			s.Error(err)
		}
	})
	stop = func() { cancel(); done.Wait() }
	s.Cleanup(stop)
	return stop
}

// await polls a condition that others bring about.
func (s *shard) await(what string, cond func() bool) {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.Context(), 30*time.Second)
	defer cancel()
	poll := time.NewTicker(2 * time.Millisecond)
	defer poll.Stop()
	for !cond() {
		select {
		case <-poll.C:
		case <-ctx.Done():
			s.Fatalf("not in time: %s", what)
		}
	}
}

// caughtUp waits until a replica shows what the primary does now.
func (s *shard) caughtUp(replica *postgres.Pool) {
	s.Helper()
	const beat = "select beat from wiggle_heartbeat"
	var want, has int64
	if err := s.pool.QueryRow(s.Context(), beat).Scan(&want); err != nil {
		s.Fatal(err)
	}
	s.await("the replica catches up", func() bool {
		err := replica.QueryRow(s.Context(), beat).Scan(&has)
		return err == nil && has >= want
	})
}

// probe looks at everything once.
func (s *shard) probe(set *Set) Status {
	s.Helper()
	if err := set.lookAtPrimary(s.Context()); err != nil {
		s.Fatal(err)
	}
	_ = set.members[0].probe(s.Context()) // its state tells
	return set.Status()[0]
}

// read reads a number through the set, and tells who answered.
func (s *shard) read(set *Set) (Source, error) {
	return set.Read(s.Context(), Need{}, func(ctx context.Context, from Source) error {
		pool := s.pool
		if !from.Primary() {
			pool = set.Pools()[from.Replica()]
		}
		var n int
		return pool.QueryRow(ctx, "select shard_id from wiggle_shard").Scan(&n)
	})
}

// readBy waits until a read is answered by somebody.
func (s *shard) readBy(set *Set, want string) {
	s.Helper()
	s.await("a read is answered by "+want, func() bool {
		from, err := s.read(set)
		if err != nil {
			s.Fatalf("a read failed: %v", err)
		}
		return from.String() == want
	})
}

// statements counts statements.
type statements struct{ atomic.Int64 }

func (n *statements) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	n.Add(1)
	return ctx
}

func (n *statements) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// collected finds a metric.
func collected(t *testing.T, reader *metric.ManualReader, name string) metricdata.Aggregation {
	t.Helper()
	var data metricdata.ResourceMetrics
	if err := reader.Collect(t.Context(), &data); err != nil {
		t.Fatal(err)
	}
	for _, scope := range data.ScopeMetrics {
		for _, m := range scope.Metrics {
			if m.Name == name {
				return m.Data
			}
		}
	}
	t.Fatalf("no metric %s", name)
	return nil
}

// gauge reads the one value of a metric.
func gauge(t *testing.T, reader *metric.ManualReader, name string) float64 {
	t.Helper()
	g, ok := collected(t, reader, name).(metricdata.Gauge[float64])
	if !ok || len(g.DataPoints) != 1 {
		t.Fatalf("%s is not one number", name)
	}
	return g.DataPoints[0].Value
}

// counted reads the values of a metric by an attribute.
func counted(t *testing.T, reader *metric.ManualReader, name, by string) map[string]int64 {
	t.Helper()
	var points []metricdata.DataPoint[int64]
	switch data := collected(t, reader, name).(type) {
	case metricdata.Sum[int64]:
		points = data.DataPoints
	case metricdata.Gauge[int64]:
		points = data.DataPoints
	}
	values := map[string]int64{}
	for _, p := range points {
		key, _ := p.Attributes.Value(attribute.Key(by))
		values[key.AsString()] = p.Value
	}
	return values
}
