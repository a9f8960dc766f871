package definition

import (
	"maps"
	"slices"
	"unicode"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
)

const (
	// maxName bounds names and node ids in bytes (they are ASCII).
	maxName = 128
	// maxLabel bounds step, activity, queue, branch and case names in characters.
	maxLabel = 128
)

// Validate finds everything that is wrong with a definition at once (WF-7, WF-8),
// or returns nil. A definition past a limit on its size is not looked into
// further; the answer then holds only the limits it passes.
//
// Fields that this version of the package does not know are problems too: what a
// newer SDK asked for would otherwise be dropped silently.
func Validate(d *wigglev1.Definition, limits Limits) *Problems {
	b := &builder{def: d, limits: limits, strict: true}
	if !b.withinSize() {
		return b.problems()
	}
	b.build()
	return b.problems()
}

func analyze(d *wigglev1.Definition) (*Graph, *Problems) {
	b := &builder{def: d}
	b.build()
	if p := b.problems(); p != nil {
		return nil, p
	}
	return b.graph, nil
}

// builder resolves a definition and gathers what is wrong with it. Nodes are
// numbered by the order of their ids; every slice is indexed by that number.
type builder struct {
	collector
	def    *wigglev1.Definition
	limits Limits
	strict bool // unknown fields are problems

	graph    *Graph
	nodes    []Node // graph.Nodes
	out      [][]edge
	start    int // the start's number, or none
	defaults Step
	nearest  nearest

	closes   []int // a join's fan-out, else none
	combines []int // a combine's join, else none
	reserved []scopeKey
	scopes   scopes
}

// none stands for "no node" where a node's number is asked for.
const none = -1

// role tells what an edge is for.
type role uint8

const (
	roleFlow    role = iota // next, otherwise, a case, default
	roleBranch              // from a fan-out to the start of a branch
	roleJoin                // from a fan-out to its join
	roleCombine             // from a join to its combine
)

// edge leads from a node to another. Edges to nodes that do not exist are
// reported once and dropped.
type edge struct {
	label  string // the field, such as "next"
	to     int
	role   role
	branch int  // of roleBranch: index of the fork's branch
	loops  bool // spends its gate's loop budget
	cut    bool // reported as jumping into a branch, and not followed since
}

// withinSize checks the limits that protect the rest of the checks.
func (b *builder) withinSize() bool {
	if n := len(b.def.GetNodes()); b.limits.Nodes > 0 && n > b.limits.Nodes {
		b.add("nodes", "there are %d nodes; the limit is %d (%s)", n, b.limits.Nodes, SettingNodes)
	}
	if b.limits.Bytes > 0 {
		if n := proto.Size(b.def); n > b.limits.Bytes {
			b.add("", "the definition takes %d bytes; the limit is %d (%s)", n, b.limits.Bytes, SettingBytes)
		}
	}
	return len(b.found) == 0
}

func (b *builder) build() {
	if b.def == nil {
		b.add("", "there is no definition")
		return
	}
	b.checkDocument()
	b.number()
	b.resolveNodes()
	b.checkStepNames()
	b.resolveStart()
	b.checkReachable()
	b.pairJoins()
	b.pairCombines()
	b.assignScopes()
	b.checkLoops()
	if len(b.found) == 0 {
		b.markLoops()
	}
}

func (b *builder) checkDocument() {
	d := b.def
	if d.GetName() == "" {
		b.add("name", "is missing")
	} else if why := badName(d.GetName()); why != "" {
		b.add("name", "%s %s", quote(d.GetName()), why)
	}
	if d.GetVersion() < 0 {
		b.add("version", "%d must be 0 or more; 0 leaves it to the server", d.GetVersion())
	}
	b.known(d, func(format string, args ...any) { b.add("", format, args...) })
	b.resolveDefaults(d.GetDefaults())
	if len(d.GetNodes()) == 0 {
		b.add("nodes", "there are none")
	}
}

