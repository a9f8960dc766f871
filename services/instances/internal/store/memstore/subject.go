package memstore

import (
	"context"

	"github.com/wiggle-run/wiggle/services/instances/internal/machine"
	"github.com/wiggle-run/wiggle/services/instances/internal/store"
)

// InstanceSubjects implements [store.Subjects].
func (s *Store) InstanceSubjects(ctx context.Context, ids []machine.ID) ([]store.Subject, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	subjects := make([]store.Subject, len(ids))
	for i, id := range ids {
		if in := s.instances[id]; in != nil {
			subjects[i] = store.Subject{Namespace: in.Namespace, Workflow: in.Workflow}
		}
	}
	return subjects, nil
}

// TaskSteps implements [store.Subjects].
func (s *Store) TaskSteps(ctx context.Context, tasks []store.Lease) ([]store.TaskStep, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	steps := make([]store.TaskStep, len(tasks))
	for i, task := range tasks {
		steps[i] = s.taskStep(task)
	}
	return steps, nil
}

func (s *Store) taskStep(task store.Lease) store.TaskStep {
	t := s.tokens[task.Token]
	if t != nil {
		task.Instance = t.Instance
	}
	in := s.instances[task.Instance]
	if in == nil {
		return store.TaskStep{}
	}
	step := store.TaskStep{Namespace: in.Namespace, Workflow: in.Workflow, Version: in.Version}
	current := task.Fence == 0
	if t != nil {
		step.Queue = t.Queue
		current = current || t.State == machine.Leased && t.Fence == task.Fence
	}
	settled := ""
	for _, r := range s.history[task.Instance] {
		if r.Key.Token == task.Token && r.by != machine.NotSettled && (task.Fence == 0 || r.fence == task.Fence) {
			settled = r.Entry.GetNode()
		}
	}
	return store.StepOf(step, t != nil, current, settled)
}
