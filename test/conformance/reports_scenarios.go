package conformance

import (
	"fmt"
	"strings"

	"github.com/wiggle-run/wiggle/pkg/faults"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	wiggle "github.com/wiggle-run/wiggle/sdk/go"
)

func reports() []Scenario {
	return []Scenario{
		{Name: "a report that is sent twice is answered as the first was", Covers: "WRK-5", Flow: chain("twice", "a", "b", "c"), Script: reportedTwice},
		{Name: "a combine that is reported twice counts once", Covers: "WRK-5 ENG-8", Flow: pair("twice"), Script: combinedTwice},
		{Name: "reports of branches are known after the branches are gone", Covers: "WRK-5", Flow: each("gone"), Script: branchesGone},
		{Name: "another outcome under a lease that was reported changes nothing", Covers: "WRK-5", Flow: chain("changed-mind", "a", "b"), Script: changedMind},
		{Name: "an outcome of the wrong kind is refused, then the right one applied", Covers: "WRK-4", Flow: everyKind(), Script: wrongKinds},
		{Name: "a report without an outcome is refused", Covers: "WRK-4", Flow: chain("no-outcome", "a"), Script: noOutcome},
		{Name: "a lease that is no lease is refused", Covers: "WRK-4 ENG-25", Flow: chain("no-lease", "a"), Script: noLease},
		{Name: "a lease of another task is refused", Covers: "WRK-4", Flow: pair("other-lease"), Script: otherLease},
	}
}

func reportedTwice(r *Run) {
	r.Start(`0`)
	a := r.Task("a")
	r.Applied("first", r.Report(a, Wrap("a")))
	r.Applied("at once", r.Report(a, Wrap("a")))
	b := r.Task("b")
	r.Applied("while the next step is leased", r.Report(a, Wrap("a")))
	r.Applied("b", r.Report(b, Wrap("b")))
	c := r.Task("c")
	r.Applied("two steps later", r.Report(a, Wrap("a")))
	r.Applied("c", r.Report(c, Wrap("c")))
	for name, t := range map[string]*wigglev1.Task{"a": a, "b": b, "c": c} {
		r.Applied("after the end "+name, r.Report(t, Wrap(name)))
	}
	r.See(Want{State: completed, Context: `{"c":{"b":{"a":0}}}`, Attempts: map[string]int{"a": 1, "b": 1, "c": 1}})
}

func combinedTwice(r *Run) {
	r.Start(`0`)
	left, right := r.Task("l"), r.Task("r")
	r.Applied("left", r.Report(left, Wrap("l")))
	r.Applied("left again", r.Report(left, Wrap("l")))
	if p := r.Token("merge.join").GetPendingBranches(); p != 1 {
		r.Errorf("the second report counted: %d branches are pending", p)
	}
	r.Applied("right", r.Report(right, Wrap("r")))
	merge := r.Task("merge")
	r.Applied("left at the combine", r.Report(left, Wrap("l")))
	r.Applied("merge", r.Report(merge, Gather))
	r.Applied("merge again", r.Report(merge, Gather))
	r.See(Want{
		State: completed, Context: `{"base":0,"results":{"left":{"l":0},"right":{"r":0}}}`,
		Attempts: map[string]int{"l": 1, "r": 1, "merge": 1},
	})
}

func branchesGone(r *Run) {
	r.Start(`{"items":[1,2,3]}`)
	tasks := r.Tasks("price", 3)
	for _, t := range tasks {
		r.Applied("report", r.Report(t, Wrap("e")))
	}
	gather := r.Task("gather")
	r.Applied("combine", r.Report(gather, Collect))
	for _, t := range append(tasks, gather) {
		r.Applied("report after the branches went", r.Report(t, Wrap("other")))
	}
	r.See(Want{State: completed, Context: `[{"e":1},{"e":2},{"e":3}]`, Attempts: map[string]int{"price": 3, "gather": 1}})
}

func changedMind(r *Run) {
	r.Start(`0`)
	a := r.Task("a")
	r.Applied("first", r.Report(a, Result(`1`)))
	r.Applied("another result", r.Report(a, Result(`2`)))
	if _, err := r.FailTask(a, Fail("late")); !lost(err) {
		r.Errorf("a failure after the report is answered with %v", err)
	}
	r.Lost("a release after the report", r.Release(a))
	r.Work(nil)
	r.See(Want{State: completed, Context: `1`, Attempts: map[string]int{"a": 1, "b": 1}})
}

