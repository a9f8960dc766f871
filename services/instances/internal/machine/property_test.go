package machine_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"
	"pgregory.net/rapid"

	"github.com/wiggle-run/wiggle/proto/definition"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	"github.com/wiggle-run/wiggle/services/instances/internal/machine"
)

// shardSim is the rows of one instance, changed by nothing but the machine.
type shardSim struct {
	t        *rapid.T
	m        *machine.Machine
	now      time.Time
	ids      uint64
	instance *machine.Instance
	tokens   map[machine.ID]*machine.Token
	history  []machine.Entry
	events   []machine.Event
	// last is what each token last reported, to be found by its combine.
	last map[machine.ID]string
}

func newSim(t *rapid.T, def *wigglev1.Definition) *shardSim {
	graph, problems := definition.Analyze(def)
	if problems != nil {
		t.Fatalf("generated definition is not valid: %v", problems)
	}
	return &shardSim{
		t: t, m: machine.New(graph), now: time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC),
		tokens: map[machine.ID]*machine.Token{}, last: map[machine.ID]string{},
	}
}

func (s *shardSim) env() machine.Env {
	return machine.Env{
		Now: s.now, Random: func() float64 { return 0.5 }, Limits: machine.DefaultLimits(),
		NewID: func() machine.ID {
			s.ids++
			var id machine.ID
			binary.BigEndian.PutUint64(id[8:], s.ids)
			return id
		},
	}
}

func (s *shardSim) state(id machine.ID) machine.State {
	st := machine.State{Instance: s.instance, Token: s.tokens[id]}
	if st.Token != nil && !st.Token.Parent.IsZero() {
		st.Parent = s.tokens[st.Token.Parent]
	}
	return st
}

// put writes changes as a store does.
func (s *shardSim) put(c *machine.Changes) {
	if c.Duplicate {
		return
	}
	if c.Instance != nil {
		s.instance = c.Instance
	}
	s.history = append(s.history, c.History...)
	s.events = append(s.events, c.Events...)
	if c.Ended {
		clear(s.tokens)
		return
	}
	for _, parent := range c.Merged {
		maps.DeleteFunc(s.tokens, func(_ machine.ID, t *machine.Token) bool { return t.Parent == parent })
	}
	for _, t := range slices.Concat(c.Created, c.Updated) {
		s.tokens[t.ID] = t
	}
	for _, in := range c.LetIn {
		for _, t := range s.tokens {
			if t.Parent == in.Parent && t.Index == in.Index {
				if !t.Held || !t.DueAt.IsZero() {
					s.t.Fatalf("element %d was let in twice: %+v", in.Index, t)
				}
				t = t.Clone()
				t.DueAt = in.DueAt
				s.tokens[t.ID] = t
			}
		}
	}
}

// in lists tokens by state, in the order of their ids.
func (s *shardSim) in(match func(*machine.Token) bool) []*machine.Token {
	var found []*machine.Token
	for _, t := range s.tokens {
		if match(t) {
			found = append(found, t)
		}
	}
	slices.SortFunc(found, func(a, b *machine.Token) int { return slices.Compare(a.ID[:], b.ID[:]) })
	return found
}

// check holds the rows against the invariants of the package comment.
func (s *shardSim) check() {
	if s.instance.State.Terminal() {
		if len(s.tokens) > 0 {
			s.t.Fatalf("ENG-3: instance is %s and has %d tokens", s.instance.State, len(s.tokens))
		}
		return
	}
	pending, done := map[machine.ID]int32{}, map[machine.ID]int32{}
	for _, t := range s.tokens {
		if t.Parent.IsZero() {
			continue
		}
		if s.tokens[t.Parent] == nil {
			s.t.Fatalf("token at %s has no parent", t.Node)
		}
		if t.State == machine.Done {
			done[t.Parent]++
		} else {
			pending[t.Parent]++
		}
	}
	for _, t := range s.tokens {
		if t.State == machine.Joined && (t.Pending != pending[t.ID] || t.Width != pending[t.ID]+done[t.ID]) {
			s.t.Fatalf("token at %s waits for %d of %d branches, there are %d and %d done", t.Node, t.Pending, t.Width, pending[t.ID], done[t.ID])
		}
		if t.State != machine.Joined && pending[t.ID] > 0 {
			s.t.Fatalf("token at %s is %s and has %d branches under way", t.Node, t.State, pending[t.ID])
		}
	}
}

