package machine_test

import (
	"errors"
	"fmt"
	"hash/fnv"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/durationpb"
	"pgregory.net/rapid"

	"github.com/wiggle-run/wiggle/proto/definition"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	"github.com/wiggle-run/wiggle/services/instances/internal/machine"
)

var batchedDefaults = &wigglev1.Defaults{Mode: wigglev1.Mode_MODE_BATCHED}

// answerTo is what a step is reported with. It depends on nothing but the step and its
// context, so that it is the same in every mode and order.
func answerTo(m *machine.Machine, node string, view machine.Payload) machine.Report {
	h := fnv.New64a()
	fmt.Fprintf(h, "%s\x00%s", node, view.Data)
	n := h.Sum64() >> 7
	switch m.Graph().Node(node).Kind {
	case definition.KindGate:
		return machine.Report{Kind: machine.OutcomeGate, Gate: n%3 != 0}
	case definition.KindChoose:
		return machine.Report{Kind: machine.OutcomeChoice, Choice: []string{"a", "b", "other"}[n%3]}
	default:
		if n%4 == 0 {
			return machine.Report{Kind: machine.OutcomeUnchanged}
		}
		items := strings.Repeat(fmt.Sprintf(`,{"v":%d,"items":[1]}`, n%1000), int(n%3))
		return machine.Report{Kind: machine.OutcomeResult, Result: machine.Payload{
			Data: fmt.Appendf(nil, `{"n":%d,"items":[%s]}`, n%1000, strings.TrimPrefix(items, ",")),
		}}
	}
}

// batch draws how far a worker goes on by itself from a leased token, and checks on the
// way that nothing else than what follows is taken.
func (s *shardSim) batch(t *machine.Token, first machine.Report) []machine.Following {
	var following []machine.Following
	for {
		ids := s.ids
		c, err := s.m.ReportBatch(s.env(), s.state(t.ID), first, following)
		s.ids = ids
		if err != nil {
			s.t.Fatalf("a batch of %d: %v", len(following), err)
		}
		s.checkTimes(c, len(following))
		i := slices.IndexFunc(c.Updated, func(u *machine.Token) bool { return u.ID == t.ID })
		next := c.Updated[i]
		goesOn := !c.Ended && next.State == machine.Ready && next.DueAt.IsZero() && next.Width == 0
		if rapid.IntRange(0, 4).Draw(s.t, "lie") == 0 {
			s.lie(t, first, following, next.Node, goesOn)
		}
		if !goesOn || rapid.IntRange(0, 4).Draw(s.t, "cut") == 0 {
			return following
		}
		report := answerTo(s.m, next.Node, next.View)
		report.StartedAt = s.now.Add(time.Duration(rapid.IntRange(-5, 5).Draw(s.t, "skew")) * time.Second)
		following = append(following, machine.Following{Node: next.Node, Report: report})
	}
}

// lie adds a step at another node than the token's, or where there is none to be had.
func (s *shardSim) lie(t *machine.Token, first machine.Report, following []machine.Following, node string, goesOn bool) {
	other := rapid.SampledFrom(s.m.Graph().Nodes).Draw(s.t, "node").ID
	if other == node && goesOn {
		return
	}
	before, ids := s.snapshot(), s.ids
	following = append(slices.Clone(following), machine.Following{Node: other, Report: machine.Report{Kind: machine.OutcomeUnchanged}})
	c, err := s.m.ReportBatch(s.env(), s.state(t.ID), first, following)
	s.ids = ids
	if wrong, ok := errors.AsType[*machine.BatchError](err); !ok || c != nil || wrong.Node != other {
		s.t.Fatalf("a step at %q, where the token is not, was answered with %+v, %v", other, c, err)
	}
	if d := cmp.Diff(before, s.snapshot(), protocmp.Transform()); d != "" {
		s.t.Fatalf("a refused batch changed what was loaded: %s", d)
	}
}

// checkTimes holds the times of steps that followed against each other (WRK-16).
func (s *shardSim) checkTimes(c *machine.Changes, following int) {
	var steps []*wigglev1.HistoryEntry
	for _, e := range c.History {
		if e.Value.GetStep() != "" {
			steps = append(steps, e.Value)
		}
	}
	if len(steps) != following+1 {
		s.t.Fatalf("a batch of %d steps made %d entries", following+1, len(steps))
	}
	for _, e := range steps[1:] {
		queued, dispatched, started := e.GetQueuedAt().AsTime(), e.GetDispatchedAt().AsTime(), e.GetStartedAt().AsTime()
		if queued.After(dispatched) || dispatched.After(started) || dispatched.After(s.now) || e.GetWorker() != "worker" || e.GetAttempt() != 1 {
			s.t.Fatalf("WRK-16: a step that followed has %v", e)
		}
	}
}