// everyKind is a flow with a step of each kind.
func everyKind() *wiggle.Definition {
	return wiggle.Define("kinds", func(f *wiggle.Flow) {
		f.Task("task")
		f.Effect("effect")
		f.Gate("gate")
		f.Choose("choose").Case("x", func(*wiggle.Flow) {}).Case("y", func(*wiggle.Flow) {})
		f.ForEach("", task("body")).Combine("combine")
	})
}

func wrongKinds(r *Run) {
	r.Start(`[1]`)
	data, control := map[string]Answer{"gate": Yes, "choice": Choice("x")}, map[string]Answer{"result": Result(`1`), "unchanged": Unchanged}
	wrong := map[string]map[string]Answer{
		"task": data, "effect": data, "body": data, "combine": data,
		"gate":   {"choice": Choice("x"), "result": control["result"], "unchanged": Unchanged},
		"choose": {"gate": Yes, "result": control["result"], "unchanged": Unchanged},
	}
	for _, step := range []string{"task", "effect", "gate", "choose", "body", "combine"} {
		t := r.Task(step)
		for got, answer := range wrong[step] {
			r.RefusedItem(step+" reported with "+got, r.Report(t, answer), faults.CodeInvalidArgument, got)
		}
		r.Applied("heartbeat of "+step, r.Beat(t, aLease, nil).GetFault())
		r.Applied(step, r.Report(t, leastOf(t)))
	}
	r.See(Want{
		State: completed, Context: `{"base":[1],"results":[1]}`,
		Attempts: map[string]int{"task": 1, "effect": 1, "gate": 1, "choose": 1, "body": 1, "combine": 1},
	})
}

func noOutcome(r *Run) {
	r.Start(`1`)
	t := r.Task("a")
	nothing := func(*wigglev1.Task) Reply { return Reply{Report: &wigglev1.StepReport{}} }
	r.RefusedItem("no outcome", r.Report(t, nothing), faults.CodeInvalidArgument, "outcome")
	r.Applied("then one", r.Report(t, Unchanged))
	r.See(Want{State: completed, Context: `1`, Attempts: map[string]int{"a": 1}})
}

func noLease(r *Run) {
	r.Start(`1`)
	t := r.Task("a")
	good := t.GetLease()
	for _, bad := range []string{"", "1", "x.y", "0." + newULID(), "-1." + newULID(), strings.Repeat("9", 40) + good, good + "x"} {
		t.Lease = bad
		r.RefusedItem("lease "+bad, r.Report(t, Result(`"stolen"`)), faults.CodeInvalidArgument, "lease")
		r.RefusedItem("beat with lease "+bad, r.Beat(t, aLease, nil).GetFault(), faults.CodeInvalidArgument, "lease")
	}
	fence, instance, _ := strings.Cut(good, ".")
	for _, bad := range []string{fence + "9." + instance, fence + "." + newULID()} {
		t.Lease = bad
		r.Lost("lease "+bad, r.Report(t, Result(`"stolen"`)))
	}
	t.Lease = good
	r.Applied("the lease", r.Report(t, Unchanged))
	r.See(Want{State: completed, Context: `1`, Attempts: map[string]int{"a": 1}})
}

func otherLease(r *Run) {
	r.Start(`1`)
	left := r.Task("l")
	unknown := &wigglev1.Task{Id: left.GetId()[:len("tok.s0.")] + newULID(), Lease: left.GetLease()}
	r.Lost("a task that is not there", r.Report(unknown, Unchanged))
	first := r.ID
	r.Start(`2`)
	other := r.Task("l")
	mixed := &wigglev1.Task{Id: left.GetId(), Lease: other.GetLease()}
	r.Lost("the lease of another instance", r.Report(mixed, Unchanged))
	for _, id := range []string{first, r.ID} {
		r.ID = id
		if got := r.Token("l"); got.GetState() != wigglev1.TokenState_TOKEN_STATE_LEASED {
			r.Errorf("the token is %v", got)
		}
		r.MustCancel("seen")
	}
}

func batches() []Scenario {
	return []Scenario{
		{Name: "a report that is in a batch twice counts once", Covers: "WRK-5 WRK-10", Flow: chain("in-batch", "a", "b"), Script: twiceInBatch},
		{Name: "a batch with good and bad items answers each on its own", Covers: "WRK-4 WRK-10 ENG-25", Flow: each("mixed"), Script: mixedBatch},
		{Name: "a batch that ends the instance refuses what follows", Covers: "ENG-3 WRK-10", Flow: failingBranch(), Script: endInBatch},
		{Name: "a batch may report branches and what they lead to is one combine", Covers: "WRK-10 ENG-8", Flow: each("whole"), Script: wholeBatch},
		{Name: "a batch spans instances and shards", Covers: "WRK-4 WRK-10", Flow: chain("span", "a"), Script: spanning},
	}
}

