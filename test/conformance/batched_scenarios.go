package conformance

import (
	"strings"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/wiggle-run/wiggle/pkg/faults"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	wiggle "github.com/wiggle-run/wiggle/sdk/go"
)

// batched are about the steps that a worker runs by itself and reports together.
func batched() []Scenario {
	abcd := batchedFlow("batch", func(f *wiggle.Flow) { f.Task("a"); f.Task("b"); f.Task("c", quick(2)); f.Task("d") })
	mixed := batchedFlow("batch-mixed", func(f *wiggle.Flow) {
		f.Task("a")
		f.Gate("open")
		f.Effect("log")
		f.Choose("pick").Case("x", task("left")).Case("y", task("right"))
		f.Gate("last").Otherwise(task("closing"))
	})
	forked := batchedFlow("batch-fork", func(f *wiggle.Flow) {
		f.Task("a")
		f.Task("b")
		f.Fork(
			wiggle.Branch("left", func(f *wiggle.Flow) { f.Task("l"); f.Effect("m"); f.Gate("n") }), wiggle.Branch("right", task("r")),
		).Combine("merge")
		f.Task("c")
		f.ForEach("/base/base/items", func(f *wiggle.Flow) { f.Task("d"); f.Task("e") }).Combine("gather")
		f.Task("f")
	})
	napping := batchedFlow("batch-nap", func(f *wiggle.Flow) { f.Task("a"); f.Task("b"); f.Sleep(short); f.Task("c") })
	loop := batchedFlow("batch-loop", func(f *wiggle.Flow) {
		f.Repeat(func(f *wiggle.Flow) { f.Task("a") }, wiggle.Budget(3)).Until("done")
	})
	return []Scenario{
		{Name: "a chain in one report", Covers: "WRK-14 WRK-16", Flow: abcd, Script: chainInOne},
		{Name: "batches of every length", Covers: "WRK-14", Flow: abcd, Script: everyCut},
		{Name: "gates, effects and chooses within a batch", Covers: "WRK-14 WF-3", Flow: mixed, Script: everyKindInBatch},
		{Name: "forks and for_eachs behind batches and around them", Covers: "WRK-14 ENG-6 ENG-8", Flow: forked, Script: batchesAndBranches},
		{Name: "a sleep behind a batch", Covers: "WRK-14 ENG-18", Flow: napping, Script: napBehindBatch},
		{Name: "a loop within a batch", Covers: "WRK-14 WF-4", Flow: loop, Script: loopInBatch},
		{Name: "a failure in the middle of a batch", Covers: "WRK-14 ENG-14", Flow: abcd, Script: failureInBatch},
		{Name: "a batch that does not fit is refused as a whole", Covers: "WRK-14", Flow: abcd, Script: wrongBatch},
		{Name: "a combine is no part of a batch", Covers: "WRK-14 ENG-8", Flow: forked, Script: combineInBatch},
		{Name: "steps that follow in a durable workflow are refused", Covers: "WRK-14", Flow: chain("durable", "a", "b"), Script: durableRefuses},
		{Name: "a batch that is reported again is answered as the first was", Covers: "WRK-5 WRK-11 WRK-14", Flow: abcd, Script: batchAgain},
		{Name: "a batch under a lease that is lost changes nothing", Covers: "WRK-4 WRK-14", Flow: abcd, Script: lateBatch},
		{Name: "a batch of an instance that was cancelled changes nothing", Covers: "ENG-3 WRK-14", Flow: abcd, Script: cancelledBatch},
	}
}

func batchedFlow(name string, build func(f *wiggle.Flow)) *wiggle.Definition {
	return wiggle.Define(name, build, wiggle.Batched())
}

// wraps wraps the context at every step.
func wraps(steps string) map[string]Answer {
	out := map[string]Answer{}
	for s := range strings.SplitSeq(steps, "") {
		out[s] = Wrap(s)
	}
	return out
}

const allWrapped = `{"d":{"c":{"b":{"a":0}}}}`

func once(steps string) map[string]int {
	out := map[string]int{}
	for s := range strings.SplitSeq(steps, "") {
		out[s] = 1
	}
	return out
}

