package definition_test

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/wiggle-run/wiggle/proto/definition"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
)

// full is a definition with a node for every alternative of every oneof, in
// which every field of every message is set, found by the descriptors: a field
// that is added to the protos is in it without being named.
func full() *wigglev1.Definition {
	d := &wigglev1.Definition{Nodes: map[string]*wigglev1.Node{}}
	fields := d.ProtoReflect().Descriptor().Fields()
	for i := range fields.Len() {
		if f := fields.Get(i); f.Name() != "nodes" {
			fill(d.ProtoReflect(), f, 0)
		}
	}
	kinds := (&wigglev1.Node{}).ProtoReflect().Descriptor().Oneofs().ByName("kind").Fields()
	for i := range kinds.Len() {
		for alternative := range 3 {
			n := &wigglev1.Node{}
			fill(n.ProtoReflect(), kinds.Get(i), alternative)
			d.Nodes[fmt.Sprintf("%s-%d", kinds.Get(i).Name(), alternative)] = n
		}
	}
	return d
}

// fill sets a field and everything in it; of a oneof the given alternative.
func fill(m protoreflect.Message, f protoreflect.FieldDescriptor, alternative int) {
	switch {
	case f.IsMap():
		value := protoreflect.ValueOfString("x")
		if f.MapValue().Message() != nil {
			value = m.Mutable(f).Map().NewValue()
			fillAll(value.Message(), alternative)
		}
		m.Mutable(f).Map().Set(protoreflect.ValueOfString("k").MapKey(), value)
	case f.IsList() && f.Message() != nil:
		fillAll(m.Mutable(f).List().AppendMutable().Message(), alternative)
		fillAll(m.Mutable(f).List().AppendMutable().Message(), alternative)
	case f.IsList():
		m.Mutable(f).List().Append(scalar(f))
	case f.Message() != nil:
		fillAll(m.Mutable(f).Message(), alternative)
	default:
		m.Set(f, scalar(f))
	}
}

func fillAll(m protoreflect.Message, alternative int) {
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		if o := f.ContainingOneof(); o != nil && !o.IsSynthetic() && o.Fields().Get(alternative%o.Fields().Len()) != f {
			continue
		}
		fill(m, f, alternative)
	}
}

func scalar(f protoreflect.FieldDescriptor) protoreflect.Value {
	switch f.Kind() {
	case protoreflect.StringKind:
		return protoreflect.ValueOfString("x")
	case protoreflect.BytesKind:
		return protoreflect.ValueOfBytes([]byte("x"))
	case protoreflect.BoolKind:
		return protoreflect.ValueOfBool(true)
	case protoreflect.DoubleKind:
		return protoreflect.ValueOfFloat64(1.5)
	case protoreflect.Int32Kind:
		return protoreflect.ValueOfInt32(7)
	case protoreflect.Int64Kind:
		return protoreflect.ValueOfInt64(7)
	case protoreflect.EnumKind:
		return protoreflect.ValueOfEnum(1)
	}
	panic("fill: kind " + f.Kind().String() + " is new: extend scalar")
}

// TestFingerprintCoversEveryField_WF10 changes each field of each message in turn
// and expects another fingerprint and a difference. It fails when a field is
// added to the protos and not to the encoder.
func TestFingerprintCoversEveryField_WF10(t *testing.T) {
	t.Parallel()
	base := full()
	changed := 0
	var walk func(path string, m protoreflect.Message, whole *wigglev1.Definition)
	try := func(path string, whole *wigglev1.Definition, change, undo func()) {
		change()
		defer undo()
		changed++
		same := definition.Fingerprint(whole) == definition.Fingerprint(base)
		if counts := path != "version"; same == counts {
			t.Errorf("%s changed: same fingerprint = %v", path, same)
		}
		if differs := len(definition.Diff(base, whole)) > 0; differs == same {
			t.Errorf("%s changed: has a difference = %v, same fingerprint = %v", path, differs, same)
		}
	}
	walk = func(path string, m protoreflect.Message, whole *wigglev1.Definition) {
		m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
			at := strings.TrimPrefix(path+"."+string(f.Name()), ".")
			saved := proto.Clone(m.Interface()).ProtoReflect()
			try(at, whole, func() { m.Clear(f) }, func() { m.Set(f, saved.Get(f)) })
			if f.IsMap() || f.IsList() || f.Message() != nil {
				v = m.Mutable(f)
			}
			switch {
			case f.IsMap():
				v.Map().Range(func(k protoreflect.MapKey, e protoreflect.Value) bool {
					renamed := protoreflect.ValueOfString(k.String() + "2").MapKey()
					try(at+" key", whole,
						func() { v.Map().Clear(k); v.Map().Set(renamed, e) },
						func() { v.Map().Clear(renamed); v.Map().Set(k, e) })
					if f.MapValue().Message() != nil {
						walk(at+"["+k.String()+"]", e.Message(), whole)
						return true
					}
					try(at+" value", whole,
						func() { v.Map().Set(k, protoreflect.ValueOfString("y")) },
						func() { v.Map().Set(k, e) })
					return true
				})
			case f.IsList() && f.Message() != nil:
				for i := range v.List().Len() {
					walk(fmt.Sprintf("%s[%d]", at, i), v.List().Get(i).Message(), whole)
				}
			case !f.IsList() && f.Message() != nil:
				walk(at, v.Message(), whole)
			}
			return true
		})
	}
	whole := proto.CloneOf(base)
	walk("", whole.ProtoReflect(), whole)
	if changed < 80 {
		t.Errorf("only %d changes were tried", changed)
	}
	if !proto.Equal(base, whole) {
		t.Error("the test did not undo its changes")
	}
}

