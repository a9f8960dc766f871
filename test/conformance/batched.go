package conformance

import (
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/wiggle-run/wiggle/proto/definition"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
)

// Graph is the graph of the scenario's workflow, as a worker reads it.
func (r *Run) Graph() *definition.Graph {
	r.Helper()
	res, err := r.Workflows.GetWorkflow(r.ctx, &wigglev1.GetWorkflowRequest{Name: r.Workflow})
	if err != nil {
		r.Fatalf("read the workflow: %v", err)
	}
	graph, problems := definition.Analyze(res.GetDefinition())
	if problems != nil {
		r.Fatalf("a registered workflow: %v", problems)
	}
	return graph
}

// Batch makes the report of a task and of up to so many steps after it, as a worker does
// that runs them by itself: until one is not a worker's or fails.
func (r *Run) Batch(t *wigglev1.Task, most int, answers map[string]Answer) *wigglev1.StepReport {
	r.Helper()
	decide := func(t *wigglev1.Task) Answer {
		if a := answers[t.GetStep()]; a != nil {
			return a
		}
		return leastOf(t)
	}
	return goOnAlone(r.Graph(), t, most, decide)
}

// goOnAlone is Batch for any way to answer.
func goOnAlone(g *definition.Graph, t *wigglev1.Task, most int, decide func(*wigglev1.Task) Answer) *wigglev1.StepReport {
	report := reportOf(t, decide(t)(t))
	view, out := t.GetContext(), report
	for node := g.Node(t.GetNode()); len(report.GetFollowedBy()) < most; {
		if out.GetResult() != nil && !node.Effect {
			view = out.GetResult()
		}
		node = g.Node(nodeAfter(node, out))
		if node == nil || node.Step == nil {
			break
		}
		step := &wigglev1.Task{Step: node.Step.Name, Kind: kindAt(node), Attempt: 1, Context: view, Element: t.GetElement()}
		for _, c := range node.Cases {
			step.Cases = append(step.Cases, c.Name)
		}
		reply := decide(step)(step)
		if reply.Report == nil {
			break
		}
		out = reply.Report
		report.FollowedBy = append(report.FollowedBy, followingOf(node.ID, out))
	}
	return report
}

func nodeAfter(node *definition.Node, out *wigglev1.StepReport) string {
	switch {
	case node.Kind == definition.KindGate && !out.GetGate():
		return node.Otherwise
	case node.Kind == definition.KindChoose:
		return node.Follows(out.GetChoice())
	}
	return node.Next
}

func kindAt(node *definition.Node) wigglev1.TaskKind {
	switch {
	case node.Kind == definition.KindGate:
		return wigglev1.TaskKind_TASK_KIND_GATE
	case node.Kind == definition.KindChoose:
		return wigglev1.TaskKind_TASK_KIND_CHOOSE
	case node.Effect:
		return wigglev1.TaskKind_TASK_KIND_EFFECT
	}
	return wigglev1.TaskKind_TASK_KIND_TASK
}

// followingOf is a report as a step that followed.
func followingOf(node string, out *wigglev1.StepReport) *wigglev1.FollowingStep {
	f := &wigglev1.FollowingStep{Node: node, StartedAt: timestamppb.Now(), FinishedAt: timestamppb.Now()}
	switch o := out.GetOutcome().(type) {
	case *wigglev1.StepReport_Result:
		f.Outcome = &wigglev1.FollowingStep_Result{Result: o.Result}
	case *wigglev1.StepReport_Unchanged:
		f.Outcome = &wigglev1.FollowingStep_Unchanged{Unchanged: o.Unchanged}
	case *wigglev1.StepReport_Gate:
		f.Outcome = &wigglev1.FollowingStep_Gate{Gate: o.Gate}
	case *wigglev1.StepReport_Choice:
		f.Outcome = &wigglev1.FollowingStep_Choice{Choice: o.Choice}
	}
	return f
}

// did is a step that followed and was answered.
func did(node string, answer Answer) *wigglev1.FollowingStep {
	return followingOf(node, answer(&wigglev1.Task{Step: node}).Report)
}
