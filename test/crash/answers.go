package crash

import (
	"encoding/json"
	"fmt"
	"hash/fnv"
	"strings"

	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
)

// flakyAttempts is how many attempts of the flaky step fail by themselves.
const flakyAttempts = 2

// absent stands in checksums for a branch without a result.
const absent = "absent"

// mix extends a checksum.
func mix(sum string, parts ...string) string {
	h := fnv.New64a()
	_, _ = h.Write([]byte(sum + "|" + strings.Join(parts, "|"))) // never fails
	return fmt.Sprintf("%016x", h.Sum64())
}

// Gates, in terms of what they look at.
func admits(o order) bool            { return (o.N+o.Round)%3 != 0 }
func opensGate(o order) bool         { return (o.N+o.Round)%4 != 1 }
func keeps(base order, it item) bool { return (base.N+base.Round+it.K)%5 != 2 }
func goesOn(o order) bool            { return o.Round < len(o.Wakes) }

// answer does the work of a step: it depends on the task alone, so that every
// attempt of it answers the same.
func answer(t *wigglev1.Task) (*wigglev1.StepReport, error) {
	report := &wigglev1.StepReport{TaskId: t.GetId(), Lease: t.GetLease()}
	var err error
	switch t.GetStep() {
	case "price", "left", "right", "keep":
		err = answerElement(t, report)
	case "gather", "pair", "total":
		err = answerCombine(t, report)
	default:
		err = answerOrder(t, report)
	}
	if err != nil {
		return nil, fmt.Errorf("step %q: %w", t.GetStep(), err)
	}
	return report, nil
}

func answerOrder(t *wigglev1.Task, report *wigglev1.StepReport) error {
	var o order
	if err := read(t.GetContext(), &o); err != nil {
		return err
	}
	switch t.GetStep() {
	case "admit":
		report.Outcome = &wigglev1.StepReport_Gate{Gate: admits(o)}
		return nil
	case "gate":
		report.Outcome = &wigglev1.StepReport_Gate{Gate: opensGate(o)}
		return nil
	case "more":
		report.Outcome = &wigglev1.StepReport_Gate{Gate: goesOn(o)}
		return nil
	case "notify":
		report.Outcome = &wigglev1.StepReport_Unchanged{Unchanged: &wigglev1.Unchanged{}}
		return nil
	case "round":
		o.Until = o.Wakes[o.Round]
		o.Round++
	}
	o.Sum = mix(o.Sum, t.GetStep())
	return write(report, o)
}

// answerElement also looks at the context around the branch.
func answerElement(t *wigglev1.Task, report *wigglev1.StepReport) error {
	var it item
	if err := read(t.GetContext(), &it); err != nil {
		return err
	}
	switch t.GetStep() {
	case "keep", "price": // around them is the order
		var base order
		if err := read(t.GetBaseContext(), &base); err != nil {
			return fmt.Errorf("base context: %w", err)
		}
		if t.GetStep() == "keep" {
			report.Outcome = &wigglev1.StepReport_Gate{Gate: keeps(base, it)}
			return nil
		}
		it.Sum = mix(it.Sum, "price", base.Sum, fmt.Sprint(t.GetElement().GetIndex()))
	default: // around them is the element
		var base item
		if err := read(t.GetBaseContext(), &base); err != nil {
			return fmt.Errorf("base context: %w", err)
		}
		it.Sum = mix(it.Sum, t.GetStep(), base.Sum, t.GetElement().GetKey())
	}
	return write(report, it)
}

func answerCombine(t *wigglev1.Task, report *wigglev1.StepReport) error {
	if t.GetStep() == "pair" {
		var it item
		if err := read(t.GetContext(), &it); err != nil {
			return err
		}
		sums, err := sumsOf(t)
		it.Sum = mix(it.Sum, append([]string{"pair"}, sums...)...)
		if err != nil {
			return err
		}
		return write(report, it)
	}
	var o order
	if err := read(t.GetContext(), &o); err != nil {
		return err
	}
	sums, err := sumsOf(t)
	if err != nil {
		return err
	}
	o.Sum = mix(o.Sum, append([]string{t.GetStep()}, sums...)...)
	if t.GetStep() == "total" {
		if len(sums) != len(o.Items) {
			return fmt.Errorf("%d results for %d items", len(sums), len(o.Items))
		}
		for i, sum := range sums {
			if sum != absent {
				o.Items[i].Sum = sum
			}
		}
	}
	return write(report, o)
}

// sumsOf are the checksums that branches brought, in their order.
func sumsOf(t *wigglev1.Task) ([]string, error) {
	var sums []string
	for i, r := range t.GetResults() {
		if int(r.GetElement().GetIndex()) != i {
			return nil, fmt.Errorf("result %d is of branch %d", i, r.GetElement().GetIndex())
		}
		if r.GetResult() == nil {
			sums = append(sums, absent)
			continue
		}
		var it item // an order has the same field
		if err := read(r.GetResult(), &it); err != nil {
			return nil, fmt.Errorf("result %d: %w", i, err)
		}
		sums = append(sums, it.Sum)
	}
	return sums, nil
}

func read(p *wigglev1.Payload, v any) error {
	if err := json.Unmarshal(p.GetData(), v); err != nil {
		return fmt.Errorf("read %q: %w", p.GetData(), err)
	}
	return nil
}

func write(report *wigglev1.StepReport, v any) error {
	data, err := json.Marshal(v)
	report.Outcome = &wigglev1.StepReport_Result{Result: &wigglev1.Payload{Data: data}}
	return err
}
