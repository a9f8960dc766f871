package definition

import (
	"fmt"
	"maps"
	"slices"
	"unicode/utf8"

	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
)

// resolveNodes checks each node by itself and notes its edges.
func (b *builder) resolveNodes() {
	for i := range b.nodes {
		id := b.nodes[i].ID
		if why := badName(id); why != "" {
			b.node(id, "the id %s", why)
		}
		b.resolveNode(i, b.def.GetNodes()[id])
	}
}

func (b *builder) resolveNode(i int, m *wigglev1.Node) {
	report := b.reporter(i)
	known := b.known(m, report)
	// A wrapper that is a typed nil counts as no kind, and a wrapper around
	// nothing as one around an empty message: neither comes off the wire.
	switch k := m.GetKind().(type) {
	case *wigglev1.Node_Task:
		if k != nil {
			b.resolveTask(i, k.Task)
		}
	case *wigglev1.Node_Gate:
		if k != nil {
			b.resolveGate(i, k.Gate)
		}
	case *wigglev1.Node_Choose:
		if k != nil {
			b.resolveChoose(i, k.Choose)
		}
	case *wigglev1.Node_Sleep:
		if k != nil {
			b.resolveSleep(i, k.Sleep)
		}
	case *wigglev1.Node_Fork:
		if k != nil {
			b.resolveFork(i, k.Fork)
		}
	case *wigglev1.Node_ForEach:
		if k != nil {
			b.resolveForEach(i, k.ForEach)
		}
	case *wigglev1.Node_Join:
		if k != nil {
			b.resolveJoin(i, k.Join)
		}
	case *wigglev1.Node_End:
		if k != nil {
			b.resolveEnd(i, k.End)
		}
	}
	if b.nodes[i].Kind == 0 && known {
		report("has no kind: it must be one of task, gate, choose, sleep, fork, for_each, join and end")
	}
}

// reporter notes problems of a node.
func (b *builder) reporter(i int) reporter {
	return func(format string, args ...any) { b.node(b.nodes[i].ID, format, args...) }
}

// edge notes an edge of a node, or reports that it leads nowhere.
func (b *builder) edge(from int, e edge, id string, required bool) {
	if id == "" {
		if required {
			b.node(b.nodes[from].ID, "%s is missing", e.label)
		}
		return
	}
	to, ok := b.graph.byID[id]
	if !ok {
		b.node(b.nodes[from].ID, "%s: %s is not a node%s", e.label, quote(id), b.nearest.hint(id))
		return
	}
	e.to = to
	b.out[from] = append(b.out[from], e)
}

func (b *builder) resolveTask(i int, m *wigglev1.TaskNode) {
	n := &b.nodes[i]
	n.Kind, n.Next, n.Effect = KindTask, m.GetNext(), m.GetEffect()
	b.known(m, b.reporter(i))
	n.Step = b.resolveStep(i, m.GetStep())
	b.edge(i, edge{label: "next"}, n.Next, true)
}

func (b *builder) resolveGate(i int, m *wigglev1.GateNode) {
	n := &b.nodes[i]
	n.Kind, n.Next, n.Otherwise = KindGate, m.GetNext(), m.GetOtherwise()
	b.known(m, b.reporter(i))
	n.Step = b.resolveStep(i, m.GetStep())
	b.edge(i, edge{label: "next"}, n.Next, true)
	b.edge(i, edge{label: "otherwise"}, n.Otherwise, false)
	n.LoopBudget = int(m.GetLoopBudget())
	if n.LoopBudget < 0 {
		b.node(n.ID, "loop_budget %d must be 0 or more; 0 means %d", n.LoopBudget, DefaultLoopBudget)
	}
	if n.LoopBudget == 0 {
		n.LoopBudget = DefaultLoopBudget
	}
}

func (b *builder) resolveChoose(i int, m *wigglev1.ChooseNode) {
	n := &b.nodes[i]
	n.Kind, n.Default = KindChoose, m.GetDefault()
	b.known(m, b.reporter(i))
	n.Step = b.resolveStep(i, m.GetStep())
	if len(m.GetCases()) == 0 {
		b.node(n.ID, "has no cases")
	}
	for _, name := range slices.Sorted(maps.Keys(m.GetCases())) {
		next := m.GetCases()[name]
		if why := badLabel(name); why != "" {
			b.node(n.ID, "the name of case %s %s", quote(name), why)
		}
		n.Cases = append(n.Cases, Case{Name: name, Next: next})
		b.edge(i, edge{label: "case " + quote(name)}, next, true)
	}
	b.edge(i, edge{label: "default"}, n.Default, false)
}