func chainInOne(r *Run) {
	r.Start(`0`)
	a := r.Task("a")
	if !a.GetBatched() {
		r.Errorf("the task is not batched: %v", a)
	}
	report := r.Batch(a, batchMax, wraps("abcd"))
	if len(report.GetFollowedBy()) != 3 {
		r.Fatalf("the batch is %v", report)
	}
	r.Applied("the batch", r.ReportAll(report)[0])
	r.See(Want{State: completed, Context: allWrapped, Attempts: once("abcd")})
	for _, f := range report.GetFollowedBy() {
		e := r.Steps(f.GetNode())[0]
		if e.GetWorker() != "worker" || e.GetAttempt() != 1 || e.GetFence() < 2 {
			r.Errorf("%s is told as %v", f.GetNode(), e)
		}
		if e.GetQueuedAt().AsTime().After(e.GetDispatchedAt().AsTime()) || e.GetDispatchedAt().AsTime().After(e.GetStartedAt().AsTime()) ||
			e.GetStartedAt().AsTime().After(e.GetFinishedAt().AsTime()) {
			r.Errorf("WRK-16: the times of %s are out of order: %v", f.GetNode(), e)
		}
	}
}

func everyCut(r *Run) {
	for first := range 3 {
		for second := range 3 {
			r.Start(`0`)
			for _, most := range []int{first, second, batchMax, batchMax} {
				if !r.Ended() {
					tasks := r.Poll()
					for len(tasks) == 0 {
						tasks = r.Poll()
					}
					r.Applied("a batch", r.ReportAll(r.Batch(tasks[0], most, wraps("abcd")))[0])
				}
			}
			r.See(Want{State: completed, Context: allWrapped, Attempts: once("abcd")})
		}
	}
}

func everyKindInBatch(r *Run) {
	answers := map[string]Answer{"a": Wrap("a"), "pick": Choice("y"), "left": Wrap("left"), "right": Wrap("right"), "last": No, "closing": Wrap("end")}
	r.Start(`0`)
	r.Applied("the batch", r.ReportAll(r.Batch(r.Task("a"), batchMax, answers))[0])
	r.See(Want{
		State: completed, Context: `{"end":{"right":{"a":0}}}`,
		Attempts: map[string]int{"a": 1, "open": 1, "log": 1, "pick": 1, "right": 1, "last": 1, "closing": 1},
	})
	// A gate that is closed without another way, and an answer that is no case, end the instance.
	for step, end := range map[string]Want{
		"open": {State: completed, Context: `{"a":0}`, Attempts: map[string]int{"a": 1, "open": 1}},
		"pick": {
			State: failed, Failure: "wiggle.UnknownChoice", Node: "pick", Message: "none of its cases",
			Attempts: map[string]int{"a": 1, "open": 1, "log": 1, "pick": 1},
		},
	} {
		closed := map[string]Answer{"a": Wrap("a"), "open": No}
		if step == "pick" {
			closed = map[string]Answer{"a": Wrap("a"), "pick": Choice("z")}
		}
		r.Start(`0`)
		r.Applied("the batch", r.ReportAll(r.Batch(r.Task("a"), batchMax, closed))[0])
		r.See(end)
	}
}

func batchesAndBranches(r *Run) {
	answers := wraps("abcdeflr")
	answers["c"], answers["gather"] = Result(`{"base":{"base":{"items":[1,2]}}}`), Collect
	r.Start(`0`)
	for !r.Ended() {
		if r.ctx.Err() != nil {
			r.Fatalf("the instance did not end: %v", r.Get())
		}
		var reports []*wigglev1.StepReport
		for _, t := range r.Poll() {
			reports = append(reports, r.Batch(t, batchMax, answers))
		}
		if len(reports) == 0 {
			continue
		}
		for _, f := range r.ReportAll(reports...) {
			r.Applied("a batch", f)
		}
	}
	r.See(Want{
		State: completed, Context: `{"f":[{"e":{"d":1}},{"e":{"d":2}}]}`,
		Attempts: map[string]int{
			"a": 1, "b": 1, "l": 1, "m": 1, "n": 1, "r": 1, "merge": 1, "c": 1, "d": 2, "e": 2, "gather": 1, "f": 1,
		},
	})
}

func napBehindBatch(r *Run) {
	r.Start(`0`)
	a := r.Task("a")
	early := r.Batch(a, batchMax, wraps("abc"))
	early.FollowedBy = append(early.FollowedBy, did("c", Result(`1`)))
	r.RefusedItem("a step behind the sleep", r.ReportAll(early)[0], faults.CodeFailedPrecondition, `SLEEPING at node "b.sleep"`)
	r.Applied("the batch", r.ReportAll(r.Batch(a, batchMax, wraps("abc")))[0])
	r.Applied("c", r.Report(r.Task("c"), Wrap("c")))
	r.See(Want{State: completed, Context: `{"c":{"b":{"a":0}}}`, Attempts: once("abc")})
}

