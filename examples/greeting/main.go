// Greeting is the README's first workflow: compose, wait, send.
package main

import (
	"context"
	"fmt"
	"log"
	"time"

	wiggle "github.com/wiggle-run/wiggle/sdk/go"
)

type Greeting struct{ Name, Text string }

func main() {
	ctx, stop := context.WithTimeout(context.Background(), time.Minute)
	defer stop()
	client, err := wiggle.Dial("http://127.0.0.1:8420")
	check(err)

	flow := wiggle.Define("greeting", func(f *wiggle.Flow) {
		f.Task("compose", wiggle.Retry(5, 100*time.Millisecond))
		f.Sleep(time.Second)
		f.Effect("send")
	})
	_, err = client.Register(ctx, flow)
	check(err)

	worker := wiggle.NewWorker(client, wiggle.WorkerOptions{})
	steps := worker.Workflow("greeting")
	wiggle.HandleTask(steps, "compose", func(_ context.Context, g Greeting) (Greeting, error) {
		g.Text = "Hello, " + g.Name + "!"
		return g, nil
	})
	wiggle.HandleEffect(steps, "send", func(_ context.Context, g Greeting) error {
		_, err := fmt.Println(g.Text)
		return err
	})
	go func() { check(worker.Run(ctx)) }()

	run, err := client.Start(ctx, "greeting", Greeting{Name: "Ada"})
	check(err)
	result, err := wiggle.Result[Greeting](ctx, run)
	check(err)
	fmt.Printf("%s ended with %+v\n", run.ID, result)
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