func (b *builder) resolveSleep(i int, m *wigglev1.SleepNode) {
	n := &b.nodes[i]
	n.Kind, n.Next = KindSleep, m.GetNext()
	report := b.reporter(i)
	known := b.known(m, report)
	set := false
	switch u := m.GetUntil().(type) {
	case *wigglev1.SleepNode_Duration:
		if set = u != nil; set {
			n.SleepFor = b.duration("duration", u.Duration, 0, report)
		}
	case *wigglev1.SleepNode_Instant:
		if set = u != nil; set {
			n.SleepUntil = pointer("instant", u.Instant, report)
		}
	}
	if !set && known {
		report("has neither a duration nor an instant to sleep until")
	}
	b.edge(i, edge{label: "next"}, n.Next, true)
}

func (b *builder) resolveFork(i int, m *wigglev1.ForkNode) {
	n := &b.nodes[i]
	n.Kind, n.Join = KindFork, m.GetJoin()
	report := b.reporter(i)
	b.known(m, report)
	if len(m.GetBranches()) < 2 {
		report("has %d of the two or more branches that a fork needs", len(m.GetBranches()))
	}
	names, starts := map[string]bool{}, map[string]string{}
	for j, branch := range m.GetBranches() {
		name, start := branch.GetName(), branch.GetStart()
		b.known(branch, report)
		n.Branches = append(n.Branches, Branch{Name: name, Start: start})
		label := fmt.Sprintf("branch %d", j+1)
		if why := badLabel(name); why != "" {
			report("the name of %s %s", label, why)
		} else {
			label = "branch " + quote(name)
			if names[name] {
				report("there are two branches with the name %s", quote(name))
			}
		}
		names[name] = true
		if other, ok := starts[start]; ok && start != "" {
			report("%s starts at %s, as %s does", label, quote(start), other)
			continue
		}
		starts[start] = label
		b.edge(i, edge{label: label + ": start", role: roleBranch, branch: j}, start, true)
	}
	b.edge(i, edge{label: "join", role: roleJoin}, n.Join, true)
}

func (b *builder) resolveForEach(i int, m *wigglev1.ForEachNode) {
	n := &b.nodes[i]
	n.Kind, n.Body, n.Join = KindForEach, m.GetBody(), m.GetJoin()
	n.MaxInFlight = int(m.GetMaxInFlight())
	report := b.reporter(i)
	b.known(m, report)
	n.Items = pointer("items", m.GetItems(), report)
	if n.MaxInFlight < 0 {
		report("max_in_flight %d must be 0 or more; 0 means all", n.MaxInFlight)
	}
	b.edge(i, edge{label: "body", role: roleBranch}, n.Body, true)
	b.edge(i, edge{label: "join", role: roleJoin}, n.Join, true)
}

func (b *builder) resolveJoin(i int, m *wigglev1.JoinNode) {
	n := &b.nodes[i]
	n.Kind, n.Next = KindJoin, m.GetNext()
	b.known(m, b.reporter(i))
	if n.Next == "" {
		b.node(n.ID, "the combine is missing: next must name the task that combines the branches' results")
		return
	}
	b.edge(i, edge{label: "next", role: roleCombine}, n.Next, true)
}

func (b *builder) resolveEnd(i int, m *wigglev1.EndNode) {
	n := &b.nodes[i]
	n.Kind, n.Failed, n.Reason = KindEnd, m.GetFailed(), m.GetReason()
	b.known(m, b.reporter(i))
	if !utf8.ValidString(n.Reason) {
		b.node(n.ID, "reason is not valid UTF-8")
	}
}

func pointer(field, text string, report reporter) *Pointer {
	p, err := ParsePointer(text)
	if err != nil {
		report("%s is not a JSON Pointer: %v", field, err)
	}
	return p
}
