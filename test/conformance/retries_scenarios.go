package conformance

import (
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	wiggle "github.com/wiggle-run/wiggle/sdk/go"
)

// tried is a flow of one task with a retry policy.
func tried(policy wiggle.RetryPolicy) *wiggle.Definition {
	return wiggle.Define("tried", func(f *wiggle.Flow) {
		f.Task("try", policy)
		f.Task("after")
	})
}

func retries() []Scenario {
	picky := quick(5)
	picky.NonRetryable = []string{"card.Declined"}
	return []Scenario{
		{
			Name: "a failed attempt is tried again", Covers: "ENG-14", Flow: tried(quick(3)), Input: `1`,
			Answers: map[string]Answer{"try": Until(3, Fail("busy"), Wrap("done"))},
			Want:    Want{State: completed, Context: `{"done":1}`, Attempts: map[string]int{"try": 3, "after": 1}},
		},
		{
			Name: "the last attempt's failure is the instance's", Covers: "ENG-3 ENG-14", Flow: tried(quick(3)), Input: `1`,
			Answers: map[string]Answer{"try": Fail("busy")},
			Want: Want{
				State: failed, Failure: "busy", Message: "it is busy", Node: "try", Context: `1`,
				Attempts: map[string]int{"try": 3},
			},
		},
		{
			Name: "max_attempts 1 tries once", Covers: "WF-6 ENG-14", Flow: tried(quick(1)), Input: `1`,
			Answers: map[string]Answer{"try": Fail("busy")},
			Want:    Want{State: failed, Failure: "busy", Node: "try", Attempts: map[string]int{"try": 1}},
		},
		{
			Name: "an error type that the policy names is not tried again", Covers: "WF-6 ENG-14", Flow: tried(picky), Input: `1`,
			Answers: map[string]Answer{"try": Until(2, Fail("busy"), Fail("card.Declined"))},
			Want:    Want{State: failed, Failure: "card.Declined", Node: "try", Attempts: map[string]int{"try": 2}},
		},
		{
			Name: "a failure that the worker calls final is not tried again", Covers: "WRK-6 ENG-14", Flow: tried(quick(5)), Input: `1`,
			Answers: map[string]Answer{"try": Fail("broken", Fatal)},
			Want:    Want{State: failed, Failure: "broken", Node: "try", Attempts: map[string]int{"try": 1}},
		},
		{
			Name: "the flow's policy holds where a step has none", Covers: "WF-1 WF-6",
			Flow: wiggle.Define("defaults", func(f *wiggle.Flow) {
				f.Task("a")
				f.Task("b", quick(3))
			}, wiggle.DefaultRetry(quick(2))), Input: `1`,
			Answers: map[string]Answer{"a": Until(2, Fail("busy"), Unchanged), "b": Until(3, Fail("busy"), Unchanged)},
			Want:    Want{State: completed, Context: `1`, Attempts: map[string]int{"a": 2, "b": 3}},
		},
		{
			Name: "gates, chooses, effects and combines are tried again too", Covers: "WF-6 ENG-14",
			Flow: wiggle.Define("kinds", func(f *wiggle.Flow) {
				f.Gate("g")
				f.Choose("c").Case("x", task("t"))
				f.Effect("e")
				f.ForEach("", task("b")).Combine("m")
			}, wiggle.DefaultRetry(quick(2))), Input: `[1,2]`,
			Answers: map[string]Answer{
				"g": Until(2, Fail("busy"), Yes), "c": Until(2, Fail("busy"), Choice("x")), "e": Until(2, Fail("busy"), Unchanged),
				"b": Until(2, Fail("busy"), Wrap("b")), "m": Until(2, Fail("busy"), Collect),
			},
			Want: Want{
				State: completed, Context: `[{"b":1},{"b":2}]`,
				Attempts: map[string]int{"g": 2, "c": 2, "t": 1, "e": 2, "b": 4, "m": 2},
			},
		},
	}
}

func retryAnswers() []Scenario {
	hour := wiggle.RetryPolicy{MaxAttempts: 2, InitialBackoff: time.Hour, MaxBackoff: time.Hour}
	return []Scenario{
		{Name: "a worker may ask for the pause", Covers: "WRK-6 ENG-14", Flow: tried(hour), Script: requestedDelay},
		{Name: "attempts are unlimited by default, with pauses up to five minutes", Covers: "WF-6", Flow: chain("unlimited", "try"), Script: unlimited},
		{Name: "pauses grow by the multiplier", Covers: "WF-6 ENG-14", Flow: tried(quick(4)), Script: growingPauses},
		{Name: "each failed attempt is kept and shown", Covers: "ENG-14 ENG-17", Flow: tried(quick(2)), Script: keptFailures},
		{Name: "a failure that is sent twice is answered as the first was", Covers: "WRK-5", Flow: tried(hour), Script: failedTwice},
	}
}

