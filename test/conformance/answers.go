package conformance

import (
	"encoding/json"
	"fmt"

	"google.golang.org/protobuf/types/known/durationpb"

	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
)

// Answer is what a worker does with a task.
type Answer func(t *wigglev1.Task) Reply

// Reply is a report, a failure, or silence.
type Reply struct {
	Report *wigglev1.StepReport
	Fail   *wigglev1.FailTaskRequest
	Silent bool
}

// Result answers with a context.
func Result(text string) Answer {
	return func(*wigglev1.Task) Reply { return result(text) }
}

// Compute answers with what a function makes of the task.
func Compute(f func(t *wigglev1.Task) string) Answer {
	return func(t *wigglev1.Task) Reply { return result(f(t)) }
}

func result(text string) Reply { return resultOf(payload(text)) }

func resultOf(p *wigglev1.Payload) Reply {
	return Reply{Report: &wigglev1.StepReport{Outcome: &wigglev1.StepReport_Result{Result: p}}}
}

func payload(text string) *wigglev1.Payload {
	return &wigglev1.Payload{ContentType: "application/json", Data: []byte(text)}
}

// Wrap answers with {"<name>": <the context>}, so that a chain of them tells its order.
func Wrap(name string) Answer {
	return Compute(func(t *wigglev1.Task) string { return fmt.Sprintf(`{%q:%s}`, name, t.GetContext().GetData()) })
}

// Unchanged leaves the context as it is.
func Unchanged(*wigglev1.Task) Reply {
	return Reply{Report: &wigglev1.StepReport{Outcome: &wigglev1.StepReport_Unchanged{Unchanged: &wigglev1.Unchanged{}}}}
}

// Yes opens a gate.
func Yes(*wigglev1.Task) Reply { return gate(true) }

// No closes a gate.
func No(*wigglev1.Task) Reply { return gate(false) }

func gate(open bool) Reply {
	return Reply{Report: &wigglev1.StepReport{Outcome: &wigglev1.StepReport_Gate{Gate: open}}}
}

// When is a gate that a function decides.
func When(f func(t *wigglev1.Task) bool) Answer {
	return func(t *wigglev1.Task) Reply { return gate(f(t)) }
}

// Choice answers with a case.
func Choice(name string) Answer {
	return func(*wigglev1.Task) Reply {
		return Reply{Report: &wigglev1.StepReport{Outcome: &wigglev1.StepReport_Choice{Choice: name}}}
	}
}

// Fail fails the attempt with an error of a type.
func Fail(kind string, change ...func(*wigglev1.FailTaskRequest)) Answer {
	return func(*wigglev1.Task) Reply {
		req := &wigglev1.FailTaskRequest{Failure: &wigglev1.Failure{Type: kind, Message: "it is " + kind}}
		for _, c := range change {
			c(req)
		}
		return Reply{Fail: req}
	}
}

// Fatal says that trying again is no use.
func Fatal(req *wigglev1.FailTaskRequest) { req.NonRetryable = true }

// AtOnce asks for the next attempt without a pause.
func AtOnce(req *wigglev1.FailTaskRequest) { req.RetryDelay = durationpb.New(0) }

// Silence takes the task and never answers.
func Silence(*wigglev1.Task) Reply { return Reply{Silent: true} }

// Until answers the attempts before the n-th in one way, and those from it on in
// another.
func Until(n int32, first, then Answer) Answer {
	return func(t *wigglev1.Task) Reply {
		if t.GetAttempt() < n {
			return first(t)
		}
		return then(t)
	}
}

// ByBranch answers by the branch or element that a task is in: the key, or the index.
func ByBranch(answers map[string]Answer, otherwise Answer) Answer {
	return func(t *wigglev1.Task) Reply {
		if a, ok := answers[branchOf(t)]; ok {
			return a(t)
		}
		return otherwise(t)
	}
}

func branchOf(t *wigglev1.Task) string {
	if key := t.GetElement().GetKey(); key != "" {
		return key
	}
	return fmt.Sprint(t.GetElement().GetIndex())
}

// Gather is a combine that returns {"base": ..., "results": ...}: by name for a fork,
// in order for a for_each, with null for a branch that brought nothing.
func Gather(t *wigglev1.Task) Reply {
	return result(fmt.Sprintf(`{"base":%s,"results":%s}`, t.GetContext().GetData(), results(t)))
}

// Collect is a combine that returns the results alone.
func Collect(t *wigglev1.Task) Reply { return result(results(t)) }

// CollectByKey is a combine that returns the results by key, as for a map.
func CollectByKey(t *wigglev1.Task) Reply { return result(encode(named(t))) }

func results(t *wigglev1.Task) string {
	if t.GetByName() {
		return encode(named(t))
	}
	values := make([]json.RawMessage, 0, len(t.GetResults()))
	for _, r := range t.GetResults() {
		values = append(values, valueOf(r))
	}
	return encode(values)
}

func named(t *wigglev1.Task) map[string]json.RawMessage {
	values := make(map[string]json.RawMessage, len(t.GetResults()))
	for _, r := range t.GetResults() {
		values[r.GetElement().GetKey()] = valueOf(r)
	}
	return values
}

func valueOf(r *wigglev1.BranchResult) json.RawMessage {
	if r.GetResult() == nil {
		return json.RawMessage("null")
	}
	return r.GetResult().GetData()
}

// encode writes what is JSON already but for its frame; numbers stay as they are.
func encode(v any) string {
	text, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return string(text)
}

// leastOf answers a step that a scenario does not speak of.
func leastOf(t *wigglev1.Task) Answer {
	switch t.GetKind() {
	case wigglev1.TaskKind_TASK_KIND_GATE:
		return Yes
	case wigglev1.TaskKind_TASK_KIND_CHOOSE:
		return Choice(t.GetCases()[0])
	case wigglev1.TaskKind_TASK_KIND_COMBINE:
		return Gather
	default:
		return Unchanged
	}
}