// TestFingerprintMeaning_WF10 pins what counts and what does not.
func TestFingerprintMeaning_WF10(t *testing.T) {
	t.Parallel()
	task := func(s *wigglev1.Step) *wigglev1.Definition {
		return &wigglev1.Definition{Nodes: map[string]*wigglev1.Node{
			"a": {Kind: &wigglev1.Node_Task{Task: &wigglev1.TaskNode{Step: s}}},
		}}
	}
	retry := func(r *wigglev1.RetryPolicy) *wigglev1.Definition { return task(&wigglev1.Step{Retry: r}) }
	defaults := func(m *wigglev1.Defaults) *wigglev1.Definition { return &wigglev1.Definition{Defaults: m} }
	for name, c := range map[string]struct {
		a, b *wigglev1.Definition
		same bool
	}{
		"nil and empty":       {nil, &wigglev1.Definition{}, true},
		"version":             {&wigglev1.Definition{Version: 1}, &wigglev1.Definition{Version: 2}, true},
		"empty step":          {task(nil), task(&wigglev1.Step{}), true},
		"empty defaults":      {defaults(nil), defaults(&wigglev1.Defaults{}), true},
		"default spelled out": {defaults(nil), defaults(&wigglev1.Defaults{Queue: "default"}), false},
		"durable spelled out": {defaults(nil), defaults(&wigglev1.Defaults{Mode: wigglev1.Mode_MODE_DURABLE}), false},
		"batched": {
			defaults(&wigglev1.Defaults{Mode: wigglev1.Mode_MODE_DURABLE}), defaults(&wigglev1.Defaults{Mode: wigglev1.Mode_MODE_BATCHED}), false,
		},
		"empty retry":            {retry(nil), retry(&wigglev1.RetryPolicy{}), false},
		"zero timeout":           {task(nil), task(&wigglev1.Step{Timeout: &durationpb.Duration{}}), false},
		"priority 0":             {task(nil), task(&wigglev1.Step{Priority: proto.Int32(0)}), false},
		"jitter 0":               {retry(&wigglev1.RetryPolicy{}), retry(&wigglev1.RetryPolicy{Jitter: proto.Float64(0)}), false},
		"negative zero":          {retry(&wigglev1.RetryPolicy{Jitter: proto.Float64(0)}), retry(&wigglev1.RetryPolicy{Jitter: new(math.Copysign(0, -1))}), true},
		"negative zero, implied": {retry(&wigglev1.RetryPolicy{}), retry(&wigglev1.RetryPolicy{Multiplier: math.Copysign(0, -1)}), true},
		"empty error type":       {retry(&wigglev1.RetryPolicy{}), retry(&wigglev1.RetryPolicy{NonRetryableErrors: []string{""}}), false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if same := definition.Fingerprint(c.a) == definition.Fingerprint(c.b); same != c.same {
				t.Errorf("same fingerprint = %v, want %v", same, c.same)
			}
			if lines := definition.Diff(c.a, c.b); (len(lines) == 0) != c.same {
				t.Errorf("difference %q, want none = %v", lines, c.same)
			}
		})
	}
}

