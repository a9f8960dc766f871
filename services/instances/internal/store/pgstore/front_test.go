package pgstore

import (
	"encoding/json"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/wiggle-run/wiggle/services/instances/internal/machine"
	"github.com/wiggle-run/wiggle/services/instances/internal/store"
)

func at(n byte) place { return place{instance: machine.ID{n}, token: machine.ID{n, 1}} }

func claimedOf(priority int16, n byte) store.Claimed {
	return store.Claimed{Token: &machine.Token{Instance: at(n).instance, ID: at(n).token, Queue: "q", Priority: priority}}
}

func TestFronts(t *testing.T) {
	t.Parallel()
	var f fronts
	claim, key := &store.Claim{Namespace: "n"}, store.QueueKey{Namespace: "n", Queue: "q"}
	now := time.Unix(1000, 0)
	begin := func() *flight {
		now = now.Add(time.Millisecond)
		return f.begin(claim, []string{"q"}, false, now)
	}
	end := func(fl *flight, claimed ...store.Claimed) { f.end(fl, claimed, nil, now) }
	front := f.of(key, "")

	// Few were claimed: claims begin at the front.
	if fl := begin(); fl.from != nil {
		t.Fatal("passes over nothing")
	} else {
		end(fl, claimedOf(7, 1), claimedOf(7, 2))
	}
	if front.from[8] != afterAll() || front.from[7] != at(2).following() || front.from[6] != (place{}) {
		t.Fatalf("after two of priority 7: %v", front.from)
	}
	front.passed, front.looked, front.took = usedUp, now, 0
	fl := begin()
	if fl.from == nil || fl.from[0][7] != at(2).following() {
		t.Fatalf("a claim goes on from %v", fl.from)
	}
	// What is made ready during a claim may not have been seen by it, wherever it stands.
	other := begin()
	f.ready(key, 7, at(5))
	f.ready(key, 9, at(200))
	end(fl, claimedOf(7, 3), claimedOf(7, 8))
	end(other) // nothing
	for priority, want := range map[int]place{9: at(200), 8: afterAll(), 7: at(5), 6: afterAll()} {
		if front.from[priority] != want {
			t.Errorf("priority %d goes on from %v, want %v", priority, front.from[priority], want)
		}
	}
	// What is made ready behind takes the front back.
	f.ready(key, 6, at(3))
	f.ready(store.QueueKey{Namespace: "n", Queue: "other"}, 6, at(1))
	if front.from[6] != at(3) {
		t.Errorf("priority 6 goes on from %v", front.from[6])
	}
	if len(front.flights) != 0 {
		t.Errorf("%d claims are under way", len(front.flights))
	}
}

// TestFrontLooks: claims begin at the front now and then, the less often the longer that takes.
func TestFrontLooks(t *testing.T) {
	t.Parallel()
	var f fronts
	claim := &store.Claim{Namespace: "n", Workflows: []store.Binding{{Workflow: "w"}}}
	now := time.Unix(1000, 0)
	front := f.of(store.QueueKey{Namespace: "n", Queue: "q"}, bindingsOf(claim))
	for _, took := range []time.Duration{10 * time.Millisecond, time.Second} {
		front.passed = usedUp
		fl := f.begin(claim, []string{"q"}, true, now)
		if fl.from != nil {
			t.Fatal("a claim that must look does not")
		}
		now = now.Add(took)
		f.end(fl, nil, nil, now)
		fl = f.begin(claim, []string{"q"}, false, now)
		if again := min(10*took, emptyMost); f.mayLook(fl, now.Add(again-1)) || !f.mayLook(fl, now.Add(again)) {
			t.Errorf("a look that took %v is repeated too soon, or not soon enough", took)
		}
		f.end(fl, nil, nil, now)
		next := max(lookEvery, 50*took)
		if f.begin(claim, []string{"q"}, false, now.Add(next-1)).from == nil || f.begin(claim, []string{"q"}, false, now.Add(next)).from != nil {
			t.Errorf("after a look that took %v the next is not in %v", took, next)
		}
	}
	// Where there is nothing to pass over, nothing is remembered.
	fl := f.begin(claim, []string{"q"}, true, now)
	f.end(fl, []store.Claimed{claimedOf(1, 1)}, nil, now.Add(time.Millisecond))
	if front.passed != 1 {
		t.Errorf("after a look that was cheap %d are taken to be passed over", front.passed)
	}
}

