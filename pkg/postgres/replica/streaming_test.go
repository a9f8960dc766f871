package replica

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"go.opentelemetry.io/otel/sdk/metric"

	"github.com/wiggle-run/wiggle/internal/devstack"
	"github.com/wiggle-run/wiggle/internal/pgtest"
	"github.com/wiggle-run/wiggle/pkg/postgres"
)

func run(t *testing.T, set *shard, name string, test func(*shard)) {
	t.Helper()
	t.Run(name, func(t *testing.T) { test(&shard{T: t, server: set.server, pool: set.pool}) })
}

// TestStreaming is over one primary with one streaming replica, which is promoted in the end.
func TestStreaming(t *testing.T) { //nolint:tparallel // its subtests share two servers, one at a time
	t.Parallel()
	s := newShard(t)
	replica := s.replica(s.server)
	at := replica.URL("w")
	direct := pgtest.OpenPool(t, at, func(c *postgres.MemberConfig) { c.ReadOnly = true })
	control := pgtest.OpenPool(t, replica.URL("postgres"), func(c *postgres.MemberConfig) { c.ReadOnly = true })
	order := func(s *shard, sql string) {
		s.Helper()
		s.await("the replica takes orders", func() bool { // its pool may not have noticed yet that it is back
			_, err := control.Exec(s.Context(), "select 1")
			return err == nil
		})
		if _, err := control.Exec(s.Context(), sql); err != nil {
			s.Fatal(err)
		}
	}

	// A beat is there, the replica lags by less than the bound, and reads go to it.
	run(t, s, "serves", func(s *shard) {
		reader := metric.NewManualReader()
		set := s.set(func(c *Config) { c.Meter = metric.NewMeterProvider(metric.WithReader(reader)).Meter("test") }, at)
		if from, err := s.read(set); err != nil || !from.Primary() {
			s.Errorf("before it was probed: read by %v, %v", from, err)
		}
		s.beat(0)
		s.caughtUp(direct)
		st := s.probe(set)
		if st.State != Serving || !st.LagKnown || st.Lag > ample || st.Replayed == "" || st.ProbedAt.IsZero() || st.Skew != 0 {
			s.Errorf("%+v", st)
		}
		from, err := s.read(set)
		if err != nil || from.String() != "replica 0" || from.Replica() != 0 || from.Lag < st.Lag {
			s.Errorf("read by %+v, %v", from, err)
		}
		if reads := set.Status()[0].Reads; reads != 1 {
			s.Errorf("%d reads are counted", reads)
		}
		if got := counted(s.T, reader, "wiggle.reads", "source"); got["primary"] != 1 || got["replica 0"] != 1 {
			s.Errorf("the metric has %v", got)
		}
		if got := counted(s.T, reader, "wiggle.replica.state", "state"); len(got) != 5 || got["serving"] != 1 || got["lagging"] != 0 {
			s.Errorf("the metric has %v", got)
		}
	})

	// It takes no more than reading its two tables: what is asked of the servers anybody may know.
	run(t, s, "takes no privileges", func(s *shard) {
		for _, sql := range []string{"create role plain login", "grant select on wiggle_heartbeat, wiggle_shard to plain"} {
			if _, err := s.pool.Exec(s.Context(), sql); err != nil {
				s.Fatal(err)
			}
		}
		s.beat(0)
		s.caughtUp(direct)
		as := func(url string) string { return strings.Replace(url, devstack.Superuser+"@", "plain@", 1) }
		pool := pgtest.OpenPool(s, as(s.server.URL("w")))
		set := s.set(func(c *Config) { c.Primary = pool }, as(at))
		if st := s.probe(set); st.State != Serving {
			s.Errorf("%+v", st)
		}
	})

	// REP-4: a write through a connection to a replica fails, and is no reason to leave it.
	run(t, s, "takes no writes", func(s *shard) {
		set := s.set(nil, at)
		s.beat(0)
		s.caughtUp(direct)
		s.probe(set)
		pool := set.Pools()[0]
		if _, err := pool.Exec(s.Context(), "update wiggle_heartbeat set term = 9"); !errors.Is(err, postgres.ErrReadOnly) {
			s.Errorf("a write: %v", err)
		}
		err := pool.InTx(s.Context(), postgres.TxOptions{}, func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, "update wiggle_heartbeat set term = 9")
			return err
		})
		if !errors.Is(err, postgres.ErrReadOnly) {
			s.Errorf("a write in a transaction: %v", err)
		}
		var limit string
		if err := pool.QueryRow(s.Context(), "show statement_timeout").Scan(&limit); err != nil || limit != "10s" {
			s.Errorf("statement_timeout is %s, %v", limit, err)
		}
	})

	// One statement for each round, on the primary and on the replica; without replicas none (REP-1).
	run(t, s, "costs a statement", func(s *shard) {
		var onPrimary, onReplica statements
		counted := pgtest.OpenPool(s, s.server.URL("w"), func(c *postgres.MemberConfig) { c.Tracer = &onPrimary })
		set := s.set(func(c *Config) { c.Primary, c.ProbeTracer = counted, &onReplica }, at)
		s.probe(set) // connects, and asks what it has connected to
		const rounds = 10
		onPrimary.Store(0)
		onReplica.Store(0)
		for range rounds {
			s.probe(set)
		}
		if p, r := onPrimary.Load(), onReplica.Load(); p != rounds || r != rounds {
			s.Errorf("%d rounds took %d statements on the primary and %d on the replica", rounds, p, r)
		}
		none := s.set(func(c *Config) { c.Primary = counted })
		s.running(none)()
		if n := onPrimary.Load(); n != rounds {
			s.Errorf("a shard without replicas costs %d statements", n-rounds)
		}
	})

	// A clock that is wrong is told, and lag is what was seen (REP-1).
	run(t, s, "tells skew", func(s *shard) {
		reader := metric.NewManualReader()
		set := s.set(func(c *Config) {
			c.Meter = metric.NewMeterProvider(metric.WithReader(reader)).Meter("test")
		}, at)
		s.beat(0)
		s.caughtUp(direct)
		s.probe(set)
		for _, off := range []time.Duration{-time.Hour, time.Hour} {
			s.beat(off)
			s.caughtUp(direct)
			st := s.probe(set)
			if st.State != Serving || st.Lag > 30*time.Second || (st.Skew+off).Abs() > time.Minute {
				s.Errorf("a beat %v off: %+v", off, st)
			}
			if told := gauge(s.T, reader, "wiggle.replica.clock_skew"); (told+off.Seconds()) > 60 || (told+off.Seconds()) < -60 {
				s.Errorf("a beat %v off: the metric says %v s", off, told)
			}
		}
		s.beat(0)
		s.caughtUp(direct)
		if st := s.probe(set); st.State != Serving || st.Skew != 0 {
			s.Errorf("right again: %+v", st)
		}
	})

	// Without a leader nobody can tell whether the replica lags: it leaves, and the fallback decides.
	run(t, s, "leaves without beats", func(s *shard) {
		set := s.set(bounded, at)
		s.running(set)
		stop := s.beating()
		s.readBy(set, "replica 0")
		stop()
		s.readBy(set, "primary")
		s.await("the reason is told", func() bool {
			st := set.Status()[0]
			return st.State == Lagging && strings.Contains(st.Reason, "is there a leader?")
		})
		s.beating()
		s.readBy(set, "replica 0")
	})

	// REP-2, REP-6: a replica whose replay is paused leaves within the bound and one beat, and comes back.
	run(t, s, "leaves when its replay is paused", func(s *shard) {
		s.beating()
		set := s.set(bounded, at)
		s.running(set)
		s.readBy(set, "replica 0")
		order(s, "select pg_wal_replay_pause()")
		s.await("the replay is paused", func() bool {
			var state string
			err := control.QueryRow(s.Context(), "select pg_get_wal_replay_pause_state()").Scan(&state)
			return err == nil && state == "paused"
		})
		paused := time.Now()
		s.await("it leaves", func() bool {
			began := time.Now()
			from, err := s.read(set)
			if err != nil {
				s.Fatal(err)
			}
			if late := began.Sub(paused) - bound - beats; late > 0 && !from.Primary() {
				s.Fatalf("read %v after the bound and one beat", late)
			}
			return from.Primary() && set.Status()[0].State == Lagging
		})
		if reason := set.Status()[0].Reason; !strings.Contains(reason, "it lags by") {
			s.Errorf("the reason is %q", reason)
		}
		order(s, "select pg_wal_replay_resume()")
		s.readBy(set, "replica 0")
	})

	// What is no replica of this shard's primary is never read from.
	run(t, s, "refuses others", func(s *shard) { refuses(s, replica, at, direct) })

	// REP-2: a killed replica fails no read; one that is away when the process starts is used when it comes.
	run(t, s, "survives its death", func(s *shard) {
		s.beating()
		set := s.set(nil, at)
		stop := s.running(set)
		s.readBy(set, "replica 0")
		var readers sync.WaitGroup
		reading, enough := context.WithCancel(s.Context())
		for range 4 {
			readers.Go(func() {
				for reading.Err() == nil {
					if _, err := s.read(set); err != nil && reading.Err() == nil {
						s.Errorf("a read failed: %v", err)
						return
					}
				}
			})
		}
		replica.Kill()
		s.await("it is out", func() bool { return set.Status()[0].State == Failed })
		s.readBy(set, "primary")
		enough()
		readers.Wait()
		stop()

		late := s.set(nil, at)
		s.running(late)
		s.await("its absence is noticed", func() bool { return late.Status()[0].State == Failed })
		s.readBy(late, "primary")
		var err error
		if replica, err = devstack.StartReplica(s.Context(), s.server, devstack.ServerConfig{Dir: replica.Dir()}); err != nil {
			s.Fatal(err)
		}
		t.Cleanup(func() { _ = pgtest.StopServer(replica) })
		s.readBy(late, "replica 0")
	})

	// A replica that was promoted is not read from, also not before a probe has noticed.
	run(t, s, "leaves when promoted", func(s *shard) {
		set := s.set(nil, at)
		s.beat(0)
		s.caughtUp(direct)
		s.probe(set)
		for range 4 {
			if from, err := s.read(set); err != nil || from.Primary() {
				s.Fatalf("read by %v, %v", from, err)
			}
		}
		order(s, "select pg_promote(true, 30)")
		if from, err := s.read(set); err != nil || !from.Primary() {
			s.Errorf("read by %v, %v", from, err)
		}
		if st := set.Status()[0]; st.State != Refused || st.Reads != 4 {
			s.Errorf("%+v", st)
		}
		if st := s.probe(set); st.State != Refused || st.Reason != reasonPromoted {
			s.Errorf("%+v", st)
		}
		fresh := s.set(nil, at)
		if st := s.probe(fresh); st.State != Refused || st.Reason != reasonPromoted {
			s.Errorf("to a process that starts: %+v", st)
		}
		if _, err := set.Pools()[0].Exec(s.Context(), "update wiggle_heartbeat set term = 9"); err == nil {
			s.Error("it takes a write")
		}
	})
}

