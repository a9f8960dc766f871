package storetest

import (
	"slices"
	"time"

	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	"github.com/wiggle-run/wiggle/services/instances/internal/machine"
	"github.com/wiggle-run/wiggle/services/instances/internal/store"
)

// move is what a report makes of a claimed token, leased again if a worker goes on.
func (s *shard) move(m *machine.Machine, c store.Claimed, result string, goesOn bool) store.Move {
	s.Helper()
	now := c.Token.LeasedAt.Add(time.Millisecond)
	ev := machine.Report{Fence: c.Token.Fence, Worker: worker, Kind: machine.OutcomeUnchanged}
	if result != "" {
		ev.Kind, ev.Result = machine.OutcomeResult, json(result)
	}
	changes, err := m.Report(s.env(now), machine.State{Instance: c.Instance, Token: c.Token}, ev)
	s.must(err)
	if !store.Simple(c.Token, changes) {
		s.Fatalf("the changes are not simple: %+v", changes)
	}
	to := changes.Updated[0]
	if goesOn {
		to, err = machine.Claim(now, to, worker, long)
		s.must(err)
	}
	return store.Move{From: c.Token, To: to, Entry: changes.History[0]}
}

func (s *shard) advance(moves ...store.Move) []bool {
	s.Helper()
	moved, err := s.Advance(s.Context(), moves[0].To.QueuedAt, moves)
	s.must(err)
	return moved
}

// WRK-18: a report that concerns its token alone is written without a read, as the
// locked way would have.
func testAdvance(s *shard) {
	m := chain()
	leased, ready := s.start(m, `{"n":1}`), s.start(m, `{"n":2}`)
	claimed := s.claim(2)
	moves := []store.Move{s.move(m, claimed[0], `{"n":3}`, true), s.move(m, claimed[1], "", false)}
	if moved := s.advance(moves...); !slices.Equal(moved, []bool{true, true}) {
		s.Fatalf("moved %v", moved)
	}
	s.expect(leased, machine.Running, `{"n":3}`)
	s.expect(ready, machine.Running, `{"n":2}`)
	// The one is leased already, the other waits for a claim.
	got := s.claimOne()
	if got.Token.Instance != ready || got.Token.Node != "b" || got.Token.Fence != 2 || got.Token.Attempt != 1 {
		s.Errorf("claimed %+v", got.Token)
	}
	s.report(m, got, "")
	next := store.Claimed{Token: moves[0].To, Instance: claimed[0].Instance}
	s.report(m, next, `{"n":4}`)
	s.expect(leased, machine.Completed, `{"n":4}`)
	s.expect(ready, machine.Completed, `{"n":2}`)
	for _, id := range []machine.ID{leased, ready} {
		if got, want := s.kinds(id), []wigglev1.HistoryKind{started, stepCompleted, stepCompleted, completed}; !slices.Equal(got, want) {
			s.Errorf("history is %v, want %v", got, want)
		}
	}
	// A report sent again is known from the history (WRK-5).
	l := store.Lease{Instance: leased, Token: leased, Fence: 1}
	s.must(s.Update(s.Context(), store.Keys{Leases: []store.Lease{l}}, func(w *store.World) error {
		if past := w.Settled(l); past.Fence != 1 || past.By != machine.ByReport {
			s.Errorf("the first lease was settled as %+v", past)
		}
		return nil
	}))
}

// WRK-18: what another event has changed meanwhile is not written, and nothing of it.
func testAdvanceGuarded(s *shard) {
	m := chain()
	for name, change := range map[string]func(c store.Claimed){
		"reported": func(c store.Claimed) { s.report(m, c, `{"n":9}`) },
		"claimed again": func(c store.Claimed) {
			s.must(s.update(on(c), c.Token.Instance, func(w *store.World) (*machine.Changes, error) {
				return m.Release(s.env(w.Now), w.State(c.Token.Instance, c.Token.ID), c.Token.Fence)
			}))
			s.claimOne()
		},
		"cancelled": func(c store.Claimed) { s.cancel(m, c.Token.Instance) },
		"moved":     func(c store.Claimed) { s.advance(s.move(m, c, `{"n":9}`, false)) },
	} {
		id, other := s.start(m, `{"n":1}`), s.start(m, `{"n":1}`)
		claimed := s.claim(2)
		if claimed[0].Token.Instance != id {
			claimed[0], claimed[1] = claimed[1], claimed[0]
		}
		change(claimed[0])
		before := s.kinds(id)
		moved := s.advance(s.move(m, claimed[0], `{"n":2}`, true), s.move(m, claimed[1], `{"n":2}`, true))
		if !slices.Equal(moved, []bool{false, true}) {
			s.Errorf("%s: moved %v", name, moved)
		}
		if got := string(s.view(id).Instance.Context.Data); got == `{"n":2}` {
			s.Errorf("%s: the context is %s", name, got)
		}
		s.expect(other, machine.Running, `{"n":2}`)
		if after := s.kinds(id); !slices.Equal(before, after) {
			s.Errorf("%s: the history went from %v to %v", name, before, after)
		}
		for _, c := range []machine.ID{id, other} {
			if s.view(c).Instance.State == machine.Running {
				s.cancel(m, c)
			}
		}
	}
}

// What an advance writes is read as it was given, in every field.
func testAdvanceFields(s *shard) {
	m := chain()
	id := s.start(m, `{"n":1}`)
	c := s.claimOne()
	_, err := s.Beat(s.Context(), []store.Beat{{Token: id, Fence: 1, Extend: long, Progress: json(`"half"`)}})
	s.must(err)
	move := s.move(m, c, "", true)
	move.To.Timeout, move.To.Deadline = time.Hour, move.To.LeasedAt.Add(time.Hour)
	move.To.Priority, move.To.Queue, move.To.Loops = 7, "other", map[string]int32{"g": 3}
	move.To.View.ContentType = c.Token.View.ContentType
	if moved := s.advance(move); !moved[0] {
		s.Fatal("not moved")
	}
	s.must(s.Update(s.Context(), store.Keys{Instances: []machine.ID{id}, Tokens: []machine.ID{id}}, func(w *store.World) error {
		if got := w.State(id, id).Token; !equalToken(got, move.To) {
			s.Errorf("read %+v, want %+v", got, move.To)
		}
		return nil
	}))
}