// claim leases a token and, at a combine, holds what it is handed against what
// the branches reported.
func (s *shardSim) claim(t *machine.Token) *machine.Token {
	c, err := machine.Claim(s.now, t, "worker", 30*time.Second)
	if err != nil {
		s.t.Fatalf("claim: %v", err)
	}
	s.tokens[t.ID] = c
	if node := s.m.Graph().Node(t.Node); node.Combines != "" && c.Width > 0 {
		children := s.in(func(child *machine.Token) bool { return child.Parent == c.ID })
		if len(children) != int(c.Width) {
			s.t.Fatalf("combine %s is handed %d of %d branches", t.Node, len(children), c.Width)
		}
		seen := map[int32]bool{}
		for _, child := range children {
			if seen[child.Index] {
				s.t.Fatalf("combine %s sees branch %d twice", t.Node, child.Index)
			}
			seen[child.Index] = true
			if want, ok := s.last[child.ID]; ok && child.HasResult && string(child.View.Data) != want {
				s.t.Fatalf("combine %s is handed %s by branch %d, which reported %s", t.Node, child.View.Data, child.Index, want)
			}
		}
	}
	return c
}

// report makes a report that fits the token's step.
func (s *shardSim) report(t *machine.Token) machine.Report {
	r := machine.Report{Fence: t.Fence, Worker: "worker"}
	switch node := s.m.Graph().Node(t.Node); node.Kind {
	case definition.KindGate:
		r.Kind, r.Gate = machine.OutcomeGate, rapid.Bool().Draw(s.t, "gate")
	case definition.KindChoose:
		r.Kind, r.Choice = machine.OutcomeChoice, rapid.SampledFrom([]string{"a", "b", "other"}).Draw(s.t, "choice")
	default:
		if rapid.IntRange(0, 3).Draw(s.t, "unchanged") == 0 {
			r.Kind = machine.OutcomeUnchanged
			break
		}
		r.Kind = machine.OutcomeResult
		r.Result = machine.Payload{Data: []byte(drawContext(s.t))}
	}
	return r
}

func drawContext(t *rapid.T) string {
	n := rapid.IntRange(0, 4).Draw(t, "items")
	if n == 4 {
		return fmt.Sprintf(`{"items":{"x":%d,"y":{"items":[1]}}}`, rapid.Int().Draw(t, "value"))
	}
	items := ""
	for i := range n {
		if i > 0 {
			items += ","
		}
		items += fmt.Sprintf(`{"v":%d,"items":[%d]}`, rapid.Int().Draw(t, "value"), i)
	}
	return `{"items":[` + items + `]}`
}

// settle applies a report and remembers it if it took effect.
func (s *shardSim) settle(id machine.ID, r machine.Report) {
	before := s.tokens[id]
	c, err := s.m.Report(s.env(), s.state(id), r)
	held := before != nil && before.State == machine.Leased && before.Fence == r.Fence
	repeated := before != nil && before.Settled == (machine.Settled{Fence: r.Fence, By: machine.ByReport})
	switch {
	case held && err != nil:
		s.t.Fatalf("report under a held lease: %v", err)
	case !held && repeated && (err != nil || !c.Duplicate):
		s.t.Fatalf("WRK-5: repeated report was answered with %v, %+v", err, c)
	case !held && !repeated && !errors.Is(err, machine.ErrLeaseLost):
		s.t.Fatalf("WRK-4: late report was answered with %v", err)
	}
	if !held {
		return
	}
	node := s.m.Graph().Node(before.Node)
	if r.Kind == machine.OutcomeResult && !node.Effect {
		s.last[id] = string(r.Result.Data)
	}
	s.put(c)
}

// TestRandomSchedules drives random definitions with random schedules: claims,
// reports (twice, late, out of order), failures, releases, crashed workers, jumps
// of the clock, cancels (ENG-2 to ENG-10, ENG-14, WRK-4, WRK-5).
func TestRandomSchedules(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		s := newSim(t, drawDefinition(t))
		c, err := s.m.Start(s.env(), machine.Start{ID: s.env().NewID(), Input: machine.Payload{Data: []byte(drawContext(t))}, Delay: time.Duration(rapid.IntRange(0, 1).Draw(t, "delay")) * time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		s.put(c)
		s.check()
		var old []func() // reports that were sent before
		for range 2000 {
			if s.instance.State.Terminal() {
				break
			}
			s.step(&old)
			s.check()
		}
		if !s.instance.State.Terminal() {
			t.Fatalf("not ended after 2000 events; tokens: %d", len(s.tokens))
		}
		for _, again := range old {
			again() // after the end: nothing may come of it
		}
		s.check()
		s.checkHistory()
		s.checkEvents()
	})
}

