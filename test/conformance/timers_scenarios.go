package conformance

import (
	"fmt"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	wiggle "github.com/wiggle-run/wiggle/sdk/go"
)

// pausing is a sleep between two tasks.
func pausing(d time.Duration) *wiggle.Definition {
	return wiggle.Define("pausing", func(f *wiggle.Flow) {
		f.Task("before")
		f.Sleep(d)
		f.Task("after")
	})
}

// until is a sleep until "/at".
func until() *wiggle.Definition {
	return wiggle.Define("until", func(f *wiggle.Flow) {
		f.SleepUntil("/at")
		f.Task("after")
	})
}

func sleeps() []Scenario {
	refused := func(what, input, found string) Scenario {
		return Scenario{
			Name: "a sleep until " + what + " fails, saying what it found", Covers: "WF-2 ENG-3", Flow: until(), Input: input,
			Want: Want{State: failed, Failure: "wiggle.NotAnInstant", Message: found, Node: "start.sleep", Context: input, Attempts: map[string]int{}},
		}
	}
	past := func(what, input string) Scenario {
		return Scenario{
			Name: "a sleep until " + what + " does not wait", Covers: "WF-2", Flow: until(), Script: func(r *Run) {
				r.Start(input)
				r.Work(nil)
				r.See(Want{State: completed, Context: input, Attempts: map[string]int{"after": 1}})
				r.seeNoTimer()
			},
		}
	}
	return []Scenario{
		{Name: "a sleep lasts as long as it says", Covers: "WF-2 ENG-18", Flow: pausing(short), Script: slept},
		{Name: "a sleep of no time does not wait", Covers: "WF-2", Flow: pausing(0), Script: func(r *Run) {
			r.Start(`1`)
			r.Work(nil)
			r.See(Want{State: completed, Context: `1`, Attempts: map[string]int{"before": 1, "after": 1}})
			r.seeNoTimer()
		}},
		past("a past instant", `{"at":"2001-02-03T04:05:06Z"}`),
		past("a past instant with an offset", `{"at":"2001-02-03T04:05:06.789+02:00"}`),
		past("a past number of seconds", `{"at":981173106.25}`),
		{Name: "a sleep until a future instant ends then", Covers: "WF-2 ENG-18", Flow: until(), Script: func(r *Run) {
			at := time.Now().Add(3 * short).UTC().Truncate(time.Millisecond)
			sleptUntil(r, fmt.Sprintf(`{"at":%q}`, at.Format(time.RFC3339Nano)), at)
		}},
		{Name: "a sleep until a future number of seconds ends then", Covers: "WF-2 ENG-18", Flow: until(), Script: func(r *Run) {
			at := time.Now().Add(3 * short).UTC().Truncate(time.Millisecond)
			sleptUntil(r, fmt.Sprintf(`{"at":%d.%03d}`, at.Unix(), at.Nanosecond()/int(time.Millisecond)), at)
		}},
		refused("no instant", `{"at":"tomorrow"}`, `found the string "tomorrow"`),
		refused("nothing", `{}`, "found nothing"),
		refused("a list", `{"at":[1]}`, "found a list"),
		refused("a year that nothing keeps", `{"at":1e15}`, "found"),
		{
			Name: "sleeps in branches do not hold each other", Covers: "ENG-6 ENG-18",
			Flow: wiggle.Define("branch-sleeps", func(f *wiggle.Flow) {
				f.Fork(
					wiggle.Branch("short", func(f *wiggle.Flow) { f.Sleep(short); f.Task("s") }),
					wiggle.Branch("long", func(f *wiggle.Flow) { f.Sleep(3 * short) }),
					wiggle.Branch("none", task("n")),
				).Combine("merge")
			}), Input: `1`, Answers: map[string]Answer{"s": Wrap("s"), "n": Wrap("n"), "merge": Collect},
			Want: Want{State: completed, Context: `{"short":{"s":1},"long":1,"none":{"n":1}}`, Attempts: map[string]int{"s": 1, "n": 1, "merge": 1}},
		},
		{
			Name: "a workflow of sleeps alone ends by itself", Covers: "ENG-5 ENG-18",
			Flow:  wiggle.Define("sleeps", func(f *wiggle.Flow) { f.Sleep(short); f.Sleep(0); f.Sleep(short) }),
			Input: `1`, Want: Want{State: completed, Context: `1`, Attempts: map[string]int{}},
		},
	}
}

