package conformance

import (
	"google.golang.org/protobuf/types/known/durationpb"

	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	wiggle "github.com/wiggle-run/wiggle/sdk/go"
)

// continuations are about the step that comes with the answer to a report.
func continuations() []Scenario {
	elsewhere := wiggle.Define("next-elsewhere", func(f *wiggle.Flow) { f.Task("a"); f.Task("b", wiggle.Queue("other")) })
	napping := wiggle.Define("next-nap", func(f *wiggle.Flow) { f.Task("a"); f.Sleep(short); f.Task("b") })
	return []Scenario{
		{
			Name: "the step that follows comes with the report's answer", Covers: "WRK-11 WRK-16",
			Flow: chain("next", "a", "b", "c"), Script: goesOn,
		},
		{
			Name: "a repeated report brings the same task again", Covers: "WRK-5 WRK-11",
			Flow: chain("next-again", "a", "b"), Script: goesOnAgain,
		},
		{Name: "a step on another queue waits for a poll", Covers: "WRK-7 WRK-11", Flow: elsewhere, Script: doesNotGoOn},
		{Name: "a step behind a sleep waits for its time", Covers: "ENG-18 WRK-11", Flow: napping, Script: doesNotGoOn},
		{Name: "a combine waits for a poll", Covers: "ENG-8 WRK-11", Flow: pair("next-combine"), Script: combineWaits},
		{
			Name: "a lease that came with a report runs out like any other", Covers: "ENG-14 WRK-11",
			Flow: wiggle.Define("next-lost", func(f *wiggle.Flow) { f.Task("a"); f.Task("b", quick(2)) }), Script: nextRunsOut,
		},
		{Name: "the context around branches comes once where that is asked for", Covers: "WRK-3", Flow: each("shared-base"), Script: sharedBase},
	}
}

// goOn reports a task and asks for what follows.
func (r *Run) goOn(t *wigglev1.Task, answer Answer, change ...func(*wigglev1.Continuation)) []*wigglev1.Task {
	r.Helper()
	next := &wigglev1.Continuation{Workflows: []*wigglev1.WorkflowBinding{{Workflow: r.Workflow}}}
	for _, c := range change {
		c(next)
	}
	res, err := r.Workers.ReportSteps(r.ctx, &wigglev1.ReportStepsRequest{
		Worker: "worker", Reports: []*wigglev1.StepReport{reportOf(t, answer(t))}, Next: next,
	})
	if err != nil {
		r.Fatalf("report: %v", err)
	}
	r.Applied(t.GetStep(), res.GetOutcomes()[0].GetFault())
	return res.GetTasks()
}

func goesOn(r *Run) {
	r.Start(`0`)
	t := r.Task("a")
	for _, step := range []string{"b", "c"} {
		next := r.goOn(t, Wrap(t.GetStep()))
		if len(next) != 1 || next[0].GetStep() != step || next[0].GetAttempt() != 1 || next[0].GetInstanceId() != r.ID {
			r.Fatalf("the report of %s brought %v", t.GetStep(), next)
		}
		r.None()
		t = next[0]
	}
	if next := r.goOn(t, Wrap("c")); len(next) != 0 {
		r.Fatalf("the last report brought %v", next)
	}
	r.See(Want{State: completed, Context: `{"c":{"b":{"a":0}}}`, Attempts: map[string]int{"a": 1, "b": 1, "c": 1}})
}

func goesOnAgain(r *Run) {
	r.Start(`0`)
	a := r.Task("a")
	first, second := r.goOn(a, Wrap("a")), r.goOn(a, Wrap("a"))
	if len(first) != 1 || len(second) != 1 || first[0].GetLease() != second[0].GetLease() {
		r.Fatalf("the report brought %v, and again %v", first, second)
	}
	r.Applied("b", r.Report(second[0], Wrap("b")))
	if late := r.goOn(a, Wrap("a")); len(late) != 0 {
		r.Fatalf("a report that is repeated after the end brought %v", late)
	}
	r.See(Want{State: completed, Context: `{"b":{"a":0}}`, Attempts: map[string]int{"a": 1, "b": 1}})
}

func doesNotGoOn(r *Run) {
	r.Start(`0`)
	if next := r.goOn(r.Task("a"), Wrap("a")); len(next) != 0 {
		r.Fatalf("the report brought %v", next)
	}
	b := r.Task("b", func(q *wigglev1.PollTasksRequest) { q.Queues = []string{"default", "other"} })
	r.Applied("b", r.Report(b, Wrap("b")))
	r.See(Want{State: completed, Context: `{"b":{"a":0}}`})
}

func combineWaits(r *Run) {
	r.Start(`0`)
	for _, step := range []string{"l", "r"} {
		if next := r.goOn(r.Task(step), Wrap(step)); len(next) != 0 {
			r.Fatalf("the report of %s brought %v", step, next)
		}
	}
	r.Work(nil)
	r.See(Want{State: completed, Context: `{"base":0,"results":{"left":{"l":0},"right":{"r":0}}}`})
}

func nextRunsOut(r *Run) {
	r.Start(`0`)
	next := r.goOn(r.Task("a"), Wrap("a"), func(c *wigglev1.Continuation) { c.Lease = durationpb.New(briefly) })
	if len(next) != 1 {
		r.Fatalf("the report brought %v", next)
	}
	again := r.Task("b")
	if again.GetAttempt() != 2 {
		r.Fatalf("the second lease is for attempt %d", again.GetAttempt())
	}
	r.Lost("the first lease", r.Report(next[0], Wrap("b")))
	r.Applied("the second", r.Report(again, Wrap("b")))
	r.See(Want{State: completed, Context: `{"b":{"a":0}}`, Attempts: map[string]int{"a": 1, "b": 2}})
}

func sharedBase(r *Run) {
	r.Start(`{"items":[1,2,3],"more":true}`)
	share := func(q *wigglev1.PollTasksRequest) { q.ShareBaseContexts = true }
	for seen := 0; seen < 3; {
		res, err := r.Workers.PollTasks(r.ctx, &wigglev1.PollTasksRequest{
			Worker: "worker", MaxTasks: 10, Wait: durationpb.New(short), ShareBaseContexts: true,
			Workflows: []*wigglev1.WorkflowBinding{{Workflow: r.Workflow}},
		})
		if err != nil {
			r.Fatalf("poll: %v", err)
		}
		if n := len(res.GetBaseContexts()); len(res.GetTasks()) > 0 && n != 1 {
			r.Fatalf("%d tasks of one fan-out came with %d contexts around them", len(res.GetTasks()), n)
		}
		for _, t := range res.GetTasks() {
			if t.GetBaseContext() != nil || t.GetBaseIndex() != 1 {
				r.Fatalf("a task has the context %v and the index %d", t.GetBaseContext(), t.GetBaseIndex())
			}
			r.SeeJSON("the base", res.GetBaseContexts()[t.GetBaseIndex()-1], `{"items":[1,2,3],"more":true}`)
			r.Applied("element", r.Report(t, Unchanged))
			seen++
		}
	}
	r.Work(nil, share)
	r.See(Want{State: completed})
}
