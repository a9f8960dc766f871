package definition

// pairJoins finds the fan-out that each join closes. Of several that name one
// join the first by id has it.
func (b *builder) pairJoins() {
	b.closes = make([]int, len(b.nodes))
	for i := range b.closes {
		b.closes[i] = none
	}
	for i := range b.nodes {
		for _, e := range b.out[i] {
			if e.role == roleJoin {
				b.pairJoin(i, e.to)
			}
		}
	}
	for i := range b.nodes {
		if b.nodes[i].Kind == KindJoin && b.closes[i] == none {
			b.node(b.nodes[i].ID, "is the join of no fork and no for_each")
		}
	}
}

func (b *builder) pairJoin(fanOut, join int) {
	n, j := &b.nodes[fanOut], &b.nodes[join]
	switch {
	case j.Kind == 0: // reported as having no kind
	case j.Kind != KindJoin:
		b.node(n.ID, "join: %s is a %s, not a join", quote(j.ID), j.Kind)
	case b.closes[join] != none:
		b.node(n.ID, "join: %s closes %s already; each fork and for_each needs its own join",
			quote(j.ID), quote(b.nodes[b.closes[join]].ID))
	default:
		b.closes[join] = fanOut
		j.FanOut = n.ID
	}
}

// pairCombines finds the combine of each join, and then the edges that lead to a
// combine past its join.
func (b *builder) pairCombines() {
	b.combines = make([]int, len(b.nodes))
	for i := range b.combines {
		b.combines[i] = none
	}
	for i := range b.nodes {
		for _, e := range b.out[i] {
			if e.role == roleCombine {
				b.pairCombine(i, e.to)
			}
		}
	}
	for i := range b.nodes {
		for _, e := range b.out[i] {
			if e.role != roleCombine && e.role != roleJoin && b.combines[e.to] != none {
				b.node(b.nodes[i].ID, "%s: %s is the combine of %s, and only that join may lead to it",
					e.label, quote(b.nodes[e.to].ID), quote(b.nodes[b.combines[e.to]].ID))
			}
		}
	}
	if b.start != none && b.combines[b.start] != none {
		b.add("start", "%s is the combine of %s, and only that join may lead to it",
			quote(b.nodes[b.start].ID), quote(b.nodes[b.combines[b.start]].ID))
	}
}

func (b *builder) pairCombine(join, task int) {
	j, t := &b.nodes[join], &b.nodes[task]
	switch {
	case t.Kind == 0: // reported as having no kind
	case t.Kind != KindTask:
		b.node(j.ID, "the combine is missing: next must be a task that combines the branches' results; %s is a %s",
			quote(t.ID), t.Kind)
	case t.Effect:
		b.node(j.ID, "next: the combine %s is an effect; what a combine returns is the context, so it must not be one",
			quote(t.ID))
	case b.combines[task] != none:
		b.node(j.ID, "next: %s is the combine of %s already; each join needs its own",
			quote(t.ID), quote(b.nodes[b.combines[task]].ID))
	default:
		b.combines[task] = join
		t.Combines = j.ID
	}
}
