package pgstore

import (
	"context"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/wiggle-run/wiggle/pkg/postgres"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	"github.com/wiggle-run/wiggle/services/instances/internal/machine"
	"github.com/wiggle-run/wiggle/services/instances/internal/store"
)

func number(n int) (id machine.ID) {
	binary.BigEndian.PutUint64(id[8:], uint64(n))
	return id
}

// populate makes n instances of one token each, leased under fence 1.
func populate(t testing.TB, s *Store, n int, state machine.TokenState) {
	t.Helper()
	err := s.Update(t.Context(), store.Keys{}, func(w *store.World) error {
		for i := 1; i <= n; i++ {
			id := number(i)
			w.Put(&machine.Changes{
				Instance: &machine.Instance{ID: id, Namespace: "n", Workflow: "w", Version: 1, State: machine.Running, CreatedAt: w.Now},
				Created: []*machine.Token{{
					ID: id, Instance: id, State: state, Fence: 1, Queue: "q", View: machine.Payload{Data: make([]byte, 200)},
					LeaseUntil: w.Now.Add(time.Hour),
				}},
			}, id)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// Updates, heartbeats and claims over the same instances at the same time, each
// naming them in an order of its own, never deadlock: a deadlock would take a
// second to be found, and be told by the server's counter.
func TestNoDeadlocks(t *testing.T) {
	t.Parallel()
	const instances, rounds, writers = 24, 40, 4
	pool := open(t, func(c *postgres.MemberConfig) { c.MaxConns = 2*writers + 2 })
	s := New(pool)
	populate(t, s, instances, machine.Leased)
	var wg sync.WaitGroup
	for range writers {
		wg.Go(func() {
			for range rounds {
				ids := pick(instances)
				if err := s.Update(t.Context(), store.Keys{Instances: ids, Tokens: ids}, func(w *store.World) error { return shuffleTokens(w, ids) }); err != nil {
					t.Errorf("update: %s", postgres.Detail(err))
				}
			}
		})
		wg.Go(func() {
			for range rounds {
				var beats []store.Beat
				for _, id := range pick(instances) {
					beats = append(beats, store.Beat{Token: id, Fence: 1, Extend: time.Hour})
				}
				if _, err := s.Beat(t.Context(), beats); err != nil {
					t.Errorf("beat: %s", postgres.Detail(err))
				}
				if _, err := s.Claim(t.Context(), store.Claim{Namespace: "n", Queues: []string{"q"}, Max: 3, Lease: time.Hour}); err != nil {
					t.Errorf("claim: %s", postgres.Detail(err))
				}
			}
		})
	}
	wg.Wait()
	var deadlocks int
	const count = "select pg_stat_force_next_flush(), deadlocks from pg_stat_database where datname = current_database()"
	if err := pool.QueryRow(t.Context(), count).Scan(nil, &deadlocks); err != nil || deadlocks != 0 {
		t.Errorf("%d deadlocks, %v", deadlocks, err)
	}
}

// An Advance waits for nobody for long, and so for nobody who waits for it: it takes
// tokens without their instances' locks (WRK-18).
func TestAdvanceGivesWay(t *testing.T) {
	t.Parallel()
	s := New(open(t))
	populate(t, s, 2, machine.Leased)
	moves := make([]store.Move, 2)
	for i := range moves {
		from := &machine.Token{ID: number(i + 1), Instance: number(i + 1), State: machine.Leased, Fence: 1}
		to := from.Clone()
		to.Fence, to.Position = 2, 1
		moves[i] = store.Move{From: from, To: to, Entry: machine.Entry{Value: &wigglev1.HistoryEntry{}}}
	}
	second := []machine.ID{number(2)}
	err := s.Update(t.Context(), store.Keys{Instances: second, Tokens: second}, func(*store.World) error {
		moved, err := s.Advance(t.Context(), time.Now(), moves)
		if postgres.Classify(err) != postgres.NotApplied {
			t.Errorf("moved %v, %v", moved, err)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if moved, err := s.Advance(t.Context(), time.Now(), moves); err != nil || slices.Contains(moved, false) {
		t.Errorf("nothing was to be written of it, and then all: %v, %v", moved, err)
	}
}

// pick names some of n instances in an order of chance.
func pick(n int) []machine.ID {
	var ids []machine.ID
	for _, i := range rand.Perm(n)[:n/2] {
		ids = append(ids, number(i+1))
	}
	return ids
}

// shuffleTokens writes every loaded token, and now and then ends an instance's
// tokens and makes it a new one.
func shuffleTokens(w *store.World, ids []machine.ID) error {
	for _, id := range ids {
		st := w.State(id, id)
		if st.Token == nil {
			w.Put(&machine.Changes{Created: []*machine.Token{{ID: id, Instance: id, State: machine.Ready, Queue: "q"}}}, id)
			continue
		}
		if rand.IntN(4) == 0 {
			in := st.Instance.Clone()
			in.Position++
			w.Put(&machine.Changes{Instance: in, Ended: true}, id)
			continue
		}
		token := st.Token.Clone()
		token.Position++
		w.Put(&machine.Changes{Updated: []*machine.Token{token}}, id)
	}
	return nil
}

// A heartbeat of a token that is being changed waits for the change's end: it is not
// taken for a lost lease.
func TestBeatWaitsForBusyToken(t *testing.T) {
	t.Parallel()
	s := New(open(t))
	populate(t, s, 2, machine.Leased)
	ids := []machine.ID{number(1)}
	beating := make(chan []store.BeatResult)
	err := s.Update(t.Context(), store.Keys{Instances: ids, Tokens: ids}, func(*store.World) error {
		go func() {
			results, err := s.Beat(t.Context(), []store.Beat{{Token: number(2), Fence: 1, Extend: time.Hour}, {Token: number(1), Fence: 1, Extend: time.Hour}})
			if err != nil {
				t.Error(err)
			}
			beating <- results
		}()
		return waitForLock(t, s.pool)
	})
	if err != nil {
		t.Fatal(err)
	}
	for i, r := range <-beating {
		if r.LeaseUntil.IsZero() {
			t.Errorf("beat %d is answered as lost", i)
		}
	}
}

// waitForLock returns when a session of this database waits for a lock.
func waitForLock(t *testing.T, pool *postgres.Pool) error {
	t.Helper()
	const waiting = "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"
	for {
		var n int
		if err := pool.QueryRow(t.Context(), waiting).Scan(&n); err != nil || n > 0 {
			return err
		}
	}
}

// A batch whose connection dies before the commit is sent leaves nothing behind and
// is run again.
func TestConnectionDies(t *testing.T) {
	t.Parallel()
	pool := open(t)
	s := New(pool)
	populate(t, s, 3, machine.Leased)
	ids := []machine.ID{number(1), number(2), number(4)}
	runs := 0
	err := s.Update(t.Context(), store.Keys{Instances: ids, Tokens: ids}, func(w *store.World) error {
		runs++
		change(w)
		if runs == 1 {
			terminate(t, pool)
		}
		return nil
	})
	if err != nil || runs != 2 {
		t.Errorf("after %d runs: %v", runs, err)
	}
	expectChanged(t, s, 1)

	refuse := errors.New("no more")
	runs = 0
	err = s.Update(t.Context(), store.Keys{Instances: ids, Tokens: ids}, func(w *store.World) error {
		if runs++; runs > 1 {
			return refuse
		}
		change(w)
		terminate(t, pool)
		return nil
	})
	if !errors.Is(err, refuse) {
		t.Errorf("error is %v", err)
	}
	expectChanged(t, s, 1)
}

// change moves the first token on.
func change(w *store.World) {
	token := w.State(number(1), number(1)).Token.Clone()
	token.Position++
	w.Put(&machine.Changes{Updated: []*machine.Token{token}}, number(1))
}

func expectChanged(t *testing.T, s *Store, position int32) {
	t.Helper()
	v, err := s.Instance(t.Context(), number(1), 1)
	if err != nil || v.Tokens[0].Position != position {
		t.Errorf("the token is at %+v, %v", v.Tokens, err)
	}
}

// terminate kills the sessions that are in a transaction, but for its own.
func terminate(t *testing.T, pool *postgres.Pool) {
	t.Helper()
	const kill = `select count(pg_terminate_backend(pid, 5000)) from pg_stat_activity
		where datname = current_database() and state = 'idle in transaction' and pid <> pg_backend_pid()`
	var n int
	if err := pool.QueryRow(context.WithoutCancel(t.Context()), kill).Scan(&n); err != nil || n != 1 {
		t.Errorf("terminated %d, %v", n, err)
	}
}

// Heartbeats change nothing that is indexed, and neither do reports that stay leased, so
// each new version of a row stays in its page (HOT) and no index grows. Room in a page
// is made once no older transaction of the server, whatever its database, is under way; so
// others that test on the same server may cost a try.
func TestHotUpdates(t *testing.T) { //nolint:paralleltest // see above
	const tokens, rounds, tries = 200, 20, 10
	pool := open(t)
	s := New(pool)
	populate(t, s, tokens, machine.Leased)
	held := make([]*machine.Token, tokens)
	beats := make([]store.Beat, tokens)
	for i := range beats {
		id := number(i + 1)
		beats[i] = store.Beat{Token: id, Fence: 1, Extend: time.Hour}
		held[i] = &machine.Token{ID: id, Instance: id, State: machine.Leased, Fence: 1, View: machine.Payload{Data: make([]byte, 200)}}
	}
	slices.Reverse(beats)
	beat := func() {
		results, err := s.Beat(t.Context(), beats)
		if err != nil || slices.ContainsFunc(results, func(r store.BeatResult) bool { return r.LeaseUntil.IsZero() }) {
			t.Fatalf("%v, %v", results, err)
		}
	}
	advance := func() {
		moves := make([]store.Move, tokens)
		for i, from := range held {
			to := from.Clone()
			to.Fence, to.Position, to.View = from.Fence+1, from.Position+1, machine.Payload{Data: make([]byte, 200)}
			moves[i] = store.Move{From: from, To: to, Entry: machine.Entry{Value: &wigglev1.HistoryEntry{}}}
			held[i] = to
		}
		moved, err := s.Advance(t.Context(), time.Now(), moves)
		if err != nil || slices.Contains(moved, false) {
			t.Fatalf("%v, %v", moved, err)
		}
	}
	for _, c := range []struct {
		name string
		run  func()
	}{{"heartbeats", beat}, {"reports", advance}} {
		var updates, hot int
		for range tries {
			before, hotBefore := updateCounts(t, pool, 0)
			for range rounds {
				c.run()
			}
			updates, hot = updateCounts(t, pool, before+tokens*rounds)
			updates, hot = updates-before, hot-hotBefore
			if hot >= updates*95/100 {
				break
			}
		}
		if hot < updates*95/100 {
			t.Errorf("%d of %d updates by %s are HOT", hot, updates, c.name)
		}
	}
}

// updateCounts reads the counters of updates once there are so many: sessions report what
// they did when they end.
func updateCounts(t *testing.T, pool *postgres.Pool, atLeast int) (updates, hot int) {
	t.Helper()
	pool.Reset()
	const stats = "select n_tup_upd, n_tup_hot_upd from pg_stat_user_tables where relname = 'tokens'"
	for updates = -1; updates < atLeast; {
		if err := pool.QueryRow(t.Context(), stats).Scan(&updates, &hot); err != nil {
			t.Fatal(err)
		}
	}
	return updates, hot
}

// TestReadsLeaveConnections: however many reads of users wait, a batch has a connection (WRK-15).
func TestReadsLeaveConnections(t *testing.T) {
	t.Parallel()
	s := New(open(t, func(c *postgres.MemberConfig) { c.MaxConns = 4 }))
	locked := acquire(t, s)
	run(t, locked, "begin", "lock table instances in access exclusive mode")
	ctx, cancel := context.WithCancel(t.Context())
	var reads sync.WaitGroup
	for range 20 {
		reads.Go(func() { _, _ = s.Instance(ctx, machine.ID{1}, 0) })
	}
	for len(s.reads) < cap(s.reads) {
		runtime.Gosched()
	}
	if _, err := s.Tick(t.Context(), "me", time.Second, false); err != nil {
		t.Errorf("a tick beside reads that wait: %v", err)
	}
	if _, err := s.Count(cancelled(t), store.Filter{}); !errors.Is(err, context.Canceled) {
		t.Errorf("a read for which there is no place: %v", err)
	}
	run(t, locked, "rollback")
	cancel()
	reads.Wait()
}

// cancelled is a context that is done.
func cancelled(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	return ctx
}
