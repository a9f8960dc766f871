package conformance

import (
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	wiggle "github.com/wiggle-run/wiggle/sdk/go"
)

const (
	// briefly is the shortest lease there is.
	briefly = time.Second
	// bearable is a lease and a timeout that can be waited for, and that still leave a
	// loaded machine the time for a call.
	bearable = 3 * time.Second
)

func leases() []Scenario {
	quickly := func(attempts int) *wiggle.Definition { return tried(quick(attempts)) }
	return []Scenario{
		{Name: "a lease that ran out goes to another worker, and the first is refused", Covers: "ENG-14 WRK-4 WRK-5", Flow: quickly(0), Script: expiry},
		{
			Name: "leases that run out spend attempts", Covers: "ENG-14", Flow: quickly(2), Input: `1`, Lease: briefly,
			Answers: map[string]Answer{"try": Silence},
			Want: Want{
				State: failed, Failure: "wiggle.LeaseExpired", Message: `worker "worker"`, Node: "try", Context: `1`,
				Attempts: map[string]int{"try": 2},
			},
		},
		{Name: "a lease that runs out in a branch touches no sibling", Covers: "ENG-14 ENG-6", Flow: expiringBranch(), Script: branchExpiry},
		{Name: "a task that is released goes to another worker without an attempt spent", Covers: "WRK-21 WRK-4", Flow: quickly(1), Script: released},
		{
			Name: "a start-to-finish timeout spends attempts", Covers: "WF-6 ENG-14",
			Flow: wiggle.Define("timeout", func(f *wiggle.Flow) {
				f.Task("slow", quick(2), wiggle.Timeout(5*short))
			}), Input: `1`, Answers: map[string]Answer{"slow": Silence},
			Want: Want{
				State: failed, Failure: "wiggle.Timeout", Message: "150ms", Node: "slow", Context: `1`,
				Attempts: map[string]int{"slow": 2},
			},
		},
		{
			Name: "the flow's timeout holds where a step has none", Covers: "WF-1 WF-6",
			Flow:  wiggle.Define("default-timeout", func(f *wiggle.Flow) { f.Task("slow", quick(1)) }, wiggle.DefaultTimeout(5*short)),
			Input: `1`, Answers: map[string]Answer{"slow": Silence},
			Want: Want{State: failed, Failure: "wiggle.Timeout", Node: "slow", Attempts: map[string]int{"slow": 1}},
		},
	}
}

func expiry(r *Run) {
	r.Start(`{"n":1}`)
	stale := r.Task("try", For(briefly), As("sleepy"))
	fresh := r.Task("try", As("awake"))
	if fresh.GetAttempt() != 2 || fresh.GetId() != stale.GetId() || fresh.GetLease() == stale.GetLease() {
		r.Errorf("the second lease is %v, the first was %v", fresh, stale)
	}
	r.Lost("report of the stale worker", r.Report(stale, Result(`"stale"`)))
	if _, err := r.FailTask(stale, Fail("stale")); !lost(err) {
		r.Errorf("failure of the stale worker is answered with %v", err)
	}
	r.Lost("release of the stale worker", r.Release(stale))
	token := r.Token("try")
	if token.GetWorker() != "awake" || token.GetAttempt() != 2 || token.GetState() != wigglev1.TokenState_TOKEN_STATE_LEASED {
		r.Errorf("the stale worker changed the token: %v", token)
	}
	r.Applied("report of the second worker", r.Report(fresh, Result(`"fresh"`)))
	r.Lost("report of the stale worker, later", r.Report(stale, Result(`"stale"`)))
	r.Work(nil)
	r.Lost("report of the stale worker after the end", r.Report(stale, Result(`"stale"`)))
	r.See(Want{State: completed, Context: `"fresh"`, Attempts: map[string]int{"try": 2, "after": 1}})
	if first := r.Steps("try")[0]; first.GetFailure().GetType() != "wiggle.LeaseExpired" || first.GetWorker() != "sleepy" {
		r.Errorf("the attempt that ran out is kept as %v", first)
	}
}

func expiringBranch() *wiggle.Definition {
	return wiggle.Define("branch-expiry", func(f *wiggle.Flow) {
		f.Fork(wiggle.Branch("left", task("l", quick(0))), wiggle.Branch("right", task("r"))).Combine("merge")
	})
}