func loopInBatch(r *Run) {
	rounds := func(n int) map[string]Answer {
		return map[string]Answer{"a": Wrap("a"), "done": When(func(t *wigglev1.Task) bool {
			return strings.Count(string(t.GetContext().GetData()), "a") > n
		})}
	}
	r.Start(`0`)
	r.Applied("three times around", r.ReportAll(r.Batch(r.Task("a"), batchMax, rounds(3)))[0])
	r.See(Want{State: completed, Context: `{"a":{"a":{"a":{"a":0}}}}`, Attempts: map[string]int{"a": 4, "done": 4}})
	// The worker does not count the rounds before its batch. What it does beyond the budget is refused.
	r.Start(`0`)
	a := r.Task("a")
	beyond := r.Batch(a, 20, rounds(30))
	r.RefusedItem("beyond the budget", r.ReportAll(beyond)[0], faults.CodeFailedPrecondition, "the instance is FAILED")
	beyond.FollowedBy = beyond.GetFollowedBy()[:7]
	r.Applied("up to it", r.ReportAll(beyond)[0])
	r.See(Want{State: failed, Failure: "wiggle.LoopBudget", Node: "done", Attempts: map[string]int{"a": 4, "done": 4}})
}

func failureInBatch(r *Run) {
	r.Start(`0`)
	answers := wraps("abcd")
	answers["c"] = Fail("busy")
	report := r.Batch(r.Task("a"), batchMax, answers)
	if len(report.GetFollowedBy()) != 1 {
		r.Fatalf("the batch up to the failure is %v", report)
	}
	r.Applied("up to the failure", r.ReportAll(report)[0])
	c := r.Task("c")
	if c.GetAttempt() != 1 {
		r.Errorf("the step that failed within the batch comes as attempt %d", c.GetAttempt())
	}
	if _, err := r.FailTask(c, Fail("busy")); err != nil {
		r.Fatalf("fail: %v", err)
	}
	r.Applied("the second attempt and the rest", r.ReportAll(r.Batch(r.Task("c"), batchMax, wraps("cd")))[0])
	r.See(Want{State: completed, Context: allWrapped, Attempts: map[string]int{"a": 1, "b": 1, "c": 2, "d": 1}})
}

func wrongBatch(r *Run) {
	r.Start(`0`)
	a := r.Task("a")
	good := r.Batch(a, 1, wraps("abcd"))
	for what, c := range map[string]struct {
		step  *wigglev1.FollowingStep
		code  faults.Code
		about string
	}{
		"another node":   {did("d", Unchanged), faults.CodeFailedPrecondition, `node "d" of workflow`},
		"the same node":  {did("b", Unchanged), faults.CodeFailedPrecondition, `READY at node "c"`},
		"the wrong kind": {did("c", Yes), faults.CodeInvalidArgument, "gate"},
		"no outcome":     {&wigglev1.FollowingStep{Node: "c"}, faults.CodeInvalidArgument, "outcome"},
		"a large result": {did("c", Result(`"`+strings.Repeat("x", 2<<20)+`"`)), faults.CodeResourceExhausted, "limit"},
	} {
		bad := r.Batch(a, 1, wraps("abcd"))
		bad.FollowedBy = append(bad.FollowedBy, c.step)
		r.RefusedItem(what, r.ReportAll(bad)[0], c.code, c.about)
	}
	if t := r.Token("a"); t.GetState() != wigglev1.TokenState_TOKEN_STATE_LEASED || len(r.History(wholeHistory)) != 1 {
		r.Errorf("a refused batch left %v, %v", t, r.History(wholeHistory))
	}
	// A bad batch and a good one in one call: each is answered on its own.
	bad := r.Batch(a, 0, wraps("abcd"))
	bad.FollowedBy = append(bad.FollowedBy, did("d", Unchanged))
	faultsOf := r.ReportAll(bad, good)
	r.RefusedItem("the bad one", faultsOf[0], faults.CodeFailedPrecondition, `READY at node "b"`)
	r.Applied("the good one", faultsOf[1])
	r.Work(wraps("abcd"))
	r.See(Want{State: completed, Context: allWrapped, Attempts: once("abcd")})
}

