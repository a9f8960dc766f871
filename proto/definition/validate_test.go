package definition_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/wiggle-run/wiggle/proto/definition"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
)

func task(next string) *wigglev1.Node {
	return &wigglev1.Node{Kind: &wigglev1.Node_Task{Task: &wigglev1.TaskNode{Next: next}}}
}

func end() *wigglev1.Node {
	return &wigglev1.Node{Kind: &wigglev1.Node_End{End: &wigglev1.EndNode{}}}
}

// chain is a definition of n nodes in a row.
func chain(n int) *wigglev1.Definition {
	d := &wigglev1.Definition{Name: "chain", Start: "n0", Nodes: map[string]*wigglev1.Node{}}
	for i := range n - 1 {
		d.Nodes[fmt.Sprintf("n%d", i)] = task(fmt.Sprintf("n%d", i+1))
	}
	d.Nodes[fmt.Sprintf("n%d", n-1)] = end()
	return d
}

// TestLimits_WF8 names the limit and its setting.
func TestLimits_WF8(t *testing.T) {
	t.Parallel()
	big := chain(2)
	big.Nodes["n1"].GetEnd().Reason = strings.Repeat("x", 1<<20)
	for name, c := range map[string]struct {
		d      *wigglev1.Definition
		limits definition.Limits
		want   string
	}{
		"most nodes":     {chain(10_000), definition.DefaultLimits(), ""},
		"too many nodes": {chain(10_001), definition.DefaultLimits(), "nodes: there are 10001 nodes; the limit is 10000 (WIGGLE_LIMIT_NODES)\n"},
		"nodes, own":     {chain(4), definition.Limits{Nodes: 3}, "nodes: there are 4 nodes; the limit is 3 (WIGGLE_LIMIT_NODES)\n"},
		"bytes":          {big, definition.DefaultLimits(), fmt.Sprintf(": the definition takes %d bytes; the limit is 1048576 (WIGGLE_LIMIT_DEFINITION_BYTES)\n", proto.Size(big))},
		"none":           {big, definition.Limits{}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := definition.Validate(c.d, c.limits)
			if got := linesOf(p); got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

func linesOf(p *definition.Problems) string {
	if p == nil {
		return ""
	}
	return problemLines(p)
}

// TestUnknownFields_WF7 refuses what a newer SDK may have asked for, where
// Analyze reads over it.
func TestUnknownFields_WF7(t *testing.T) {
	t.Parallel()
	unknown := protowire.AppendString(protowire.AppendTag(nil, 900, protowire.BytesType), "new")
	d := chain(3)
	d.Nodes["n1"] = &wigglev1.Node{}
	d.ProtoReflect().SetUnknown(unknown)
	d.Nodes["n0"].GetTask().Step = &wigglev1.Step{Retry: &wigglev1.RetryPolicy{}}
	d.Nodes["n0"].GetTask().Step.Retry.ProtoReflect().SetUnknown(unknown)
	d.Nodes["n1"].ProtoReflect().SetUnknown(unknown)
	want := `: Definition has a field that is not known here (number 900): it was made for a newer version of Wiggle
n0: RetryPolicy has a field that is not known here (number 900): it was made for a newer version of Wiggle
n1: Node has a field that is not known here (number 900): it was made for a newer version of Wiggle
n2: is unreachable: no path from the start "n0" leads to it
`
	if got := linesOf(definition.Validate(d, definition.DefaultLimits())); got != want {
		t.Errorf("got:\n%s\nwant:\n%s", got, want)
	}
	d.Nodes["n1"] = task("n2")
	if _, p := definition.Analyze(d); p != nil {
		t.Errorf("analyze: %v", p)
	}
}

// TestHostile_WF7 takes what no decoder gives.
func TestHostile_WF7(t *testing.T) {
	t.Parallel()
	for name, n := range map[string]*wigglev1.Node{
		"nil":             nil,
		"nil wrapper":     {Kind: (*wigglev1.Node_Task)(nil)},
		"nil task":        {Kind: &wigglev1.Node_Task{}},
		"nil gate":        {Kind: &wigglev1.Node_Gate{}},
		"nil choose":      {Kind: &wigglev1.Node_Choose{}},
		"nil sleep":       {Kind: &wigglev1.Node_Sleep{}},
		"nil until":       {Kind: &wigglev1.Node_Sleep{Sleep: &wigglev1.SleepNode{Until: (*wigglev1.SleepNode_Instant)(nil)}}},
		"nil duration":    {Kind: &wigglev1.Node_Sleep{Sleep: &wigglev1.SleepNode{Until: &wigglev1.SleepNode_Duration{}}}},
		"nil fork":        {Kind: &wigglev1.Node_Fork{}},
		"nil branch":      {Kind: &wigglev1.Node_Fork{Fork: &wigglev1.ForkNode{Branches: []*wigglev1.Branch{nil, nil}}}},
		"nil for_each":    {Kind: &wigglev1.Node_ForEach{}},
		"nil join":        {Kind: &wigglev1.Node_Join{}},
		"not UTF-8":       {Kind: &wigglev1.Node_Task{Task: &wigglev1.TaskNode{Next: "\xff", Step: &wigglev1.Step{Name: "\xff"}}}},
		"its own join":    {Kind: &wigglev1.Node_ForEach{ForEach: &wigglev1.ForEachNode{Body: "a", Join: "a"}}},
		"its own combine": {Kind: &wigglev1.Node_Join{Join: &wigglev1.JoinNode{Next: "a"}}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := &wigglev1.Definition{Name: "x", Start: "a", Nodes: map[string]*wigglev1.Node{"a": n}}
			if p := definition.Validate(d, definition.DefaultLimits()); p == nil {
				t.Error("no problems")
			}
			if g, p := definition.Analyze(d); g != nil || p == nil {
				t.Error("analysed")
			}
			definition.Fingerprint(d)
			definition.Diff(d, chain(2))
			definition.Diff(chain(2), d)
		})
	}
	var none *definition.Problems
	if none.Err() != nil || none.Invalid() != nil {
		t.Error("no problems are an error")
	}
	if p := definition.Validate(nil, definition.DefaultLimits()); p.Err() == nil || len(p.Invalid().GetProblems()) != 1 {
		t.Errorf("nil definition: %v", p)
	}
}

// hostile definitions at the limits, which take the time of a plain one.
func hostile() map[string]*wigglev1.Definition {
	const n = 10_000
	id := func(i int) string { return fmt.Sprintf("node-with-a-name-%05d", i) }
	build := func(node func(i int) *wigglev1.Node) *wigglev1.Definition {
		d := &wigglev1.Definition{Name: "hostile", Start: id(0), Nodes: make(map[string]*wigglev1.Node, n)}
		for i := range n {
			d.Nodes[id(i)] = node(i)
		}
		return d
	}
	gate := func(next, otherwise string) *wigglev1.Node {
		return &wigglev1.Node{Kind: &wigglev1.Node_Gate{Gate: &wigglev1.GateNode{Next: next, Otherwise: otherwise}}}
	}
	each := func(body, join string) *wigglev1.Node {
		return &wigglev1.Node{Kind: &wigglev1.Node_ForEach{ForEach: &wigglev1.ForEachNode{Body: body, Join: join}}}
	}
	join := func(next string) *wigglev1.Node {
		return &wigglev1.Node{Kind: &wigglev1.Node_Join{Join: &wigglev1.JoinNode{Next: next}}}
	}
	return map[string]*wigglev1.Definition{
		"unknown names": build(func(i int) *wigglev1.Node { return task(id(i) + "x") }),
		"one loop":      build(func(i int) *wigglev1.Node { return task(id((i + 1) % n)) }),
		"loops within loops": build(func(i int) *wigglev1.Node {
			// Odd nodes lead back by a task's edge, even ones are the gates.
			if i >= n/2 {
				return task(id(n - 1 - i))
			}
			return gate(id(i+1), id(n-max(i, 1)))
		}),
		"back gates": build(func(i int) *wigglev1.Node {
			if i == n-1 {
				return end()
			}
			return gate(id(i+1), id(i/2))
		}),
		"nested for_each": build(func(i int) *wigglev1.Node {
			switch i % 3 {
			case 0:
				return each(id(min(i+3, n-1)), id(i+1-i/(n-1)))
			case 1:
				return join(id(i + 1))
			}
			return task(id(max(i-4, 0)))
		}),
		"all join one": build(func(i int) *wigglev1.Node {
			switch i {
			case n - 2:
				return join(id(n - 1))
			case n - 1:
				return task(id(0))
			}
			return each(id(i+1), id(n-2))
		}),
	}
}

// TestHostileTime_WF7 bounds the time for the worst that fits the limits. The
// bound is generous, as the race detector and a busy machine slow it down; what
// it must catch is a quadratic answer, which takes minutes.
func TestHostileTime_WF7(t *testing.T) {
	t.Parallel()
	for name, d := range hostile() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			began := time.Now()
			definition.Validate(d, definition.DefaultLimits())
			definition.Analyze(d)
			if took := time.Since(began); took > 20*time.Second {
				t.Errorf("took %s", took)
			} else {
				t.Logf("took %s", took)
			}
		})
	}
}

