package conformance

import (
	"fmt"
	"strings"

	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	wiggle "github.com/wiggle-run/wiggle/sdk/go"
)

func forks() []Scenario {
	return []Scenario{
		{
			Name: "a fork's results come by branch name, with the context from before", Covers: "WF-3 ENG-6 ENG-8",
			Flow: pair("fork"), Input: `{"n":1}`,
			Answers: map[string]Answer{"l": Result(`"L"`), "r": Result(`"R"`)},
			Want: Want{
				State: completed, Context: `{"base":{"n":1},"results":{"left":"L","right":"R"}}`,
				Attempts: map[string]int{"l": 1, "r": 1, "merge": 1},
			},
		},
		{Name: "no branch sees or writes another's context", Covers: "ENG-6", Flow: isolated(), Script: isolation},
		{
			Name: "a combine that answers unchanged keeps the context from before", Covers: "ENG-8", Flow: pair("keep"), Input: `{"n":1}`,
			Answers: map[string]Answer{"l": Result(`2`), "r": Result(`3`), "merge": Unchanged},
			Want:    Want{State: completed, Context: `{"n":1}`},
		},
		{
			Name: "a fork of fifty branches", Covers: "WF-3",
			Flow: wiggle.Define("wide", func(f *wiggle.Flow) {
				branches := make([]wiggle.ForkBranch, 50)
				for i := range branches {
					branches[i] = wiggle.Branch(fmt.Sprintf("b%02d", i), task(fmt.Sprintf("t%02d", i)))
				}
				f.Fork(branches...).Combine("merge")
			}), Input: `7`,
			Answers: map[string]Answer{"merge": Compute(func(t *wigglev1.Task) string {
				return fmt.Sprintf(`"%d of %s"`, len(t.GetResults()), named(t)["b49"])
			})},
			Want: Want{State: completed, Context: `"50 of 7"`},
		},
		{
			Name: "a combine that is tried again is handed the same results", Covers: "ENG-8 ENG-14",
			Flow: wiggle.Define("again", func(f *wiggle.Flow) {
				f.Fork(wiggle.Branch("left", task("l")), wiggle.Branch("right", task("r"))).Combine("merge", quick(3))
			}), Input: `1`,
			Answers: map[string]Answer{"l": Wrap("l"), "r": Wrap("r"), "merge": Until(3, Fail("busy"), Gather)},
			Want: Want{
				State: completed, Context: `{"base":1,"results":{"left":{"l":1},"right":{"r":1}}}`,
				Attempts: map[string]int{"l": 1, "r": 1, "merge": 3},
			},
		},
		{
			Name: "one fan-out after the other sees the new context each time", Covers: "ENG-6 ENG-8",
			Flow: wiggle.Define("rounds", func(f *wiggle.Flow) {
				f.Fork(wiggle.Branch("a", task("a1")), wiggle.Branch("b", task("b1"))).Combine("m1")
				f.Fork(wiggle.Branch("a", task("a2")), wiggle.Branch("b", task("b2"))).Combine("m2")
				f.ForEach("", task("each")).Combine("m3")
			}), Input: `0`,
			Answers: map[string]Answer{"m1": Result(`1`), "a2": Wrap("a2"), "m2": Collect, "each": Wrap("e"), "m3": CollectByKey},
			Want:    Want{State: completed, Context: `{"a":{"e":{"a2":1}},"b":{"e":1}}`},
		},
	}
}

func isolated() *wiggle.Definition {
	return wiggle.Define("isolated", func(f *wiggle.Flow) {
		f.Fork(
			wiggle.Branch("left", func(f *wiggle.Flow) { f.Task("l1"); f.Task("l2") }),
			wiggle.Branch("right", func(f *wiggle.Flow) { f.Task("r1"); f.Task("r2") }),
		).Combine("merge")
	})
}

