package wiggle_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	wiggle "github.com/wiggle-run/wiggle/sdk/go"
)

// Order is the context of the examples' flow.
type Order struct {
	ID       string   `json:"id"`
	Lines    []Line   `json:"lines,omitempty"`
	Paid     bool     `json:"paid,omitempty"`
	Tracking string   `json:"tracking,omitempty"`
	Notes    []string `json:"notes,omitempty"`
}

// Line is one line of an [Order].
type Line struct {
	Article string `json:"article"`
	Cents   int64  `json:"cents"`
}

func validate(_ context.Context, o Order) (Order, error) {
	if len(o.Lines) == 0 {
		return o, wiggle.NonRetryable(errors.New("an order needs lines"))
	}
	return o, nil
}

func inStock(context.Context, Order) (bool, error) { return true, nil }

func authorise(_ context.Context, o Order) (Order, error) { return o, nil }

func capture(_ context.Context, o Order) (Order, error) {
	o.Paid = true
	return o, nil
}

func reserve(_ context.Context, o Order) (Order, error) { return o, nil }

func label(ctx context.Context, o Order) (Order, error) {
	o.Tracking = "TRACK-" + wiggle.TaskFrom(ctx).InstanceID
	return o, nil
}

func merge(_ context.Context, before Order, branches wiggle.Branches) (Order, error) {
	payment, _, err := wiggle.BranchResult[Order](branches, "payment")
	if err != nil {
		return before, err
	}
	shipping, _, err := wiggle.BranchResult[Order](branches, "shipping")
	before.Paid, before.Tracking = payment.Paid, shipping.Tracking
	return before, err
}

func notify(context.Context, Order) error { return nil }

// One program that defines a workflow, serves its steps, and runs one instance.
func Example() {
	ctx := context.Background()

	flow := wiggle.Define("order-fulfilment", func(f *wiggle.Flow) {
		f.Task("validate")
		f.Gate("in-stock")
		f.Fork(
			wiggle.Branch("payment", func(f *wiggle.Flow) {
				f.Task("authorise", wiggle.Retry(5, 100*time.Millisecond))
				f.Task("capture")
			}),
			wiggle.Branch("shipping", func(f *wiggle.Flow) {
				f.Task("reserve")
				f.Sleep(300 * time.Millisecond)
				f.Task("label")
			}),
		).Combine("merge")
		f.Effect("notify")
	})

	client, err := wiggle.Dial("http://localhost:8420")
	if err != nil {
		log.Fatal(err)
	}
	if _, err := client.Register(ctx, flow); err != nil {
		log.Fatal(err)
	}

	worker := wiggle.NewWorker(client, wiggle.WorkerOptions{})
	steps := worker.Workflow("order-fulfilment")
	wiggle.HandleTask(steps, "validate", validate)
	wiggle.HandleGate(steps, "in-stock", inStock)
	wiggle.HandleTask(steps, "authorise", authorise)
	wiggle.HandleTask(steps, "capture", capture)
	wiggle.HandleTask(steps, "reserve", reserve)
	wiggle.HandleTask(steps, "label", label)
	wiggle.HandleCombine(steps, "merge", merge)
	wiggle.HandleEffect(steps, "notify", notify)
	go func() {
		if err := worker.Run(ctx); err != nil {
			log.Fatal(err)
		}
	}()

	run, err := client.Start(ctx, "order-fulfilment", Order{ID: "1", Lines: []Line{{"tea", 450}}})
	if err != nil {
		log.Fatal(err)
	}
	order, err := wiggle.Result[Order](ctx, run)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(order.Tracking)
}
