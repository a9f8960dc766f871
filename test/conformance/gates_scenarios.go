package conformance

import (
	"strconv"
	"strings"

	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	wiggle "github.com/wiggle-run/wiggle/sdk/go"
)

// gated is a chain with gates at both of its ends.
func gated() *wiggle.Definition {
	return wiggle.Define("gated", func(f *wiggle.Flow) {
		f.Gate("first")
		f.Task("middle")
		f.Gate("last")
	})
}

// conditional is a chain with an if.
func conditional() *wiggle.Definition {
	return wiggle.Define("if", func(f *wiggle.Flow) {
		f.If("rush", task("express")).Else(task("standard"))
		f.Task("after")
	})
}

func gates() []Scenario {
	return []Scenario{
		{
			Name: "open gates change nothing", Covers: "WF-2", Flow: gated(), Input: `1`,
			Answers: map[string]Answer{"middle": Wrap("m")},
			Want:    Want{State: completed, Context: `{"m":1}`, Attempts: map[string]int{"first": 1, "middle": 1, "last": 1}},
		},
		{
			Name: "a false gate without otherwise ends well, at the start", Covers: "WF-2 ENG-3", Flow: gated(), Input: `1`,
			Answers: map[string]Answer{"first": No},
			Want:    Want{State: completed, Context: `1`, Attempts: map[string]int{"first": 1}},
		},
		{
			Name: "a false gate without otherwise ends well, at the end", Covers: "WF-2 ENG-3", Flow: gated(), Input: `1`,
			Answers: map[string]Answer{"middle": Wrap("m"), "last": No},
			Want:    Want{State: completed, Context: `{"m":1}`, Attempts: map[string]int{"first": 1, "middle": 1, "last": 1}},
		},
		{
			Name: "otherwise runs on false and goes on after the gate", Covers: "WF-2",
			Flow: wiggle.Define("otherwise", func(f *wiggle.Flow) {
				f.Gate("in-stock").Otherwise(task("order"))
				f.Task("ship")
			}), Input: `1`,
			Answers: map[string]Answer{"in-stock": No, "order": Wrap("ordered"), "ship": Wrap("shipped")},
			Want:    Want{State: completed, Context: `{"shipped":{"ordered":1}}`, Attempts: map[string]int{"in-stock": 1, "order": 1, "ship": 1}},
		},
		{
			Name: "an if runs its chain on true", Covers: "WF-2", Flow: conditional(), Input: `1`,
			Answers: map[string]Answer{"express": Wrap("e"), "after": Wrap("a")},
			Want:    Want{State: completed, Context: `{"a":{"e":1}}`, Attempts: map[string]int{"rush": 1, "express": 1, "after": 1}},
		},
		{
			Name: "an if runs the else on false", Covers: "WF-2", Flow: conditional(), Input: `1`,
			Answers: map[string]Answer{"rush": No, "standard": Wrap("s"), "after": Wrap("a")},
			Want:    Want{State: completed, Context: `{"a":{"s":1}}`, Attempts: map[string]int{"rush": 1, "standard": 1, "after": 1}},
		},
	}
}

// choosing is a choose with two cases, with or without a default.
func choosing(fallback bool) *wiggle.Definition {
	return wiggle.Define("choosing", func(f *wiggle.Flow) {
		c := f.Choose("way").Case("air", task("fly")).Case("sea", task("sail"))
		if fallback {
			c.Default(task("walk"))
		}
		f.Task("arrive")
	})
}

