package conformance

import (
	"time"

	"github.com/wiggle-run/wiggle/pkg/faults"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
)

func cancels() []Scenario {
	return []Scenario{
		{Name: "cancel while a task is leased", Covers: "ENG-3 WRK-4", Flow: chain("cancel", "a", "b"), Script: cancelLeased},
		{Name: "cancel while a task is ready", Covers: "ENG-3", Flow: chain("cancel", "a"), Script: func(r *Run) {
			r.Start(`{"n":1}`)
			r.MustCancel("no longer wanted")
			r.None()
			r.See(wantCancelled(`{"n":1}`, map[string]int{}))
		}},
		{Name: "cancel during a fork", Covers: "ENG-3", Flow: isolated(), Script: cancelFork},
		{Name: "cancel during a for_each", Covers: "ENG-3 ENG-24", Flow: twoSteps(2), Script: cancelForEach},
		{Name: "cancel while sleeping", Covers: "ENG-3", Flow: pausing(time.Hour), Script: func(r *Run) {
			r.Start(`1`)
			r.Applied("before", r.Report(r.Task("before"), Wrap("b")))
			t := r.Token("before.sleep")
			if t.GetState() != wigglev1.TokenState_TOKEN_STATE_SLEEPING || t.GetDueAt() == nil || t.GetAttempt() != 0 {
				r.Errorf("the token is %v", t)
			}
			r.MustCancel("no longer wanted")
			r.See(wantCancelled(`{"b":1}`, map[string]int{"before": 1}))
		}},
		{Name: "cancel before a delayed start", Covers: "ENG-3", Flow: chain("cancel", "a"), Script: func(r *Run) {
			r.Start(`1`, After(time.Hour))
			r.None()
			if t := r.Token("a"); t.GetState() != wigglev1.TokenState_TOKEN_STATE_SLEEPING {
				r.Errorf("the token is %v", t)
			}
			r.MustCancel("no longer wanted")
			r.See(wantCancelled(`1`, map[string]int{}))
		}},
		{Name: "cancel while a retry waits", Covers: "ENG-3 ENG-14", Flow: chain("cancel", "a"), Script: func(r *Run) {
			r.Start(`1`)
			if _, err := r.FailTask(r.Task("a"), Fail("busy")); err != nil {
				r.Fatalf("fail: %v", err)
			}
			r.MustCancel("no longer wanted")
			r.See(wantCancelled(`1`, map[string]int{"a": 1}))
		}},
		{Name: "cancel twice changes nothing more", Covers: "ENG-3", Flow: chain("cancel", "a"), Script: cancelTwice},
		{Name: "an instance that has ended otherwise is not cancelled", Covers: "ENG-3 ENG-25", Flow: tried(quick(1)), Script: cancelEnded},
	}
}

func wantCancelled(context string, attempts map[string]int) Want {
	return Want{State: cancelled, Failure: "wiggle.Cancelled", Message: "no longer wanted", Context: context, Attempts: attempts}
}

func cancelLeased(r *Run) {
	r.Start(`1`)
	r.Applied("a", r.Report(r.Task("a"), Wrap("a")))
	b := r.Task("b")
	r.MustCancel("no longer wanted")
	r.Lost("report after the cancel", r.Report(b, Unchanged))
	if _, err := r.FailTask(b, Fail("late")); !lost(err) {
		r.Errorf("a failure after the cancel is answered with %v", err)
	}
	r.Lost("release after the cancel", r.Release(b))
	r.Lost("heartbeat after the cancel", r.Beat(b, aLease, nil).GetFault())
	r.None()
	r.See(wantCancelled(`{"a":1}`, map[string]int{"a": 1}))
}

func cancelFork(r *Run) {
	r.Start(`0`)
	left := r.Task("l1")
	r.Applied("left", r.Report(r.Task("r1"), Wrap("r1")))
	r.MustCancel("no longer wanted")
	r.Lost("report of a branch after the cancel", r.Report(left, Unchanged))
	r.held = nil
	r.None()
	r.See(wantCancelled(`0`, map[string]int{"r1": 1}))
}

func cancelForEach(r *Run) {
	r.Start(`[1,2,3,4,5]`)
	tasks := r.Tasks("one", 2)
	r.Applied("one", r.Report(tasks[0], Unchanged))
	r.Applied("two", r.Report(r.Task("two"), Unchanged)) // lets a third in
	r.MustCancel("no longer wanted")
	r.Lost("report of an element after the cancel", r.Report(tasks[1], Unchanged))
	r.held = nil
	r.None()
	r.See(wantCancelled(`[1,2,3,4,5]`, map[string]int{"one": 1, "two": 1}))
}

func cancelTwice(r *Run) {
	r.Start(`1`)
	r.MustCancel("no longer wanted")
	ended := r.Get().GetEndedAt().AsTime()
	r.MustCancel("another reason")
	if at := r.Get().GetEndedAt().AsTime(); !at.Equal(ended) {
		r.Errorf("the second cancel moved the end from %s to %s", ended, at)
	}
	r.See(wantCancelled(`1`, map[string]int{}))
	count := 0
	for _, e := range r.History(wholeHistory) {
		if e.GetKind() == wigglev1.HistoryKind_HISTORY_KIND_CANCELLED {
			count++
		}
	}
	if count != 1 {
		r.Errorf("the cancel is in the history %d times", count)
	}
}

func cancelEnded(r *Run) {
	for state, answer := range map[string]Answer{"COMPLETED": Unchanged, "FAILED": Fail("broken")} {
		r.Start(`1`)
		r.Work(map[string]Answer{"try": answer})
		before := r.Get()
		_, err := r.Cancel("too late")
		if f := r.Refused("cancel of an instance that is "+state, err, faults.CodeFailedPrecondition, state); f.Kind() != "wrong_state" {
			r.Errorf("the fault is %q", f.Kind())
		}
		if after := r.Get(); after.GetState() != before.GetState() || len(r.History(wholeHistory)) == 0 {
			r.Errorf("the cancel changed the instance: %v", after)
		}
	}
	r.ID = "wfi.s0." + newULID()
	_, err := r.Cancel("who?")
	r.Refused("cancel of nothing", err, faults.CodeNotFound, r.ID)
}
