package wiggle_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"time"

	wiggle "github.com/wiggle-run/wiggle/sdk/go"
)

// A definition is data, the same each time the program runs.
func ExampleDefine() {
	flow := wiggle.Define("greeting", func(f *wiggle.Flow) {
		f.Task("compose")
		f.Gate("polite").Otherwise(func(f *wiggle.Flow) { f.Fail("mind your manners") })
		f.Sleep(time.Hour)
		f.Effect("send", wiggle.Retry(3, time.Second), wiggle.Queue("mail"))
	})
	out, err := json.Marshal(flow)
	fmt.Println(string(out), err)
	// Output:
	// {"name":"greeting","start":"compose","nodes":{"compose":{"task":{"next":"polite"}},"end":{"end":{}},"polite":{"gate":{"next":"polite.sleep","otherwise":"polite.otherwise.fail"}},"polite.otherwise.fail":{"end":{"failed":true,"reason":"mind your manners"}},"polite.sleep":{"sleep":{"duration":"3600s","next":"send"}},"send":{"task":{"step":{"queue":"mail","retry":{"max_attempts":3,"initial_backoff":"1s"}},"next":"end","effect":true}}}} <nil>
}

// Every problem is told at once, with its line.
func ExampleDefineE() {
	_, err := wiggle.DefineE("wrong", func(f *wiggle.Flow) {
		f.ForEach("/lines", func(f *wiggle.Flow) { f.Task("price") })
		f.Repeat(func(f *wiggle.Flow) { f.Task("ask-bank") })
		f.End()
		f.Task("close")
	})
	if wrong, ok := errors.AsType[*wiggle.DefinitionError](err); ok {
		for _, p := range wrong.Problems {
			fmt.Println(p.Message) // p.Where is example_test.go:134
		}
	}
	// Output:
	// ForEach over "/lines" has no Combine: say .Combine(name), the step that makes its results into one context
	// Repeat has no gate: say .Until(name) or .While(name)
	// task "close" can not be reached: every way before it has ended
}

// A handler of a for_each's combine gets the results in the order of the elements.
func ExampleHandleCombineList() {
	var steps wiggle.Handlers = exampleWorker()
	wiggle.HandleCombineList(steps, "total", func(_ context.Context, before Order, lines []wiggle.Elem[Line]) (Order, error) {
		before.Lines = wiggle.Values(lines)
		for _, l := range lines {
			if !l.Arrived {
				before.Notes = append(before.Notes, fmt.Sprintf("line %d is out of stock", l.Index))
			}
		}
		return before, nil
	})
}

// A long handler leaves word of how far it came, and the next attempt goes on there.
func ExampleHeartbeat() {
	wiggle.HandleEffect(exampleWorker(), "send-all", func(ctx context.Context, o Order) error {
		done, _, err := wiggle.Progress[int](ctx)
		if err != nil {
			return err
		}
		for i := done; i < len(o.Notes); i++ {
			// ... send one ...
			if err := wiggle.Heartbeat(ctx, i+1); err != nil {
				return err // the lease is lost: another worker goes on
			}
		}
		return nil
	})
}

// Errors of the server are told apart with errors.Is.
func ExampleError() {
	client, err := wiggle.Dial("http://localhost:8420")
	if err != nil {
		log.Fatal(err)
	}
	_, err = client.Get(context.Background(), "wfi.s0.01k6abcdefghjkmnpqrstvwxyz")
	switch {
	case errors.Is(err, wiggle.ErrNotFound):
		fmt.Println("no such order")
	case errors.Is(err, wiggle.ErrUnavailable):
		fmt.Println("try again later")
	}
}

func exampleWorker() *wiggle.Worker {
	client, err := wiggle.Dial("http://localhost:8420")
	if err != nil {
		log.Fatal(err)
	}
	return wiggle.NewWorker(client, wiggle.WorkerOptions{})
}