// TestDiff_WF11 compares what people are told.
func TestDiff_WF11(t *testing.T) {
	t.Parallel()
	base := read(t, "testdata/valid/order-fulfilment.json")
	step := func(d *wigglev1.Definition, id string) *wigglev1.Step {
		task := d.GetNodes()[id].GetTask()
		if task.GetStep() == nil {
			task.Step = &wigglev1.Step{}
		}
		return task.Step
	}
	for name, c := range map[string]struct {
		change func(*wigglev1.Definition)
		want   []string
	}{
		"nothing": {func(*wigglev1.Definition) {}, nil},
		"version": {func(d *wigglev1.Definition) { d.Version = 7 }, nil},
		"document": {func(d *wigglev1.Definition) {
			d.Name, d.Start, d.Defaults = "other", "in-stock", &wigglev1.Defaults{Queue: "slow", Mode: wigglev1.Mode_MODE_BATCHED}
		}, []string{
			`name "order-fulfilment" -> "other"`, `start "validate" -> "in-stock"`, `defaults.queue "" -> "slow"`,
			`defaults.mode MODE_UNSPECIFIED -> MODE_BATCHED`,
		}},
		"retry": {func(d *wigglev1.Definition) {
			step(d, "authorise").Retry.MaxAttempts = 3
			step(d, "authorise").Retry.InitialBackoff = nil
			step(d, "label").Retry = &wigglev1.RetryPolicy{MaxAttempts: 2, MaxBackoff: durationpb.New(90e9), NonRetryableErrors: []string{"Lost"}}
		}, []string{
			`node "authorise": retry.max_attempts 5 -> 3`,
			`node "authorise": retry.initial_backoff 100ms -> unset`,
			`node "label": retry unset -> {max_attempts 2, max_backoff 1m30s, non_retryable_errors ["Lost"]}`,
		}},
		"nodes": {func(d *wigglev1.Definition) {
			delete(d.Nodes, "label")
			d.Nodes["notify"] = &wigglev1.Node{Kind: &wigglev1.Node_End{End: &wigglev1.EndNode{}}}
			d.Nodes["extra"] = &wigglev1.Node{}
			d.Nodes["wait"].GetSleep().Until = &wigglev1.SleepNode_Instant{Instant: "/due"}
		}, []string{
			`node "extra" added`, `node "label" removed`, `node "notify": kind task -> end`,
			`node "wait": duration 300ms -> unset`, `node "wait": instant unset -> "/due"`,
		}},
		"branches": {func(d *wigglev1.Definition) {
			fork := d.Nodes["pay"].GetFork()
			fork.Branches = []*wigglev1.Branch{fork.Branches[1], fork.Branches[0], {Name: "third", Start: "wait"}}
			fork.Branches[0].Start = "wait"
		}, []string{
			`node "pay": branches["shipping"].start "reserve" -> "wait"`,
			`node "pay": branches["third"] added: {name "third", start "wait"}`,
			`node "pay": order of branches payment, shipping -> shipping, payment`,
		}},
		"branches without names": {func(d *wigglev1.Definition) {
			d.Nodes["pay"].GetFork().Branches[0].Name = ""
			d.Nodes["pay"].GetFork().Branches = d.Nodes["pay"].GetFork().Branches[:1]
		}, []string{`node "pay": branches[0].name "payment" -> ""`, `node "pay": branches[1] removed`}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			other := proto.CloneOf(base)
			c.change(other)
			got := definition.Diff(base, other)
			if strings.Join(got, "\n") != strings.Join(c.want, "\n") {
				t.Errorf("got:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(c.want, "\n"))
			}
		})
	}
}

// TestDiffCases_WF11 tells of the cases of a choose, and bounds its answer.
func TestDiffCases_WF11(t *testing.T) {
	t.Parallel()
	choose := func(cases map[string]string) *wigglev1.Definition {
		return &wigglev1.Definition{Nodes: map[string]*wigglev1.Node{
			"tier": {Kind: &wigglev1.Node_Choose{Choose: &wigglev1.ChooseNode{Cases: cases}}},
		}}
	}
	got := definition.Diff(choose(map[string]string{"a": "x", "b": "x"}), choose(map[string]string{"b": "y", "c": "z"}))
	want := []string{
		`node "tier": cases["a"] removed`, `node "tier": cases["b"] "x" -> "y"`, `node "tier": cases["c"] added: "z"`,
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("got %q, want %q", got, want)
	}
	many := map[string]string{}
	for i := range 1000 {
		many[fmt.Sprint(i)] = "x"
	}
	got = definition.Diff(choose(nil), choose(many))
	if len(got) != 201 || got[200] != "800 more differences" {
		t.Errorf("%d lines, the last %q", len(got), got[len(got)-1])
	}
}
