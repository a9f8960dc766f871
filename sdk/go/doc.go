// Package wiggle is the Go SDK of Wiggle, a durable workflow engine on
// PostgreSQL: it defines workflows, starts and follows their instances, and runs
// their steps.
//
// A workflow is a graph of named steps that the server owns as data. It is
// written with [Define] and made known with [Client.Register]; the code of the
// steps is registered by name with a [Worker] and may live in another process.
// A process that only starts instances needs neither.
//
//	flow := wiggle.Define("greeting", func(f *wiggle.Flow) {
//		f.Task("compose")
//		f.Sleep(time.Hour)
//		f.Effect("send")
//	})
//
//	client, err := wiggle.Dial("http://localhost:8420")
//	_, err = client.Register(ctx, flow)
//
//	w := wiggle.NewWorker(client, wiggle.WorkerOptions{})
//	steps := w.Workflow("greeting")
//	wiggle.HandleTask(steps, "compose", func(ctx context.Context, in Greeting) (Greeting, error) { ... })
//	wiggle.HandleEffect(steps, "send", func(ctx context.Context, in Greeting) error { ... })
//	go w.Run(ctx)
//
//	run, err := client.Start(ctx, "greeting", Greeting{Name: "Ada"})
//	out, err := wiggle.Result[Greeting](ctx, run)
//
// # The context
//
// An instance carries one value, its context: the input at first, the result at
// the end. A task is given the context and returns the next one; an effect, a
// gate and a choose only read it. Parallel branches (Fork, ForEach) each work on
// a context of their own, which a combine makes into one again: nothing merges
// by itself.
//
// # Values
//
// Values travel as JSON, made and read with encoding/json by the types of the
// handlers. Numbers survive exactly: into an interface value (any,
// map[string]any) a number is read as a [encoding/json.Number], never as a
// float64. [encoding/json.RawMessage] hands a value through as it is, and
// [Payload] one that is not JSON.
//
// # At least once
//
// A step is given to one worker at a time under a lease, and its result counts
// once. But a worker that dies, or loses its lease, leaves it to the next: what a
// handler does outside should be safe to repeat. [TaskInfo.ID] with the step's
// name is a good idempotency key.
//
// # Batched workflows
//
// Each step is reported, and on disk, before the next is seen. A workflow that is
// defined with [Batched] gives that up for speed: the worker runs consecutive steps by
// itself and reports them together. After a crash all that was not reported is run
// again. [Checkpoint] reports what is done.
//
// # The connection
//
// A client makes calls over HTTP/1.1 or, with TLS, HTTP/2. A worker talks over one
// stream, on a connection of its own, which needs HTTP/2 from end to end: negotiated
// by TLS, and without TLS with prior knowledge (h2c). Proxies between must let it
// pass, or [WorkerOptions].Unary has the worker make calls, which cost more. The
// worker grants the server credits for as many tasks as it has room for, opens
// another stream when one breaks or its server goes away, and keeps its tasks
// meanwhile.
//
// # API keys
//
// Where the server checks who calls, a client shows an API key: the one in
// WIGGLE_API_KEY, or in the file that WIGGLE_API_KEY_FILE names, which is read again by
// itself, so that a key is replaced without a restart. [WithAPIKey] and
// [WithAPIKeyFile] say otherwise. A call without a key that is accepted is
// [ErrUnauthenticated], one that the key does not allow [ErrPermissionDenied], and
// [Error.Permission] names what is missing. A running worker whose key is revoked logs
// so and goes on asking.
//
// # Errors
//
// Every call returns an [*Error] for what the server refuses, which works with
// errors.Is and the sentinels of this package ([ErrNotFound], [ErrUnavailable],
// ...). Calls are repeated by the client only where that is safe.
package wiggle
