package definition

import "fmt"

// scopeKey names a branch: a fan-out and the index of its branch.
type scopeKey struct{ fanOut, branch int }

// scope is one branch of a fan-out, or the workflow outside of all.
type scope struct {
	scopeKey
	depth  int
	closes bool // an edge leads to the join
	ends   bool // a path ends the branch before its join
	broken bool // something in it is reported, so what it lacks may be in there
}

// scopes is the assignment of nodes to scopes.
type scopes struct {
	all []scope
	of  []int     // a node's scope, else none
	via []edgeRef // the edge by which a node got its scope
	// searches is what is left of the nodes that the search for the wrong one
	// of two edges may visit.
	searches int
}

// edgeRef names an edge by its node and its index there.
type edgeRef struct{ from, index int }

// entry is an edge that leads into a branch from outside of it.
type entry struct {
	edgeRef
	into scopeKey
}

// maxCuts bounds how often the assignment starts over.
const maxCuts = 8

// assignScopes gives every node its scope: scope by scope from the outside in, so
// that a node which a branch and its surroundings both lead to belongs to the
// surroundings, and the branch's edge is the wrong one. Only when the node is
// seen to lead to the branch's join is it the other way round; the wrong edge is
// then cut and the assignment starts over.
func (b *builder) assignScopes() {
	if b.start == none {
		return
	}
	b.reserveStarts()
	b.scopes.searches = 4*len(b.nodes) + 1000
	settled := len(b.found)
	for cuts := 0; ; cuts++ {
		wrong := b.walkScopes(cuts < maxCuts)
		if wrong == nil {
			break
		}
		// What this walk found may follow from the wrong edge.
		b.reset(settled)
		b.out[wrong.from][wrong.index].cut = true
		b.reportEntry(wrong.edgeRef, wrong.into)
		settled = len(b.found)
	}
	b.checkBranches()
	for i, s := range b.scopes.of {
		if s == none {
			continue
		}
		n, s := &b.nodes[i], b.scopes.all[s]
		if n.Depth = s.depth; s.fanOut != none {
			n.Scope, n.Branch = b.nodes[s.fanOut].ID, b.branchName(s.scopeKey)
		}
	}
}

// reserveStarts keeps the first node of every branch for the branch, so that an
// edge into it from elsewhere is the wrong one.
func (b *builder) reserveStarts() {
	b.reserved = make([]scopeKey, len(b.nodes))
	for i := range b.reserved {
		b.reserved[i] = scopeKey{none, 0}
	}
	for i := range b.nodes {
		for _, e := range b.out[i] {
			if e.role == roleBranch {
				b.reserveStart(i, e)
			}
		}
	}
}

func (b *builder) reserveStart(fanOut int, e edge) {
	n, start := &b.nodes[fanOut], &b.nodes[e.to]
	holder := b.reserved[e.to]
	switch {
	case e.to == fanOut:
		b.node(n.ID, "%s: a branch cannot start at its own %s", e.label, n.Kind)
	case start.Kind == KindJoin && start.ID == n.Join:
		b.node(n.ID, "%s: the branch is empty, as it starts at its own join %s", e.label, quote(start.ID))
	case start.Kind == KindJoin:
		b.node(n.ID, "%s: a branch cannot start at the join %s", e.label, quote(start.ID))
	case b.combines[e.to] != none: // reported with the combines
	case holder.fanOut != none:
		b.node(n.ID, "%s: %s is %s already", e.label, quote(start.ID), b.scopeName(holder))
	default:
		b.reserved[e.to] = scopeKey{fanOut, e.branch}
	}
}