// TestManyProblems_WF7 bounds the answer.
func TestManyProblems_WF7(t *testing.T) {
	t.Parallel()
	p := definition.Validate(hostile()["unknown names"], definition.DefaultLimits())
	if len(p.List) != 1001 || p.List[1000].GetMessage() != "18999 more problems are not listed" {
		t.Errorf("%d problems, the last %q", len(p.List), p.List[len(p.List)-1].GetMessage())
	}
	if !strings.HasPrefix(p.Error(), "the definition is not valid:\n  node-with-a-name-00000: next: ") {
		t.Errorf("error %.100q", p.Error())
	}
}

// TestGraph looks nodes up.
func TestGraph(t *testing.T) {
	t.Parallel()
	g, p := definition.Analyze(read(t, "testdata/valid/choose.json"))
	if p != nil {
		t.Fatal(p)
	}
	tier := g.Node("tier")
	if got := tier.Follows("silver") + " " + tier.Follows("tin"); got != "mail failed" {
		t.Errorf("follows %q", got)
	}
	if g.Node("none") != nil {
		t.Error("there is a node that is not there")
	}
	if !tier.Kind.WorkerRun() || tier.Kind.FanOut() || definition.Kind(0).String() != "none" {
		t.Error("kinds")
	}
}

func TestParsePointer(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"": "[]", "/": `[""]`, "/a/b": `["a" "b"]`, "/a~1b/~0/~01": `["a/b" "~" "~1"]`,
		"a": "error", "/~": "error", "/~2": "error", "/\xff": "error",
	} {
		p, err := definition.ParsePointer(text)
		got := "error"
		if err == nil {
			got = fmt.Sprintf("%q", p.Tokens)
		}
		if got != want {
			t.Errorf("%q: got %s, want %s (%v)", text, got, want, err)
		}
	}
}

