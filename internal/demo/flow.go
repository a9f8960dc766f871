package demo

import (
	"time"

	wiggle "github.com/wiggle-run/wiggle/sdk/go"
)

// Workflow is the name of the sample.
const Workflow = "order-fulfilment"

const (
	// pickTime is how long the warehouse is given before the parcel is labelled.
	pickTime = 100 * time.Millisecond
	// authoriseAttempts is one more than the most stubborn card needs.
	authoriseAttempts = maxDeclines + 2
	// declineBackoff is how long a declined card is left alone.
	declineBackoff = 50 * time.Millisecond
)

// Flow is the workflow.
func Flow() *wiggle.Definition {
	return wiggle.Define(Workflow, func(f *wiggle.Flow) {
		f.Task("validate")
		f.Gate("in-stock")
		f.Fork(
			wiggle.Branch("payment", func(f *wiggle.Flow) {
				f.Task("authorise", wiggle.RetryPolicy{
					MaxAttempts: authoriseAttempts, InitialBackoff: declineBackoff, Multiplier: 1.5,
				})
				f.Task("capture")
			}),
			wiggle.Branch("shipping", func(f *wiggle.Flow) {
				f.Task("reserve")
				f.Sleep(pickTime)
				f.Task("label")
			}),
		).Combine("merge")
		f.ForEach("/lines", func(f *wiggle.Flow) {
			f.Task("price-line")
		}).Combine("total")
		f.Effect("notify")
	}, wiggle.DefaultRetry(wiggle.Retry(10, 100*time.Millisecond)))
}
