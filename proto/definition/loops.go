package definition

import "strings"

// loopGraph is the nodes with the edges that stay within a scope, where a fan-out
// counts as one edge to its join.
type loopGraph struct {
	b   *builder
	out [][]arc
}

// arc is an edge of the loop graph.
type arc struct {
	to    int
	index int // in builder.out of its node
}

func (b *builder) loopGraph() *loopGraph {
	g := &loopGraph{b: b, out: make([][]arc, len(b.nodes))}
	for u := range b.nodes {
		for i, e := range b.out[u] {
			if b.stays(u, e) {
				g.out[u] = append(g.out[u], arc{e.to, i})
			}
		}
	}
	return g
}

// stays tells whether an edge stays within its node's scope. Edges that are
// reported as leaving it are left out: what they would close is no loop to report.
func (b *builder) stays(u int, e edge) bool {
	if b.scopes.of != nil && (b.scopes.of[u] == none || b.scopes.of[u] != b.scopes.of[e.to]) {
		return false
	}
	switch {
	case e.cut || e.role == roleBranch:
		return false
	case e.role == roleJoin:
		return b.closes[e.to] == u
	case b.nodes[e.to].Kind == KindJoin:
		return false
	}
	return b.combines[e.to] == none || b.combines[e.to] == u
}

// checkLoops finds loops that nothing would stop: those of server-run nodes
// alone, and those without an edge of a gate.
func (b *builder) checkLoops() {
	g := b.loopGraph()
	server := func(u int, a arc) bool {
		return !b.nodes[u].Kind.WorkerRun() && !b.nodes[a.to].Kind.WorkerRun()
	}
	for _, loop := range g.loops(server) {
		u := least(loop)
		b.node(b.nodes[u].ID, "is on a loop of nodes that the server runs, which would never pause for a worker: %s",
			g.cycle(u, loop, server))
	}
	noGate := func(u int, _ arc) bool { return b.nodes[u].Kind != KindGate }
	for _, loop := range g.loops(noGate) {
		var steps []int
		for _, u := range loop {
			if b.nodes[u].Kind.WorkerRun() {
				steps = append(steps, u)
			}
		}
		if len(steps) > 0 { // else reported above
			u := least(steps)
			b.node(b.nodes[u].ID, "is on a loop without a gate, which nothing would bound: %s", g.cycle(u, loop, noGate))
		}
	}
}

// maxLoopRounds bounds how deep loops within loops are told apart.
const maxLoopRounds = 16

// markLoops decides which edges of gates are loop edges, as [Analyze] says.
func (b *builder) markLoops() {
	g := b.loopGraph()
	order := g.markRetreating()
	unmarked := func(u int, a arc) bool { return !b.out[u][a.index].loops }
	for round := 0; ; round++ {
		loops := g.loops(unmarked)
		if len(loops) == 0 {
			break
		}
		for _, loop := range loops {
			in := make(map[int]bool, len(loop))
			for _, u := range loop {
				in[u] = true
			}
			if round == maxLoopRounds {
				for _, u := range loop {
					g.mark(u, in)
				}
				continue
			}
			g.mark(g.gateOf(loop, in, order), in)
		}
	}
	for u := range b.nodes {
		n := &b.nodes[u]
		for _, e := range b.out[u] {
			n.NextLoops = n.NextLoops || (e.loops && e.label == "next")
			n.OtherwiseLoops = n.OtherwiseLoops || (e.loops && e.label == "otherwise")
		}
	}
}

// mark makes loop edges of a gate's edges into a loop.
func (g *loopGraph) mark(u int, in map[int]bool) {
	if g.b.nodes[u].Kind != KindGate {
		return
	}
	for _, a := range g.out[u] {
		if in[a.to] {
			g.b.out[u][a.index].loops = true
		}
	}
}

// gateOf is the gate that bounds a loop: of those by which the loop can be left,
// else of all in it, the first in search order. A valid loop has a gate.
func (g *loopGraph) gateOf(loop []int, in map[int]bool, order []int) int {
	best, leaves := none, false
	for _, u := range loop {
		n := &g.b.nodes[u]
		if n.Kind != KindGate {
			continue
		}
		exit := n.Otherwise == ""
		for _, a := range g.out[u] {
			exit = exit || !in[a.to]
		}
		if best == none || (exit && !leaves) || (exit == leaves && order[u] < order[best]) {
			best, leaves = u, exit
		}
	}
	return best
}

