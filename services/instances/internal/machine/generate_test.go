package machine_test

import (
	"fmt"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"pgregory.net/rapid"

	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
)

// generator draws random valid definitions: chains of every kind of node, nested
// in forks and for_eachs to any order.
type generator struct {
	t     *rapid.T
	def   *wigglev1.Definition
	count int
}

const (
	maxDepth = 3
	maxNodes = 60
)

func drawDefinition(t *rapid.T) *wigglev1.Definition {
	g := &generator{t: t, def: &wigglev1.Definition{Name: "random", Version: 1, Nodes: map[string]*wigglev1.Node{}}}
	end := g.add("end", &wigglev1.Node{Kind: &wigglev1.Node_End{End: &wigglev1.EndNode{}}})
	g.def.Start = g.chain(end, 0)
	return g.def
}

func (g *generator) add(kind string, n *wigglev1.Node) string {
	g.count++
	id := fmt.Sprintf("%s-%d", kind, g.count)
	g.def.Nodes[id] = n
	return id
}

func (g *generator) pick(label string, n int) int { return rapid.IntRange(0, n-1).Draw(g.t, label) }

// chain draws one to three nodes that lead to next, and returns the first.
func (g *generator) chain(next string, depth int) string {
	for range 1 + g.pick("length", 3) {
		next = g.node(next, depth)
	}
	return next
}

func (g *generator) node(next string, depth int) string {
	kinds := 7
	if depth >= maxDepth || g.count > maxNodes {
		kinds = 5
	}
	switch g.pick("kind", kinds) {
	case 0:
		return g.task(next)
	case 1:
		return g.add("effect", &wigglev1.Node{Kind: &wigglev1.Node_Task{Task: &wigglev1.TaskNode{Next: next, Effect: true}}})
	case 2:
		return g.gate(next)
	case 3:
		return g.choose(next)
	case 4:
		d := durationpb.New(time.Duration(g.pick("sleep", 3)) * time.Minute)
		return g.add("sleep", &wigglev1.Node{Kind: &wigglev1.Node_Sleep{Sleep: &wigglev1.SleepNode{
			Until: &wigglev1.SleepNode_Duration{Duration: d}, Next: next,
		}}})
	case 5:
		return g.fork(next, depth)
	default:
		return g.forEach(next, depth)
	}
}

func (g *generator) task(next string) string {
	step := &wigglev1.Step{}
	if g.pick("retry", 3) == 0 {
		step.Retry = &wigglev1.RetryPolicy{MaxAttempts: int32(1 + g.pick("attempts", 3))}
	}
	return g.add("task", &wigglev1.Node{Kind: &wigglev1.Node_Task{Task: &wigglev1.TaskNode{Step: step, Next: next}}})
}

func (g *generator) gate(next string) string {
	gate := &wigglev1.GateNode{Next: next}
	if g.pick("otherwise", 2) == 0 {
		gate.Otherwise = g.task(next)
	}
	return g.add("gate", &wigglev1.Node{Kind: &wigglev1.Node_Gate{Gate: gate}})
}

func (g *generator) choose(next string) string {
	return g.add("choose", &wigglev1.Node{Kind: &wigglev1.Node_Choose{Choose: &wigglev1.ChooseNode{
		Cases: map[string]string{"a": g.task(next), "b": next}, Default: next,
	}}})
}

// closing draws the join and combine of a fan-out.
func (g *generator) closing(next string) string {
	return g.add("join", &wigglev1.Node{Kind: &wigglev1.Node_Join{Join: &wigglev1.JoinNode{Next: g.task(next)}}})
}

func (g *generator) fork(next string, depth int) string {
	join := g.closing(next)
	fork := &wigglev1.ForkNode{Join: join}
	for i := range 2 + g.pick("branches", 2) {
		fork.Branches = append(fork.Branches, &wigglev1.Branch{Name: fmt.Sprintf("b%d", i), Start: g.chain(join, depth+1)})
	}
	return g.add("fork", &wigglev1.Node{Kind: &wigglev1.Node_Fork{Fork: fork}})
}

func (g *generator) forEach(next string, depth int) string {
	join := g.closing(next)
	return g.add("each", &wigglev1.Node{Kind: &wigglev1.Node_ForEach{ForEach: &wigglev1.ForEachNode{
		Items: "/items", Body: g.chain(join, depth+1), Join: join, MaxInFlight: int32(g.pick("in flight", 3)),
	}}})
}