// walkScopes assigns every node that can be reached. With mayCut it stops at the
// first edge that jumps into a branch and returns it.
func (b *builder) walkScopes(mayCut bool) *entry {
	s := &b.scopes
	s.all = append(s.all[:0], scope{scopeKey: scopeKey{none, 0}})
	s.of, s.via = make([]int, len(b.nodes)), make([]edgeRef, len(b.nodes))
	for i := range s.of {
		s.of[i], s.via[i] = none, edgeRef{none, 0}
	}
	if key := b.reserved[b.start]; key.fanOut != none {
		b.add("start", "%s is %s", quote(b.nodes[b.start].ID), b.scopeName(key))
	}
	s.of[b.start] = 0
	queue := []int{b.start}
	for len(queue) > 0 {
		var inner []int // the fan-outs of this level's scopes
		for len(queue) > 0 {
			u := queue[len(queue)-1]
			queue = queue[:len(queue)-1]
			b.noteEnd(u)
			if b.nodes[u].Kind.FanOut() {
				inner = append(inner, u)
			}
			for i := range b.out[u] {
				reached, wrong := b.follow(edgeRef{u, i}, mayCut)
				if wrong != nil {
					return wrong
				}
				if reached != none {
					queue = append(queue, reached)
				}
			}
		}
		for _, u := range inner {
			queue = b.enterBranches(u, queue)
		}
	}
	return nil
}

// noteEnd notes on a node's scope that it ends there, or that it lacks an edge.
func (b *builder) noteEnd(u int) {
	n, s := &b.nodes[u], &b.scopes.all[b.scopes.of[u]]
	s.ends = s.ends || n.Kind == KindEnd || (n.Kind == KindGate && n.Otherwise == "")
	s.broken = s.broken || b.flagged[n.ID]
}

// enterBranches opens the scopes of a fan-out's branches and queues their starts.
func (b *builder) enterBranches(u int, queue []int) []int {
	n, depth := &b.nodes[u], b.scopes.all[b.scopes.of[u]].depth+1
	if limit := b.limits.Nesting; limit > 0 && depth > limit {
		b.node(n.ID, "nests %d deep; the limit is %d (%s)", depth, limit, SettingNesting)
		return queue
	}
	for i, e := range b.out[u] {
		key := scopeKey{u, e.branch}
		if e.role != roleBranch || b.reserved[e.to] != key || b.scopes.of[e.to] != none {
			continue
		}
		b.scopes.of[e.to] = len(b.scopes.all)
		b.scopes.via[e.to] = edgeRef{u, i}
		b.scopes.all = append(b.scopes.all, scope{scopeKey: key, depth: depth})
		queue = append(queue, e.to)
	}
	return queue
}

// follow takes an edge within its scope. It returns the node that it reaches for
// the first time, if any, or an edge that must be cut.
func (b *builder) follow(ref edgeRef, mayCut bool) (reached int, wrong *entry) {
	e, s := b.out[ref.from][ref.index], b.scopes.of[ref.from]
	sc, target := &b.scopes.all[s], b.scopes.of[e.to]
	isJoin := b.nodes[e.to].Kind == KindJoin
	switch {
	case e.cut || e.role == roleBranch:
	case e.role == roleJoin:
		if isJoin && b.closes[e.to] == ref.from && target == none {
			return b.assign(ref, s), nil
		}
	case isJoin:
		if e.role != roleCombine { // else reported with the combines
			b.arrive(ref, sc)
		}
	case b.combines[e.to] != none:
		if b.combines[e.to] == ref.from && target == none {
			return b.assign(ref, s), nil
		}
	case b.reserved[e.to].fanOut != none && b.reserved[e.to] != sc.scopeKey:
		sc.broken = true
		if e.to != b.start {
			b.reportEntry(ref, b.reserved[e.to])
		}
	case target == none:
		return b.assign(ref, s), nil
	case target != s:
		if mayCut && b.jumpsIn(s, e.to) {
			return none, &entry{b.scopes.via[e.to], sc.scopeKey}
		}
		sc.broken = true
		b.reportJump(ref, target)
	}
	return none, nil
}

func (b *builder) assign(ref edgeRef, s int) int {
	to := b.out[ref.from][ref.index].to
	b.scopes.of[to], b.scopes.via[to] = s, ref
	return to
}