// number puts the nodes in the order of their ids.
func (b *builder) number() {
	ids := slices.Sorted(maps.Keys(b.def.GetNodes()))
	b.graph = &Graph{
		Name:    b.def.GetName(),
		Version: b.def.GetVersion(),
		Start:   b.def.GetStart(),
		Batched: b.def.GetDefaults().GetMode() == wigglev1.Mode_MODE_BATCHED,
		Nodes:   make([]Node, len(ids)),
		byID:    make(map[string]int, len(ids)),
	}
	b.nodes = b.graph.Nodes
	b.out = make([][]edge, len(ids))
	b.nearest = newNearest(ids)
	for i, id := range ids {
		b.nodes[i].ID = id
		b.graph.byID[id] = i
	}
}

// checkStepNames finds steps of one name. The later node by id is told.
func (b *builder) checkStepNames() {
	taken := make(map[string]string, len(b.nodes))
	for i := range b.nodes {
		n := &b.nodes[i]
		if n.Step == nil {
			continue
		}
		if other, ok := taken[n.Step.Name]; ok {
			b.node(n.ID, "step name %s is also that of node %s; it must be unique", quote(n.Step.Name), quote(other))
			continue
		}
		taken[n.Step.Name] = n.ID
	}
}

func (b *builder) resolveStart() {
	b.start = none
	id := b.def.GetStart()
	if id == "" {
		b.add("start", "is missing")
		return
	}
	if i, ok := b.graph.byID[id]; ok {
		b.start = i
		if b.nodes[i].Kind == KindJoin {
			b.add("start", "%s is a join, which only branches lead to", quote(id))
		}
		return
	}
	b.add("start", "%s is not a node%s", quote(id), b.nearest.hint(id))
}

// checkReachable finds nodes that no path from the start leads to.
func (b *builder) checkReachable() {
	if b.start == none {
		return
	}
	seen := make([]bool, len(b.nodes))
	seen[b.start] = true
	queue := []int{b.start}
	for len(queue) > 0 {
		u := queue[len(queue)-1]
		queue = queue[:len(queue)-1]
		for _, e := range b.out[u] {
			if !seen[e.to] {
				seen[e.to] = true
				queue = append(queue, e.to)
			}
		}
	}
	for i, ok := range seen {
		if !ok {
			b.node(b.nodes[i].ID, "is unreachable: no path from the start %s leads to it", quote(b.def.GetStart()))
		}
	}
}

// known reports fields that were received and are not known here.
func (b *builder) known(m proto.Message, report reporter) bool {
	if !b.strict {
		return true
	}
	unknown := m.ProtoReflect().GetUnknown()
	if len(unknown) == 0 {
		return true
	}
	number, _, _ := protowire.ConsumeTag(unknown)
	report("%s has a field that is not known here (number %d): it was made for a newer version of Wiggle",
		m.ProtoReflect().Descriptor().Name(), number)
	return false
}

// reporter notes a problem at a place it knows.
type reporter func(format string, args ...any)

// badName tells why a workflow's name or a node's id is not one, or "".
func badName(s string) string {
	if len(s) > maxName {
		return "is longer than 128 characters"
	}
	for i := range len(s) {
		if c := s[i]; !alphanumeric(c) && (i == 0 || (c != '.' && c != '_' && c != '-')) {
			return `must be letters, digits, ".", "_" and "-", first a letter or a digit`
		}
	}
	return ""
}

func alphanumeric(c byte) bool {
	return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9')
}

// badLabel tells why a step's, activity's, queue's, branch's or case's name is
// not one, or "". Labels are for people, so they may hold any printable
// character and spaces within.
func badLabel(s string) string {
	if !utf8.ValidString(s) {
		return "is not valid UTF-8"
	}
	blank := true
	for _, r := range s {
		blank = blank && unicode.IsSpace(r)
	}
	switch first, _ := utf8.DecodeRuneInString(s); {
	case blank:
		return "is blank"
	case utf8.RuneCountInString(s) > maxLabel:
		return "is longer than 128 characters"
	case first == ' ' || s[len(s)-1] == ' ':
		return "begins or ends with a space"
	}
	for _, r := range s {
		if !unicode.IsPrint(r) {
			return "has a character that is not printable"
		}
	}
	return ""
}
