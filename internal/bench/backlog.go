package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/wiggle-run/wiggle/internal/bench/steps"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	"github.com/wiggle-run/wiggle/proto/gen/wiggle/v1/wigglev1connect"
)

const (
	// claims is how many claims are timed, each for one token; while the backlog is empty so many tokens at most are ready.
	claims        = 1000
	claimTogether = 50
	claimLease    = time.Minute
)

// runBacklog times claims while few tokens are ready and while many are, and then has workers run all.
func runBacklog(ctx context.Context, b *bench, p point) (Run, error) {
	c := &claimer{bench: b, client: wigglev1connect.NewWorkerServiceClient(b.client.Generated())}
	n := min(claims, (b.opts.Count+1)/2)
	load := workload{workflow: steps.ChainName(1), input: steps.Payload(p.payloadBytes), steps: 1}
	few := newGenerator(b, load)
	var empty []time.Duration
	for left := n; left > 0; left -= claimTogether {
		if err := few.startAll(ctx, min(left, claimTogether)); err != nil {
			return Run{}, err
		}
		took, err := c.claim(ctx, min(left, claimTogether))
		if err != nil {
			return Run{}, err
		}
		empty = append(empty, took...)
	}
	many := newGenerator(b, load)
	began := time.Now()
	if err := many.startAll(ctx, b.opts.Count); err != nil {
		return Run{}, err
	}
	started := time.Since(began)
	full, err := b.claimBacklog(ctx, c, n)
	if err != nil {
		return Run{}, err
	}
	run, err := b.drainBacklog(ctx, few, many, n)
	if err != nil {
		return Run{}, err
	}
	run.setLatency(full)
	run.detail("start_per_second", round(float64(b.opts.Count)/started.Seconds(), 1))
	run.detailQuantiles("empty", empty)
	of := quantilesOf(empty)
	run.detail("claim_p99_ms_empty", millis(of.p99))
	run.detail("claim_p99_ms_backlog", run.P99)
	if of.p99 > 0 {
		run.detail("ratio", round(run.P99/millis(of.p99), 2))
	}
	return run, nil
}

func (b *bench) claimBacklog(ctx context.Context, c *claimer, n int) ([]time.Duration, error) {
	if !b.opts.HoldHorizon {
		return c.claim(ctx, n)
	}
	if len(b.Databases) == 0 {
		return nil, wrongOption("--horizon holds a transaction open: name the databases with --database-url")
	}
	release, err := b.Databases.HoldHorizon(ctx)
	if err != nil {
		return nil, err
	}
	defer release()
	// It is what piles up meanwhile that hurts.
	b.opts.progressf("backlog: a transaction is held open for %v before the claims", b.opts.HoldTime)
	if err := b.pause(ctx, b.opts.HoldTime); err != nil {
		return nil, err
	}
	return c.claim(ctx, n)
}

// drainBacklog has workers run what is left, and looks at everything.
func (b *bench) drainBacklog(ctx context.Context, few, many *generator, claimed int) (Run, error) {
	before, err := b.sample(ctx)
	if err != nil {
		return Run{}, err
	}
	began := time.Now()
	if err := b.StartWorkers(ctx, b.opts.workers(1)); err != nil {
		return Run{}, err
	}
	many.asked -= int64(claimed) // ended already
	if err := many.drain(ctx); err != nil {
		return Run{}, err
	}
	after, err := b.sample(ctx)
	if err != nil {
		return Run{}, err
	}
	b.StopWorkers(ctx)
	a, err := b.account(ctx, many)
	if err != nil {
		return Run{}, err
	}
	first, err := b.account(ctx, few)
	if err != nil {
		return Run{}, err
	}
	a.errors += first.errors
	a.problems = append(a.problems, first.problems...)
	run := a.run()
	// From the first end on: how long a worker process takes to start is not the engine's.
	drained := slices.DeleteFunc(a.completed, func(e ended) bool { return e.end.Before(began.Add(b.skew)) })
	if n := int64(len(drained)); n > 0 {
		first := slices.MinFunc(drained, func(x, y ended) int { return x.end.Compare(y.end) }).end
		run.setRate(n, n, a.last.Sub(first))
	}
	run.setCosts(before, after)
	return run, nil
}

// claimer claims tokens as a worker does, and reports each.
type claimer struct {
	bench  *bench
	client wigglev1connect.WorkerServiceClient
}

var errNothing = errors.New("a poll found nothing though tokens are ready")

// claim claims so many tokens, one at a time, and returns how long each took.
func (c *claimer) claim(ctx context.Context, n int) ([]time.Duration, error) {
	took := make([]time.Duration, 0, n)
	report := &wigglev1.ReportStepsRequest{Worker: "bench-claimer"}
	req := &wigglev1.PollTasksRequest{
		Worker: report.GetWorker(), Queues: []string{"default"}, MaxTasks: 1, Lease: durationpb.New(claimLease),
		Wait:      durationpb.New(time.Second),
		Workflows: []*wigglev1.WorkflowBinding{{Workflow: steps.ChainName(1)}},
	}
	for len(took) < n {
		before := time.Now()
		res, err := c.client.PollTasks(ctx, req)
		took = append(took, time.Since(before))
		switch {
		case err != nil:
			return nil, fmt.Errorf("claim: %w", err)
		case len(res.GetTasks()) == 0:
			return nil, errNothing
		}
		for _, t := range res.GetTasks() {
			report.Reports = append(report.Reports, &wigglev1.StepReport{
				TaskId: t.GetId(), Lease: t.GetLease(), Outcome: &wigglev1.StepReport_Result{Result: t.GetContext()},
			})
		}
		if len(report.GetReports()) >= claimTogether || len(took) == n {
			if err := c.report(ctx, report); err != nil {
				return nil, err
			}
			report.Reports = nil
		}
	}
	return took, nil
}

func (c *claimer) report(ctx context.Context, req *wigglev1.ReportStepsRequest) error {
	res, err := c.client.ReportSteps(ctx, req)
	if err != nil {
		return fmt.Errorf("report: %w", err)
	}
	for _, o := range res.GetOutcomes() {
		if f := o.GetFault(); f != nil {
			return fmt.Errorf("report %s: %w", o.GetTaskId(), connect.NewError(connect.CodeUnknown, errors.New(f.GetMessage())))
		}
	}
	return nil
}