func combineInBatch(r *Run) {
	r.Start(`0`)
	r.Applied("the batch before", r.ReportAll(r.Batch(r.Task("a"), batchMax, wraps("ab")))[0])
	left, right := r.Task("l"), r.Task("r")
	r.Applied("left", r.ReportAll(r.Batch(left, batchMax, wraps("l")))[0])
	late := r.Batch(right, batchMax, wraps("r"))
	late.FollowedBy = append(late.FollowedBy, did("merge", Unchanged))
	r.RefusedItem("the combine behind a branch", r.ReportAll(late)[0], faults.CodeFailedPrecondition, `node "merge" of workflow`)
	r.Applied("right", r.Report(right, Wrap("r")))
	merge := r.Task("merge")
	r.Applied("the combine and what follows", r.ReportAll(r.Batch(merge, 1, map[string]Answer{"c": Result(`{"base":{"base":{"items":null}}}`)}))[0])
	r.Work(wraps("f"))
	r.See(Want{State: completed, Context: `{"f":{"base":{"base":{"items":null}}}}`})
}

func durableRefuses(r *Run) {
	r.Start(`0`)
	a := r.Task("a")
	if a.GetBatched() {
		r.Errorf("the task of a durable workflow is batched: %v", a)
	}
	f := r.RefusedItem("a batch", r.ReportAll(r.Batch(a, batchMax, wraps("ab")))[0], faults.CodeFailedPrecondition, r.Workflow+" version 1 is durable")
	if f == nil || !strings.Contains(f.Error(), "MODE_BATCHED") {
		r.Errorf("the fault does not tell the way out: %v", f)
	}
	r.Applied("a alone", r.Report(a, Wrap("a")))
	r.Applied("b alone", r.Report(r.Task("b"), Wrap("b")))
	r.See(Want{State: completed, Context: `{"b":{"a":0}}`, Attempts: once("ab")})
}

func batchAgain(r *Run) {
	r.Start(`0`)
	a := r.Task("a")
	batch := r.Batch(a, 1, wraps("abcd"))
	next := &wigglev1.Continuation{Workflows: []*wigglev1.WorkflowBinding{{Workflow: r.Workflow}}, Lease: durationpb.New(r.lease)}
	var c *wigglev1.Task
	for i := range 3 {
		res, err := r.Workers.ReportSteps(r.ctx, &wigglev1.ReportStepsRequest{Worker: "worker", Reports: []*wigglev1.StepReport{batch}, Next: next})
		if err != nil || res.GetOutcomes()[0].GetFault() != nil || len(res.GetTasks()) != 1 || res.GetTasks()[0].GetStep() != "c" {
			r.Fatalf("time %d: %v, %v", i, res, err)
		}
		if c != nil && c.GetLease() != res.GetTasks()[0].GetLease() {
			r.Errorf("the repeated batch brought another lease: %v", res.GetTasks())
		}
		c = res.GetTasks()[0]
	}
	last := r.Batch(c, batchMax, wraps("cd"))
	for i, f := range r.ReportAll(last, batch, last) {
		r.Applied([]string{"the rest", "the batch again", "the rest again"}[i], f)
	}
	r.Applied("after the end", r.ReportAll(batch)[0])
	r.See(Want{State: completed, Context: allWrapped, Attempts: once("abcd")})
}

func lateBatch(r *Run) {
	r.Start(`0`)
	first := r.Task("a", For(briefly))
	second := r.Task("a")
	if second.GetAttempt() != 2 {
		r.Fatalf("the second lease is for attempt %d", second.GetAttempt())
	}
	r.Lost("the first lease", r.ReportAll(r.Batch(first, batchMax, wraps("abcd")))[0])
	r.Applied("the second", r.ReportAll(r.Batch(second, 1, wraps("abcd")))[0])
	r.Lost("the first lease, later", r.ReportAll(r.Batch(first, batchMax, wraps("abcd")))[0])
	r.Work(wraps("abcd"))
	r.See(Want{State: completed, Context: allWrapped, Attempts: map[string]int{"a": 2, "b": 1, "c": 1, "d": 1}})
}

func cancelledBatch(r *Run) {
	r.Start(`0`)
	a := r.Task("a")
	r.Applied("a first batch", r.ReportAll(r.Batch(a, 1, wraps("abcd")))[0])
	c := r.Task("c")
	r.MustCancel("no longer wanted")
	r.Lost("a batch", r.ReportAll(r.Batch(c, batchMax, wraps("abcd")))[0])
	r.Applied("the first again", r.ReportAll(r.Batch(a, 1, wraps("abcd")))[0])
	r.See(wantCancelled(`{"b":{"a":0}}`, map[string]int{"a": 1, "b": 1}))
}
