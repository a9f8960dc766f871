package conformance

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	wiggle "github.com/wiggle-run/wiggle/sdk/go"
)

func collections() []Scenario {
	flow := wiggle.Define("skipped", func(f *wiggle.Flow) {
		f.ForEach("/items", task("price")).Combine("gather")
		f.Task("after")
	})
	skipped := func(what, input string) Scenario {
		return Scenario{
			Name: "a for_each over " + what + " goes on after its combine", Covers: "ENG-9", Flow: flow, Input: input,
			Answers: map[string]Answer{"after": Wrap("after")},
			Want:    Want{State: completed, Context: `{"after":` + input + `}`, Attempts: map[string]int{"after": 1}},
		}
	}
	refused := func(what, input string) Scenario {
		return Scenario{
			Name: "a for_each over " + what + " fails, naming node and finding", Covers: "ENG-9", Flow: flow, Input: input,
			Want: Want{State: failed, Failure: "wiggle.NotACollection", Message: "found " + what, Node: "gather.each", Context: input},
		}
	}
	return []Scenario{
		skipped("an empty list", `{"items":[]}`),
		skipped("an empty map", `{"items":{}}`),
		skipped("null", `{"items":null}`),
		skipped("an absent value", `{"other":1}`),
		skipped("a value inside of what has none", `"text"`),
		refused("a string", `{"items":"abc"}`),
		refused("a number", `{"items":12}`),
		refused("a boolean", `{"items":false}`),
		{
			Name: "an empty for_each in a branch brings the branch's context", Covers: "ENG-9 ENG-10",
			Flow: wiggle.Define("empty-branch", func(f *wiggle.Flow) {
				f.Fork(
					wiggle.Branch("empty", func(f *wiggle.Flow) { f.ForEach("/items", task("t")).Combine("inner") }),
					wiggle.Branch("other", task("o")),
				).Combine("outer")
			}), Input: `{"items":[]}`, Answers: map[string]Answer{"o": Result(`1`), "outer": Collect},
			Want: Want{State: completed, Context: `{"empty":{"items":[]},"other":1}`, Attempts: map[string]int{"o": 1, "outer": 1}},
		},
		{
			Name: "a for_each over what is no collection, in a branch, fails the instance", Covers: "ENG-9 ENG-3", Flow: nested(2), Input: `[[1],2]`,
			Want: Want{State: failed, Failure: "wiggle.NotACollection", Message: "found a number", Node: "c2.each", Context: `[[1],2]`},
		},
	}
}

func elements() []Scenario {
	return []Scenario{
		{Name: "elements that arrive in reverse are combined in order", Covers: "WF-3 ENG-8", Flow: each("order"), Script: reversed},
		{
			Name: "a map's results come by key, unicode and empty keys included", Covers: "WF-3 ENG-8", Flow: each("keys"),
			Input: `{"items":{"z":1,"":2,"schlüssel":3,"鍵":4,"a.b/c~d":5,"\"q\"":6,"🔑":7}}`,
			Answers: map[string]Answer{
				"price": Compute(func(t *wigglev1.Task) string {
					return encode([]any{t.GetElement().GetKey(), json.RawMessage(t.GetContext().GetData())})
				}),
				"gather": CollectByKey,
			},
			Want: Want{State: completed, Context: `{"z":["z",1],"":["",2],"schlüssel":["schlüssel",3],"鍵":["鍵",4],
				"a.b/c~d":["a.b/c~d",5],"\"q\"":["\"q\"",6],"🔑":["🔑",7]}`},
		},
		{
			Name: "elements are scalars of every kind", Covers: "ENG-6 ENG-9 WF-9", Flow: each("scalars"),
			Input:   `{"items":[1,-2.50,"text","",null,true,false,[1,[2]],{"k":"v"},[],{}]}`,
			Answers: map[string]Answer{"price": Wrap("e"), "gather": Collect},
			Want: Want{State: completed, Context: `[{"e":1},{"e":-2.50},{"e":"text"},{"e":""},{"e":null},{"e":true},{"e":false},
				{"e":[1,[2]]},{"e":{"k":"v"}},{"e":[]},{"e":{}}]`},
		},
		{
			Name: "scalar elements that no step changes come back", Covers: "ENG-7 WF-9", Flow: each("same"),
			Input: `{"items":[0,"x",null,true,[null]]}`, Answers: map[string]Answer{"gather": Collect},
			Want: Want{State: completed, Context: `[0,"x",null,true,[null]]`},
		},
		{
			Name: "items are found by a pointer with escapes and an index", Covers: "WF-2",
			Flow: wiggle.Define("pointer", func(f *wiggle.Flow) {
				f.ForEach("/a~1b/1/~0c", task("t")).Combine("gather")
			}), Input: `{"a/b":[0,{"~c":[7,8]}]}`, Answers: map[string]Answer{"gather": Collect},
			Want: Want{State: completed, Context: `[7,8]`},
		},
		{
			Name: "the whole context may be the items", Covers: "WF-2",
			Flow:  wiggle.Define("whole", func(f *wiggle.Flow) { f.ForEach("", task("t")).Combine("gather") }),
			Input: `{"k":[1]}`, Answers: map[string]Answer{"t": Wrap("e"), "gather": CollectByKey},
			Want: Want{State: completed, Context: `{"k":{"e":[1]}}`},
		},
	}
}

