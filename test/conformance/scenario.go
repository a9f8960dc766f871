package conformance

import (
	"slices"
	"time"

	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	wiggle "github.com/wiggle-run/wiggle/sdk/go"
)

// Scenario is one thing that must hold on every configuration.
type Scenario struct {
	// Name says what is shown, Covers which statements of the specification.
	Name   string
	Covers string
	// Flow is the workflow. Its name is made unique for each run. A scenario
	// without one registers what it needs by itself.
	Flow *wiggle.Definition
	// Definition is used in place of Flow, for graphs that the builder does not make.
	Definition *wigglev1.Definition
	// Input is the first context, as JSON.
	Input string
	// Answers tells what workers answer, by step. A step that is not listed is
	// answered with what changes least: see [Run.Answer].
	Answers map[string]Answer
	// Lease is how long workers of Answers lease tasks. 0: half a minute, so that
	// only what is meant to runs out.
	Lease time.Duration
	// Script runs the scenario in place of the worker that Answers describes. It
	// starts what it needs by itself.
	Script func(r *Run)
	// Want is what must be seen at the end of the instance that was started last. A
	// script may see to it by itself.
	Want Want
}

// Want is the end of an instance.
type Want struct {
	// State is the state at the end. Zero: nothing is checked.
	State wigglev1.InstanceState
	// Context is the result as JSON; numbers are compared by their text. Empty: not checked.
	Context string
	// Failure is the type of the failure, Message a part of its message, Node its node.
	Failure, Message, Node string
	// Attempts is how often each step was tried in all branches together.
	Attempts map[string]int
}

// Scenarios are all scenarios.
func Scenarios() []Scenario {
	return slices.Concat(
		chains(), endings(), gates(), chooses(), branchGates(), loops(),
		forks(), forkEnds(), nestings(),
		collections(), elements(), widths(), inFlight(),
		retries(), retryAnswers(), leases(), beats(),
		reports(), batches(), continuations(), batched(), events(),
		sleeps(), delays(), cancels(),
		limits(), payloads(), numbers(),
		starts(), routes(), versions(), registrations(),
		lists(), histories(), waits(), priorities(), queues(),
	)
}

// The states that instances end in.
const (
	completed = wigglev1.InstanceState_INSTANCE_STATE_COMPLETED
	failed    = wigglev1.InstanceState_INSTANCE_STATE_FAILED
	cancelled = wigglev1.InstanceState_INSTANCE_STATE_CANCELLED
	running   = wigglev1.InstanceState_INSTANCE_STATE_RUNNING
)

// short is a backoff and a sleep that PostgreSQL configurations can wait for.
const short = 30 * time.Millisecond

// quick is a retry policy without jitter whose pauses can be waited for.
func quick(attempts int) wiggle.RetryPolicy {
	return wiggle.RetryPolicy{MaxAttempts: attempts, InitialBackoff: short, NoJitter: true}
}

// chain is a flow of tasks, one after the other.
func chain(name string, steps ...string) *wiggle.Definition {
	return wiggle.Define(name, func(f *wiggle.Flow) {
		for _, s := range steps {
			f.Task(s)
		}
	})
}

// task is a branch or body of one task.
func task(name string, opts ...wiggle.StepOption) func(*wiggle.Flow) {
	return func(f *wiggle.Flow) { f.Task(name, opts...) }
}

// each is a flow of one for_each over "/items" with one task.
func each(name string, opts ...wiggle.ForEachOption) *wiggle.Definition {
	return wiggle.Define(name, func(f *wiggle.Flow) {
		f.ForEach("/items", task("price"), opts...).Combine("gather")
	})
}

// pair is a flow of one fork with two branches of one task each.
func pair(name string) *wiggle.Definition {
	return wiggle.Define(name, func(f *wiggle.Flow) {
		f.Fork(wiggle.Branch("left", task("l")), wiggle.Branch("right", task("r"))).Combine("merge")
	})
}