func isolation(r *Run) {
	r.Start(`0`)
	l1, r1 := r.Task("l1"), r.Task("r1")
	r.Applied("l1", r.Report(l1, Result(`"left"`)))
	l2 := r.Task("l2")
	r.Applied("r1", r.Report(r1, Result(`"right"`)))
	r2 := r.Task("r2")
	r.SeeJSON("left's context", l2.GetContext(), `"left"`)
	r.SeeJSON("left's base", l2.GetBaseContext(), `0`)
	r.SeeJSON("right's context", r2.GetContext(), `"right"`)
	r.SeeJSON("right's base", r2.GetBaseContext(), `0`)
	in := r.Get()
	r.SeeJSON("the instance's context while branches run", in.GetContext(), `0`)
	if in.GetActiveTokens() != 3 || r.Token("merge.join").GetPendingBranches() != 2 {
		r.Errorf("want two branches and the token at the join, got %v", in)
	}
	r.Applied("l2", r.Report(l2, Unchanged))
	if p := r.Token("merge.join").GetPendingBranches(); p != 1 {
		r.Errorf("%d branches are pending, want 1", p)
	}
	r.Applied("r2", r.Report(r2, Wrap("r2")))
	r.Work(nil)
	r.See(Want{State: completed, Context: `{"base":0,"results":{"left":"left","right":{"r2":"right"}}}`})
}

func forkEnds() []Scenario {
	return []Scenario{
		{
			Name: "a good end inside a branch ends the branch, with its context as the result", Covers: "WF-2 ENG-10",
			Flow: wiggle.Define("branch-end", func(f *wiggle.Flow) {
				f.Fork(
					wiggle.Branch("left", func(f *wiggle.Flow) {
						f.Task("l1")
						f.Gate("go").Otherwise(func(f *wiggle.Flow) { f.End() })
						f.Task("l2")
					}),
					wiggle.Branch("right", task("r")),
				).Combine("merge")
				f.Task("after")
			}), Input: `0`,
			Answers: map[string]Answer{"l1": Wrap("l1"), "go": No, "r": Wrap("r"), "merge": Collect},
			Want: Want{
				State: completed, Context: `{"left":{"l1":0},"right":{"r":0}}`,
				Attempts: map[string]int{"l1": 1, "go": 1, "r": 1, "merge": 1, "after": 1},
			},
		},
		{Name: "a failing end inside a branch ends its siblings", Covers: "ENG-3 WF-2", Flow: failingBranch(), Script: siblingsEnd},
		{Name: "a branch out of attempts ends its siblings", Covers: "ENG-3 ENG-14", Flow: exhaustedBranch(), Script: siblingsExhausted},
	}
}

func failingBranch() *wiggle.Definition {
	return wiggle.Define("branch-fails", func(f *wiggle.Flow) {
		f.Fork(
			wiggle.Branch("bad", func(f *wiggle.Flow) {
				f.Gate("ok").Otherwise(func(f *wiggle.Flow) { f.Fail("no way on") })
				f.Task("never")
			}),
			wiggle.Branch("held", task("h")),
			wiggle.Branch("free", task("f")),
		).Combine("merge")
	})
}

func siblingsEnd(r *Run) {
	r.Start(`{"n":1}`)
	held := r.Task("h")
	r.Applied("gate", r.Report(r.Task("ok"), No))
	r.Lost("report of a sibling after the end", r.Report(held, Unchanged))
	r.Lost("heartbeat of a sibling after the end", r.Beat(held, aLease, nil).GetFault())
	r.held = nil
	r.None()
	r.See(Want{
		State: failed, Failure: "wiggle.End", Message: "no way on", Context: `{"n":1}`,
		Attempts: map[string]int{"ok": 1},
	})
}

func exhaustedBranch() *wiggle.Definition {
	return wiggle.Define("branch-exhausted", func(f *wiggle.Flow) {
		f.Fork(
			wiggle.Branch("bad", task("bad", wiggle.Retry(1, short))),
			wiggle.Branch("good", task("good")),
		).Combine("merge")
	})
}

func siblingsExhausted(r *Run) {
	r.Start(`1`)
	good := r.Task("good")
	res, err := r.FailTask(r.Task("bad"), Fail("broken"))
	if err != nil || res.GetWillRetry() {
		r.Errorf("the last attempt's failure is answered with %v, %v", res, err)
	}
	r.Lost("report of a sibling after the end", r.Report(good, Unchanged))
	r.See(Want{State: failed, Failure: "broken", Message: "it is broken", Node: "bad", Attempts: map[string]int{"bad": 1}})
}

