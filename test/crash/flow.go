package crash

import (
	"time"

	wiggle "github.com/wiggle-run/wiggle/sdk/go"
)

// The two workflows; they differ in how many elements may be in flight.
const (
	workflowWide   = "crash-wide"
	workflowNarrow = "crash-narrow"
)

// branchSleep is the pause in a branch, in each round.
const branchSleep = 400 * time.Millisecond

// flowOf is the workflow: rounds of a fork, a loop over elements with a fork in
// each, and a sleep until an instant of the input, so that instances live as long
// as the killing lasts.
func flowOf(name string, inFlight int) *wiggle.Definition {
	retry := wiggle.RetryPolicy{InitialBackoff: 50 * time.Millisecond, Multiplier: 1.5, MaxBackoff: time.Second}
	return wiggle.Define(name, func(f *wiggle.Flow) {
		f.Task("begin")
		f.Repeat(func(f *wiggle.Flow) {
			f.Task("round")
			f.Gate("admit").Otherwise(func(f *wiggle.Flow) { f.Task("amend") })
			f.Fork(
				wiggle.Branch("slow", func(f *wiggle.Flow) {
					f.Task("slow-first")
					f.Sleep(branchSleep)
					f.Task("slow-second")
				}),
				wiggle.Branch("flaky", func(f *wiggle.Flow) { f.Task("flaky") }),
				wiggle.Branch("gated", func(f *wiggle.Flow) {
					f.Gate("gate")
					f.Task("behind-gate")
				}),
			).Combine("gather")
			f.ForEach("/items", element, wiggle.MaxInFlight(inFlight)).Combine("total")
			f.SleepUntil("/until")
		}).While("more")
		f.Effect("notify")
	}, wiggle.DefaultRetry(retry))
}

// element is what is done for each element.
func element(f *wiggle.Flow) {
	f.Gate("keep")
	f.Task("price")
	f.Fork(
		wiggle.Branch("left", func(f *wiggle.Flow) { f.Task("left") }),
		wiggle.Branch("right", func(f *wiggle.Flow) { f.Task("right") }),
	).Combine("pair")
}

// definitions are the workflows of the test.
func definitions() []*wiggle.Definition {
	return []*wiggle.Definition{flowOf(workflowWide, 0), flowOf(workflowNarrow, 2)}
}

// order is the context of an instance. Sum is a checksum that every step extends by
// what it sees, so that a step that is lost, repeated or given another's context
// shows in the end.
type order struct {
	N     int    `json:"n"`
	Sum   string `json:"sum"`
	Round int    `json:"round"`
	// Wakes are the instants until which the rounds sleep, Until that of the present one.
	Wakes []string `json:"wakes"`
	Until string   `json:"until,omitempty"`
	Items []item   `json:"items"`
}

// item is the context of an element.
type item struct {
	K   int    `json:"k"`
	Sum string `json:"sum"`
}
