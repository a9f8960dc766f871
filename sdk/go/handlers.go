package wiggle

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
)

// Handlers is where a handler is registered: a [Worker], for every workflow that it
// serves, or a [WorkflowHandlers], for one.
type Handlers interface {
	handle(name string, h handler)
}

// handler runs tasks of one kind.
type handler struct {
	kind   wigglev1.TaskKind
	byName bool // a combine of a fork, not of a for_each
	run    func(ctx context.Context, t *wigglev1.Task) (*wigglev1.StepReport, error)
}

// payloadError tells that a value does not fit a handler's type.
type payloadError struct {
	what string
	err  error
}

func (e *payloadError) Error() string { return e.what + ": " + e.err.Error() }
func (e *payloadError) Unwrap() error { return e.err }

func decodeAs[T any](what string, p *wigglev1.Payload) (T, error) {
	var v T
	if err := decode(p, &v); err != nil {
		return v, ErrorType(typePayload, &payloadError{what, err})
	}
	return v, nil
}

// report is the report of a result.
func report(out any) (*wigglev1.StepReport, error) {
	p, err := encode(out)
	if err != nil {
		return nil, ErrorType(typePayload, &payloadError{"the result", err})
	}
	return &wigglev1.StepReport{Outcome: &wigglev1.StepReport_Result{Result: p}}, nil
}

// HandleTask registers the handler of a task, by the step's name (or its
// [Activity]). It is given the context of the instance, or of the branch, and
// returns the next one.
//
// ctx carries the deadline of the attempt and is cancelled when the lease is lost
// ([ErrLeaseLost]). An error is a failed attempt: the step's retry policy decides
// what follows, unless [NonRetryable] or [RetryAfter] say so. A panic is an error
// with a stack. Registering a name twice panics.
func HandleTask[In, Out any](h Handlers, name string, fn func(ctx context.Context, in In) (Out, error)) {
	h.handle(name, handler{
		kind: wigglev1.TaskKind_TASK_KIND_TASK,
		run: func(ctx context.Context, t *wigglev1.Task) (*wigglev1.StepReport, error) {
			in, err := decodeAs[In]("the context", t.GetContext())
			if err != nil {
				return nil, err
			}
			out, err := fn(ctx, in)
			if err != nil {
				return nil, err
			}
			return report(out)
		},
	})
}

// HandleEffect registers the handler of an effect, which leaves the context as it
// is. See [HandleTask].
func HandleEffect[In any](h Handlers, name string, fn func(ctx context.Context, in In) error) {
	h.handle(name, handler{
		kind: wigglev1.TaskKind_TASK_KIND_EFFECT,
		run: func(ctx context.Context, t *wigglev1.Task) (*wigglev1.StepReport, error) {
			in, err := decodeAs[In]("the context", t.GetContext())
			if err != nil {
				return nil, err
			}
			if err := fn(ctx, in); err != nil {
				return nil, err
			}
			return &wigglev1.StepReport{Outcome: &wigglev1.StepReport_Unchanged{Unchanged: &wigglev1.Unchanged{}}}, nil
		},
	})
}

// HandleGate registers the handler of a gate: of [Flow.Gate], [Flow.If],
// [Loop.Until] or [Loop.While]. See [HandleTask].
func HandleGate[In any](h Handlers, name string, fn func(ctx context.Context, in In) (bool, error)) {
	h.handle(name, handler{
		kind: wigglev1.TaskKind_TASK_KIND_GATE,
		run: func(ctx context.Context, t *wigglev1.Task) (*wigglev1.StepReport, error) {
			in, err := decodeAs[In]("the context", t.GetContext())
			if err != nil {
				return nil, err
			}
			yes, err := fn(ctx, in)
			if err != nil {
				return nil, err
			}
			return &wigglev1.StepReport{Outcome: &wigglev1.StepReport_Gate{Gate: yes}}, nil
		},
	})
}

// HandleChoose registers the handler of a choose, which answers with the name of a
// case. An answer that is no case takes the default, or fails the instance. See
// [HandleTask].
func HandleChoose[In any, Case ~string](h Handlers, name string, fn func(ctx context.Context, in In) (Case, error)) {
	h.handle(name, handler{
		kind: wigglev1.TaskKind_TASK_KIND_CHOOSE,
		run: func(ctx context.Context, t *wigglev1.Task) (*wigglev1.StepReport, error) {
			in, err := decodeAs[In]("the context", t.GetContext())
			if err != nil {
				return nil, err
			}
			choice, err := fn(ctx, in)
			if err != nil {
				return nil, err
			}
			return &wigglev1.StepReport{Outcome: &wigglev1.StepReport_Choice{Choice: string(choice)}}, nil
		},
	})
}

// Branches holds what the branches of a fork brought. Read it with [BranchResult].
type Branches struct {
	results []*wigglev1.BranchResult
}

// Names are the names of the branches, in the order of the fork.
func (b Branches) Names() []string {
	names := make([]string, len(b.results))
	for i, r := range b.results {
		names[i] = r.GetElement().GetKey()
	}
	return names
}

// BranchResult reads the result of one branch. It is false for a branch that ended
// at a false gate and so has none. Errors: a name that is no branch, a value that
// does not fit T.
func BranchResult[T any](b Branches, name string) (T, bool, error) {
	for _, r := range b.results {
		if r.GetElement().GetKey() != name {
			continue
		}
		if r.GetResult() == nil {
			var zero T
			return zero, false, nil
		}
		v, err := decodeAs[T](fmt.Sprintf("the result of branch %q", name), r.GetResult())
		return v, err == nil, err
	}
	var zero T
	return zero, false, NonRetryable(fmt.Errorf("no branch %q, there are: %s", name, strings.Join(b.Names(), ", ")))
}

