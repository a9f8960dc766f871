package wiggle

import (
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
)

// graph is a definition in the making. Ids of server-run nodes derive from the
// step before them (or from their combine), so that the same program always makes
// the same graph.
type graph struct {
	draft  *draft
	def    *wigglev1.Definition
	places map[string]string // by node id
	prev   string            // what the next derived id builds on
}

// edges are ends that wait to be told which node they lead to.
type edges []func(id string)

func (e edges) to(id string) {
	for _, set := range e {
		set(id)
	}
}

func (g *graph) node(id, at string, n *wigglev1.Node) {
	g.def.Nodes[id] = n
	g.places[id] = at
}

// chain builds statement after statement and returns the edges that go on.
func (g *graph) chain(f *Flow, prev string, in edges) edges {
	outer := g.prev
	g.prev = prev
	for _, s := range f.stmts {
		if len(in) == 0 {
			g.draft.problemf(s.place(), "%s can not be reached: every way before it has ended", s.what())
			break
		}
		in = s.build(g, in)
	}
	g.prev = outer
	return in
}

func (s *taskStmt) build(g *graph, in edges) edges {
	return s.step.task(g, in, s.effect)
}

// proto is nil for a step that sets nothing.
func (s *step) proto() *wigglev1.Step {
	if proto.Size(s.settings) == 0 {
		return nil
	}
	return s.settings
}

func (s *step) task(g *graph, in edges, effect bool) edges {
	n := &wigglev1.TaskNode{Step: s.proto(), Effect: effect}
	g.node(s.id, s.at, &wigglev1.Node{Kind: &wigglev1.Node_Task{Task: n}})
	in.to(s.id)
	g.prev = s.id
	return edges{func(id string) { n.Next = id }}
}

func (s *step) gate(g *graph, in edges, budget int32) (yes, no edges) {
	n := &wigglev1.GateNode{Step: s.proto(), LoopBudget: budget}
	g.node(s.id, s.at, &wigglev1.Node{Kind: &wigglev1.Node_Gate{Gate: n}})
	in.to(s.id)
	g.prev = s.id
	return edges{func(id string) { n.Next = id }}, edges{func(id string) { n.Otherwise = id }}
}

func (s *gateStmt) build(g *graph, in edges) edges {
	yes, no := s.step.gate(g, in, 0)
	if s.then != nil {
		yes = g.chain(s.then, s.id, yes)
	}
	switch {
	case s.otherwise != nil:
		return append(yes, g.chain(s.otherwise, s.id+".otherwise", no)...)
	case s.branches:
		return append(yes, no...)
	}
	return yes
}

func (s *chooseStmt) build(g *graph, in edges) edges {
	n := &wigglev1.ChooseNode{Step: s.proto(), Cases: map[string]string{}}
	g.node(s.id, s.at, &wigglev1.Node{Kind: &wigglev1.Node_Choose{Choose: n}})
	in.to(s.id)
	if len(s.cases) == 0 {
		g.draft.problemf(s.at, "choose %q has no Case", s.name)
	}
	var out edges
	for _, c := range s.cases {
		set := func(id string) { n.Cases[c.name] = id }
		out = append(out, g.chain(c.flow, s.id+"."+slug(c.name), edges{set})...)
	}
	if s.fallback != nil {
		set := func(id string) { n.Default = id }
		out = append(out, g.chain(s.fallback, s.id+".default", edges{set})...)
	}
	g.prev = s.id
	return out
}

func (s *sleepStmt) build(g *graph, in edges) edges {
	n := &wigglev1.SleepNode{}
	if s.until {
		n.Until = &wigglev1.SleepNode_Instant{Instant: s.instant}
	} else {
		n.Until = &wigglev1.SleepNode_Duration{Duration: durationpb.New(s.duration)}
	}
	id := g.draft.id(g.prev + ".sleep")
	g.node(id, s.at, &wigglev1.Node{Kind: &wigglev1.Node_Sleep{Sleep: n}})
	in.to(id)
	return edges{func(next string) { n.Next = next }}
}

func (s *forkStmt) build(g *graph, in edges) edges {
	name := "fork"
	if s.combine != nil {
		name = s.combine.id
	}
	id, join := g.draft.id(name+".fork"), g.draft.id(name+".join")
	n := &wigglev1.ForkNode{Join: join}
	g.node(id, s.at, &wigglev1.Node{Kind: &wigglev1.Node_Fork{Fork: n}})
	in.to(id)
	for _, b := range s.branches {
		branch := &wigglev1.Branch{Name: b.name}
		n.Branches = append(n.Branches, branch)
		start := func(id string) { branch.Start = id }
		g.chain(b.flow, slug(b.name), edges{start}).to(join)
	}
	return g.join(s, join, s.combine)
}

func (s *forEachStmt) build(g *graph, in edges) edges {
	name := "for-each"
	if s.combine != nil {
		name = s.combine.id
	}
	id, join := g.draft.id(name+".each"), g.draft.id(name+".join")
	n := &wigglev1.ForEachNode{Items: s.items, Join: join, MaxInFlight: s.maxInFlight}
	g.node(id, s.at, &wigglev1.Node{Kind: &wigglev1.Node_ForEach{ForEach: n}})
	in.to(id)
	g.chain(s.body, id, edges{func(id string) { n.Body = id }}).to(join)
	return g.join(s, join, s.combine)
}

func (g *graph) join(s stmt, id string, combine *step) edges {
	n := &wigglev1.JoinNode{}
	g.node(id, s.place(), &wigglev1.Node{Kind: &wigglev1.Node_Join{Join: n}})
	out := edges{func(next string) { n.Next = next }}
	if combine == nil {
		g.draft.problemf(s.place(), "%s has no Combine: say .Combine(name), the step that makes its results into one context", s.what())
		return out
	}
	return combine.task(g, out, false)
}

func (s *repeatStmt) build(g *graph, in edges) edges {
	if s.gate == nil {
		g.draft.problemf(s.at, "Repeat has no gate: say .Until(name) or .While(name)")
		return in
	}
	// The first node of the loop is only known once its chain is built: it is what
	// the edges that come in are led to.
	var first string
	in = append(in, func(id string) { first = id })
	out := g.chain(s.body, s.gate.id+".loop", in)
	if len(out) == 0 {
		g.draft.problemf(s.gate.at, "gate %q can not be reached: every way through its Repeat has ended", s.gate.name)
		return nil
	}
	yes, no := s.gate.gate(g, out, s.budget)
	if s.until {
		no.to(first)
		return yes
	}
	yes.to(first)
	return no
}

func (s *endStmt) build(g *graph, in edges) edges {
	suffix := ".end"
	if s.failed {
		suffix = ".fail"
	}
	id := g.draft.id(g.prev + suffix)
	g.end(id, s.at, s.failed, s.reason)
	in.to(id)
	return nil
}

func (g *graph) end(id, at string, failed bool, reason string) {
	n := &wigglev1.EndNode{Failed: failed, Reason: reason}
	g.node(id, at, &wigglev1.Node{Kind: &wigglev1.Node_End{End: n}})
}
