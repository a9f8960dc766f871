package steps

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"

	"connectrpc.com/connect"

	"github.com/wiggle-run/wiggle/pkg/process"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	wiggle "github.com/wiggle-run/wiggle/sdk/go"
)

// WorkerOptions are those of a worker process, `wiggle bench-worker`.
type WorkerOptions struct {
	// Server is the URL of the router.
	Server string
	// Sessions is how many workers run in the process, each over connections of its own.
	Sessions int
	// Concurrency of each.
	Concurrency int
	// Profiles is an address where profiles are offered; empty for none.
	Profiles string
	// Logger gets what goes wrong.
	Logger *slog.Logger
}

// CommandWorker is the command line's name of [RunWorker].
const CommandWorker = "bench-worker"

// RunWorker serves the bench's workflows by the Go SDK until ctx is done or stop, its standard input, ends. To out it
// writes totals, the first when it is about to poll.
func RunWorker(ctx context.Context, opts WorkerOptions, stop io.Reader, out io.Writer) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() { // ends with the process
		_, _ = io.Copy(io.Discard, stop)
		cancel()
	}()
	if opts.Profiles != "" {
		go func() { // ends with ctx
			if err := process.ServeProfiles(ctx, opts.Profiles); err != nil {
				opts.Logger.Error("profiles are not offered", slog.Any("error", err))
			}
		}()
	}
	a := newAcknowledged()
	writing, endWriting := context.WithCancel(context.WithoutCancel(ctx))
	var writer sync.WaitGroup
	writer.Go(func() { a.writeTo(writing, out) })
	errs := make([]error, max(opts.Sessions, 1))
	var sessions sync.WaitGroup
	for i := range errs {
		sessions.Go(func() {
			if errs[i] = runSession(ctx, opts, a); errs[i] != nil {
				cancel()
			}
		})
	}
	sessions.Wait()
	endWriting()
	writer.Wait()
	return errors.Join(errs...)
}

func runSession(ctx context.Context, opts WorkerOptions, a *acknowledged) error {
	client, err := wiggle.Dial(opts.Server, wiggle.WithLogger(opts.Logger), wiggle.WithConnectOptions(connect.WithInterceptors(a)))
	if err != nil {
		return fmt.Errorf("worker: %w", err)
	}
	defer client.Close()
	w := wiggle.NewWorker(client, wiggle.WorkerOptions{Concurrency: opts.Concurrency, SkipCheck: true})
	step := func(_ context.Context, in wiggle.Payload) (wiggle.Payload, error) { return bump(in), nil }
	wiggle.HandleTask(w, activityStep, step)
	wiggle.HandleTask(w, activityElement, step)
	wiggle.HandleTask(w, activityLast, func(ctx context.Context, in wiggle.Payload) (wiggle.Payload, error) {
		a.expect(wiggle.TaskFrom(ctx).ID)
		return bump(in), nil
	})
	wiggle.HandleCombineList(w, activityCombine,
		func(ctx context.Context, _ wiggle.Payload, results []wiggle.Elem[wiggle.Payload]) (wiggle.Payload, error) {
			a.expect(wiggle.TaskFrom(ctx).ID)
			if len(results) == 0 {
				return Payload(0), nil
			}
			return bump(results[0].Value), nil
		})
	return w.Run(ctx)
}

// acknowledged sees the answers to reports, between the worker and its connection, and counts those that the server took.
type acknowledged struct {
	changed chan struct{}

	mu   sync.Mutex
	last map[string]struct{} // tasks whose settlement ends their instance
	now  Totals
}

func newAcknowledged() *acknowledged {
	return &acknowledged{changed: make(chan struct{}, 1), last: map[string]struct{}{}}
}

// expect notes a task whose settlement ends its instance.
func (a *acknowledged) expect(task string) {
	a.mu.Lock()
	a.last[task] = struct{}{}
	a.mu.Unlock()
}

// see counts the reports that were answered, whatever carries the answers.
func (a *acknowledged) see(answer any) {
	var outcomes []*wigglev1.TaskOutcome
	switch answer := answer.(type) {
	case *wigglev1.ReportStepsResponse:
		outcomes = answer.GetOutcomes()
	case *wigglev1.WorkResponse:
		outcomes = answer.GetReported()
	}
	if len(outcomes) == 0 {
		return
	}
	a.mu.Lock()
	for _, outcome := range outcomes {
		if outcome.GetFault() != nil {
			continue
		}
		a.now.Settled++
		if _, ok := a.last[outcome.GetTaskId()]; ok {
			delete(a.last, outcome.GetTaskId())
			a.now.Ended++
		}
	}
	a.mu.Unlock()
	select {
	case a.changed <- struct{}{}:
	default:
	}
}

// writeTo writes totals when they have changed. What changes while it writes goes with the next record.
func (a *acknowledged) writeTo(ctx context.Context, out io.Writer) {
	for {
		a.mu.Lock()
		now := a.now
		a.mu.Unlock()
		if now.write(out) != nil {
			return // nobody reads any more
		}
		select {
		case <-a.changed:
		case <-ctx.Done():
			return
		}
	}
}

// WrapUnary sees the answers of ReportSteps.
func (a *acknowledged) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
		res, err := next(ctx, req)
		if err == nil {
			a.see(res.Any())
		}
		return res, err
	}
}

// WrapStreamingClient sees the answers on a stream.
func (a *acknowledged) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return func(ctx context.Context, spec connect.Spec) connect.StreamingClientConn {
		return &seenConn{StreamingClientConn: next(ctx, spec), acknowledged: a}
	}
}

// WrapStreamingHandler has nothing to see: a worker serves nobody.
func (a *acknowledged) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return next
}

type seenConn struct {
	connect.StreamingClientConn
	acknowledged *acknowledged
}

// Receive receives a message and counts what it acknowledges.
func (c *seenConn) Receive(msg any) error {
	err := c.StreamingClientConn.Receive(msg)
	if err == nil {
		c.acknowledged.see(msg)
	}
	return err
}