// HandleCombine registers the handler of a fork's combine. It is given the context
// from before the fork and the branches' results, and returns the whole context
// after it. See [HandleTask].
func HandleCombine[Base, Out any](
	h Handlers, name string, fn func(ctx context.Context, before Base, branches Branches) (Out, error),
) {
	combine(h, name, true, func(ctx context.Context, before Base, results []*wigglev1.BranchResult) (Out, error) {
		return fn(ctx, before, Branches{results})
	})
}

// Elem is what one element of a for_each brought.
type Elem[T any] struct {
	// Index of the element in its list, or its place among the map's keys, from 0.
	Index int
	// Key of the element in its map. Empty for a list.
	Key string
	// Value is its result; the zero value if it has none.
	Value T
	// Arrived is false if the element's branch ended at a false gate and so has no
	// result.
	Arrived bool
}

// Values are the results that arrived, in the order of the elements.
func Values[T any](elems []Elem[T]) []T {
	out := make([]T, 0, len(elems))
	for _, e := range elems {
		if e.Arrived {
			out = append(out, e.Value)
		}
	}
	return out
}

// HandleCombineList registers the handler of a for_each's combine. It is given the
// context from before the for_each and the elements' results in the order of the
// elements, and returns the whole context after it. See [HandleTask].
func HandleCombineList[Base, T, Out any](
	h Handlers, name string, fn func(ctx context.Context, before Base, results []Elem[T]) (Out, error),
) {
	combine(h, name, false, func(ctx context.Context, before Base, results []*wigglev1.BranchResult) (Out, error) {
		elems, err := elemsOf[T](results)
		if err != nil {
			var zero Out
			return zero, err
		}
		return fn(ctx, before, elems)
	})
}

// HandleCombineMap is [HandleCombineList] for a for_each over a map: it is given the
// results by key.
func HandleCombineMap[Base, T, Out any](
	h Handlers, name string, fn func(ctx context.Context, before Base, results map[string]Elem[T]) (Out, error),
) {
	combine(h, name, false, func(ctx context.Context, before Base, results []*wigglev1.BranchResult) (Out, error) {
		var zero Out
		elems, err := elemsOf[T](results)
		if err != nil {
			return zero, err
		}
		byKey := make(map[string]Elem[T], len(elems))
		for _, e := range elems {
			byKey[e.Key] = e
		}
		if len(byKey) < len(elems) {
			return zero, ErrorType(typeWrongKind, NonRetryable(errors.New(
				"the for_each ran over a list, whose elements have no keys: register the combine with HandleCombineList")))
		}
		return fn(ctx, before, byKey)
	})
}

func combine[Base, Out any](
	h Handlers, name string, byName bool,
	fn func(ctx context.Context, before Base, results []*wigglev1.BranchResult) (Out, error),
) {
	h.handle(name, handler{
		kind:   wigglev1.TaskKind_TASK_KIND_COMBINE,
		byName: byName,
		run: func(ctx context.Context, t *wigglev1.Task) (*wigglev1.StepReport, error) {
			before, err := decodeAs[Base]("the context", t.GetContext())
			if err != nil {
				return nil, err
			}
			out, err := fn(ctx, before, t.GetResults())
			if err != nil {
				return nil, err
			}
			return report(out)
		},
	})
}

func elemsOf[T any](results []*wigglev1.BranchResult) ([]Elem[T], error) {
	elems := make([]Elem[T], len(results))
	for i, r := range results {
		e := Elem[T]{Index: int(r.GetElement().GetIndex()), Key: r.GetElement().GetKey(), Arrived: r.GetResult() != nil}
		if e.Arrived {
			v, err := decodeAs[T](fmt.Sprintf("the result of element %d", e.Index), r.GetResult())
			if err != nil {
				return nil, err
			}
			e.Value = v
		}
		elems[i] = e
	}
	return slices.Clip(elems), nil
}

// kindName is how errors call a kind of handler, with its article.
func kindName(kind wigglev1.TaskKind, byName bool) string {
	switch kind {
	case wigglev1.TaskKind_TASK_KIND_COMBINE:
		if byName {
			return "a combine of a fork"
		}
		return "a combine of a for_each"
	case wigglev1.TaskKind_TASK_KIND_EFFECT:
		return "an effect"
	default:
		return "a " + strings.ToLower(trimEnum(kind.String(), "TASK_KIND_"))
	}
}

// registerWith is the function that registers a handler of a kind.
func registerWith(kind wigglev1.TaskKind, byName bool) string {
	switch kind {
	case wigglev1.TaskKind_TASK_KIND_TASK:
		return "HandleTask"
	case wigglev1.TaskKind_TASK_KIND_EFFECT:
		return "HandleEffect"
	case wigglev1.TaskKind_TASK_KIND_GATE:
		return "HandleGate"
	case wigglev1.TaskKind_TASK_KIND_CHOOSE:
		return "HandleChoose"
	case wigglev1.TaskKind_TASK_KIND_COMBINE:
		if byName {
			return "HandleCombine"
		}
		return "HandleCombineList or HandleCombineMap"
	default:
		return "a newer SDK"
	}
}
