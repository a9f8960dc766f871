package store

import (
	"context"

	"github.com/wiggle-run/wiggle/services/instances/internal/machine"
)

// Subjects is the part of a store that tells what ids are about, as scopes of permissions name it (AUT-3).
type Subjects interface {
	// InstanceSubjects tells the namespaces and workflows of instances. The answer is as long as ids, with the zero Subject
	// for what is not there.
	InstanceSubjects(ctx context.Context, ids []machine.ID) ([]Subject, error)
	// TaskSteps tells at which steps tokens are, or were under a lease. The answer is as long as tasks. A task without a
	// fence is about the token, whatever its lease.
	TaskSteps(ctx context.Context, tasks []Lease) ([]TaskStep, error)
}

// Subject is what an instance is of. Neither ever changes.
type Subject struct{ Namespace, Workflow string }

// TaskStep is a step at which a token is or was. The zero value: there is no such token, and no such instance. Without Queue and
// Node there is the instance, and at which of its steps the token was is not known: it went without a word.
type TaskStep struct {
	Namespace string
	// Queue of the step where the token tells it. Empty where only history knows of the step: it is that of Node in the
	// definition then.
	Queue    string
	Workflow string
	Version  int32
	Node     string
}

// StepOf decides between what a token tells of a task and what history tells of its lease. row tells whether the
// token is there, current that it is leased under the lease that is asked for, or that none is; settled is the node at which
// the lease was settled.
func StepOf(s TaskStep, row, current bool, settled string) TaskStep {
	switch {
	case row && current:
	case settled != "" && s.Workflow != "":
		s.Queue, s.Node = "", settled
	case row && s.Queue != "":
	default:
		s.Queue = ""
	}
	return s
}
