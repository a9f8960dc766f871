package wiggle

import (
	"encoding/hex"
	"fmt"
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/wiggle-run/wiggle/proto/definition"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
)

// Definition is a workflow: a name and a graph of named steps. It is data and
// carries no code. It does not change once made and may be shared.
type Definition struct {
	proto *wigglev1.Definition
}

// Define makes a workflow from a function that says its steps from top to bottom.
// It panics with a [*DefinitionError] that lists every problem with its source
// line; a definition is part of the program, and a wrong one a wrong program. For
// a definition that depends on data use [DefineE].
func Define(name string, build func(f *Flow), opts ...FlowOption) *Definition {
	def, err := define(callerOf(2), name, build, opts)
	if err != nil {
		panic(err)
	}
	return def
}

// DefineE is [Define] that returns the [*DefinitionError].
func DefineE(name string, build func(f *Flow), opts ...FlowOption) (*Definition, error) {
	return define(callerOf(2), name, build, opts)
}

func define(at, name string, build func(f *Flow), opts []FlowOption) (*Definition, error) {
	d := &draft{steps: map[string]*step{}, ids: map[string]bool{}}
	g := &graph{
		draft:  d,
		def:    &wigglev1.Definition{Name: name, Nodes: map[string]*wigglev1.Node{}},
		places: map[string]string{},
	}
	for _, o := range opts {
		o(g.def)
	}
	main := d.chain(at, "Define", build)
	d.closed = true
	if len(main.stmts) == 0 && build != nil {
		d.problemf(at, "the flow has no step")
	}
	out := g.chain(main, "start", edges{func(id string) { g.def.Start = id }})
	if len(out) > 0 {
		id := d.id("end")
		g.end(id, at, false, "")
		out.to(id)
	}
	// The graph of a flow that is already known to be wrong has holes; what those
	// lead to would only hide the cause.
	if len(d.problems) == 0 {
		d.problems = g.validate(at)
	}
	if len(d.problems) > 0 {
		return nil, &DefinitionError{Workflow: name, Problems: d.problems}
	}
	return &Definition{proto: g.def}, nil
}

// validate asks what the server asks at registration, and tells it with the
// source lines.
func (g *graph) validate(at string) []Problem {
	problems := validateProto(g.def)
	for i, p := range problems {
		if place, ok := g.places[p.Where]; ok {
			problems[i] = Problem{Where: place, Message: fmt.Sprintf("%q: %s", p.Where, p.Message)}
		} else if p.Where == "" {
			problems[i].Where = at
		}
	}
	return problems
}

// validateProto leaves the limits to the server: they are its settings.
func validateProto(def *wigglev1.Definition) []Problem {
	found := definition.Validate(def, definition.Limits{})
	if found == nil {
		return nil
	}
	return problemsOf(found.List)
}

func problemsOf(list []*wigglev1.Problem) []Problem {
	out := make([]Problem, len(list))
	for i, p := range list {
		out[i] = Problem{Where: p.GetWhere(), Message: p.GetMessage()}
	}
	return out
}

// FromProto makes a definition from its message, as read from a file or from the
// server. It returns a [*DefinitionError] for a graph that is not valid.
func FromProto(def *wigglev1.Definition) (*Definition, error) {
	if problems := validateProto(def); len(problems) > 0 {
		return nil, &DefinitionError{Workflow: def.GetName(), Problems: problems}
	}
	return &Definition{proto: proto.CloneOf(def)}, nil
}

// Name is the workflow's name.
func (d *Definition) Name() string { return d.proto.GetName() }

// Version is the declared version, or 0 where the server is to count.
func (d *Definition) Version() int { return int(d.proto.GetVersion()) }

// Proto is a copy of the definition as a message.
func (d *Definition) Proto() *wigglev1.Definition { return proto.CloneOf(d.proto) }

// Fingerprint is SHA-256 over the canonical form of the graph, in hexadecimal.
// Equal graphs have equal fingerprints, whatever their version.
func (d *Definition) Fingerprint() string {
	sum := definition.Fingerprint(d.proto)
	return hex.EncodeToString(sum[:])
}

// MarshalJSON writes the definition as the JSON that `wiggle register -f` reads,
// always the same for the same definition.
func (d *Definition) MarshalJSON() ([]byte, error) {
	return definition.ToJSON(d.proto)
}

// Problem is one thing that is wrong with a definition.
type Problem struct {
	// Where it is: a source line for a flow, a node's id for a graph. Empty for the
	// whole.
	Where string
	// Message says what is wrong and what would be right.
	Message string
}

// String is "where: message".
func (p Problem) String() string {
	if p.Where == "" {
		return p.Message
	}
	return p.Where + ": " + p.Message
}

// DefinitionError lists everything that is wrong with a definition.
type DefinitionError struct {
	// Workflow is the name of the definition.
	Workflow string
	// Problems, all of them. Never empty.
	Problems []Problem
}

// Error lists the problems, a line each.
func (e *DefinitionError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "wiggle: workflow %q is not valid:", e.Workflow)
	for _, p := range e.Problems {
		b.WriteString("\n\t" + p.String())
	}
	return b.String()
}

// Is makes errors.Is(err, ErrInvalid) hold, as it does when the server refuses.
func (e *DefinitionError) Is(target error) bool { return target == ErrInvalid }
