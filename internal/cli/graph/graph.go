// Package graph writes the graph of a workflow as a table for people.
package graph

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"

	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	wiggle "github.com/wiggle-run/wiggle/sdk/go"
)

// Text is a definition as a table: each node, what it is, and where it leads, in the order in which they are reached.
func Text(def *wiggle.Definition) string {
	graph := def.Proto()
	var out strings.Builder
	t := tabwriter.NewWriter(&out, 0, 0, 2, ' ', 0)
	row := func(node, kind, leadsTo string) { _, _ = fmt.Fprintf(t, "%s\t%s\t%s\n", node, kind, leadsTo) }
	row("NODE", "KIND", "LEADS TO")
	for _, id := range reached(graph) {
		kind, edges := nodeEdges(graph.GetNodes()[id])
		texts := make([]string, len(edges))
		for i, e := range edges {
			texts[i] = e.String()
		}
		leadsTo := "-"
		if len(texts) > 0 {
			leadsTo = strings.Join(texts, ", ")
		}
		row(id, kind, leadsTo)
	}
	_ = t.Flush() // into memory
	return strings.TrimRight(out.String(), "\n")
}

// edge is a way out of a node; label says when it is taken, empty for always.
type edge struct{ label, to string }

func (e edge) String() string {
	if e.label == "" {
		return e.to
	}
	return e.label + ": " + e.to
}

// reached lists the nodes depth first from the start, then any others.
func reached(graph *wigglev1.Definition) []string {
	var order []string
	seen := map[string]bool{}
	var visit func(id string)
	visit = func(id string) {
		node := graph.GetNodes()[id]
		if node == nil || seen[id] {
			return
		}
		seen[id] = true
		order = append(order, id)
		_, edges := nodeEdges(node)
		for _, e := range edges {
			visit(e.to)
		}
	}
	visit(graph.GetStart())
	for _, id := range slices.Sorted(maps.Keys(graph.GetNodes())) {
		visit(id)
	}
	return order
}

// nodeEdges is what a node is, and its ways out in a steady order.
func nodeEdges(node *wigglev1.Node) (kind string, edges []edge) {
	switch n := node.GetKind().(type) {
	case *wigglev1.Node_Task:
		if n.Task.GetEffect() {
			return "effect", []edge{{"", n.Task.GetNext()}}
		}
		return "task", []edge{{"", n.Task.GetNext()}}
	case *wigglev1.Node_Gate:
		edges = []edge{{"true", n.Gate.GetNext()}}
		if n.Gate.GetOtherwise() != "" {
			edges = append(edges, edge{"false", n.Gate.GetOtherwise()})
		}
		return "gate", edges
	case *wigglev1.Node_Choose:
		for _, name := range slices.Sorted(maps.Keys(n.Choose.GetCases())) {
			edges = append(edges, edge{name, n.Choose.GetCases()[name]})
		}
		if n.Choose.GetDefault() != "" {
			edges = append(edges, edge{"default", n.Choose.GetDefault()})
		}
		return "choose", edges
	case *wigglev1.Node_Sleep:
		return "sleep " + sleepText(n.Sleep), []edge{{"", n.Sleep.GetNext()}}
	case *wigglev1.Node_Fork:
		for _, b := range n.Fork.GetBranches() {
			edges = append(edges, edge{b.GetName(), b.GetStart()})
		}
		return "fork", append(edges, edge{"join", n.Fork.GetJoin()})
	case *wigglev1.Node_ForEach:
		return "for each of " + n.ForEach.GetItems(), []edge{{"body", n.ForEach.GetBody()}, {"join", n.ForEach.GetJoin()}}
	case *wigglev1.Node_Join:
		return "join", []edge{{"", n.Join.GetNext()}}
	case *wigglev1.Node_End:
		if n.End.GetFailed() {
			return "end, failed: " + n.End.GetReason(), nil
		}
		return "end", nil
	}
	return "unknown", nil
}

func sleepText(n *wigglev1.SleepNode) string {
	if n.GetInstant() != "" {
		return "until " + n.GetInstant()
	}
	return n.GetDuration().AsDuration().String()
}