// arrive handles an edge to a join that is no fan-out's own.
func (b *builder) arrive(ref edgeRef, sc *scope) {
	e := b.out[ref.from][ref.index]
	owner, id := b.closes[e.to], b.nodes[ref.from].ID
	switch {
	case owner == none: // reported as the join of none
		sc.broken = true
	case owner == sc.fanOut:
		sc.closes = true
	case sc.fanOut != none:
		sc.broken = true
		b.node(id, "%s: %s is the join of %s; this node is %s, which must end at its own join %s",
			e.label, quote(b.nodes[e.to].ID), quote(b.nodes[owner].ID), b.scopeName(sc.scopeKey),
			quote(b.nodes[sc.fanOut].Join))
	default:
		sc.broken = true
		b.node(id, "%s: %s is the join of %s, and this node is outside of its branches",
			e.label, quote(b.nodes[e.to].ID), quote(b.nodes[owner].ID))
	}
}

// jumpsIn tells whether a node that the surroundings of scope s claim lies in s:
// a path leads from it to the join of s without passing the fan-out again.
func (b *builder) jumpsIn(s, node int) bool {
	sc := b.scopes.all[s]
	if sc.depth <= b.scopes.all[b.scopes.of[node]].depth || b.scopes.via[node].from == none {
		return false
	}
	seen, stack := map[int]bool{node: true}, []int{node}
	for len(stack) > 0 {
		u := stack[len(stack)-1]
		stack = stack[:len(stack)-1]
		if b.scopes.searches--; b.scopes.searches < 0 {
			return false
		}
		for _, e := range b.out[u] {
			if e.role != roleJoin && b.closes[e.to] == sc.fanOut {
				return true
			}
			if e.role != roleBranch && !seen[e.to] {
				seen[e.to] = true
				stack = append(stack, e.to)
			}
		}
	}
	return false
}

// reportEntry reports an edge that jumps into a branch.
func (b *builder) reportEntry(ref edgeRef, into scopeKey) {
	e := b.out[ref.from][ref.index]
	b.node(b.nodes[ref.from].ID, "%s: %s is %s, and this node is not; a branch is entered at its start only",
		e.label, quote(b.nodes[e.to].ID), b.scopeName(into))
}

// reportJump reports an edge that leaves its scope for another.
func (b *builder) reportJump(ref edgeRef, target int) {
	e, from, to := b.out[ref.from][ref.index], b.scopes.all[b.scopes.of[ref.from]], b.scopes.all[target]
	id, node := b.nodes[ref.from].ID, quote(b.nodes[e.to].ID)
	if from.fanOut == to.fanOut {
		b.node(id, "%s: %s is %s, a sibling of this node's %s; a node belongs to one branch",
			e.label, node, b.scopeName(to.scopeKey), b.branchLabel(from.scopeKey))
		return
	}
	b.node(id, "%s: %s is %s; this node is %s, which must end at its own join %s",
		e.label, node, b.scopeName(to.scopeKey), b.scopeName(from.scopeKey), quote(b.nodes[from.fanOut].Join))
}

// checkBranches finds branches that neither arrive at their join nor end.
func (b *builder) checkBranches() {
	for _, s := range b.scopes.all {
		if s.fanOut == none || s.closes || s.ends || s.broken {
			continue
		}
		b.node(b.nodes[s.fanOut].ID, "%s never arrives at the join %s and never ends",
			b.branchLabel(s.scopeKey), quote(b.nodes[s.fanOut].Join))
	}
}

func (b *builder) branchName(key scopeKey) string {
	if n := &b.nodes[key.fanOut]; key.branch < len(n.Branches) {
		return n.Branches[key.branch].Name
	}
	return ""
}

func (b *builder) branchLabel(key scopeKey) string {
	if b.nodes[key.fanOut].Kind == KindForEach {
		return "the body"
	}
	return "branch " + quote(b.branchName(key))
}

// scopeName tells for a message where a scope is.
func (b *builder) scopeName(key scopeKey) string {
	if key.fanOut == none {
		return "outside of every branch"
	}
	return fmt.Sprintf("in %s of %s", b.branchLabel(key), quote(b.nodes[key.fanOut].ID))
}
