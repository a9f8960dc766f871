package definition

import (
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"

	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
)

// maxDifferences bounds how many lines a difference has.
const maxDifferences = 200

// Diff tells what is different between two graphs for people, a line for each
// difference (WF-11): the document's first, then the nodes' by id, such as
//
//	start "validate" -> "check"
//	node "authorise": retry.max_attempts 3 -> 5
//	node "label" removed
//
// It is empty exactly when the fingerprints are equal; so versions do not count.
// After 200 lines it says how many more there are.
func Diff(a, b *wigglev1.Definition) []string {
	d := &differ{}
	d.document(a, b)
	if more := len(d.lines) - maxDifferences; more > 0 {
		d.lines = append(d.lines[:maxDifferences], fmt.Sprintf("%d more differences", more))
	}
	return d.lines
}

// differ walks two messages side by side by their descriptors, so that a field
// added to the protos is compared without being named here.
type differ struct {
	lines []string
}

func (d *differ) add(place, format string, args ...any) {
	d.lines = append(d.lines, place+fmt.Sprintf(format, args...))
}

func (d *differ) document(a, b *wigglev1.Definition) {
	fields := a.ProtoReflect().Descriptor().Fields()
	for i := range fields.Len() {
		switch f := fields.Get(i); f.Name() {
		case "version", "nodes":
		default:
			d.field("", string(f.Name()), f, a.ProtoReflect(), b.ProtoReflect())
		}
	}
	ids := make([]string, 0, len(a.GetNodes()))
	for id := range a.GetNodes() {
		ids = append(ids, id)
	}
	for id := range b.GetNodes() {
		if _, ok := a.GetNodes()[id]; !ok {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	for _, id := range ids {
		n, inA := a.GetNodes()[id]
		m, inB := b.GetNodes()[id]
		switch place := "node " + quote(id); {
		case !inA:
			d.add(place, " added")
		case !inB:
			d.add(place, " removed")
		default:
			d.node(place, n, m)
		}
	}
}

func (d *differ) node(place string, a, b *wigglev1.Node) {
	ka, kb := kindField(a), kindField(b)
	if ka != kb {
		d.add(place, ": kind %s -> %s", kindName(ka), kindName(kb))
		return
	}
	if ka != nil {
		d.messages(place+": ", "", a.ProtoReflect().Get(ka).Message(), b.ProtoReflect().Get(kb).Message())
	}
}

// kindField is the field of a node's kind, nil when it has none.
func kindField(n *wigglev1.Node) protoreflect.FieldDescriptor {
	m := n.ProtoReflect()
	if !m.IsValid() {
		return nil
	}
	return m.WhichOneof(m.Descriptor().Oneofs().ByName("kind"))
}

func kindName(f protoreflect.FieldDescriptor) string {
	if f == nil {
		return "none"
	}
	return string(f.Name())
}

// messages compares the fields of two messages, either of which may be absent.
func (d *differ) messages(place, path string, a, b protoreflect.Message) {
	fields := a.Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		name := string(f.Name())
		if path != "" {
			name = path + "." + name
		}
		d.field(place, name, f, a, b)
	}
}

func (d *differ) field(place, name string, f protoreflect.FieldDescriptor, a, b protoreflect.Message) {
	va, vb := a.Get(f), b.Get(f)
	switch {
	case f.IsMap():
		d.maps(place, name, va.Map(), vb.Map(), f.MapValue())
	case f.IsList():
		d.lists(place, name, f, va.List(), vb.List())
	case f.Message() != nil && transparent(f):
		// Whether it is there does not count; its fields do, without its name
		// for a step's: they are known as the node's.
		if f.Name() == "step" {
			name = ""
		}
		d.messages(place, name, va.Message(), vb.Message())
	case f.Message() != nil && f.Message().FullName() != durationName && a.Has(f) && b.Has(f):
		d.messages(place, name, va.Message(), vb.Message())
	default:
		sa, sb := text(f, a.Has(f), va), text(f, b.Has(f), vb)
		if !same(f, a.Has(f), va, b.Has(f), vb) {
			d.add(place, "%s %s -> %s", name, sa, sb)
		}
	}
}

// transparent tells of a message that is the same absent as empty.
func transparent(f protoreflect.FieldDescriptor) bool {
	return f.Name() == "step" || f.Name() == "defaults"
}

// same tells whether two values have the same canonical form.
func same(f protoreflect.FieldDescriptor, inA bool, a protoreflect.Value, inB bool, b protoreflect.Value) bool {
	if f.HasPresence() && inA != inB {
		return false
	}
	if f.Message() == nil || !inA {
		return a.Equal(b)
	}
	x, y := a.Message(), b.Message()
	fields := x.Descriptor().Fields()
	for i := range fields.Len() {
		if g := fields.Get(i); !same(g, x.Has(g), x.Get(g), y.Has(g), y.Get(g)) {
			return false
		}
	}
	return true
}

func (d *differ) maps(place, name string, a, b protoreflect.Map, value protoreflect.FieldDescriptor) {
	var keys []string
	a.Range(func(k protoreflect.MapKey, _ protoreflect.Value) bool {
		keys = append(keys, k.String())
		return true
	})
	b.Range(func(k protoreflect.MapKey, _ protoreflect.Value) bool {
		if !a.Has(k) {
			keys = append(keys, k.String())
		}
		return true
	})
	slices.Sort(keys)
	for _, k := range keys {
		key := protoreflect.ValueOfString(k).MapKey()
		entry := fmt.Sprintf("%s[%s]", name, quote(k))
		switch va, vb := a.Get(key), b.Get(key); {
		case !va.IsValid():
			d.add(place, "%s added: %s", entry, text(value, true, vb))
		case !vb.IsValid():
			d.add(place, "%s removed", entry)
		case !va.Equal(vb):
			d.add(place, "%s %s -> %s", entry, text(value, true, va), text(value, true, vb))
		}
	}
}

// lists compares two lists: branches by name, when that tells them apart, and
// anything else as a whole.
func (d *differ) lists(place, name string, f protoreflect.FieldDescriptor, a, b protoreflect.List) {
	if f.Message() == nil {
		if !equalLists(f, a, b) {
			d.add(place, "%s %s -> %s", name, listText(f, a), listText(f, b))
		}
		return
	}
	na, okA := byName(a)
	nb, okB := byName(b)
	if !okA || !okB {
		d.byIndex(place, name, f, a, b)
		return
	}
	for i := range a.Len() {
		n := nameOf(a.Get(i).Message())
		entry := fmt.Sprintf("%s[%s]", name, quote(n))
		if j, ok := nb[n]; ok {
			d.messages(place, entry, a.Get(i).Message(), b.Get(j).Message())
		} else {
			d.add(place, "%s removed", entry)
		}
	}
	var order []string
	for i := range b.Len() {
		n := nameOf(b.Get(i).Message())
		if _, ok := na[n]; ok {
			order = append(order, n)
		} else {
			d.add(place, "%s[%s] added: %s", name, quote(n), text(f, true, b.Get(i)))
		}
	}
	d.order(place, name, a, order, nb)
}

// order reports that what two lists have in common stands in another order.
func (d *differ) order(place, name string, a protoreflect.List, common []string, inB map[string]int) {
	var before []string
	for i := range a.Len() {
		n := nameOf(a.Get(i).Message())
		if _, ok := inB[n]; ok {
			before = append(before, n)
		}
	}
	if !slices.Equal(before, common) {
		d.add(place, "order of %s %s -> %s", name, shorten(strings.Join(before, ", ")), shorten(strings.Join(common, ", ")))
	}
}

func (d *differ) byIndex(place, name string, f protoreflect.FieldDescriptor, a, b protoreflect.List) {
	for i := range max(a.Len(), b.Len()) {
		entry := fmt.Sprintf("%s[%d]", name, i)
		switch {
		case i >= a.Len():
			d.add(place, "%s added: %s", entry, text(f, true, b.Get(i)))
		case i >= b.Len():
			d.add(place, "%s removed", entry)
		default:
			d.messages(place, entry, a.Get(i).Message(), b.Get(i).Message())
		}
	}
}

// byName indexes a list of messages by their name, and tells whether each has
// one of its own.
func byName(l protoreflect.List) (map[string]int, bool) {
	names := make(map[string]int, l.Len())
	for i := range l.Len() {
		n := nameOf(l.Get(i).Message())
		if _, ok := names[n]; ok || n == "" {
			return nil, false
		}
		names[n] = i
	}
	return names, true
}

func nameOf(m protoreflect.Message) string {
	if f := m.Descriptor().Fields().ByName("name"); f != nil {
		return m.Get(f).String()
	}
	return ""
}

func equalLists(f protoreflect.FieldDescriptor, a, b protoreflect.List) bool {
	if a.Len() != b.Len() {
		return false
	}
	for i := range a.Len() {
		if !same(f, true, a.Get(i), true, b.Get(i)) {
			return false
		}
	}
	return true
}

func listText(f protoreflect.FieldDescriptor, l protoreflect.List) string {
	parts := make([]string, 0, l.Len())
	for i := range min(l.Len(), maxQuoted) {
		parts = append(parts, text(f, true, l.Get(i)))
	}
	return "[" + shorten(strings.Join(parts, ", ")) + "]"
}

var durationName = (*durationpb.Duration)(nil).ProtoReflect().Descriptor().FullName()

// text writes a value for people.
func text(f protoreflect.FieldDescriptor, present bool, v protoreflect.Value) string {
	switch {
	case f.HasPresence() && !present:
		return "unset"
	case f.Kind() == protoreflect.StringKind:
		return quote(v.String())
	case f.Enum() != nil:
		return enumText(f.Enum(), v.Enum())
	case f.Message() == nil:
		return v.String()
	case f.Message().FullName() == durationName:
		m, _ := v.Message().Interface().(*durationpb.Duration)
		return seconds(m)
	}
	var parts []string
	m := v.Message()
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		g := fields.Get(i)
		switch {
		case !m.Has(g):
		case g.IsList():
			parts = append(parts, string(g.Name())+" "+listText(g, m.Get(g).List()))
		case !g.IsMap():
			parts = append(parts, string(g.Name())+" "+text(g, true, m.Get(g)))
		}
	}
	return "{" + strings.Join(parts, ", ") + "}"
}

// enumText is the name of an enum's value, or its number if it has none.
func enumText(e protoreflect.EnumDescriptor, number protoreflect.EnumNumber) string {
	if v := e.Values().ByNumber(number); v != nil {
		return string(v.Name())
	}
	return fmt.Sprint(number)
}