// ready fills a shard with ready tokens, of all priorities, on a queue and a few others.
const ready = `
insert into instances (id, created_at, version, position, state, priority, namespace, workflow)
select lpad(to_hex(g), 32, '0')::uuid, now(), 1, 2, 1, 5, 'n', 'w' from generate_series(1, 20000) g;
insert into tokens (id, instance_id, fence, settled_fence, timeout_us, idx, attempt, version, width, pending, next_idx, position, state,
	priority, settled_by, held, has_result, namespace, workflow, queue, node, key, worker, view_type, progress_type, view)
select lpad(to_hex(g), 32, '0')::uuid, lpad(to_hex(g), 32, '0')::uuid, 1, 0, 0, 0, 1, 1, 0, 0, 0, 0, 1, g % 10, 0, false, false, 'n', 'w',
	case when g % 10 = 9 then 'rare' || g % 70 else 'q' end, 'a', '', '', '', '', 'x'
from generate_series(1, 20000) g;
analyze;`

func run(t *testing.T, conn *pgxpool.Conn, statements ...string) {
	t.Helper()
	for _, sql := range statements {
		if _, err := conn.Exec(t.Context(), sql, pgx.QueryExecModeSimpleProtocol); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
}

func acquire(t *testing.T, s *Store) *pgxpool.Conn {
	t.Helper()
	conn, err := s.pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Release)
	return conn
}

// holdHorizon opens a transaction that may see everything as it is now, so that vacuum takes nothing away.
func holdHorizon(t *testing.T, s *Store) {
	t.Helper()
	conn := acquire(t, s)
	run(t, conn, "set idle_in_transaction_session_timeout = 0", "begin isolation level repeatable read", "select count(*) from pg_class")
	t.Cleanup(func() { _, _ = conn.Exec(t.Context(), "rollback") })
}

// planNode is a node of a plan that was run.
type planNode struct {
	Index string     `json:"Index Name"`
	Hit   int        `json:"Shared Hit Blocks"`
	Read  int        `json:"Shared Read Blocks"`
	Loops float64    `json:"Actual Loops"`
	Plans []planNode `json:"Plans"`
}

// buffers runs a statement and tells how many buffers its scans of an index read, and how many the rest, in a transaction
// that is rolled back.
func buffers(t *testing.T, conn *pgxpool.Conn, index, sql string, args ...any) (scans, all int) {
	t.Helper()
	run(t, conn, "begin")
	defer run(t, conn, "rollback")
	var text []byte
	err := conn.QueryRow(t.Context(), "explain (analyze, buffers, timing off, format json) "+sql,
		append([]any{pgx.QueryExecModeExec}, args...)...).Scan(&text)
	if err != nil {
		t.Fatal(err)
	}
	var plans []struct{ Plan planNode }
	if err := json.Unmarshal(text, &plans); err != nil {
		t.Fatal(err)
	}
	var sum func(n planNode) int
	sum = func(n planNode) (found int) {
		if n.Index == index {
			found = n.Hit + n.Read
		}
		for _, below := range n.Plans {
			found += sum(below)
		}
		return found
	}
	return sum(plans[0].Plan), plans[0].Plan.Hit + plans[0].Plan.Read
}

func claimOf(most int, queues ...string) store.Claim {
	return store.Claim{Namespace: "n", Queues: queues, Worker: "w", Lease: time.Hour, Max: most}
}

// claimArgs are the arguments of a claim's statement.
func claimArgs(most int, queues []string, more ...any) []any {
	return append([]any{"n", queues, []string{}, []int32{}, "w", time.Hour.Microseconds(), most, 1 << 20}, more...)
}