func requestedDelay(r *Run) {
	r.Start(`1`)
	res, err := r.FailTask(r.Task("try"), Fail("busy", func(q *wigglev1.FailTaskRequest) { q.RetryDelay = durationpb.New(short) }))
	if err != nil || !res.GetWillRetry() {
		r.Fatalf("fail: %v, %v", res, err)
	}
	token := r.Token("try")
	if token.GetState() != wigglev1.TokenState_TOKEN_STATE_READY || token.GetAttempt() != 2 ||
		(token.GetDueAt() != nil && !token.GetDueAt().AsTime().Equal(res.GetRetryAt().AsTime())) {
		r.Errorf("the answer is %v, the token %v", res, token)
	}
	t := r.Task("try")
	if t.GetAttempt() != 2 || t.GetDispatchedAt().AsTime().Before(res.GetRetryAt().AsTime()) {
		r.Errorf("attempt %d came at %v, to be tried at %v", t.GetAttempt(), t.GetDispatchedAt(), res.GetRetryAt())
	}
	r.Applied("report", r.Report(t, Unchanged))
	r.Work(nil)
	r.See(Want{State: completed, Context: `1`, Attempts: map[string]int{"try": 2, "after": 1}})
	pause := pauseOf(r.Steps("try")[0])
	if pause != short {
		r.Errorf("the pause was %s, the worker asked for %s", pause, short)
	}
}

// pauseOf is the time from a failed attempt to the next.
func pauseOf(e *wigglev1.HistoryEntry) time.Duration {
	return e.GetDueAt().AsTime().Sub(e.GetRecordedAt().AsTime())
}

func unlimited(r *Run) {
	r.Start(`1`)
	const attempts = 12
	for i := range attempts {
		t := r.Task("try")
		if int(t.GetAttempt()) != i+1 {
			r.Fatalf("attempt %d came as %d", i+1, t.GetAttempt())
		}
		if _, err := r.FailTask(t, Fail("busy", AtOnce)); err != nil {
			r.Fatalf("fail: %v", err)
		}
	}
	if res, err := r.FailTask(r.Task("try"), Fail("busy")); err != nil || !res.GetWillRetry() {
		r.Errorf("fail: %v, %v", res, err)
	}
	steps := r.Steps("try")
	const jitter = 0.2
	longest := 5 * time.Minute
	pause := pauseOf(steps[len(steps)-1])
	if pause < time.Duration(float64(longest)*(1-jitter)) || pause > time.Duration(float64(longest)*(1+jitter)) {
		r.Errorf("the pause after many attempts is %s, want about %s", pause, longest)
	}
	r.MustCancel("seen")
	r.See(Want{State: cancelled, Failure: "wiggle.Cancelled", Attempts: map[string]int{"try": attempts + 1}})
}

func growingPauses(r *Run) {
	r.Start(`1`)
	r.Work(map[string]Answer{"try": Until(4, Fail("busy"), Unchanged)})
	want := short
	for _, e := range r.Steps("try")[:3] {
		if pauseOf(e) != want {
			r.Errorf("the pause after attempt %d was %s, want %s", e.GetAttempt(), pauseOf(e), want)
		}
		want *= 2
	}
	steps := r.Steps("try")
	for i, e := range steps[1:] {
		if e.GetQueuedAt().AsTime().Before(steps[i].GetDueAt().AsTime()) {
			r.Errorf("attempt %d was queued before its time", e.GetAttempt())
		}
	}
	r.See(Want{State: completed, Attempts: map[string]int{"try": 4, "after": 1}})
}

func keptFailures(r *Run) {
	r.Start(`1`)
	if _, err := r.FailTask(r.Task("try", As("first")), Fail("busy", AtOnce, func(q *wigglev1.FailTaskRequest) { q.Failure.Stack = "at line 1" })); err != nil {
		r.Fatalf("fail: %v", err)
	}
	for _, f := range []*wigglev1.Failure{r.Token("try").GetLastFailure(), r.Steps("try")[0].GetFailure()} {
		want := &wigglev1.Failure{Type: "busy", Message: "it is busy", Stack: "at line 1", Node: "try", Attempt: 1, Worker: "first"}
		if !proto.Equal(f, want) {
			r.Errorf("the failure is kept as %v, want %v", f, want)
		}
	}
	second := r.Task("try", As("second"))
	r.Applied("report", r.Report(second, Unchanged))
	if f := r.Token("after").GetLastFailure(); f != nil {
		r.Errorf("the next step has the failure of the one before: %v", f)
	}
	after := r.Task("after")
	if after.GetAttempt() != 1 {
		r.Errorf("the next step begins with attempt %d", after.GetAttempt())
	}
	r.Applied("report", r.Report(after, Unchanged))
	r.See(Want{State: completed, Attempts: map[string]int{"try": 2, "after": 1}})
}

func failedTwice(r *Run) {
	r.Start(`1`)
	t := r.Task("try")
	first, err := r.FailTask(t, Fail("busy"))
	if err != nil {
		r.Fatalf("fail: %v", err)
	}
	again, err := r.FailTask(t, Fail("busy"))
	if err != nil || !proto.Equal(first, again) {
		r.Errorf("the same failure is answered with %v, %v, first with %v", again, err, first)
	}
	r.Lost("a report after the failure", r.Report(t, Unchanged))
	r.Lost("a release after the failure", r.Release(t))
	if n := len(r.Steps("try")); n != 1 {
		r.Errorf("%d attempts are in the history, want 1", n)
	}
	r.MustCancel("seen")
	again, err = r.FailTask(t, Fail("busy"))
	if err != nil || !again.GetWillRetry() {
		r.Errorf("after the end the same failure is answered with %v, %v", again, err)
	}
	r.See(Want{State: cancelled, Failure: "wiggle.Cancelled", Attempts: map[string]int{"try": 1}})
}
