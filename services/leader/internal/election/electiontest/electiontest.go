// Package electiontest is for tests of the election: a lease in memory, and the suite that it and the one on home pass, so
// that what is shown with the one in memory, in a bubble of time, holds for the other.
package electiontest

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/wiggle-run/wiggle/services/leader/internal/election"
)

// Memory is a lease in memory; time.Now is the database's clock.
type Memory struct {
	mu     sync.Mutex
	holder string
	term   int64
	until  time.Time
}

// Try implements [election.Lease].
func (m *Memory) Try(ctx context.Context, ask election.Ask) (election.Standing, error) {
	if ctx.Err() != nil {
		return election.Standing{}, ctx.Err()
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	if m.holder != ask.Holder && m.until.After(now) && !m.until.After(now.Add(2*ask.Length)) {
		return election.Standing{Term: m.term, Holder: m.holder}, nil
	}
	if m.holder != ask.Holder || m.term != ask.Term || !m.until.After(now) {
		m.term = max(m.term, ask.Floor) + 1
	}
	m.holder, m.until = ask.Holder, now.Add(ask.Length)
	return election.Standing{Held: true, Term: m.term, Holder: m.holder}, nil
}

// Release implements [election.Lease].
func (m *Memory) Release(ctx context.Context, holder string, term int64) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.holder == holder && m.term == term {
		m.holder, m.until = "", time.Time{}
	}
	return nil
}

// EndsIn has the lease end so much later than the database's present time.
func (m *Memory) EndsIn(_ *testing.T, d time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.until = time.Now().Add(d)
}

// Movable is a lease whose end a test sets, by the database's clock.
type Movable interface {
	election.Lease
	EndsIn(t *testing.T, d time.Duration)
}

const length = time.Minute // no lease ends by itself here

// Conform checks that a lease, which nobody has taken yet, is as the election needs it.
func Conform(t *testing.T, lease Movable) {
	t.Helper()
	for i, step := range []struct {
		what   string
		before func()
		ask    election.Ask
		want   election.Standing
	}{
		{what: "the first takes it", ask: election.Ask{Holder: "a"}, want: election.Standing{Held: true, Term: 1, Holder: "a"}},
		{what: "another does not", ask: election.Ask{Holder: "b"}, want: election.Standing{Term: 1, Holder: "a"}},
		{what: "the holder renews it", ask: election.Ask{Holder: "a", Term: 1}, want: election.Standing{Held: true, Term: 1, Holder: "a"}},
		{
			what: "what is over is taken anew, by the holder too", before: func() { lease.EndsIn(t, -time.Second) },
			ask: election.Ask{Holder: "a", Term: 1}, want: election.Standing{Held: true, Term: 2, Holder: "a"},
		},
		{
			what: "a holder that names another term takes it anew",
			ask:  election.Ask{Holder: "a", Term: 1}, want: election.Standing{Held: true, Term: 3, Holder: "a"},
		},
		{
			what: "a holder that knows of none too", ask: election.Ask{Holder: "a"},
			want: election.Standing{Held: true, Term: 4, Holder: "a"},
		},
		{
			what: "what is over goes to the first who asks", before: func() { lease.EndsIn(t, -time.Microsecond) },
			ask: election.Ask{Holder: "b"}, want: election.Standing{Held: true, Term: 5, Holder: "b"},
		},
		{what: "the one before sees it", ask: election.Ask{Holder: "a", Term: 4}, want: election.Standing{Term: 5, Holder: "b"}},
		{
			what: "nobody gives back what he does not hold", before: func() { giveBack(t, lease, "a", 4); giveBack(t, lease, "b", 4) },
			ask: election.Ask{Holder: "a"}, want: election.Standing{Term: 5, Holder: "b"},
		},
		{
			what: "what is given back is free at once", before: func() { giveBack(t, lease, "b", 5) },
			ask: election.Ask{Holder: "c"}, want: election.Standing{Held: true, Term: 6, Holder: "c"},
		},
		{
			what: "a term passes the floor", before: func() { giveBack(t, lease, "c", 6) },
			ask: election.Ask{Holder: "a", Floor: 20}, want: election.Standing{Held: true, Term: 21, Holder: "a"},
		},
		{
			what: "the floor is none to a renewal", ask: election.Ask{Holder: "a", Term: 21, Floor: 30},
			want: election.Standing{Held: true, Term: 21, Holder: "a"},
		},
		{
			what: "a lease that ends later than any could is over", before: func() { lease.EndsIn(t, time.Hour) },
			ask: election.Ask{Holder: "b"}, want: election.Standing{Held: true, Term: 22, Holder: "b"},
		},
	} {
		if step.before != nil {
			step.before()
		}
		step.ask.Length = length
		got, err := lease.Try(t.Context(), step.ask)
		if err != nil {
			t.Fatalf("%d, %s: %v", i, step.what, err)
		}
		if got != step.want {
			t.Fatalf("%d, %s: got %+v, want %+v", i, step.what, got, step.want)
		}
	}
	conformRace(t, lease)
}

// conformRace has many ask at once for a lease that is over.
func conformRace(t *testing.T, lease Movable) {
	t.Helper()
	const askers, rounds = 8, 20
	for round := range rounds {
		lease.EndsIn(t, -time.Second)
		var mu sync.Mutex
		var held []election.Standing
		var asking sync.WaitGroup
		for i := range askers {
			asking.Go(func() {
				s, err := lease.Try(t.Context(), election.Ask{Holder: fmt.Sprintf("r%d", round*askers+i), Length: length})
				mu.Lock()
				defer mu.Unlock()
				if err != nil {
					t.Errorf("ask: %v", err)
				}
				if s.Held {
					held = append(held, s)
				}
			})
		}
		asking.Wait()
		if want := int64(23 + round); len(held) != 1 || held[0].Term != want {
			t.Fatalf("round %d: held by %+v, want one under term %d", round, held, want)
		}
	}
}

func giveBack(t *testing.T, lease election.Lease, holder string, term int64) {
	t.Helper()
	if err := lease.Release(t.Context(), holder, term); err != nil {
		t.Fatal(err)
	}
}