func chooses() []Scenario {
	wraps := func(choice string) map[string]Answer {
		return map[string]Answer{"way": Choice(choice), "fly": Wrap("fly"), "sail": Wrap("sail"), "walk": Wrap("walk"), "arrive": Wrap("arrive")}
	}
	return []Scenario{
		{
			Name: "a choose takes the first case", Covers: "WF-2", Flow: choosing(false), Input: `1`, Answers: wraps("air"),
			Want: Want{State: completed, Context: `{"arrive":{"fly":1}}`, Attempts: map[string]int{"way": 1, "fly": 1, "arrive": 1}},
		},
		{
			Name: "a choose takes another case", Covers: "WF-2", Flow: choosing(false), Input: `1`, Answers: wraps("sea"),
			Want: Want{State: completed, Context: `{"arrive":{"sail":1}}`, Attempts: map[string]int{"way": 1, "sail": 1, "arrive": 1}},
		},
		{
			Name: "a choose takes the default for another answer", Covers: "WF-2", Flow: choosing(true), Input: `1`, Answers: wraps("rail"),
			Want: Want{State: completed, Context: `{"arrive":{"walk":1}}`, Attempts: map[string]int{"way": 1, "walk": 1, "arrive": 1}},
		},
		{
			Name: "an unknown answer without a default fails the instance", Covers: "WF-2 ENG-3", Flow: choosing(false), Input: `1`,
			Answers: wraps("rail"),
			Want:    Want{State: failed, Failure: "wiggle.UnknownChoice", Message: "rail", Node: "way", Context: `1`, Attempts: map[string]int{"way": 1}},
		},
		{
			Name: "a choose in a for_each decides for each element", Covers: "WF-2 ENG-6",
			Flow: wiggle.Define("choices", func(f *wiggle.Flow) {
				f.ForEach("", func(f *wiggle.Flow) {
					f.Choose("way").Case("odd", task("odd")).Case("even", func(*wiggle.Flow) {})
				}).Combine("gather")
			}), Input: `[1,2,3]`,
			Answers: map[string]Answer{
				"way": func(t *wigglev1.Task) Reply {
					if string(t.GetContext().GetData()) == "2" {
						return Choice("even")(t)
					}
					return Choice("odd")(t)
				},
				"odd": Wrap("odd"), "gather": Collect,
			},
			Want: Want{State: completed, Context: `[{"odd":1},2,{"odd":3}]`, Attempts: map[string]int{"way": 3, "odd": 2, "gather": 1}},
		},
	}
}

// branchGated is a fork whose branches have a gate at their start, in their middle
// and at their end.
func branchGated() *wiggle.Definition {
	return wiggle.Define("branch-gated", func(f *wiggle.Flow) {
		f.Fork(
			wiggle.Branch("start", func(f *wiggle.Flow) { f.Gate("g1"); f.Task("a") }),
			wiggle.Branch("middle", func(f *wiggle.Flow) { f.Task("b"); f.Gate("g2").Otherwise(task("c")); f.Task("d") }),
			wiggle.Branch("end", func(f *wiggle.Flow) { f.Task("e"); f.Gate("g3") }),
		).Combine("merge")
		f.Task("after")
	})
}

func branchGates() []Scenario {
	wrap := func(answers map[string]Answer) map[string]Answer {
		for s := range strings.FieldsSeq("a b c d e after") {
			answers[s] = Wrap(s)
		}
		answers["merge"] = Collect
		return answers
	}
	return []Scenario{
		{
			Name: "open gates in branches bring every result", Covers: "ENG-8 ENG-10", Flow: branchGated(), Input: `0`,
			Answers: wrap(map[string]Answer{}),
			Want:    Want{State: completed, Context: `{"after":{"start":{"a":0},"middle":{"d":{"b":0}},"end":{"e":0}}}`},
		},
		{
			Name: "a false gate in a branch ends it without a result, or takes its otherwise", Covers: "ENG-10", Flow: branchGated(), Input: `0`,
			Answers: wrap(map[string]Answer{"g1": No, "g2": No}),
			Want:    Want{State: completed, Context: `{"after":{"start":null,"middle":{"d":{"c":{"b":0}}},"end":{"e":0}}}`},
		},
		{
			Name: "a false gate at the end of a branch leaves no result", Covers: "ENG-10", Flow: branchGated(), Input: `0`,
			Answers: wrap(map[string]Answer{"g3": No}),
			Want:    Want{State: completed, Context: `{"after":{"start":{"a":0},"middle":{"d":{"b":0}},"end":null}}`},
		},
		{
			Name: "all branches of a fork end without results", Covers: "ENG-8 ENG-10",
			Flow: wiggle.Define("none", func(f *wiggle.Flow) {
				f.Fork(
					wiggle.Branch("x", func(f *wiggle.Flow) { f.Gate("gx") }),
					wiggle.Branch("y", func(f *wiggle.Flow) { f.Task("t"); f.Gate("gy") }),
				).Combine("merge")
			}), Input: `{"n":1}`,
			Answers: map[string]Answer{"gx": No, "gy": No},
			Want: Want{
				State: completed, Context: `{"base":{"n":1},"results":{"x":null,"y":null}}`,
				Attempts: map[string]int{"gx": 1, "t": 1, "gy": 1, "merge": 1},
			},
		},
		{
			Name: "all elements end without results", Covers: "ENG-8 ENG-10",
			Flow: wiggle.Define("none", func(f *wiggle.Flow) {
				f.ForEach("", func(f *wiggle.Flow) { f.Gate("wanted") }).Combine("gather")
			}), Input: `[1,2,3]`,
			Answers: map[string]Answer{"wanted": No},
			Want:    Want{State: completed, Context: `{"base":[1,2,3],"results":[null,null,null]}`},
		},
		{
			Name: "some elements end at a gate and the others keep their place", Covers: "ENG-8 ENG-10 WF-3",
			Flow: wiggle.Define("some", func(f *wiggle.Flow) {
				f.ForEach("", func(f *wiggle.Flow) { f.Gate("wanted"); f.Task("keep") }).Combine("gather")
			}), Input: `[0,1,2,3,4]`,
			Answers: map[string]Answer{
				"wanted": When(func(t *wigglev1.Task) bool { return t.GetElement().GetIndex()%2 == 0 }),
				"keep":   Wrap("k"), "gather": Collect,
			},
			Want: Want{State: completed, Context: `[{"k":0},null,{"k":2},null,{"k":4}]`, Attempts: map[string]int{"wanted": 5, "keep": 3, "gather": 1}},
		},
	}
}

