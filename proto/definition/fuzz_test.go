package definition_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/wiggle-run/wiggle/proto/definition"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
)

// FuzzValidate takes the bytes as a definition in the binary encoding, as the
// choices of a generator of arbitrary graphs, and as those of a generator of valid
// ones, and checks what must hold of each.
func FuzzValidate(f *testing.F) {
	for _, dir := range []string{"testdata/valid", "testdata/broken"} {
		for _, path := range fixtures(f, dir) {
			wire, err := proto.Marshal(read(f, path))
			if err != nil {
				f.Fatal(err)
			}
			f.Add(wire)
		}
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		wire := &wigglev1.Definition{}
		if proto.Unmarshal(data, wire) == nil {
			definition.Validate(wire, definition.DefaultLimits())
			known := &wigglev1.Definition{}
			if err := (proto.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(data, known); err != nil {
				t.Fatal(err)
			}
			if definition.Fingerprint(wire) != definition.Fingerprint(known) {
				t.Error("unknown fields count")
			}
			invariants(t, known)
		}
		a := arbitrary(&choices{data: data})
		invariants(t, a)
		b := arbitrary(&choices{data: data[len(data)/2:]})
		same := definition.Fingerprint(a) == definition.Fingerprint(b)
		if lines := definition.Diff(a, b); (len(lines) == 0) != same {
			t.Errorf("same fingerprint %v, differences %q", same, lines)
		}
		v := structured(&choices{data: data})
		if p := definition.Validate(v, definition.DefaultLimits()); p != nil {
			t.Errorf("a valid definition is refused: %v\n%v", p, v)
		}
		invariants(t, v)
		c := &choices{data: data}
		bend(c, v)
		invariants(t, v)
	})
}

