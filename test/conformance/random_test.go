package conformance

import (
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"strings"
	"time"

	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	wiggle "github.com/wiggle-run/wiggle/sdk/go"
)

// What bounds random definitions.
const (
	randomDepth = 3
	randomSteps = 25
)

// author writes random definitions.
type author struct {
	rng   *rand.Rand
	steps int
}

// randomFlow is the definition of a seed: every kind of node, nested in any order.
func randomFlow(seed uint64, opts ...wiggle.FlowOption) *wiggle.Definition {
	a := &author{rng: rand.New(rand.NewPCG(seed, 1))}
	return wiggle.Define("random", func(f *wiggle.Flow) { a.chain(f, 0) }, opts...)
}

func (a *author) name(kind string) string {
	a.steps++
	return fmt.Sprintf("%s-%d", kind, a.steps)
}

func (a *author) chain(f *wiggle.Flow, depth int) {
	for range 1 + a.rng.IntN(3) {
		a.node(f, depth)
	}
}

func (a *author) node(f *wiggle.Flow, depth int) {
	kinds := 9
	if depth >= randomDepth || a.steps > randomSteps {
		kinds = 6
	}
	inner := func(f *wiggle.Flow) { a.chain(f, depth+1) }
	switch a.rng.IntN(kinds) {
	case 0:
		f.Task(a.name("task"))
	case 1:
		f.Effect(a.name("effect"))
	case 2:
		f.Gate(a.name("gate"))
	case 3:
		f.Gate(a.name("gate")).Otherwise(task(a.name("task")))
	case 4:
		f.Choose(a.name("choose")).Case("a", task(a.name("task"))).Case("b", func(*wiggle.Flow) {}).Default(task(a.name("task")))
	case 5:
		f.Sleep(time.Duration(a.rng.IntN(3)) * 5 * time.Millisecond)
	case 6:
		f.Fork(wiggle.Branch("x", inner), wiggle.Branch("y", inner)).Combine(a.name("combine"))
	default:
		f.ForEach("/items", inner, wiggle.MaxInFlight(a.rng.IntN(3))).Combine(a.name("combine"))
	}
}

// decide answers a task. The answer depends on nothing but what the task is handed, so
// that it is the same on every configuration and in every order.
func decide(t *wigglev1.Task) Answer {
	h := fnv.New64a()
	fmt.Fprintf(h, "%s\x00%d\x00%s", t.GetStep(), t.GetAttempt(), t.GetContext().GetData())
	for _, r := range t.GetResults() {
		fmt.Fprintf(h, "\x00%d\x00%s\x00%t\x00%s", r.GetElement().GetIndex(), r.GetElement().GetKey(), r.GetResult() == nil, r.GetResult().GetData())
	}
	n := h.Sum64() >> 7
	if t.GetAttempt() == 1 && n%5 == 0 {
		return Fail("busy", AtOnce)
	}
	n /= 5
	switch t.GetKind() {
	case wigglev1.TaskKind_TASK_KIND_GATE:
		return When(func(*wigglev1.Task) bool { return n%4 != 0 })
	case wigglev1.TaskKind_TASK_KIND_CHOOSE:
		return Choice([]string{"a", "b", "other"}[n%3])
	case wigglev1.TaskKind_TASK_KIND_EFFECT:
		return Unchanged
	default:
		return Result(someContext(n))
	}
}

// someContext is a context with items for the next for_each: none, a list or a map.
func someContext(n uint64) string {
	var items []string
	for i := range n % 4 {
		item := fmt.Sprintf(`{"n":%d,"items":[%d,{"items":[%d]}]}`, n%1000+i, i, n%7)
		if n%3 == 0 {
			item = fmt.Sprintf(`"key %d":%s`, i, item)
		}
		items = append(items, item)
	}
	frame := "[%s]"
	if n%3 == 0 {
		frame = "{%s}"
	}
	return fmt.Sprintf(`{"n":%d,"items":`+frame+`}`, n, strings.Join(items, ","))
}
