package wiggle

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"

	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
)

// check compares the handlers with the registered workflows. A server that is away
// is waited for; the error names all that does not fit.
func (w *Worker) check(ctx context.Context) error {
	// Without retries of its own, so that a server that is away is told at once.
	client := *w.client
	client.retries.attempts = 1
	health := health{logger: w.logger, what: "check"}
	for failures := 1; ; failures++ {
		problems, err := w.checkAll(ctx, &client)
		if ctx.Err() != nil {
			return nil //nolint:nilerr // stopped before it started, as Run says
		}
		var e *Error
		if errors.As(err, &e) && e.retryable() {
			health.note(ctx, err)
			if sleep(ctx, pollRetries.pause(failures)) != nil {
				return nil //nolint:nilerr // as above
			}
			continue
		}
		health.note(ctx, nil)
		if err != nil {
			return err
		}
		if len(problems) > 0 {
			return &HandlersError{Problems: problems}
		}
		return nil
	}
}

// HandlersError tells what does not fit between a worker's handlers and the
// registered workflows.
type HandlersError struct {
	// Problems, a line each. Never empty.
	Problems []string
}

// Error lists the problems.
func (e *HandlersError) Error() string {
	return "wiggle: the worker's handlers do not fit the registered workflows:\n\t" + strings.Join(e.Problems, "\n\t")
}

// checkAll checks the workflows that the worker names at their versions, or else
// every workflow at its latest.
func (w *Worker) checkAll(ctx context.Context, client *Client) ([]string, error) {
	bindings, named := w.bindings(), true
	if len(bindings) == 0 {
		named = false
		for v, err := range client.Workflows(ctx) {
			if err != nil {
				return nil, err
			}
			if n := len(bindings); n == 0 || bindings[n-1].GetWorkflow() != v.Name {
				bindings = append(bindings, &wigglev1.WorkflowBinding{Workflow: v.Name})
			}
		}
	}
	var problems []string
	used := map[string]bool{}
	for _, b := range bindings {
		def, err := client.Workflow(ctx, b.GetWorkflow(), int(b.GetVersion()))
		if errors.Is(err, ErrNotFound) && named {
			what := fmt.Sprintf("workflow %q", b.GetWorkflow())
			if b.GetVersion() != 0 {
				what += fmt.Sprintf(" version %d", b.GetVersion())
			}
			problems = append(problems, what+" is not registered: Register it before its workers start")
			continue
		}
		if err != nil {
			return nil, err
		}
		found, serves := w.checkWorkflow(def, used)
		if !named && !serves && len(found) > 0 {
			// Likely another worker's workflow. But its tasks come here too.
			w.logger.LogAttrs(ctx, slog.LevelWarn,
				"wiggle: the worker takes tasks of a workflow that it has no handler for; name those it serves with Worker.Workflow",
				slog.String("workflow", b.GetWorkflow()))
			continue
		}
		problems = append(problems, found...)
	}
	if len(problems) == 0 {
		w.warnUnused(ctx, used)
	}
	return problems, nil
}

// checkWorkflow checks the steps that wait in the worker's queues. It notes which
// handlers are used, and tells whether any was.
func (w *Worker) checkWorkflow(def *Definition, used map[string]bool) (problems []string, serves bool) {
	name := def.Name()
	for _, s := range stepsOf(def.proto) {
		if !slices.Contains(w.opts.Queues, s.queue) {
			continue
		}
		h, ok := w.handler(name, s.activity)
		if !ok {
			problems = append(problems, fmt.Sprintf("workflow %q: no handler for step %q, %s: add wiggle.%s(..., %q, ...)",
				name, s.name, kindName(s.kind, s.byName), registerWith(s.kind, s.byName), s.activity))
			continue
		}
		serves = true
		used[name+"/"+s.activity], used["/"+s.activity] = true, true
		if h.kind != s.kind || h.kind == wigglev1.TaskKind_TASK_KIND_COMBINE && h.byName != s.byName {
			problems = append(problems, fmt.Sprintf("workflow %q: step %q is %s, but its handler %q is for %s: register it with wiggle.%s",
				name, s.name, kindName(s.kind, s.byName), s.activity, kindName(h.kind, h.byName), registerWith(s.kind, s.byName)))
		}
	}
	return problems, serves
}

// warnUnused tells handlers that no step asks for. That is a typing error, or a
// step of another version: no reason not to start.
func (w *Worker) warnUnused(ctx context.Context, used map[string]bool) {
	warn := func(workflow, name string) {
		w.logger.LogAttrs(ctx, slog.LevelWarn, "wiggle: no step on the worker's queues asks for a handler",
			slog.String("handler", name), slog.String("workflow", workflow))
	}
	for _, name := range sortedKeys(w.shared) {
		if !used["/"+name] {
			warn("", name)
		}
	}
	for _, workflow := range sortedKeys(w.workflows) {
		for _, name := range sortedKeys(w.workflows[workflow].handlers) {
			if !used[workflow+"/"+name] {
				warn(workflow, name)
			}
		}
	}
}

// boundStep is a worker-run node as a worker sees it.
type boundStep struct {
	name, activity, queue string
	kind                  wigglev1.TaskKind
	byName                bool
}

func stepsOf(def *wigglev1.Definition) []boundStep {
	combines := map[string]bool{} // by node id: true for a fork's
	for _, n := range def.GetNodes() {
		if f := n.GetFork(); f != nil {
			combines[def.GetNodes()[f.GetJoin()].GetJoin().GetNext()] = true
		}
		if f := n.GetForEach(); f != nil {
			combines[def.GetNodes()[f.GetJoin()].GetJoin().GetNext()] = false
		}
	}
	var out []boundStep
	for _, id := range sortedKeys(def.GetNodes()) {
		n := def.GetNodes()[id]
		var step *wigglev1.Step
		s := boundStep{}
		switch {
		case n.GetTask() != nil:
			step, s.kind = n.GetTask().GetStep(), wigglev1.TaskKind_TASK_KIND_TASK
			if byName, ok := combines[id]; ok {
				s.kind, s.byName = wigglev1.TaskKind_TASK_KIND_COMBINE, byName
			} else if n.GetTask().GetEffect() {
				s.kind = wigglev1.TaskKind_TASK_KIND_EFFECT
			}
		case n.GetGate() != nil:
			step, s.kind = n.GetGate().GetStep(), wigglev1.TaskKind_TASK_KIND_GATE
		case n.GetChoose() != nil:
			step, s.kind = n.GetChoose().GetStep(), wigglev1.TaskKind_TASK_KIND_CHOOSE
		default:
			continue
		}
		s.name = firstOf(step.GetName(), id)
		s.activity = firstOf(step.GetActivity(), s.name)
		s.queue = firstOf(step.GetQueue(), def.GetDefaults().GetQueue(), defaultQueue)
		out = append(out, s)
	}
	return out
}

func firstOf(values ...string) string {
	for _, v := range values {
		if v != "" {
			return v
		}
	}
	return ""
}
