package replica

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/wiggle-run/wiggle/pkg/clock"
	"github.com/wiggle-run/wiggle/pkg/postgres"
	"github.com/wiggle-run/wiggle/pkg/topology"
)

// unreachable is a set of replicas, by their zones, that nobody could connect to; tests say how they are.
func unreachable(t *testing.T, zone string, fallback topology.Fallback, zones ...string) (*Set, *clock.Manual) {
	t.Helper()
	c := clock.NewManual(epoch)
	shard := topology.Shard{ID: 3, Primary: topology.Member{Fallback: fallback}}
	for i, z := range zones {
		shard.Replicas = append(shard.Replicas, topology.Member{
			Shard: 3, Role: topology.MemberReplica, Index: i, Zone: z, Pool: 2, MaxLag: 5 * time.Second,
		})
	}
	s, err := New(Config{
		Shard: shard, Zone: zone, Clock: c,
		Member: func(m topology.Member, conns int) postgres.MemberConfig {
			return postgres.MemberConfig{Name: m.Name(), URL: "postgres://127.0.0.1:1/x", MaxConns: conns}
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s, c
}

// put says how a replica is.
func (m *member) put(state State, lag time.Duration) {
	m.now.Store(&view{
		state: state, age: age{lag: lag, known: true}, probedAt: m.set.cfg.Clock.Now(), beatenAt: m.set.cfg.Clock.Now().Add(-lag),
	})
}

// asked lists who was asked by so many reads, of which those that fail names fail.
func asked(t *testing.T, s *Set, reads int, need Need, fail map[string]error) []string {
	t.Helper()
	var list []string
	for range reads {
		from, err := s.Read(t.Context(), need, func(_ context.Context, from Source) error {
			list = append(list, from.String())
			return fail[from.String()]
		})
		switch {
		case errors.Is(err, ErrNone):
			list = append(list, "none")
		case err != nil:
			list = append(list, err.Error())
		case list[len(list)-1] != from.String():
			t.Errorf("%s answered, and %s is told", list[len(list)-1], from)
		}
	}
	return list
}

// TestRoundRobin: reads go round those replicas that serve, those of this process's zone first (REP-2).
func TestRoundRobin(t *testing.T) {
	t.Parallel()
	s, _ := unreachable(t, "b", topology.FallbackPrimary, "a", "b", "b", "c")
	for _, m := range s.members {
		m.put(Serving, 0)
	}
	got := asked(t, s, 4, Need{}, nil)
	if fmt.Sprint(got) != "[replica 2 replica 1 replica 2 replica 1]" {
		t.Errorf("asked %v", got)
	}
	s.members[1].put(Lagging, 9*time.Second)
	s.members[2].put(Failed, 0)
	got = asked(t, s, 4, Need{}, nil)
	if fmt.Sprint(got) != "[replica 3 replica 0 replica 3 replica 0]" {
		t.Errorf("without its own zone: asked %v", got)
	}
}

// TestFallback: with no replica that will do the fallback decides (REP-3).
func TestFallback(t *testing.T) {
	t.Parallel()
	for fallback, want := range map[topology.Fallback]string{topology.FallbackPrimary: "primary", topology.FallbackFail: "none"} {
		s, c := unreachable(t, "", fallback, "")
		if got := asked(t, s, 1, Need{}, nil); fmt.Sprint(got) != "["+want+"]" {
			t.Errorf("%s, not probed yet: asked %v", fallback, got)
		}
		s.members[0].put(Serving, 4900*time.Millisecond)
		c.Advance(1050 * time.Millisecond)
		if got := asked(t, s, 1, Need{}, nil); fmt.Sprint(got) != "[replica 0]" {
			t.Errorf("%s, a beat before the bound: asked %v", fallback, got)
		}
		c.Advance(100 * time.Millisecond) // the probe that was due does not come back
		if got := asked(t, s, 1, Need{}, nil); fmt.Sprint(got) != "["+want+"]" {
			t.Errorf("%s, a beat after the bound: asked %v", fallback, got)
		}
		if st := s.Status()[0]; st.State != Lagging {
			t.Errorf("it is %v", st.State)
		}
	}
	s, _ := unreachable(t, "", topology.FallbackFail)
	if got := asked(t, s, 1, Need{}, nil); fmt.Sprint(got) != "[primary]" {
		t.Errorf("a shard without replicas: asked %v", got)
	}
}

// TestFailedRead: a replica that fails a read is out at once, and the read goes on (REP-2); what it does not have is asked
// of the primary, whatever the fallback (REP-7).
func TestFailedRead(t *testing.T) {
	t.Parallel()
	broken, busy := &postgres.Error{Class: postgres.Unknown, Reason: "connection lost"}, &postgres.Error{Class: postgres.NotApplied}
	for name, test := range map[string]struct {
		fail  error
		want  string
		state State
	}{
		"broken":                   {broken, "[replica 1 replica 0 replica 0]", Failed},
		"in the way of the replay": {busy, "[replica 1 replica 0 replica 0]", Serving},
		"not there":                {fmt.Errorf("instance: %w", ErrNotHere), "[replica 1 primary replica 0]", Serving},
	} {
		s, _ := unreachable(t, "", topology.FallbackFail, "", "")
		s.members[0].put(Serving, 0)
		s.members[1].put(Serving, 0)
		if got := asked(t, s, 2, Need{}, map[string]error{"replica 1": test.fail}); fmt.Sprint(got) != test.want {
			t.Errorf("%s: asked %v, want %v", name, got, test.want)
		}
		if st := s.Status()[1]; st.State != test.state {
			t.Errorf("%s: it is %v (%s)", name, st.State, st.Reason)
		}
	}
}

// TestHangingReplica: one that does not answer takes half of the time of a read, and somebody else answers it.
func TestHangingReplica(t *testing.T) {
	t.Parallel()
	s, _ := unreachable(t, "", topology.FallbackPrimary, "")
	s.members[0].put(Serving, 0)
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	from, err := s.Read(ctx, Need{}, func(ctx context.Context, from Source) error {
		if from.Primary() {
			return ctx.Err()
		}
		<-ctx.Done()
		return ctx.Err()
	})
	if err != nil || !from.Primary() {
		t.Errorf("answered by %v, %v", from, err)
	}
}

// TestNeed: a read that needs more than a replica has for sure goes to the primary.
func TestNeed(t *testing.T) {
	t.Parallel()
	s, _ := unreachable(t, "", topology.FallbackFail, "")
	s.members[0].put(Serving, time.Second)
	for age, want := range map[time.Duration]string{2 * time.Second: "[replica 0]", 500 * time.Millisecond: "[primary]"} {
		if got := asked(t, s, 1, Need{NotBefore: epoch.Add(-age)}, nil); fmt.Sprint(got) != want {
			t.Errorf("%v ago: asked %v", age, got)
		}
	}
	v := *s.members[0].now.Load()
	v.age.skew = time.Hour // by a clock that is wrong, the beat's time says nothing
	s.members[0].now.Store(&v)
	if got := asked(t, s, 1, Need{NotBefore: epoch.Add(-time.Minute)}, nil); fmt.Sprint(got) != "[primary]" {
		t.Errorf("with a wrong clock: asked %v", got)
	}
}