func nestings() []Scenario {
	return []Scenario{
		{
			Name: "a fork in a fork", Covers: "ENG-6",
			Flow: wiggle.Define("fork-fork", func(f *wiggle.Flow) {
				f.Fork(
					wiggle.Branch("a", func(f *wiggle.Flow) {
						f.Fork(wiggle.Branch("x", task("ax")), wiggle.Branch("y", task("ay"))).Combine("inner")
					}),
					wiggle.Branch("b", task("bt")),
				).Combine("outer")
			}), Input: `0`,
			Answers: map[string]Answer{"ax": Wrap("ax"), "ay": Wrap("ay"), "bt": Wrap("b"), "inner": Collect, "outer": Collect},
			Want:    Want{State: completed, Context: `{"a":{"x":{"ax":0},"y":{"ay":0}},"b":{"b":0}}`},
		},
		{
			Name: "a fork in a for_each in a fork", Covers: "ENG-6 ENG-8 WF-3", Flow: forkEachFork(), Input: `{"items":[1,2,3]}`,
			Answers: map[string]Answer{"x": Wrap("x"), "y": Wrap("y"), "inner": Collect, "gather": Collect, "other": Wrap("o"), "outer": Collect},
			Want: Want{
				State: completed,
				Context: `{"many":[{"p":{"x":1},"q":{"y":1}},{"p":{"x":2},"q":{"y":2}},{"p":{"x":3},"q":{"y":3}}],
					"one":{"o":{"items":[1,2,3]}}}`,
				Attempts: map[string]int{"x": 3, "y": 3, "inner": 3, "gather": 1, "other": 1, "outer": 1},
			},
		},
		{
			Name: "a for_each in a for_each", Covers: "ENG-6 ENG-9",
			Flow: wiggle.Define("each-each", func(f *wiggle.Flow) {
				f.ForEach("", func(f *wiggle.Flow) {
					f.ForEach("", task("leaf")).Combine("inner")
				}).Combine("outer")
			}), Input: `[[1,2],[],[3],null]`,
			Answers: map[string]Answer{"leaf": Wrap("v"), "inner": Collect, "outer": Collect},
			Want: Want{
				State: completed, Context: `[[{"v":1},{"v":2}],[],[{"v":3}],null]`,
				Attempts: map[string]int{"leaf": 3, "inner": 2, "outer": 1},
			},
		},
		{
			Name: "for_eachs nest five deep", Covers: "ENG-6", Flow: nested(5), Input: `[[[[[1,2],[3]]],[[[4]]]],[[[[5]]]]]`,
			Answers: map[string]Answer{"leaf": Wrap("v"), "c1": Collect, "c2": Collect, "c3": Collect, "c4": Collect, "c5": Collect},
			Want: Want{
				State: completed, Context: `[[[[[{"v":1},{"v":2}],[{"v":3}]]],[[[{"v":4}]]]],[[[[{"v":5}]]]]]`,
				Attempts: map[string]int{"leaf": 5, "c5": 4, "c4": 3, "c3": 3, "c2": 2, "c1": 1},
			},
		},
		{
			Name: "gates and sleeps in nested branches", Covers: "ENG-6 ENG-10",
			Flow: wiggle.Define("mixed", func(f *wiggle.Flow) {
				f.ForEach("", func(f *wiggle.Flow) {
					f.Fork(
						wiggle.Branch("p", func(f *wiggle.Flow) { f.Gate("g"); f.Sleep(short); f.Task("x") }),
						wiggle.Branch("q", func(f *wiggle.Flow) { f.Sleep(0); f.Task("y") }),
					).Combine("inner")
				}).Combine("outer")
			}), Input: `[1,2]`,
			Answers: map[string]Answer{
				"g": When(func(t *wigglev1.Task) bool { return strings.Contains(string(t.GetContext().GetData()), "1") }),
				"x": Wrap("x"), "y": Wrap("y"), "inner": Collect, "outer": Collect,
			},
			Want: Want{State: completed, Context: `[{"p":{"x":1},"q":{"y":1}},{"p":null,"q":{"y":2}}]`},
		},
	}
}

func forkEachFork() *wiggle.Definition {
	return wiggle.Define("fork-each-fork", func(f *wiggle.Flow) {
		f.Fork(
			wiggle.Branch("many", func(f *wiggle.Flow) {
				f.ForEach("/items", func(f *wiggle.Flow) {
					f.Fork(wiggle.Branch("p", task("x")), wiggle.Branch("q", task("y"))).Combine("inner")
				}).Combine("gather")
			}),
			wiggle.Branch("one", task("other")),
		).Combine("outer")
	})
}

// nested is for_eachs within each other, each over the whole context.
func nested(depth int) *wiggle.Definition {
	var build func(level int) func(*wiggle.Flow)
	build = func(level int) func(*wiggle.Flow) {
		if level > depth {
			return task("leaf")
		}
		return func(f *wiggle.Flow) { f.ForEach("", build(level+1)).Combine(fmt.Sprintf("c%d", level)) }
	}
	return wiggle.Define("nested", build(1))
}
