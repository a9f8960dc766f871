package crash

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/wiggle-run/wiggle/pkg/faults"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	"github.com/wiggle-run/wiggle/test/crash/cluster"
	"github.com/wiggle-run/wiggle/test/crash/ledger"
)

// roleWorker is the role of a worker process.
const roleWorker = "worker"

const (
	// lease is short enough for leases to run out in earnest.
	lease    = 2 * time.Second
	pollWait = time.Second
	// callTime bounds one try of a call.
	callTime = 15 * time.Second
	// room is how many tasks a worker has at the same time, batch how many it polls for.
	room  = 96
	batch = 24
	// pollers and reporters are how many calls of each kind may be under way.
	pollers   = 2
	reporters = 4
	// reportMost is how many reports go into one call.
	reportMost = 50
)

// Types of the failures that workers make.
const (
	failurePurpose = "crash.OnPurpose"
	failureFlaky   = "crash.Flaky"
	failureAnswer  = "crash.CannotAnswer"
)

// workerConfig configures a worker process.
type workerConfig struct {
	Name    string `json:"name"`
	Router  string `json:"router"`
	Journal string `json:"journal"`
}

// worker speaks the worker protocol itself, so that it can repeat itself, be late,
// fail and give back, and know exactly what it was told.
type worker struct {
	name    string
	clients cluster.Clients
	journal *ledger.Journal
	log     *slog.Logger
	room    chan struct{}
	reports chan *pending
}

// runWorker is a worker process.
func runWorker(ctx context.Context, config []byte, log *slog.Logger) error {
	var cfg workerConfig
	if err := json.Unmarshal(config, &cfg); err != nil {
		return fmt.Errorf("read configuration: %w", err)
	}
	clients, err := cluster.Dial(cfg.Router)
	if err != nil {
		return err
	}
	journal, err := ledger.OpenJournal(cfg.Journal)
	if err != nil {
		return err
	}
	w := &worker{
		name: cfg.Name, clients: clients, journal: journal, log: log,
		room: make(chan struct{}, room), reports: make(chan *pending),
	}
	var loops sync.WaitGroup
	for range reporters {
		loops.Go(func() { w.reportLoop(ctx) })
	}
	for range pollers {
		loops.Go(func() { w.pollLoop(ctx) })
	}
	loops.Wait()
	return nil
}

// pollLoop takes tasks whenever there is room, until ctx is done.
func (w *worker) pollLoop(ctx context.Context) {
	for ctx.Err() == nil {
		n := w.takeRoom(ctx)
		res, err := w.poll(ctx, n)
		if err != nil {
			w.log.Info("poll failed", "error", err)
		}
		tasks := res.GetTasks()
		for range n - len(tasks) {
			<-w.room
		}
		w.note(tasks)
		for _, t := range tasks {
			go func() {
				defer func() { <-w.room }()
				w.work(ctx, t)
			}()
		}
		if after := res.GetRetryAfter(); err != nil || after != nil {
			cluster.Pause(ctx, max(100*time.Millisecond, min(after.AsDuration(), time.Second)))
		}
	}
}

// takeRoom waits for room for one task and takes what there is for a batch.
func (w *worker) takeRoom(ctx context.Context) int {
	n := 0
	select {
	case w.room <- struct{}{}:
		n++
	case <-ctx.Done():
		return n
	}
	for n < batch {
		select {
		case w.room <- struct{}{}:
			n++
		default:
			return n
		}
	}
	return n
}

func (w *worker) poll(ctx context.Context, n int) (*wigglev1.PollTasksResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	return w.clients.Workers.PollTasks(ctx, &wigglev1.PollTasksRequest{
		Worker: w.name, MaxTasks: int32(n), //nolint:gosec // at most batch
		Lease: durationpb.New(lease), Wait: durationpb.New(pollWait),
		Workflows: []*wigglev1.WorkflowBinding{{Workflow: workflowWide}, {Workflow: workflowNarrow}},
	})
}

// note writes down what a poll gave, before anything is done with it.
func (w *worker) note(tasks []*wigglev1.Task) {
	if len(tasks) == 0 {
		return
	}
	lines := make([]ledger.Line, len(tasks))
	for i, t := range tasks {
		lines[i] = w.line(t, ledger.Given, "")
	}
	w.write(lines...)
}

func (w *worker) write(lines ...ledger.Line) {
	if err := w.journal.Write(lines...); err != nil {
		panic(fmt.Sprintf("write the journal: %v", err)) // without it the run proves nothing
	}
}

func (w *worker) tell(t *wigglev1.Task, what ledger.What, text string) {
	w.write(w.line(t, what, text))
}