func branchExpiry(r *Run) {
	r.Start(`1`)
	right := r.Task("r")
	r.Applied("hand the left back", r.Release(r.Task("l")))
	r.Task("l", For(briefly))
	again := r.Task("l")
	if again.GetAttempt() != 2 {
		r.Errorf("the expired lease is followed by attempt %d", again.GetAttempt())
	}
	r.Applied("right", r.Report(right, Wrap("r")))
	r.Applied("left", r.Report(again, Wrap("l")))
	r.Work(nil)
	r.See(Want{
		State: completed, Context: `{"base":1,"results":{"left":{"l":1},"right":{"r":1}}}`,
		Attempts: map[string]int{"l": 2, "r": 1, "merge": 1},
	})
}

func released(r *Run) {
	r.Start(`1`)
	first := r.Task("try", As("leaving"))
	r.Applied("release", r.Release(first))
	r.Applied("the same release again", r.Release(first))
	second := r.Task("try", As("staying"))
	if second.GetAttempt() != 1 {
		r.Errorf("the release spent an attempt: %d", second.GetAttempt())
	}
	r.Lost("report of what was released", r.Report(first, Result(`"late"`)))
	r.Lost("heartbeat of what was released", r.Beat(first, aLease, nil).GetFault())
	r.Applied("report", r.Report(second, Wrap("done")))
	r.Lost("release of what was reported", r.Release(second))
	r.Work(nil)
	r.See(Want{State: completed, Context: `{"done":1}`, Attempts: map[string]int{"try": 1, "after": 1}})
}

func beats() []Scenario {
	return []Scenario{
		{Name: "heartbeats carry a lease past its first end", Covers: "WRK-1 ENG-14", Flow: beaten(), Script: extended},
		{Name: "progress is handed to the next attempt", Covers: "WRK-22", Flow: tried(quick(0)), Script: progress},
		{Name: "a heartbeat after the loss says so", Covers: "WRK-4", Flow: tried(quick(0)), Script: beatAfterLoss},
		{
			Name: "a timeout ends an attempt in spite of heartbeats", Covers: "WF-6 ENG-14",
			Flow: wiggle.Define("beaten-timeout", func(f *wiggle.Flow) {
				f.Task("slow", quick(0), wiggle.Timeout(bearable))
			}), Script: beatenTimeout,
		},
		{Name: "a batch of heartbeats answers each on its own", Covers: "WRK-1 WRK-13", Flow: each("beats"), Script: mixedBeats},
	}
}

// beaten is a step beside a pause that is longer than the shortest lease.
func beaten() *wiggle.Definition {
	return wiggle.Define("beaten", func(f *wiggle.Flow) {
		f.Fork(
			wiggle.Branch("work", task("long")),
			wiggle.Branch("time", func(f *wiggle.Flow) { f.Task("go"); f.Sleep(bearable + short); f.Task("later") }),
		).Combine("merge")
	})
}

func extended(r *Run) {
	r.Start(`1`)
	long := r.Task("long", For(bearable))
	beat := r.Beat(long, aLease, nil)
	r.Applied("heartbeat", beat.GetFault())
	if d := beat.GetLeaseExpiresAt().AsTime().Sub(long.GetLeaseExpiresAt().AsTime()); d < aLease-bearable {
		r.Errorf("the heartbeat extended the lease by %s", d)
	}
	if at := r.Token("long").GetLeaseExpiresAt().AsTime(); !at.Equal(beat.GetLeaseExpiresAt().AsTime()) {
		r.Errorf("the lease ends at %s, the heartbeat said %s", at, beat.GetLeaseExpiresAt().AsTime())
	}
	r.Applied("go", r.Report(r.Task("go"), Unchanged))
	later := r.Task("later")
	if !later.GetQueuedAt().AsTime().After(long.GetLeaseExpiresAt().AsTime()) {
		r.Errorf("the pause was too short to tell: %v, %v", later.GetQueuedAt(), long.GetLeaseExpiresAt())
	}
	r.Applied("report after the first lease's end", r.Report(long, Wrap("long")))
	r.Applied("report", r.Report(later, Unchanged))
	r.Work(nil)
	r.See(Want{State: completed, Attempts: map[string]int{"long": 1, "go": 1, "later": 1, "merge": 1}})
}

