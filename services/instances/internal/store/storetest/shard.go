package storetest

import (
	"encoding/binary"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/wiggle-run/wiggle/proto/definition"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	"github.com/wiggle-run/wiggle/services/instances/internal/machine"
	"github.com/wiggle-run/wiggle/services/instances/internal/store"
)

// shard is a store under test.
type shard struct {
	*testing.T
	store.Store

	ids atomic.Uint64
}

const (
	namespace = "default"
	worker    = "worker-1"
	long      = time.Hour
)

// newID mints ids that are in the order of their making, as ulids are.
func (s *shard) newID() machine.ID {
	var id machine.ID
	binary.BigEndian.PutUint64(id[:8], 1<<40)
	binary.BigEndian.PutUint64(id[8:], s.ids.Add(1))
	return id
}

func (s *shard) env(now time.Time) machine.Env {
	return machine.Env{Now: now, NewID: s.newID, Random: func() float64 { return 0.5 }, Limits: machine.DefaultLimits()}
}

// must ends the test on an error.
func (s *shard) must(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

// update applies one event in a batch of its own. event may return no changes.
func (s *shard) update(keys store.Keys, instance machine.ID, event func(*store.World) (*machine.Changes, error)) error {
	return s.Update(s.Context(), keys, func(w *store.World) error {
		c, err := event(w)
		if err == nil && c != nil {
			w.Put(c, instance)
		}
		return err
	})
}

// start starts an instance of a machine.
func (s *shard) start(m *machine.Machine, input string, change ...func(*machine.Start)) machine.ID {
	s.Helper()
	ev := machine.Start{ID: s.newID(), Namespace: namespace, Input: json(input), Priority: 5}
	for _, f := range change {
		f(&ev)
	}
	s.must(s.update(store.Keys{Instances: []machine.ID{ev.ID}}, ev.ID, func(w *store.World) (*machine.Changes, error) {
		return m.Start(s.env(w.Now), ev)
	}))
	return ev.ID
}

func delayed(d time.Duration) func(*machine.Start) { return func(ev *machine.Start) { ev.Delay = d } }

func priority(p int16) func(*machine.Start) { return func(ev *machine.Start) { ev.Priority = p } }

func in(namespace string) func(*machine.Start) {
	return func(ev *machine.Start) { ev.Namespace = namespace }
}

// claim claims up to n tokens of the queue "default".
func (s *shard) claim(n int, change ...func(*store.Claim)) []store.Claimed {
	s.Helper()
	c := store.Claim{Namespace: namespace, Queues: []string{"default"}, Worker: worker, Lease: long, Max: n}
	for _, f := range change {
		f(&c)
	}
	claimed, err := s.Claim(s.Context(), c)
	s.must(err)
	return claimed
}

// claimOne claims exactly one token.
func (s *shard) claimOne(change ...func(*store.Claim)) store.Claimed {
	s.Helper()
	claimed := s.claim(1, change...)
	if len(claimed) != 1 {
		s.Fatalf("claimed %d tokens, want one", len(claimed))
	}
	return claimed[0]
}

// on names what an event on a claimed token needs.
func on(c store.Claimed) store.Keys {
	l := store.Lease{Instance: c.Token.Instance, Token: c.Token.ID, Fence: c.Token.Fence}
	return store.Keys{Instances: []machine.ID{l.Instance}, Tokens: []machine.ID{l.Token}, Leases: []store.Lease{l}}
}

// report reports a result; an empty one leaves the context.
func (s *shard) report(m *machine.Machine, c store.Claimed, result string) {
	s.Helper()
	ev := machine.Report{Fence: c.Token.Fence, Worker: worker, Kind: machine.OutcomeUnchanged}
	if result != "" {
		ev.Kind, ev.Result = machine.OutcomeResult, json(result)
	}
	s.must(s.update(on(c), c.Token.Instance, func(w *store.World) (*machine.Changes, error) {
		return m.Report(s.env(w.Now), w.State(c.Token.Instance, c.Token.ID), ev)
	}))
}

// cancel cancels an instance, without loading its tokens (ENG-24).
func (s *shard) cancel(m *machine.Machine, id machine.ID) {
	s.Helper()
	s.must(s.update(store.Keys{Instances: []machine.ID{id}}, id, func(w *store.World) (*machine.Changes, error) {
		return m.Cancel(s.env(w.Now), w.Instance(id), "because")
	}))
}

// wake wakes a token that is due.
func (s *shard) wake(m *machine.Machine, ref store.TokenRef) {
	s.Helper()
	keys := store.Keys{Instances: []machine.ID{ref.Instance}, Tokens: []machine.ID{ref.Token}}
	s.must(s.update(keys, ref.Instance, func(w *store.World) (*machine.Changes, error) {
		return m.Wake(s.env(w.Now), w.State(ref.Instance, ref.Token))
	}))
}

// view reads an instance with up to 100 tokens.
func (s *shard) view(id machine.ID) store.InstanceView {
	s.Helper()
	v, err := s.Instance(s.Context(), id, 100)
	s.must(err)
	return v
}

// expect checks an instance's state and context.
func (s *shard) expect(id machine.ID, state machine.InstanceState, context string) {
	s.Helper()
	v := s.view(id)
	if v.Instance.State != state || string(v.Instance.Context.Data) != context {
		s.Errorf("instance is %s with %s, want %s with %s", v.Instance.State, v.Instance.Context.Data, state, context)
	}
	if state.Terminal() && (v.Active != 0 || len(v.Tokens) != 0) {
		s.Errorf("the ended instance has %d tokens", v.Active)
	}
}

// kinds lists an instance's history.
func (s *shard) kinds(id machine.ID) []wigglev1.HistoryKind {
	s.Helper()
	rows, err := s.History(s.Context(), id, store.HistoryKey{}, 100_000)
	s.must(err)
	kinds := make([]wigglev1.HistoryKind, len(rows))
	for i, r := range rows {
		kinds[i] = r.Entry.GetKind()
	}
	return kinds
}

func json(text string) machine.Payload { return machine.Payload{Data: []byte(text)} }

// compile makes the machine of a definition.
func compile(name string, version int32, start string, nodes map[string]*wigglev1.Node) *machine.Machine {
	graph, problems := definition.Analyze(&wigglev1.Definition{Name: name, Version: version, Start: start, Nodes: nodes})
	if problems != nil {
		panic(problems)
	}
	return machine.New(graph)
}

// one is a workflow of one step. The functions change the step.
func one(name string, version int32, change ...func(*wigglev1.Step)) *machine.Machine {
	step := &wigglev1.Step{}
	for _, f := range change {
		f(step)
	}
	return compile(name, version, "a", map[string]*wigglev1.Node{"a": task("end", step), "end": end()})
}

func queue(name string) func(*wigglev1.Step) { return func(s *wigglev1.Step) { s.Queue = name } }

func attempts(n int32) func(*wigglev1.Step) {
	return func(s *wigglev1.Step) { s.Retry = &wigglev1.RetryPolicy{MaxAttempts: n} }
}

func timeout(d time.Duration) func(*wigglev1.Step) {
	return func(s *wigglev1.Step) { s.Timeout = durationpb.New(d) }
}

// chain is a workflow of two steps.
func chain() *machine.Machine {
	return compile("chain", 1, "a", map[string]*wigglev1.Node{"a": task("b", nil), "b": task("end", nil), "end": end()})
}

// forEach is a workflow over the elements of its input.
func forEach(maxInFlight int32) *machine.Machine {
	return compile("for-each", 1, "each", map[string]*wigglev1.Node{
		"each": each(maxInFlight), "body": task("join", nil), "join": join("combine"), "combine": task("end", nil), "end": end(),
	})
}

func task(next string, step *wigglev1.Step) *wigglev1.Node {
	return &wigglev1.Node{Kind: &wigglev1.Node_Task{Task: &wigglev1.TaskNode{Step: step, Next: next}}}
}

func end() *wigglev1.Node { return &wigglev1.Node{Kind: &wigglev1.Node_End{End: &wigglev1.EndNode{}}} }

func join(next string) *wigglev1.Node {
	return &wigglev1.Node{Kind: &wigglev1.Node_Join{Join: &wigglev1.JoinNode{Next: next}}}
}

func each(maxInFlight int32) *wigglev1.Node {
	forEach := &wigglev1.ForEachNode{Body: "body", Join: "join", MaxInFlight: maxInFlight}
	return &wigglev1.Node{Kind: &wigglev1.Node_ForEach{ForEach: forEach}}
}