// play runs an instance to its end, one step at a time or in batches with random cuts.
func (s *shardSim) play(batches bool) []string {
	c, err := s.m.Start(s.env(), machine.Start{ID: s.env().NewID(), Input: machine.Payload{Data: []byte(`{"items":[{"items":[1,2]},2]}`)}})
	s.must(c, err)
	for !s.instance.State.Terminal() {
		ready := s.in(func(t *machine.Token) bool { return t.State == machine.Ready && t.DueAt.IsZero() })
		if len(ready) == 0 {
			s.wakeAll()
			continue
		}
		leased := ready[0]
		if batches {
			leased = rapid.SampledFrom(ready).Draw(s.t, "ready")
		}
		leased = s.claim(leased)
		report := answerTo(s.m, leased.Node, leased.View)
		report.Fence = leased.Fence
		var following []machine.Following
		if batches {
			following = s.batch(leased, report)
		}
		c, err := s.m.ReportBatch(s.env(), s.state(leased.ID), report, following)
		s.must(c, err)
		s.check()
	}
	s.checkHistory()
	var story []string
	for _, e := range s.history {
		v := e.Value
		story = append(story, fmt.Sprint(v.GetKind(), v.GetNode(), v.GetStep(), v.GetAttempt(), v.GetBranch(), v.GetBranches(), v.GetAnswer(),
			string(v.GetOutput().GetData()), v.GetFailure().GetType(), e.Position, e.Fence, e.By))
	}
	slices.Sort(story)
	return story
}

// wakeAll lets a minute pass.
func (s *shardSim) wakeAll() {
	s.now = s.now.Add(time.Minute)
	for _, t := range s.in(func(t *machine.Token) bool { return !t.DueAt.IsZero() }) {
		if st := s.state(t.ID); st.Token != nil && !s.instance.State.Terminal() {
			if c, err := s.m.Wake(s.env(), st); !errors.Is(err, machine.ErrNotDue) {
				s.must(c, err)
			}
		}
	}
}

// TestBatchesEndAsSingleSteps: whatever the cuts, batches bring a random definition to
// the same end by the same history as steps that are reported one by one (WRK-14).
func TestBatchesEndAsSingleSteps(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		def := drawDefinition(t)
		def.Defaults = batchedDefaults
		single, batched := newSim(t, def), newSim(t, def)
		want, got := single.play(false), batched.play(true)
		if d := cmp.Diff(want, got); d != "" {
			t.Fatalf("the histories differ: %s", d)
		}
		if a, b := single.instance, batched.instance; a.State != b.State || string(a.Context.Data) != string(b.Context.Data) {
			t.Fatalf("single steps end %s with %s, batches %s with %s", a.State, a.Context.Data, b.State, b.Context.Data)
		}
	})
}

// batchedRun starts a batched workflow and claims its first step.
func batchedRun(t *testing.T, input string, nodes map[string]*wigglev1.Node) (*run, machine.Report) {
	t.Helper()
	r := startDefinition(t, &wigglev1.Definition{Name: "test", Version: 1, Start: "a", Nodes: nodes, Defaults: batchedDefaults}, input)
	first := result(input)
	first.Fence = r.claim("a").Fence
	return r, first
}

func follow(node string, rep machine.Report) machine.Following {
	return machine.Following{Node: node, Report: rep}
}

// TestBatchTransitions: what may be in a batch, and what it leads to.
func TestBatchTransitions(t *testing.T) {
	t.Parallel()
	nap := &wigglev1.Node{Kind: &wigglev1.Node_Sleep{Sleep: &wigglev1.SleepNode{
		Until: &wigglev1.SleepNode_Duration{Duration: durationpb.New(0)}, Next: "c",
	}}}
	nodes := map[string]*wigglev1.Node{
		"a": task("b"), "b": gate("each", "nap"), "each": forEach("", "item", 0), "item": task("join"), "join": join("m"), "m": task("c"),
		"nap": nap, "c": gate("end", ""), "end": end(),
	}
	r, first := batchedRun(t, `[1,2]`, nodes)
	c, err := r.m.ReportBatch(r.env(), r.state(machine.ID{1}), first, []machine.Following{follow("b", answer(true))})
	r.put(c, err)
	if len(c.Created) != 2 || len(c.Updated) != 1 || c.Updated[0].State != machine.Joined || c.Updated[0].Fence != 2 {
		t.Fatalf("a fan-out behind a batch: %+v", c)
	}
	// A combine begins a batch, whose last step leads to no fan-out: its branches go.
	for range 2 {
		r.report("item", result(`3`))
	}
	combined := result(`[]`)
	combined.Fence = r.claim("m").Fence
	c, err = r.m.ReportBatch(r.env(), r.state(machine.ID{1}), combined, []machine.Following{follow("c", answer(false))})
	r.put(c, err)
	if len(c.Merged) != 1 || !c.Ended {
		t.Fatalf("a combine and what follows: %+v", c)
	}
	r.ended(machine.Completed, "", "")

	// A pause without length, and a for_each over nothing, are passed at once.
	r, first = batchedRun(t, `[]`, nodes)
	c, err = r.m.ReportBatch(r.env(), r.state(machine.ID{1}), first, []machine.Following{
		follow("b", answer(true)), follow("c", answer(true)),
	})
	r.put(c, err)
	r.ended(machine.Completed, "", "")
}