func (w *worker) line(t *wigglev1.Task, what ledger.What, text string) ledger.Line {
	return ledger.Line{
		What: what, At: time.Now(), Worker: w.name, Instance: t.GetInstanceId(), Task: t.GetId(), Fence: fenceOf(t),
		Step: t.GetStep(), Attempt: t.GetAttempt(), Text: text,
	}
}

// fenceOf reads the number that the lease's text begins with; -1 if it does not.
func fenceOf(t *wigglev1.Task) int64 {
	text, _, _ := strings.Cut(t.GetLease(), ".")
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return -1
	}
	return n
}

// conduct is what a worker does with a task, besides the work.
type conduct int

const (
	diligent   conduct = iota
	repeats            // sends a report again that was answered
	fails              // fails the attempt
	givesBack          // releases the task
	takesTime          // works longer than its lease, and extends it
	oversleeps         // works longer than its lease, and then reports
)

// conductFor draws what to do by the lease, so that each is met now and then.
func conductFor(t *wigglev1.Task) conduct {
	h := fnv.New32a()
	_, _ = h.Write([]byte(t.GetId() + t.GetLease())) // never fails
	switch n := h.Sum32() % 1000; {
	case n < 50:
		return repeats
	case n < 70:
		return fails
	case n < 85:
		return givesBack
	case n < 95:
		return takesTime
	case n < 100:
		return oversleeps
	}
	return diligent
}

// work does one task.
func (w *worker) work(ctx context.Context, t *wigglev1.Task) {
	began := time.Now()
	report, err := answer(t)
	if err != nil {
		w.tell(t, ledger.Strange, err.Error())
		w.fail(ctx, t, failureAnswer, true)
		return
	}
	c := conductFor(t)
	switch {
	case t.GetStep() == "flaky" && t.GetAttempt() <= flakyAttempts:
		w.fail(ctx, t, failureFlaky, false)
		return
	case c == fails:
		w.fail(ctx, t, failurePurpose, false)
		return
	case c == givesBack:
		w.giveBack(ctx, t)
		return
	case c == takesTime && !w.extend(ctx, t):
		w.log.Info("the lease was lost while it was extended", "task", t.GetId())
	case c == oversleeps:
		cluster.Pause(ctx, lease+time.Duration(fenceOf(t)%4)*300*time.Millisecond)
	}
	report.StartedAt, report.FinishedAt = timestamppb.New(began), timestamppb.Now()
	w.report(ctx, t, report, c == repeats)
}

// extend keeps a lease for longer than it was given; false if it was lost.
func (w *worker) extend(ctx context.Context, t *wigglev1.Task) bool {
	for range 4 {
		if !cluster.Pause(ctx, lease*2/5) {
			return false
		}
		callCtx, cancel := context.WithTimeout(ctx, lease)
		res, err := w.clients.Workers.Heartbeat(callCtx, &wigglev1.HeartbeatRequest{Worker: w.name, Beats: []*wigglev1.Beat{{
			TaskId: t.GetId(), Lease: t.GetLease(), Extend: durationpb.New(lease),
			Progress: &wigglev1.Payload{Data: []byte(`"busy"`)},
		}}})
		cancel()
		if err != nil {
			w.log.Info("heartbeat failed", "error", err)
			continue
		}
		if res.GetOutcomes()[0].GetFault().GetLeaseLost() != nil {
			return false
		}
	}
	return true
}

// giveBack releases a task. Whether it was applied is not in the history, so it is
// written down before.
func (w *worker) giveBack(ctx context.Context, t *wigglev1.Task) {
	w.tell(t, ledger.Returning, "")
	err := w.until(ctx, t, func(ctx context.Context) error {
		res, err := w.clients.Workers.ReleaseTasks(ctx, &wigglev1.ReleaseTasksRequest{
			Worker: w.name, Tasks: []*wigglev1.TaskLease{{TaskId: t.GetId(), Lease: t.GetLease()}},
		})
		return itemError(res.GetOutcomes(), err)
	})
	if err != nil && !errors.Is(err, faults.ErrLeaseLost) && ctx.Err() == nil {
		w.tell(t, ledger.Strange, err.Error())
	}
}

// fail fails the attempt, and writes down that it is so.
func (w *worker) fail(ctx context.Context, t *wigglev1.Task, kind string, never bool) {
	req := &wigglev1.FailTaskRequest{
		Worker: w.name, TaskId: t.GetId(), Lease: t.GetLease(), NonRetryable: never,
		Failure: &wigglev1.Failure{Type: kind, Message: "as the test wants it"},
	}
	err := w.until(ctx, t, func(ctx context.Context) error {
		_, err := w.clients.Workers.FailTask(ctx, req)
		return err
	})
	w.settled(t, ledger.Failed, err)
}
