package conformance

import (
	"strings"
	"time"

	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	wiggle "github.com/wiggle-run/wiggle/sdk/go"
)

func chains() []Scenario {
	return []Scenario{
		{
			Name: "each step sees what the one before returned", Covers: "WF-2 ENG-5 ENG-7",
			Flow: chain("chain", "a", "b", "c"), Input: `{"n":1}`,
			Answers: map[string]Answer{"a": Wrap("a"), "b": Wrap("b"), "c": Wrap("c")},
			Want: Want{
				State: completed, Context: `{"c":{"b":{"a":{"n":1}}}}`,
				Attempts: map[string]int{"a": 1, "b": 1, "c": 1},
			},
		},
		{
			Name: "an effect's result is dropped", Covers: "WF-2 ENG-7",
			Flow: wiggle.Define("effect", func(f *wiggle.Flow) {
				f.Effect("mail")
				f.Task("after")
			}),
			Input:   `{"n":1}`,
			Answers: map[string]Answer{"mail": Result(`{"lost":true}`), "after": Wrap("after")},
			Want:    Want{State: completed, Context: `{"after":{"n":1}}`},
		},
		{
			Name: "an effect in a branch leaves the branch's context", Covers: "ENG-6 ENG-7",
			Flow: wiggle.Define("effect", func(f *wiggle.Flow) {
				f.ForEach("", func(f *wiggle.Flow) { f.Effect("mail") }).Combine("gather")
			}),
			Input:   `[1,2]`,
			Answers: map[string]Answer{"mail": Result(`"lost"`), "gather": Collect},
			Want:    Want{State: completed, Context: `[1,2]`},
		},
		{
			Name: "a task that answers unchanged keeps the context", Covers: "WRK-4 ENG-7",
			Flow: chain("unchanged", "a"), Input: `{"kept":[1,2,3]}`,
			Answers: map[string]Answer{"a": Unchanged},
			Want:    Want{State: completed, Context: `{"kept":[1,2,3]}`},
		},
		{
			Name: "no input is null", Covers: "WF-9",
			Flow: chain("null", "a"), Answers: map[string]Answer{"a": Wrap("a")},
			Want: Want{State: completed, Context: `{"a":null}`},
		},
		{
			Name: "a long chain runs to its end", Covers: "ENG-5 WRK-12",
			Flow: wiggle.Define("long", func(f *wiggle.Flow) {
				f.Repeat(func(f *wiggle.Flow) { f.Task("step") }).Until("enough")
			}),
			Input: `""`,
			Answers: map[string]Answer{
				"step": Compute(func(t *wigglev1.Task) string {
					return strings.Replace(string(t.GetContext().GetData()), `"`, `"x`, 1)
				}),
				"enough": When(func(t *wigglev1.Task) bool { return len(t.GetContext().GetData()) == 10 }),
			},
			Want: Want{
				State: completed, Context: `"` + strings.Repeat("x", 8) + `"`,
				Attempts: map[string]int{"step": 8, "enough": 8},
			},
		},
		{Name: "a task says all there is to know of it", Covers: "WRK-3 WRK-16", Flow: described(), Script: taskFields},
		{Name: "a task in a branch says which", Covers: "WRK-3", Flow: pair("branch"), Script: branchFields},
	}
}

func described() *wiggle.Definition {
	return wiggle.Define("described", func(f *wiggle.Flow) {
		f.Task("first", wiggle.Activity("shared"), wiggle.Timeout(time.Minute))
		f.Choose("way").Case("a", task("x")).Case("b", task("y"))
	})
}