// FuzzJSON reads anything, and reads back what it writes.
func FuzzJSON(f *testing.F) {
	for _, path := range fixtures(f, "testdata/valid") {
		text, err := definition.ToJSON(read(f, path))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	f.Add([]byte(`{"nodes": {"a": {"tsak": {}}}, "nodes": null}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		d, err := definition.FromJSON(data)
		if err != nil {
			var syntax *definition.SyntaxError
			if !errors.As(err, &syntax) || len(syntax.Faults) == 0 || syntax.Error() == "" {
				t.Errorf("error %T %v", err, err)
			}
			return
		}
		text, err := definition.ToJSON(d)
		if err != nil {
			t.Fatalf("write what was read: %v", err)
		}
		back, err := definition.FromJSON(text)
		if err != nil {
			t.Fatalf("read what was written: %v\n%s", err, text)
		}
		if definition.Fingerprint(d) != definition.Fingerprint(back) {
			t.Errorf("another graph came back:\n%s", text)
		}
	})
}

// invariants checks what holds for every definition without unknown fields.
func invariants(t *testing.T, d *wigglev1.Definition) {
	t.Helper()
	before := proto.CloneOf(d)
	began := time.Now()
	problems := definition.Validate(d, definition.DefaultLimits())
	admitted := definition.Validate(d, definition.Limits{})
	g, p := definition.Analyze(d)
	if took := time.Since(began); took > 20*time.Second {
		t.Errorf("took %s", took)
	}
	if (admitted == nil) != (p == nil) || (g == nil) == (p == nil) {
		t.Errorf("validate: %v, analyze: %v", admitted, p)
	}
	if problems == nil && p != nil {
		t.Errorf("valid and not analysed: %v", p)
	}
	again := proto.CloneOf(d)
	if definition.Fingerprint(d) != definition.Fingerprint(again) || len(definition.Diff(d, again)) > 0 {
		t.Error("a clone has another fingerprint or a difference")
	}
	if _, q := definition.Analyze(again); linesOf(q) != linesOf(p) {
		t.Errorf("another answer for a clone:\n%v\n%v", p, q)
	}
	if !proto.Equal(before, d) {
		t.Error("the definition was changed")
	}
	if g != nil {
		graphInvariants(t, g)
	}
}

// graphInvariants checks what the machine relies on, independently of how it was
// worked out.
func graphInvariants(t *testing.T, g *definition.Graph) {
	t.Helper()
	within := map[string][]string{} // edges within a scope that spend no budget
	for i := range g.Nodes {
		n := &g.Nodes[i]
		if i > 0 && g.Nodes[i-1].ID >= n.ID {
			t.Errorf("%s is out of order", n.ID)
		}
		follow := func(to string, loops bool) {
			m := g.Node(to)
			switch {
			case m == nil:
				t.Errorf("%s leads to %q, which is not there", n.ID, to)
			case m.Kind == definition.KindJoin && !n.Kind.FanOut():
				if m.FanOut != n.Scope {
					t.Errorf("%s in %q leads to the join of %q", n.ID, n.Scope, m.FanOut)
				}
			case m.Scope != n.Scope || m.Branch != n.Branch || m.Depth != n.Depth:
				t.Errorf("%s in %q leads to %s in %q", n.ID, n.Scope, m.ID, m.Scope)
			case !loops:
				within[n.ID] = append(within[n.ID], to)
			}
		}
		enter := func(to, branch string) {
			if m := g.Node(to); m == nil || m.Scope != n.ID || m.Branch != branch || m.Depth != n.Depth+1 {
				t.Errorf("branch %q of %s starts at %+v", branch, n.ID, m)
			}
		}
		if (n.Step != nil) != n.Kind.WorkerRun() {
			t.Errorf("%s: step %+v", n.ID, n.Step)
		}
		switch n.Kind {
		case definition.KindTask, definition.KindSleep:
			follow(n.Next, false)
		case definition.KindJoin:
			follow(n.Next, false)
			if c := g.Node(n.Next); c.Combines != n.ID || c.Effect || g.Node(n.FanOut).Join != n.ID {
				t.Errorf("join %s: %+v", n.ID, c)
			}
		case definition.KindGate:
			follow(n.Next, n.NextLoops)
			if n.Otherwise != "" {
				follow(n.Otherwise, n.OtherwiseLoops)
			}
		case definition.KindChoose:
			for _, c := range n.Cases {
				follow(c.Next, false)
			}
			if n.Default != "" {
				follow(n.Default, false)
			}
		case definition.KindFork:
			follow(n.Join, false)
			for _, b := range n.Branches {
				enter(b.Start, b.Name)
			}
		case definition.KindForEach:
			follow(n.Join, false)
			enter(n.Body, "")
		case definition.KindEnd: // leads nowhere
		}
	}
	if cyclic(within) {
		t.Errorf("a loop spends no budget: %v", within)
	}
}

// cyclic takes away nodes that lead nowhere until none is left, or a cycle is.
func cyclic(edges map[string][]string) bool {
	for {
		gone := 0
		for from, to := range edges {
			kept := to[:0:0]
			for _, id := range to {
				if len(edges[id]) > 0 {
					kept = append(kept, id)
				}
			}
			edges[from] = kept
			if len(kept) == 0 {
				delete(edges, from)
				gone++
			}
		}
		if gone == 0 {
			return len(edges) > 0
		}
	}
}

// choices answers a generator's questions from bytes; 0 when they are used up.
type choices struct {
	data []byte
	made int
}

func (c *choices) pick(n int) int {
	if len(c.data) == 0 {
		return 0
	}
	b := c.data[0]
	c.data = c.data[1:]
	c.made++
	return int(b) % n
}

func (c *choices) of(list ...string) string { return list[c.pick(len(list))] }

// node names one of a few nodes, or none.
func (c *choices) node() string {
	return c.of("a", "b", "c", "d", "e", "f", "g", "h", "", "x")
}

func (c *choices) step() *wigglev1.Step {
	switch c.pick(8) {
	case 0:
		return &wigglev1.Step{Name: c.of("", "a", "s", " "), Queue: c.of("", "q", "\x00"), Priority: new(int32(c.pick(12) - 1))}
	case 1:
		return &wigglev1.Step{Timeout: &durationpb.Duration{Seconds: int64(c.pick(3) - 1)}, Retry: &wigglev1.RetryPolicy{
			MaxAttempts: int32(c.pick(3) - 1), Multiplier: float64(c.pick(4)) / 2, Jitter: new(float64(c.pick(4)-1) / 2),
			NonRetryableErrors: []string{c.of("", "E")},
		}}
	case 2:
		return &wigglev1.Step{}
	}
	return nil
}

// arbitrary builds a graph of up to eight nodes with edges anywhere.
func arbitrary(c *choices) *wigglev1.Definition {
	d := &wigglev1.Definition{
		Name: c.of("w", "w", "w", ""), Version: int32(c.pick(4) - 1), Start: c.node(), Nodes: map[string]*wigglev1.Node{},
	}
	for _, id := range []string{"a", "b", "c", "d", "e", "f", "g", "h"}[:c.pick(9)] {
		n := &wigglev1.Node{}
		switch c.pick(9) {
		case 0:
			n.Kind = &wigglev1.Node_Task{Task: &wigglev1.TaskNode{Next: c.node(), Effect: c.pick(4) == 0, Step: c.step()}}
		case 1:
			n.Kind = &wigglev1.Node_Gate{Gate: &wigglev1.GateNode{Next: c.node(), Otherwise: c.node(), LoopBudget: int32(c.pick(3) - 1), Step: c.step()}}
		case 2:
			n.Kind = &wigglev1.Node_Choose{Choose: &wigglev1.ChooseNode{
				Cases: map[string]string{c.of("1", "", " "): c.node(), c.of("2", "1"): c.node()}, Default: c.node(), Step: c.step(),
			}}
		case 3:
			n.Kind = &wigglev1.Node_Sleep{Sleep: &wigglev1.SleepNode{
				Until: &wigglev1.SleepNode_Duration{Duration: &durationpb.Duration{Seconds: int64(c.pick(3) - 1)}}, Next: c.node(),
			}}
		case 4:
			fork := &wigglev1.ForkNode{Join: c.node()}
			for range c.pick(4) {
				fork.Branches = append(fork.Branches, &wigglev1.Branch{Name: c.of("p", "q", "r", ""), Start: c.node()})
			}
			n.Kind = &wigglev1.Node_Fork{Fork: fork}
		case 5:
			n.Kind = &wigglev1.Node_ForEach{ForEach: &wigglev1.ForEachNode{Items: c.of("", "/x", "x"), Body: c.node(), Join: c.node()}}
		case 6:
			n.Kind = &wigglev1.Node_Join{Join: &wigglev1.JoinNode{Next: c.node()}}
		case 7:
			n.Kind = &wigglev1.Node_End{End: &wigglev1.EndNode{Failed: c.pick(2) == 0}}
		}
		d.Nodes[id] = n
	}
	return d
}

// structured builds a valid graph: blocks within blocks, each with one entry and
// one exit.
func structured(c *choices) *wigglev1.Definition {
	s := &structure{c: c, d: &wigglev1.Definition{Name: "w", Nodes: map[string]*wigglev1.Node{"end": end()}}}
	s.d.Start = s.block("end", 0)
	return s.d
}

type structure struct {
	c *choices
	d *wigglev1.Definition
}

func (s *structure) add(n *wigglev1.Node) string {
	id := fmt.Sprintf("n%d", len(s.d.GetNodes()))
	s.d.Nodes[id] = n
	return id
}

func (s *structure) gate(next, otherwise string) string {
	return s.add(&wigglev1.Node{Kind: &wigglev1.Node_Gate{Gate: &wigglev1.GateNode{Next: next, Otherwise: otherwise}}})
}

// block builds something that goes on at exit, and returns its entry.
func (s *structure) block(exit string, depth int) string {
	kind := s.c.pick(9)
	if depth > 6 {
		kind = 0
	}
	switch kind {
	case 1: // one after the other
		return s.block(s.block(exit, depth+1), depth+1)
	case 2: // if
		return s.gate(s.block(exit, depth+1), s.block(exit, depth+1))
	case 3: // repeat
		gate := s.gate(exit, "")
		body := s.block(gate, depth+1)
		s.d.Nodes[gate].GetGate().Otherwise = body
		return body
	case 4: // while
		gate := s.gate("", exit)
		s.d.Nodes[gate].GetGate().Next = s.block(gate, depth+1)
		return gate
	case 5:
		join := s.join(exit)
		return s.add(&wigglev1.Node{Kind: &wigglev1.Node_ForEach{ForEach: &wigglev1.ForEachNode{Body: s.block(join, depth+1), Join: join}}})
	case 6:
		join, fork := s.join(exit), &wigglev1.ForkNode{}
		for i := range 2 + s.c.pick(2) {
			fork.Branches = append(fork.Branches, &wigglev1.Branch{Name: fmt.Sprint(i), Start: s.block(join, depth+1)})
		}
		fork.Join = join
		return s.add(&wigglev1.Node{Kind: &wigglev1.Node_Fork{Fork: fork}})
	case 7: // a way out
		return s.gate(s.block(exit, depth+1), "")
	case 8:
		return s.add(&wigglev1.Node{Kind: &wigglev1.Node_Choose{Choose: &wigglev1.ChooseNode{
			Cases: map[string]string{"1": s.block(exit, depth+1), "2": exit},
		}}})
	}
	return s.add(task(exit))
}

func (s *structure) join(exit string) string {
	combine := s.add(task(exit))
	return s.add(&wigglev1.Node{Kind: &wigglev1.Node_Join{Join: &wigglev1.JoinNode{Next: combine}}})
}

// bend turns one edge of a valid graph elsewhere.
func bend(c *choices, d *wigglev1.Definition) {
	to := fmt.Sprintf("n%d", c.pick(len(d.GetNodes())))
	switch k := d.GetNodes()[fmt.Sprintf("n%d", 1+c.pick(len(d.GetNodes())))].GetKind().(type) {
	case *wigglev1.Node_Task:
		k.Task.Next = to
	case *wigglev1.Node_Gate:
		k.Gate.Otherwise = to
	case *wigglev1.Node_Choose:
		k.Choose.Cases["1"] = to
	case *wigglev1.Node_Fork:
		k.Fork.Branches[0].Start = to
	case *wigglev1.Node_ForEach:
		k.ForEach.Body = to
	case *wigglev1.Node_Join:
		k.Join.Next = to
	}
}

// TestStructured_WF7 runs the fuzz target's generators over random bytes, with the
// seed printed on failure.
func TestStructured_WF7(t *testing.T) {
	t.Parallel()
	for seed := range uint64(500) {
		data := randomBytes(seed)
		v := structured(&choices{data: data})
		if p := definition.Validate(v, definition.DefaultLimits()); p != nil {
			t.Errorf("a valid definition is refused: %v", p)
		}
		invariants(t, v)
		bend(&choices{data: data}, v)
		invariants(t, v)
		invariants(t, arbitrary(&choices{data: data}))
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}