// markRetreating searches depth first from the start of every scope and makes
// loop edges of the gates' edges that lead back on the path of the search. It
// returns the order in which nodes were found.
func (g *loopGraph) markRetreating() []int {
	order, onPath := make([]int, len(g.out)), make([]bool, len(g.out))
	found := 0
	visit := func(root int) {
		type frame struct{ node, next int }
		found++
		order[root], onPath[root] = found, true
		path := []frame{{root, 0}}
		for len(path) > 0 {
			top := &path[len(path)-1]
			if top.next == len(g.out[top.node]) {
				onPath[top.node] = false
				path = path[:len(path)-1]
				continue
			}
			a := g.out[top.node][top.next]
			top.next++
			if onPath[a.to] && g.b.nodes[top.node].Kind == KindGate {
				g.b.out[top.node][a.index].loops = true
			}
			if order[a.to] == 0 {
				found++
				order[a.to], onPath[a.to] = found, true
				path = append(path, frame{a.to, 0})
			}
		}
	}
	visit(g.b.start)
	for u := range g.b.nodes {
		for _, e := range g.b.out[u] {
			if e.role == roleBranch {
				visit(e.to)
			}
		}
	}
	return order
}

// loops returns the strongly connected components that hold a cycle, looking only
// at arcs that use allows (Tarjan's algorithm with a stack of its own).
func (g *loopGraph) loops(use func(int, arc) bool) [][]int {
	t := &tarjan{g: g, use: use, index: make([]int, len(g.out)), low: make([]int, len(g.out)), on: make([]bool, len(g.out))}
	for u := range g.out {
		if t.index[u] == 0 {
			t.visit(u)
		}
	}
	return t.found
}

type tarjan struct {
	g          *loopGraph
	use        func(int, arc) bool
	index, low []int
	on         []bool
	stack      []int
	count      int
	found      [][]int
}

func (t *tarjan) enter(u int) {
	t.count++
	t.index[u], t.low[u], t.on[u] = t.count, t.count, true
	t.stack = append(t.stack, u)
}

func (t *tarjan) visit(root int) {
	type frame struct{ node, next int }
	t.enter(root)
	path := []frame{{root, 0}}
	for len(path) > 0 {
		top := &path[len(path)-1]
		u := top.node
		if top.next < len(t.g.out[u]) {
			a := t.g.out[u][top.next]
			top.next++
			switch {
			case !t.use(u, a):
			case t.index[a.to] == 0:
				t.enter(a.to)
				path = append(path, frame{a.to, 0})
			case t.on[a.to]:
				t.low[u] = min(t.low[u], t.index[a.to])
			}
			continue
		}
		path = path[:len(path)-1]
		if len(path) > 0 {
			parent := path[len(path)-1].node
			t.low[parent] = min(t.low[parent], t.low[u])
		}
		if t.low[u] == t.index[u] {
			t.leave(u)
		}
	}
}

// leave takes a component off the stack and keeps it when it holds a cycle.
func (t *tarjan) leave(root int) {
	at := len(t.stack) - 1
	for t.stack[at] != root {
		at--
	}
	component := append([]int(nil), t.stack[at:]...)
	t.stack = t.stack[:at]
	for _, u := range component {
		t.on[u] = false
	}
	cyclic := len(component) > 1
	for _, a := range t.g.out[root] {
		cyclic = cyclic || (a.to == root && t.use(root, a))
	}
	if cyclic {
		t.found = append(t.found, component)
	}
}

// maxCycle bounds how many nodes of a cycle a message lists.
const maxCycle = 12

// cycle writes a shortest cycle through u within a component.
func (g *loopGraph) cycle(u int, loop []int, use func(int, arc) bool) string {
	from := make(map[int]int, len(loop))
	for _, v := range loop {
		from[v] = none
	}
	queue := []int{u}
	for from[u] == none && len(queue) > 0 {
		v := queue[0]
		queue = queue[1:]
		for _, a := range g.out[v] {
			if f, ok := from[a.to]; ok && f == none && use(v, a) {
				from[a.to] = v
				queue = append(queue, a.to)
			}
		}
	}
	path := []string{printable(g.b.nodes[u].ID)}
	for v := from[u]; v != u && v != none; v = from[v] {
		path = append(path, printable(g.b.nodes[v].ID))
	}
	path = append(path, path[0])
	for i, j := 0, len(path)-1; i < j; i, j = i+1, j-1 {
		path[i], path[j] = path[j], path[i]
	}
	if len(path) > maxCycle {
		path = append(append(path[:maxCycle-2:maxCycle-2], "..."), path[len(path)-1])
	}
	return strings.Join(path, " -> ")
}

func least(nodes []int) int {
	u := nodes[0]
	for _, v := range nodes {
		u = min(u, v)
	}
	return u
}