// counting is a loop that counts up; enough tells from which count on its gate stops.
func counting(opts ...wiggle.RepeatOption) *wiggle.Definition {
	return wiggle.Define("counting", func(f *wiggle.Flow) {
		f.Repeat(func(f *wiggle.Flow) { f.Task("count") }, opts...).Until("enough")
		f.Task("after")
	})
}

func loops() []Scenario {
	count := Compute(func(t *wigglev1.Task) string { return strconv.Itoa(number(t) + 1) })
	from := func(n int) Answer { return When(func(t *wigglev1.Task) bool { return number(t) >= n }) }
	return []Scenario{
		{
			Name: "a loop until a gate is true", Covers: "WF-4", Flow: counting(), Input: `0`,
			Answers: map[string]Answer{"count": count, "enough": from(3), "after": Wrap("n")},
			Want:    Want{State: completed, Context: `{"n":3}`, Attempts: map[string]int{"count": 3, "enough": 3, "after": 1}},
		},
		{
			Name: "a loop while a gate is true", Covers: "WF-4",
			Flow: wiggle.Define("while", func(f *wiggle.Flow) {
				f.Repeat(func(f *wiggle.Flow) { f.Task("count") }).While("more")
			}), Input: `0`,
			Answers: map[string]Answer{"count": count, "more": When(func(t *wigglev1.Task) bool { return number(t) < 4 })},
			Want:    Want{State: completed, Context: `4`, Attempts: map[string]int{"count": 4, "more": 4}},
		},
		{
			Name: "a loop may spend its whole budget", Covers: "WF-4", Flow: counting(wiggle.Budget(3)), Input: `0`,
			Answers: map[string]Answer{"count": count, "enough": from(4)},
			Want:    Want{State: completed, Context: `4`, Attempts: map[string]int{"count": 4, "enough": 4, "after": 1}},
		},
		{
			Name: "a loop over its budget fails, naming loop and setting", Covers: "WF-4", Flow: counting(wiggle.Budget(3)), Input: `0`,
			Answers: map[string]Answer{"count": count, "enough": No},
			Want: Want{
				State: failed, Failure: "wiggle.LoopBudget", Message: "loop_budget", Node: "enough", Context: `4`,
				Attempts: map[string]int{"count": 4, "enough": 4},
			},
		},
		{
			Name: "each branch has a loop budget of its own", Covers: "WF-4 ENG-6",
			Flow: wiggle.Define("loops", func(f *wiggle.Flow) {
				f.ForEach("", func(f *wiggle.Flow) {
					f.Repeat(func(f *wiggle.Flow) { f.Task("count") }, wiggle.Budget(2)).Until("enough")
				}).Combine("gather")
			}), Input: `[0,0,0]`,
			Answers: map[string]Answer{"count": count, "enough": from(3), "gather": Collect},
			Want:    Want{State: completed, Context: `[3,3,3]`, Attempts: map[string]int{"count": 9, "enough": 9, "gather": 1}},
		},
	}
}

// number reads a context that is a number.
func number(t *wigglev1.Task) int {
	n, err := strconv.Atoi(string(t.GetContext().GetData()))
	if err != nil {
		panic(err)
	}
	return n
}