// refuses makes servers and databases that are no replica of the shard's primary.
func refuses(s *shard, replica *devstack.Server, at string, direct *postgres.Pool) {
	other, err := pgtest.StartServer(s.Context())
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() { _ = pgtest.StopServer(other) })
	s.database(other, "w", shardID) // the same claim
	ofOther := s.replica(other)
	s.database(s.server, "shard7", 7)
	if err := s.server.CreateDatabase(s.Context(), "empty"); err != nil {
		s.Fatal(err)
	}
	s.beat(0)
	s.caughtUp(direct)
	s.await("the replica has the other databases", func() bool {
		pool := pgtest.OpenPool(s, replica.URL("empty"), func(c *postgres.MemberConfig) { c.ReadOnly = true })
		defer pool.Close()
		return pool.Ping(s.Context()) == nil
	})
	for name, test := range map[string]struct {
		url, reason string
		change      func(*Config)
	}{
		"the primary":           {s.server.URL("w"), reasonPromoted, nil},
		"another server":        {ofOther.URL("w"), reasonOther, nil},
		"another shard":         {replica.URL("shard7"), "belongs to shard 7", nil},
		"nobody's":              {replica.URL("empty"), reasonUnclaimed, nil},
		"another cluster":       {at, "belongs to cluster the-cluster, not to cluster x", func(c *Config) { c.ClusterID = func() string { return "x" } }},
		"what it is (it is it)": {at, "", nil},
	} {
		set := s.set(test.change, test.url)
		st := s.probe(set)
		if test.reason == "" {
			if st.State != Serving {
				s.Errorf("%s: %+v", name, st)
			}
			continue
		}
		want := Refused
		if name == "nobody's" { // it may be about to receive what the primary has
			want = Failed
		}
		if st.State != want || !strings.Contains(st.Reason, test.reason) {
			s.Errorf("%s: %+v", name, st)
		}
		if from, err := s.read(set); err != nil || !from.Primary() {
			s.Errorf("%s: read by %v, %v", name, from, err)
		}
		// A read that finds a connection to it, before a probe does, is refused as well.
		set.members[0].put(Serving, 0)
		if from, err := s.read(set); err != nil || !from.Primary() {
			s.Errorf("%s, through a new connection: read by %v, %v", name, from, err)
		}
	}
}