func BenchmarkValidate10000(b *testing.B) {
	d := wide(10_000)
	b.ReportAllocs()
	for b.Loop() {
		if p := definition.Validate(d, definition.DefaultLimits()); p != nil {
			b.Fatal(p)
		}
	}
}

func BenchmarkAnalyze10000(b *testing.B) {
	d := wide(10_000)
	for b.Loop() {
		if _, p := definition.Analyze(d); p != nil {
			b.Fatal(p)
		}
	}
}

func BenchmarkFingerprint10000(b *testing.B) {
	d := wide(10_000)
	for b.Loop() {
		definition.Fingerprint(d)
	}
}

func BenchmarkHostile(b *testing.B) {
	for name, d := range hostile() {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				definition.Validate(d, definition.DefaultLimits())
			}
		})
	}
}

// wide is a valid definition of about n nodes of every kind: forks in a row, with
// a loop in each and one around all.
func wide(n int) *wigglev1.Definition {
	d := &wigglev1.Definition{Name: "wide", Start: "0.check", Nodes: map[string]*wigglev1.Node{"end": end()}}
	gate := func(next, otherwise string) *wigglev1.Node {
		return &wigglev1.Node{Kind: &wigglev1.Node_Gate{Gate: &wigglev1.GateNode{Next: next, Otherwise: otherwise}}}
	}
	rounds := (n - 1) / 8
	for i := range rounds {
		p, next := fmt.Sprintf("%d.", i), fmt.Sprintf("%d.check", i+1)
		if i == rounds-1 {
			next = "last"
		}
		d.Nodes[p+"check"] = gate(p+"fork", "")
		d.Nodes[p+"fork"] = &wigglev1.Node{Kind: &wigglev1.Node_Fork{Fork: &wigglev1.ForkNode{
			Branches: []*wigglev1.Branch{{Name: "a", Start: p + "a"}, {Name: "b", Start: p + "b"}}, Join: p + "join",
		}}}
		d.Nodes[p+"a"] = task(p + "again")
		d.Nodes[p+"again"] = gate(p+"join", p+"a")
		d.Nodes[p+"b"] = task(p + "c")
		d.Nodes[p+"c"] = task(p + "join")
		d.Nodes[p+"join"] = &wigglev1.Node{Kind: &wigglev1.Node_Join{Join: &wigglev1.JoinNode{Next: p + "merge"}}}
		d.Nodes[p+"merge"] = task(next)
	}
	d.Nodes["last"] = gate("end", "0.check")
	return d
}