func progress(r *Run) {
	r.Start(`1`)
	first := r.Task("try")
	if first.GetProgress() != nil {
		r.Errorf("the first attempt has progress: %v", first.GetProgress())
	}
	r.Applied("heartbeat", r.Beat(first, aLease, payload(`{"done":1}`)).GetFault())
	r.Applied("heartbeat", r.Beat(first, aLease, payload(`{"done":2}`)).GetFault())
	r.Applied("heartbeat without progress", r.Beat(first, aLease, nil).GetFault())
	if _, err := r.FailTask(first, Fail("busy", AtOnce)); err != nil {
		r.Fatalf("fail: %v", err)
	}
	second := r.Task("try")
	r.SeeJSON("the second attempt's progress", second.GetProgress(), `{"done":2}`)
	r.Applied("release", r.Release(second))
	third := r.Task("try")
	r.SeeJSON("the progress after a release", third.GetProgress(), `{"done":2}`)
	r.Applied("report", r.Report(third, Unchanged))
	after := r.Task("after")
	if after.GetProgress() != nil {
		r.Errorf("the next step has progress: %v", after.GetProgress())
	}
	r.Applied("report", r.Report(after, Unchanged))
	r.See(Want{State: completed, Context: `1`, Attempts: map[string]int{"try": 2, "after": 1}})
}

func beatAfterLoss(r *Run) {
	r.Start(`1`)
	stale := r.Task("try", For(briefly))
	fresh := r.Task("try")
	r.Lost("heartbeat of the stale worker", r.Beat(stale, aLease, payload(`"stale"`)).GetFault())
	if at := r.Token("try").GetLeaseExpiresAt().AsTime(); !at.Equal(fresh.GetLeaseExpiresAt().AsTime()) {
		r.Errorf("the stale heartbeat moved the lease's end to %s", at)
	}
	r.Applied("report", r.Report(fresh, Unchanged))
	r.Lost("heartbeat after the report", r.Beat(fresh, aLease, nil).GetFault())
	r.Work(nil)
	r.Lost("heartbeat after the end", r.Beat(fresh, aLease, nil).GetFault())
	r.See(Want{State: completed, Attempts: map[string]int{"try": 2, "after": 1}})
}

func beatenTimeout(r *Run) {
	r.Start(`1`)
	first := r.Task("slow")
	beat := r.Beat(first, time.Hour, nil)
	r.Applied("heartbeat", beat.GetFault())
	if beat.GetLeaseExpiresAt().AsTime().After(first.GetDeadline().AsTime()) {
		r.Errorf("the heartbeat carried the lease to %v, past the deadline %v", beat.GetLeaseExpiresAt(), first.GetDeadline())
	}
	second := r.Task("slow")
	if second.GetAttempt() != 2 {
		r.Errorf("the timeout is followed by attempt %d", second.GetAttempt())
	}
	r.Lost("report after the timeout", r.Report(first, Unchanged))
	r.Applied("report", r.Report(second, Unchanged))
	r.See(Want{State: completed, Attempts: map[string]int{"slow": 2}})
	if f := r.Steps("slow")[0].GetFailure(); f.GetType() != "wiggle.Timeout" {
		r.Errorf("the timeout is kept as %v", f)
	}
}

func mixedBeats(r *Run) {
	r.Start(`{"items":[1,2,3]}`)
	tasks := r.Tasks("price", 3)
	r.Applied("report", r.Report(tasks[1], Unchanged))
	req := &wigglev1.HeartbeatRequest{Worker: "worker"}
	for _, t := range tasks {
		req.Beats = append(req.Beats, &wigglev1.Beat{TaskId: t.GetId(), Lease: t.GetLease(), Extend: durationpb.New(time.Hour)})
	}
	req.Beats = append(req.Beats, &wigglev1.Beat{TaskId: "tok.nonsense", Lease: tasks[0].GetLease()})
	res, err := r.Workers.Heartbeat(r.ctx, req)
	if err != nil || len(res.GetOutcomes()) != 4 {
		r.Fatalf("heartbeat: %v, %v", res, err)
	}
	r.Applied("first", res.GetOutcomes()[0].GetFault())
	r.Lost("second", res.GetOutcomes()[1].GetFault())
	r.Applied("third", res.GetOutcomes()[2].GetFault())
	r.RefusedItem("fourth", res.GetOutcomes()[3].GetFault(), 3, "tok.nonsense")
	r.held = []*wigglev1.Task{tasks[0], tasks[2]}
	r.Work(map[string]Answer{"gather": Collect})
	r.See(Want{State: completed, Context: `[1,2,3]`, Attempts: map[string]int{"price": 3, "gather": 1}})
}
