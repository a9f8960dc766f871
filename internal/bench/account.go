package bench

import (
	"context"
	"fmt"
	"slices"
	"time"

	wiggle "github.com/wiggle-run/wiggle/sdk/go"
)

const (
	listPage = 1000
	// historySample is of how many instances the history is read.
	historySample = 20
	// settleTime is how long lists may take to show an end that a worker knows of already.
	settleTime = 10 * time.Second
	kindStep   = "STEP_COMPLETED"
)

// ended is one instance that completed.
type ended struct {
	id         string
	start, end time.Time
	late       time.Duration
}

func (e ended) took() time.Duration { return e.end.Sub(e.start) + e.late }

// account is what became of everything that a generator started.
type account struct {
	completed   []ended
	first, last time.Time // start and end, by the databases' clock
	errors      int64
	problems    []string

	// From the history of a sample: ready to dispatched, ready to running, and from one step's end to the next.
	toDispatched, toRunning, gaps []time.Duration
}

func (a *account) run() Run { return Run{Errors: a.errors, problems: a.problems} }

func (a *account) problem(format string, args ...any) {
	a.errors++
	if len(a.problems) < maxProblems {
		a.problems = append(a.problems, fmt.Sprintf(format, args...))
	}
}

// latencies are those of all that completed.
func (a *account) latencies() []time.Duration {
	out := make([]time.Duration, len(a.completed))
	for i, e := range a.completed {
		out[i] = e.took()
	}
	return out
}

// within are the latencies of those that ended from one time up to another.
func (a *account) within(from, before time.Time) []time.Duration {
	var out []time.Duration
	for _, e := range a.completed {
		if !e.end.Before(from) && e.end.Before(before) {
			out = append(out, e.took())
		}
	}
	return out
}

// account looks at every instance that was started, and at the history of a sample.
func (b *bench) account(ctx context.Context, g *generator) (*account, error) {
	a, err := b.list(ctx, g)
	if err != nil {
		return nil, err
	}
	return a, b.readHistories(ctx, g, a, historySample)
}

// list lists all until none of them runs, or that takes too long.
func (b *bench) list(ctx context.Context, g *generator) (*account, error) {
	for until := time.Now().Add(settleTime); ; {
		a, running, err := b.listOnce(ctx, g)
		if err != nil || running == 0 || time.Now().After(until) {
			return a, err
		}
		if err := b.pause(ctx, lookAgain); err != nil {
			return nil, err
		}
	}
}

func (b *bench) listOnce(ctx context.Context, g *generator) (_ *account, running int, err error) {
	a := &account{errors: g.failed, problems: slices.Clone(g.failures)}
	mine := make(map[string]struct{}, len(g.ids))
	for _, id := range g.ids {
		mine[id] = struct{}{}
	}
	filter := wiggle.Filter{Workflow: g.load.workflow, CreatedFrom: g.since}
	for inst, err := range b.client.List(ctx, filter, wiggle.PageSize(listPage)) {
		if err != nil {
			return nil, 0, err
		}
		if _, ok := mine[inst.ID]; !ok {
			continue
		}
		delete(mine, inst.ID)
		if a.first.IsZero() || inst.CreatedAt.Before(a.first) {
			a.first = inst.CreatedAt
		}
		if inst.State == wiggle.Running {
			running++
		}
		if inst.State != wiggle.Completed {
			a.problem("%s is %s: %v", inst.ID, inst.State, inst.Failure)
			continue
		}
		if inst.EndedAt.After(a.last) {
			a.last = inst.EndedAt
		}
		a.completed = append(a.completed, ended{inst.ID, inst.CreatedAt, inst.EndedAt, g.late[inst.ID]})
	}
	for id := range mine {
		a.problem("%s was started and is not listed", id)
	}
	return a, running, nil
}

// readHistories reads the history of up to n instances, evenly over all that completed.
func (b *bench) readHistories(ctx context.Context, g *generator, a *account, n int) error {
	if g.load.steps == 0 {
		return nil
	}
	every := max(1, len(a.completed)/n)
	for i := 0; i < len(a.completed); i += every {
		if err := b.readHistory(ctx, g, a, a.completed[i].id); err != nil {
			return err
		}
	}
	return nil
}

// readHistory reads where the steps' time went, and checks that there are as many as there must be.
func (b *bench) readHistory(ctx context.Context, g *generator, a *account, id string) error {
	steps := int64(0)
	var before time.Time
	for e, err := range b.client.History(ctx, id) {
		if err != nil {
			return err
		}
		if e.Kind != kindStep {
			continue
		}
		steps++
		if !e.QueuedAt.IsZero() && !e.DispatchedAt.IsZero() {
			a.toDispatched = append(a.toDispatched, e.DispatchedAt.Sub(e.QueuedAt))
		}
		if !e.QueuedAt.IsZero() && !e.StartedAt.IsZero() {
			a.toRunning = append(a.toRunning, e.StartedAt.Sub(e.QueuedAt.Add(-b.skew)))
		}
		if !before.IsZero() {
			a.gaps = append(a.gaps, e.RecordedAt.Sub(before))
		}
		before = e.RecordedAt
	}
	if steps != g.load.steps {
		a.problem("%s has %d completed steps in its history, and must have %d", id, steps, g.load.steps)
	}
	return nil
}