func (s *shardSim) step(old *[]func()) {
	ready := s.in(func(t *machine.Token) bool { return t.State == machine.Ready && t.DueAt.IsZero() })
	leased := s.in(func(t *machine.Token) bool { return t.State == machine.Leased })
	due := s.in(func(t *machine.Token) bool { return !t.DueAt.IsZero() })
	what := rapid.IntRange(0, 99).Draw(s.t, "event")
	switch {
	case what < 40 && len(ready) > 0:
		s.claim(rapid.SampledFrom(ready).Draw(s.t, "ready"))
	case what < 80 && len(leased) > 0:
		t := rapid.SampledFrom(leased).Draw(s.t, "leased")
		r := s.report(t)
		s.settle(t.ID, r)
		*old = append(*old, func() { s.settle(t.ID, r) })
	case what < 84 && len(*old) > 0:
		rapid.SampledFrom(*old).Draw(s.t, "repeated")()
	case what < 86 && len(leased) > 0:
		t := leased[0]
		c, err := s.m.Fail(s.env(), s.state(t.ID), machine.Fail{Fence: t.Fence, Type: "boom", NonRetryable: rapid.IntRange(0, 9).Draw(s.t, "fatal") == 0})
		s.must(c, err)
	case what < 88 && len(leased) > 0:
		c, err := s.m.Release(s.env(), s.state(leased[0].ID), leased[0].Fence)
		s.must(c, err)
	case what < 89 && rapid.IntRange(0, 30).Draw(s.t, "cancel") == 0:
		c, err := s.m.Cancel(s.env(), s.instance, "enough")
		s.must(c, err)
	default: // the clock jumps: workers that were silent lose their leases, timers are due
		s.now = s.now.Add(time.Minute)
		for _, t := range append(leased, due...) {
			if s.instance.State.Terminal() {
				return
			}
			st := s.state(t.ID)
			if st.Token == nil {
				continue
			}
			if st.Token.State == machine.Leased {
				c, err := s.m.Expire(s.env(), st, st.Token.Fence)
				s.must(c, err)
				continue
			}
			if c, err := s.m.Wake(s.env(), st); err == nil {
				s.put(c)
			} else if !errors.Is(err, machine.ErrNotDue) {
				s.t.Fatal(err)
			}
		}
	}
}

func (s *shardSim) must(c *machine.Changes, err error) {
	if err != nil {
		s.t.Fatal(err)
	}
	s.put(c)
}

// checkEvents holds the event log against the instance: it begins with the start, ends with how the instance ended, and
// revisions never fall (EVT-1).
func (s *shardSim) checkEvents() {
	if len(s.events) != 2 || s.events[0].Type != machine.EventStarted {
		s.t.Fatalf("the log is %+v", s.events)
	}
	want := map[machine.InstanceState]string{
		machine.Completed: machine.EventCompleted, machine.Failed: machine.EventFailed, machine.Cancelled: machine.EventCancelled,
	}[s.instance.State]
	if last := s.events[1]; last.Type != want || last.Revision != s.instance.Position || last.Revision < s.events[0].Revision {
		s.t.Fatalf("of %s at %d the log is %+v", s.instance.State, s.instance.Position, s.events)
	}
}

// checkHistory holds the history against itself: each lease is settled once, each
// token's positions have no gap, and the last entry is the end (ENG-17).
func (s *shardSim) checkHistory() {
	type lease struct {
		token machine.ID
		fence int64
	}
	settled, next := map[lease]bool{}, map[machine.ID]int32{}
	for _, e := range s.history {
		if e.Position != next[e.Token] {
			s.t.Fatalf("history of token %x goes from %d to %d", e.Token, next[e.Token], e.Position)
		}
		next[e.Token]++
		if e.Fence == 0 {
			continue
		}
		if l := (lease{e.Token, e.Fence}); settled[l] {
			s.t.Fatalf("lease %d of token %x is in the history twice", e.Fence, e.Token)
		} else {
			settled[l] = true
		}
	}
	if last := s.history[len(s.history)-1]; !last.Token.IsZero() {
		s.t.Fatalf("the history ends with %v", last.Value)
	}
}

// TestSameEventsSameEnd: the machine is a function (ENG-2): what is loaded is never
// changed, and the same event on the same state gives the same changes.
func TestSameEventsSameEnd(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		s := newSim(t, drawDefinition(t))
		c, err := s.m.Start(s.env(), machine.Start{ID: s.env().NewID(), Input: machine.Payload{Data: []byte(drawContext(t))}})
		s.must(c, err)
		for range 300 {
			ready := s.in(func(t *machine.Token) bool { return t.State == machine.Ready })
			if s.instance.State.Terminal() || len(ready) == 0 {
				return
			}
			leased := s.claim(ready[0])
			r := s.report(leased)
			before, ids := s.snapshot(), s.ids
			first, err1 := s.m.Report(s.env(), s.state(leased.ID), r)
			s.ids = ids
			second, err2 := s.m.Report(s.env(), s.state(leased.ID), r)
			if d := cmp.Diff(first, second, protocmp.Transform()); d != "" || err1 != nil || err2 != nil {
				t.Fatalf("two runs differ (%v, %v): %s", err1, err2, d)
			}
			if d := cmp.Diff(before, s.snapshot(), protocmp.Transform()); d != "" {
				t.Fatalf("the event changed what was loaded: %s", d)
			}
			s.put(first)
		}
	})
}

func (s *shardSim) snapshot() map[machine.ID]*machine.Token {
	out := map[machine.ID]*machine.Token{}
	for id, t := range s.tokens {
		out[id] = t.Clone()
	}
	return out
}