func reversed(r *Run) {
	r.Start(`{"items":["a","b","c","d","e"]}`)
	tasks := inOrder(r.Tasks("price", 5))
	for _, task := range slices.Backward(tasks) {
		if task.GetElement().GetKey() != "" {
			r.Errorf("an element of a list has a key: %v", task.GetElement())
		}
		r.Applied("report", r.Report(task, Wrap("e")))
	}
	gather := r.Task("gather")
	for i, res := range gather.GetResults() {
		if int(res.GetElement().GetIndex()) != i {
			r.Errorf("result %d is of element %v", i, res.GetElement())
		}
	}
	if gather.GetByName() {
		r.Errorf("the results of a for_each are not by name")
	}
	r.Applied("combine", r.Report(gather, Collect))
	r.See(Want{State: completed, Context: `[{"e":"a"},{"e":"b"},{"e":"c"},{"e":"d"},{"e":"e"}]`})
}

// most is how many branches a fan-out may have.
const most = 10_000

func widths() []Scenario {
	return []Scenario{
		{
			Name: "a combine sees ten thousand elements in order, each once", Covers: "WF-8 ENG-5 ENG-8", Flow: paused(),
			Input: numbered(most), Answers: map[string]Answer{"gather": inPlace(strconv.Itoa)},
			Want: Want{State: completed, Context: `10000`, Attempts: map[string]int{"gather": 1}},
		},
		{
			// Every element's task carries the context around it, so that ten thousand
			// would be hundreds of megabytes.
			Name: "ten thousand elements are run by workers and reported in full batches", Covers: "WRK-4 WRK-10 ENG-8", Flow: each("wide"),
			Script: manyReports,
		},
		{Name: "a wide for_each over a large context is handed out in parts", Covers: "WRK-3 WF-8", Flow: each("large"), Script: largeContext},
		{
			Name: "ten thousand and one elements fail with the limit named", Covers: "WF-8 ENG-25", Flow: each("too-wide"),
			Input: `{"items":[` + strings.Repeat("0,", most) + `0]}`,
			Want: Want{
				State: failed, Failure: "wiggle.LimitExceeded", Message: "10001 is over the limit of 10000 (WIGGLE_LIMIT_BRANCHES)",
				Node: "gather.each", Attempts: map[string]int{},
			},
		},
	}
}

// paused is a for_each whose body the server runs by itself.
func paused() *wiggle.Definition {
	return wiggle.Define("widest", func(f *wiggle.Flow) {
		f.ForEach("/items", func(f *wiggle.Flow) { f.Sleep(0) }).Combine("gather")
	})
}

// numbered is a list of the numbers below n.
func numbered(n int) string {
	items := make([]string, n)
	for i := range items {
		items[i] = fmt.Sprint(i)
	}
	return `{"items":[` + strings.Join(items, ",") + `]}`
}

// inPlace is a combine that answers with how many results it was handed, if each is
// what a function says and in its place.
func inPlace(want func(i int) string) Answer {
	return Compute(func(t *wigglev1.Task) string {
		for i, res := range t.GetResults() {
			if int(res.GetElement().GetIndex()) != i || string(res.GetResult().GetData()) != want(i) {
				return fmt.Sprintf(`"result %d is %s of element %d"`, i, res.GetResult().GetData(), res.GetElement().GetIndex())
			}
		}
		return fmt.Sprint(len(t.GetResults()))
	})
}

// manyReports reports in calls as full as may be.
func manyReports(r *Run) {
	r.Start(`{"items":[` + strings.Repeat("0,", most-1) + `0]}`)
	place := func(i int) string { return strconv.Itoa(i) + "7" }
	answers := map[string]Answer{
		"price":  Compute(func(t *wigglev1.Task) string { return place(int(t.GetElement().GetIndex())) }),
		"gather": inPlace(place),
	}
	r.answerAll(r.Tasks("price", most), answers)
	r.Work(answers)
	r.See(Want{State: completed, Context: strconv.Itoa(most), Attempts: map[string]int{"price": most, "gather": 1}})
}