func twiceInBatch(r *Run) {
	r.Start(`0`)
	a := r.Task("a")
	for i, f := range r.ReportAll(reportOf(a, result(`1`)), reportOf(a, result(`2`)), reportOf(a, result(`1`))) {
		r.Applied(fmt.Sprint("item ", i), f)
	}
	b := r.Task("b")
	for i, f := range r.ReportAll(reportOf(b, Unchanged(b)), reportOf(a, result(`3`)), reportOf(b, Unchanged(b))) {
		r.Applied(fmt.Sprint("item ", i, " of the end"), f)
	}
	r.See(Want{State: completed, Context: `1`, Attempts: map[string]int{"a": 1, "b": 1}})
}

func mixedBatch(r *Run) {
	r.Start(`{"items":[0,1,2,3]}`)
	tasks := inOrder(r.Tasks("price", 4))
	r.Applied("release", r.Release(tasks[1]))
	bad := reportOf(tasks[2], Yes(tasks[2]))
	nonsense := &wigglev1.StepReport{TaskId: "nonsense", Lease: "1", Outcome: bad.GetOutcome()}
	away := reportOf(tasks[0], result(`1`))
	away.TaskId = "tok.s77." + newULID()
	got := r.ReportAll(
		reportOf(tasks[0], result(`"zero"`)), reportOf(tasks[1], result(`"one"`)), bad, nonsense,
		reportOf(tasks[3], result(`"three"`)), away,
	)
	r.Applied("good", got[0])
	r.Lost("released", got[1])
	r.RefusedItem("wrong kind", got[2], faults.CodeInvalidArgument, "gate")
	r.RefusedItem("malformed", got[3], faults.CodeInvalidArgument, "nonsense")
	r.Applied("good", got[4])
	if f := r.RefusedItem("unknown shard", got[5], faults.CodeUnavailable, "77"); f.Kind() != "shard_unknown" {
		r.Errorf("an unknown shard is %q", f.Kind())
	}
	r.Applied("then the right kind", r.Report(tasks[2], Result(`"two"`)))
	r.Work(map[string]Answer{"price": Result(`"one"`), "gather": Collect})
	r.See(Want{State: completed, Context: `["zero","one","two","three"]`, Attempts: map[string]int{"price": 4, "gather": 1}})
}

func endInBatch(r *Run) {
	r.Start(`1`)
	held, ok, free := r.Task("h"), r.Task("ok"), r.Task("f")
	got := r.ReportAll(reportOf(held, result(`2`)), reportOf(ok, No(ok)), reportOf(free, result(`3`)), reportOf(held, result(`2`)))
	r.Applied("before the end", got[0])
	r.Applied("the end", got[1])
	r.Lost("after the end", got[2])
	r.Applied("again what was before the end", got[3])
	r.See(Want{State: failed, Failure: "wiggle.End", Message: "no way on", Context: `1`, Attempts: map[string]int{"h": 1, "ok": 1}})
}

func wholeBatch(r *Run) {
	r.Start(`{"items":[0,1,2]}`)
	var all []*wigglev1.StepReport
	for _, t := range r.Tasks("price", 3) {
		report := reportOf(t, Wrap("e")(t))
		all = append(all, report, report)
	}
	for i, f := range r.ReportAll(all...) {
		r.Applied(fmt.Sprint("item ", i), f)
	}
	r.Work(map[string]Answer{"gather": Collect})
	r.See(Want{State: completed, Context: `[{"e":0},{"e":1},{"e":2}]`, Attempts: map[string]int{"price": 3, "gather": 1}})
}

func spanning(r *Run) {
	const n = 12
	ids := make([]string, n)
	for i := range ids {
		ids[i] = r.Start(fmt.Sprint(i))
	}
	var all []*wigglev1.StepReport
	for _, t := range r.Tasks("a", n) {
		all = append(all, reportOf(t, Wrap("a")(t)))
	}
	for i, f := range r.ReportAll(all...) {
		r.Applied(fmt.Sprint("item ", i), f)
	}
	for i, id := range ids {
		r.ID = id
		r.See(Want{State: completed, Context: fmt.Sprintf(`{"a":%d}`, i), Attempts: map[string]int{"a": 1}})
	}
}