func taskFields(r *Run) {
	r.Start(`{"n":1}`, func(q *wigglev1.StartInstanceRequest) {
		q.TraceContext = map[string]string{"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
	})
	t := r.Task("first", As("tester"))
	if t.GetInstanceId() != r.ID || t.GetWorkflow() != r.Workflow || t.GetVersion() != 1 || t.GetNamespace() != "default" {
		r.Errorf("the task is of another instance: %v", t)
	}
	if t.GetStep() != "first" || t.GetNode() != "first" || t.GetActivity() != "shared" || t.GetQueue() != "default" {
		r.Errorf("the task is of another step: %v", t)
	}
	if t.GetKind() != wigglev1.TaskKind_TASK_KIND_TASK || t.GetAttempt() != 1 || t.GetElement() != nil || t.GetBaseContext() != nil {
		r.Errorf("the task is of another kind: %v", t)
	}
	r.SeeJSON("the task's context", t.GetContext(), `{"n":1}`)
	if t.GetTraceContext()["traceparent"] == "" {
		r.Errorf("the caller's trace is lost: %v", t)
	}
	dispatched := t.GetDispatchedAt().AsTime()
	if t.GetQueuedAt().AsTime().After(dispatched) || t.GetLeaseExpiresAt().AsTime().Sub(dispatched) != aLease {
		r.Errorf("times do not fit: queued %v, dispatched %v, leased until %v", t.GetQueuedAt(), t.GetDispatchedAt(), t.GetLeaseExpiresAt())
	}
	if t.GetDeadline().AsTime().Sub(dispatched) != time.Minute {
		r.Errorf("the deadline is %v, dispatched %v", t.GetDeadline(), t.GetDispatchedAt())
	}
	if token := r.Token("first"); token.GetState() != wigglev1.TokenState_TOKEN_STATE_LEASED || token.GetWorker() != "tester" {
		r.Errorf("the token does not say who holds it: %v", token)
	}
	r.Applied("report", r.Report(t, Unchanged))
	way := r.Task("way")
	if way.GetKind() != wigglev1.TaskKind_TASK_KIND_CHOOSE || strings.Join(way.GetCases(), " ") != "a b" || way.GetDeadline() != nil {
		r.Errorf("the choose is %v", way)
	}
	r.Applied("report", r.Report(way, Choice("b")))
	r.Work(nil)
	r.See(Want{State: completed, Context: `{"n":1}`, Attempts: map[string]int{"first": 1, "way": 1, "y": 1}})
}

func branchFields(r *Run) {
	r.Start(`{"n":1}`)
	for step, name := range map[string]string{"l": "left", "r": "right"} {
		t := r.Task(step)
		if t.GetElement().GetKey() != name {
			r.Errorf("step %s is in branch %v, want %s", step, t.GetElement(), name)
		}
		r.SeeJSON("the base context", t.GetBaseContext(), `{"n":1}`)
		if token := r.Token(step); token.GetBranch() != name || token.GetParentId() == "" {
			r.Errorf("the token is %v", token)
		}
		r.Applied("report", r.Report(t, Wrap(name)))
	}
	merge := r.Task("merge")
	if merge.GetKind() != wigglev1.TaskKind_TASK_KIND_COMBINE || !merge.GetByName() || len(merge.GetResults()) != 2 {
		r.Errorf("the combine is %v", merge)
	}
	r.SeeJSON("the combine's context", merge.GetContext(), `{"n":1}`)
	r.Applied("report", r.Report(merge, Gather))
	r.See(Want{State: completed, Context: `{"base":{"n":1},"results":{"left":{"left":{"n":1}},"right":{"right":{"n":1}}}}`})
}

func endings() []Scenario {
	stop := func(name string, otherwise func(f *wiggle.Flow)) *wiggle.Definition {
		return wiggle.Define(name, func(f *wiggle.Flow) {
			f.Task("a")
			f.Gate("ok").Otherwise(otherwise)
			f.Task("b")
		})
	}
	return []Scenario{
		{
			Name: "an end that fails fails the instance with its reason", Covers: "WF-2 ENG-3",
			Flow: stop("fails", func(f *wiggle.Flow) { f.Fail("out of stock") }), Input: `{"n":1}`,
			Answers: map[string]Answer{"a": Wrap("a"), "ok": No},
			Want: Want{
				State: failed, Failure: "wiggle.End", Message: "out of stock", Node: "ok.otherwise.fail",
				Context: `{"a":{"n":1}}`, Attempts: map[string]int{"a": 1, "ok": 1},
			},
		},
		{
			Name: "an end that is reached early ends well", Covers: "WF-2 ENG-3",
			Flow: stop("early", func(f *wiggle.Flow) {
				f.Task("refund")
				f.End()
			}), Input: `{"n":1}`,
			Answers: map[string]Answer{"ok": No, "refund": Wrap("refunded")},
			Want:    Want{State: completed, Context: `{"refunded":{"n":1}}`, Attempts: map[string]int{"a": 1, "ok": 1, "refund": 1}},
		},
	}
}