// largeContext has elements that together with the context around each are more than
// one answer may hold.
func largeContext(r *Run) {
	const width, size, answer = 40, 16 << 10, 8 << 20
	item := `"` + strings.Repeat("x", size) + `"`
	r.Start(`{"items":[` + strings.Repeat(item+",", width-1) + item + `]}`)
	seen := map[string]bool{}
	for _, room := range []int32{batchMax, 1} {
		tasks := r.Tasks("price", 1, Room(room), func(q *wigglev1.PollTasksRequest) { q.ShareBaseContexts = false })
		tasks = append(tasks, r.held...)
		r.held = nil
		total := 0
		for _, t := range tasks {
			total += len(t.GetContext().GetData()) + len(t.GetBaseContext().GetData())
			if seen[t.GetId()] {
				r.Errorf("task %s came twice", t.GetId())
			}
			seen[t.GetId()] = true
		}
		if total > answer {
			r.Errorf("a poll is answered with %d tasks of %d bytes in all", len(tasks), total)
		}
	}
	r.MustCancel("seen")
}

// inOrder sorts tasks by their elements.
func inOrder(tasks []*wigglev1.Task) []*wigglev1.Task {
	slices.SortFunc(tasks, func(a, b *wigglev1.Task) int { return int(a.GetElement().GetIndex() - b.GetElement().GetIndex()) })
	return tasks
}

func inFlight() []Scenario {
	limited := func(n int) Scenario {
		return Scenario{
			Name: fmt.Sprintf("never more than %d in flight", n), Covers: "WF-2 ENG-8", Flow: twoSteps(n),
			Script: func(r *Run) { limitedRun(r, n, 5) },
		}
	}
	return []Scenario{
		limited(1), limited(3),
		{
			Name: "elements that arrive at once let the next ones in", Covers: "WF-2 ENG-10",
			Flow: wiggle.Define("at-once", func(f *wiggle.Flow) {
				f.ForEach("", func(f *wiggle.Flow) { f.Sleep(0); f.Gate("g"); f.Sleep(short) }, wiggle.MaxInFlight(2)).Combine("gather")
			}), Input: `[0,1,2,3,4,5]`,
			Answers: map[string]Answer{"g": When(func(t *wigglev1.Task) bool { return t.GetElement().GetIndex()%3 == 0 }), "gather": Collect},
			Want:    Want{State: completed, Context: `[0,null,null,3,null,null]`, Attempts: map[string]int{"g": 6, "gather": 1}},
		},
		{
			Name: "a limit above the width changes nothing", Covers: "WF-2", Flow: each("loose", wiggle.MaxInFlight(100)),
			Input: `{"items":[1,2]}`, Answers: map[string]Answer{"gather": Collect},
			Want: Want{State: completed, Context: `[1,2]`},
		},
		{
			Name: "limits hold in nested for_eachs", Covers: "WF-2 ENG-6",
			Flow: wiggle.Define("nested-limits", func(f *wiggle.Flow) {
				f.ForEach("", func(f *wiggle.Flow) {
					f.ForEach("", task("leaf"), wiggle.MaxInFlight(1)).Combine("inner")
				}, wiggle.MaxInFlight(2)).Combine("outer")
			}), Input: `[[1,2],[3,4],[5]]`,
			Answers: map[string]Answer{"leaf": Wrap("v"), "inner": Collect, "outer": Collect},
			Want:    Want{State: completed, Context: `[[{"v":1},{"v":2}],[{"v":3},{"v":4}],[{"v":5}]]`},
		},
	}
}

func twoSteps(n int) *wiggle.Definition {
	return wiggle.Define("limited", func(f *wiggle.Flow) {
		f.ForEach("", func(f *wiggle.Flow) { f.Task("one"); f.Task("two") }, wiggle.MaxInFlight(n)).Combine("gather")
	})
}

// limitedRun answers one task at a time and looks each time at how many elements are
// under way: those that are neither waiting to be let in nor at the join.
func limitedRun(r *Run, limit, width int) {
	items := make([]string, width)
	for i := range items {
		items[i] = fmt.Sprint(i)
	}
	r.Start("[" + strings.Join(items, ",") + "]")
	answers := map[string]Answer{"one": Wrap("one"), "two": Wrap("two"), "gather": Collect}
	for !r.Ended() {
		r.held = append(r.held, r.Poll()...)
		underWay := 0
		for _, t := range r.Get().GetTokens() {
			if s := t.GetState(); t.GetParentId() != "" && s != wigglev1.TokenState_TOKEN_STATE_SLEEPING {
				underWay++
			}
		}
		if underWay > limit || len(r.held) > limit {
			r.Fatalf("%d elements are under way and %d tasks held, want at most %d", underWay, len(r.held), limit)
		}
		if len(r.held) == 0 {
			r.pass()
			continue
		}
		t := r.held[0]
		r.held = r.held[1:]
		r.Answer(t, answers[t.GetStep()])
	}
	want := make([]string, width)
	for i := range want {
		want[i] = fmt.Sprintf(`{"two":{"one":%d}}`, i)
	}
	r.See(Want{
		State: completed, Context: "[" + strings.Join(want, ",") + "]",
		Attempts: map[string]int{"one": width, "two": width, "gather": 1},
	})
}
