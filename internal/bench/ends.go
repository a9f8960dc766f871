package bench

import (
	"context"
	"fmt"
	"time"

	"github.com/wiggle-run/wiggle/pkg/shardid"
	wiggle "github.com/wiggle-run/wiggle/sdk/go"
)

// ends are what became of all instances of a load, sorted by when they ended: for loads of so many that their ids are not kept.
// Latency is from the time in the instance's ulid, which is when its start was intended.
type ends struct {
	began time.Time
	every time.Duration
	parts [][]time.Duration // latencies of those that ended in each part

	listed, completed int64
	problems          []string
}

// newEnds sorts what ends from a time on into parts. What ends after the last is counted only.
func newEnds(began time.Time, every time.Duration, parts int) *ends {
	return &ends{began: began, every: every, parts: make([][]time.Duration, parts)}
}

// add takes note of an instance that was intended to start at a time.
func (e *ends) add(inst *wiggle.Instance, intended time.Time) {
	e.listed++
	if inst.State != wiggle.Completed {
		if len(e.problems) < maxProblems {
			e.problems = append(e.problems, fmt.Sprintf("%s is %s: %v", inst.ID, inst.State, inst.Failure))
		}
		return
	}
	e.completed++
	after := inst.EndedAt.Sub(e.began)
	if i := int(after / e.every); after >= 0 && i < len(e.parts) {
		e.parts[i] = append(e.parts[i], inst.EndedAt.Sub(intended))
	}
}

// check holds what is listed against what was accepted. There may be more: starts whose answers were lost.
func (e *ends) check(run *Run, accepted int64) {
	run.Errors += e.listed - e.completed
	for _, text := range e.problems {
		run.problem(text)
	}
	if missing := accepted - e.listed; missing > 0 {
		run.Errors += missing
		run.problem(fmt.Sprintf("%d instances were accepted and are not listed", missing))
	}
}

// readEnds lists all instances of a workflow since.
func (b *bench) readEnds(ctx context.Context, workflow string, since time.Time, e *ends) error {
	filter := wiggle.Filter{Workflow: workflow, CreatedFrom: since}
	for inst, err := range b.client.List(ctx, filter, wiggle.PageSize(listPage)) {
		if err != nil {
			return err
		}
		id, err := shardid.ParseInstance(inst.ID)
		if err != nil {
			return err
		}
		intended := inst.CreatedAt
		if u, ok := id.ULID(); ok {
			intended = u.Timestamp().Add(b.skew)
		}
		e.add(inst, intended)
	}
	return nil
}