// TestClaimsPassOverWhatIsDead: a claim reads little, however many were claimed while an old transaction is held open, and
// however many queues and priorities there are (WRK-17).
func TestClaimsPassOverWhatIsDead(t *testing.T) {
	t.Parallel()
	s := New(open(t))
	conn := acquire(t, s)
	run(t, conn, ready)
	holdHorizon(t, s)
	const most, all = 100, 9000
	var last store.Claimed
	for n := 0; n < all; n += most {
		claimed, err := s.Claim(t.Context(), claimOf(most, "q"))
		if err != nil || len(claimed) != most {
			t.Fatalf("claimed %d after %d: %v", len(claimed), n, err)
		}
		for _, c := range claimed {
			if last.Token != nil && (c.Token.Priority > last.Token.Priority ||
				c.Token.Priority == last.Token.Priority && !placeOf(last.Token).before(placeOf(c.Token))) {
				t.Fatalf("%v of priority %d came after %v of %d", c.Token.ID, c.Token.Priority, last.Token.ID, last.Token.Priority)
			}
			last = c
		}
	}
	fl := s.fronts.begin(&store.Claim{Namespace: "n"}, []string{"q"}, false, time.Now())
	defer s.fronts.end(fl, nil, pgx.ErrNoRows, time.Now())
	instances, tokens := placeColumns([]places{fl.fronts[0].from})
	front, _ := buffers(t, conn, "tokens_ready", claimTokens, claimArgs(most, []string{"q"})...)
	onward, whole := buffers(t, conn, "tokens_ready", claimOnward, claimArgs(most, []string{"q"}, instances, tokens)...)
	if front < all/10 {
		t.Errorf("from the front a claim reads %d buffers behind %d dead entries: this test shows nothing", front, all)
	}
	if onward > 3*most || whole > 40*most {
		t.Errorf("a claim of %d reads %d buffers to find them, and %d in all", most, onward, whole)
	}
	queues := []string{"q", "none"}
	for i := 9; i < 70; i += 10 {
		queues = append(queues, fmt.Sprintf("rare%d", i))
	}
	from := slices.Repeat([]places{{}}, len(queues))
	from[0] = fl.fronts[0].from
	instances, tokens = placeColumns(from)
	if many, _ := buffers(t, conn, "tokens_ready", claimOnward, claimArgs(most, queues, instances, tokens)...); many > 3*most*len(queues) {
		t.Errorf("a claim of %d on %d queues reads %d buffers to find them", most, len(queues), many)
	}
}

// TestClaimsFindWhatOthersMakeReady: what another process made ready behind the front is found.
func TestClaimsFindWhatOthersMakeReady(t *testing.T) {
	t.Parallel()
	s := New(open(t))
	other := New(s.pool)
	conn := acquire(t, s)
	run(t, conn, ready)
	var claimed []store.Claimed
	for len(claimed) < 18_000 {
		some, err := s.Claim(t.Context(), claimOf(1000, "q"))
		if err != nil || len(some) == 0 {
			t.Fatalf("claimed %d after %d: %v", len(some), len(claimed), err)
		}
		claimed = append(claimed, some...)
	}
	for name, by := range map[string]*Store{"this process": s, "another process": other} {
		released := claimed[5000].Token
		err := by.Update(t.Context(), store.Keys{Instances: []machine.ID{released.Instance}, Tokens: []machine.ID{released.ID}},
			func(w *store.World) error {
				back := w.State(released.Instance, released.ID).Token.Clone()
				back.State, back.Worker, back.LeaseUntil = machine.Ready, "", time.Time{}
				w.Put(&machine.Changes{Updated: []*machine.Token{back}}, released.Instance)
				return nil
			})
		if err != nil {
			t.Fatal(err)
		}
		for until := time.Now().Add(10 * time.Second); ; { // a look may have to wait
			got, err := s.Claim(t.Context(), claimOf(10, "q"))
			if err != nil || time.Now().After(until) {
				t.Fatalf("%s: what was made ready is not found: %v", name, err)
			}
			if len(got) == 1 && got[0].Token.ID == released.ID {
				break
			}
		}
	}
}

// TestTickLooksOnlyWhereAsked: a tick that does not look, and for leases one that does not hold, reads none of the tokens.
func TestTickLooksOnlyWhereAsked(t *testing.T) {
	t.Parallel()
	s := New(open(t))
	conn := acquire(t, s)
	run(t, conn, ready)
	if _, err := s.Claim(t.Context(), claimOf(1000, "q")); err != nil {
		t.Fatal(err)
	}
	run(t, conn, "update sweep_lease set holder = 'me', until = 'infinity'")
	for _, test := range []struct {
		holder        string
		look          bool
		leased, ready bool
	}{
		{"me", true, true, true}, {"me", false, false, false}, {"other", true, false, true}, {"other", false, false, false},
	} {
		for index, want := range map[string]bool{"tokens_leased": test.leased, "tokens_ready": test.ready} {
			if got, _ := buffers(t, conn, index, tick, test.holder, int64(1000), test.look); (got > 0) != want {
				t.Errorf("%s, look %v: a tick reads %d buffers of %s", test.holder, test.look, got, index)
			}
		}
	}
}