// timers are the timers of the history.
func (r *Run) timers() (set, fired []*wigglev1.HistoryEntry) {
	r.Helper()
	for _, e := range r.History(wholeHistory) {
		switch e.GetKind() {
		case wigglev1.HistoryKind_HISTORY_KIND_TIMER_SET:
			set = append(set, e)
		case wigglev1.HistoryKind_HISTORY_KIND_TIMER_FIRED:
			fired = append(fired, e)
		default: // not of a timer
		}
	}
	return set, fired
}

func (r *Run) seeNoTimer() {
	r.Helper()
	if set, fired := r.timers(); len(set)+len(fired) > 0 {
		r.Errorf("there was a timer: %v, %v", set, fired)
	}
}

func slept(r *Run) {
	r.Start(`1`)
	r.Applied("before", r.Report(r.Task("before"), Unchanged))
	after := r.Task("after")
	r.Applied("after", r.Report(after, Unchanged))
	r.See(Want{State: completed, Context: `1`, Attempts: map[string]int{"before": 1, "after": 1}})
	set, fired := r.timers()
	if len(set) != 1 || len(fired) != 1 || pauseOf(set[0]) != short || fired[0].GetRecordedAt().AsTime().Before(set[0].GetDueAt().AsTime()) {
		r.Fatalf("the timers of the history are %v and %v", set, fired)
	}
	if due := set[0].GetDueAt().AsTime(); after.GetQueuedAt().AsTime().Before(due) {
		r.Errorf("the sleep ended at %v, before its time %v", after.GetQueuedAt(), due)
	}
}

func sleptUntil(r *Run, input string, at time.Time) {
	r.Start(input)
	r.Work(nil)
	r.See(Want{State: completed, Context: input, Attempts: map[string]int{"after": 1}})
	set, fired := r.timers()
	if len(set) == 0 { // the machine was so slow that the instant was over
		if r.Get().GetCreatedAt().AsTime().Before(at) {
			r.Errorf("the sleep until %s did not wait", at)
		}
		return
	}
	if !set[0].GetDueAt().AsTime().Equal(at) || fired[0].GetRecordedAt().AsTime().Before(at) {
		r.Errorf("the timer was set for %v and fired at %v, want %s", set[0].GetDueAt(), fired[0].GetRecordedAt(), at)
	}
}

func delays() []Scenario {
	return []Scenario{
		{Name: "a delayed start waits before its first step", Covers: "WRK-20 ENG-18", Flow: chain("delayed", "a"), Script: delayed},
		{Name: "a delayed start waits before a for_each too", Covers: "ENG-18 ENG-9", Flow: each("delayed"), Script: func(r *Run) {
			r.Start(`{"items":[1,2]}`, After(short))
			r.Work(map[string]Answer{"gather": Collect})
			r.See(Want{State: completed, Context: `[1,2]`})
		}},
	}
}

// After delays a start.
func After(d time.Duration) StartOption {
	return func(q *wigglev1.StartInstanceRequest) { q.Delay = durationpb.New(d) }
}

func delayed(r *Run) {
	const delay = 2 * short
	r.Start(`1`, After(delay))
	created := r.Get().GetCreatedAt().AsTime()
	a := r.Task("a")
	if waited := a.GetQueuedAt().AsTime().Sub(created); waited < delay {
		r.Errorf("the first step was ready after %s, the delay was %s", waited, delay)
	}
	r.Applied("a", r.Report(a, Unchanged))
	r.See(Want{State: completed, Context: `1`, Attempts: map[string]int{"a": 1}})
}