// TestTimelines: a replica that follows another timeline than the primary's is refused, until it follows the primary again.
func TestTimelines(t *testing.T) {
	t.Parallel()
	s := newShard(t)
	left := s.replica(s.server)
	below := s.replica(s.server, left) // follows left, wherever that goes
	at := below.URL("w")
	set := s.set(nil, at)
	s.beat(0)
	direct := pgtest.OpenPool(t, at, func(c *postgres.MemberConfig) { c.ReadOnly = true })
	s.caughtUp(direct)
	if st := s.probe(set); st.State != Serving {
		t.Fatalf("below a replica: %+v", st)
	}
	promoted := pgtest.OpenPool(t, left.URL("w"))
	if _, err := promoted.Exec(t.Context(), "select pg_promote(true, 30)"); err != nil {
		t.Fatal(err)
	}
	// The old primary has no new beat that could tell, and the replica is on the new timeline as soon as it has got there.
	s.await("the replica is on the other timeline", func() bool {
		st := s.probe(set)
		return st.State == Refused && st.Reason == "it is on timeline 2, the primary on 1"
	})
	// The primary's address leads to the promoted server: the replica follows that, and is back.
	s.pool = promoted
	set = s.set(nil, at)
	s.beat(0)
	s.caughtUp(direct)
	if st := s.probe(set); st.State != Serving {
		t.Errorf("below the new primary: %+v", st)
	}
}