// TestBatchRefusals: a batch that does not fit is refused as a whole.
func TestBatchRefusals(t *testing.T) {
	t.Parallel()
	nodes := func() map[string]*wigglev1.Node {
		return map[string]*wigglev1.Node{"a": task("b"), "b": gate("c", "a"), "c": task("end"), "end": end()}
	}
	large := machine.Payload{Data: make([]byte, machine.DefaultLimits().PayloadBytes+1)}
	back := []machine.Following{follow("b", answer(false)), follow("a", result(`1`))}
	for name, c := range map[string]struct {
		following []machine.Following
		want      string
	}{
		"another node":     {[]machine.Following{follow("c", result(`1`))}, `run at node "c" of workflow test version 1, but the token is READY at node "b"`},
		"no node":          {[]machine.Following{follow("nowhere", result(`1`))}, `the token is READY at node "b"`},
		"after the end":    {[]machine.Following{follow("b", answer(true)), follow("c", result(`1`)), follow("end", result(`1`))}, "the instance is COMPLETED"},
		"an outcome":       {[]machine.Following{follow("b", result(`1`))}, `step at node "b" is a gate and was reported with result`},
		"a limit":          {[]machine.Following{follow("b", answer(true)), follow("c", machine.Report{Kind: machine.OutcomeResult, Result: large})}, "over the limit"},
		"a loop's budget":  {slices.Concat(back, back, back, back), "the instance is FAILED"},
		"nothing of these": {back, ""},
	} {
		r, first := batchedRun(t, `1`, nodes())
		before := r.tokens[machine.ID{1}].Clone()
		changes, err := r.m.ReportBatch(r.env(), r.state(machine.ID{1}), first, c.following)
		if c.want == "" {
			r.put(changes, err)
			continue
		}
		if changes != nil || err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %+v, %v, want %q", name, changes, err, c.want)
		}
		if d := cmp.Diff(before, r.tokens[machine.ID{1}], protocmp.Transform()); d != "" {
			t.Errorf("%s: the token changed: %s", name, d)
		}
	}
	// The same steps of a durable workflow.
	r := start(t, "a", nodes(), `1`)
	first := result(`1`)
	first.Fence = r.claim("a").Fence
	_, err := r.m.ReportBatch(r.env(), r.state(machine.ID{1}), first, back)
	if wrong, ok := errors.AsType[*machine.BatchError](err); !ok || wrong.Node != "" || !strings.Contains(err.Error(), "workflow test version 1 is durable") {
		t.Errorf("a batch of a durable workflow: %v", err)
	}
}

// TestBatchLease: a batch is as its first report: repeated it is known, late it is
// refused (WRK-4, WRK-5).
func TestBatchLease(t *testing.T) {
	t.Parallel()
	r, first := batchedRun(t, `1`, map[string]*wigglev1.Node{"a": task("b"), "b": task("c"), "c": task("end"), "end": end()})
	following := []machine.Following{follow("b", result(`2`))}
	late := first
	late.Fence = 7
	if _, err := r.m.ReportBatch(r.env(), r.state(machine.ID{1}), late, following); !errors.Is(err, machine.ErrLeaseLost) {
		t.Errorf("a late batch: %v", err)
	}
	c, err := r.m.ReportBatch(r.env(), r.state(machine.ID{1}), first, following)
	r.put(c, err)
	if tok := r.at("c"); tok.State != machine.Ready || tok.Fence != 2 || tok.Settled.Fence != 2 || tok.Position != 2 || string(tok.View.Data) != `2` {
		t.Errorf("after the batch the token is %+v", tok)
	}
	for i, e := range c.History {
		if e.Fence != int64(i+1) || e.Position != int32(i) || e.By != machine.ByReport {
			t.Errorf("entry %d is %+v", i, e)
		}
	}
}
