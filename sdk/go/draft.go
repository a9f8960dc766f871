package wiggle

import (
	"fmt"
	"strings"
	"time"

	"github.com/wiggle-run/wiggle/proto/definition"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
)

// draft is a flow while it is written: the statements as they were said, with
// the places where. It becomes a graph once all of it is known (graph.go), so that
// what is missing (a Combine) is told where it was begun.
type draft struct {
	current  *Flow
	closed   bool
	problems []Problem
	steps    map[string]*step // by name
	ids      map[string]bool
}

// step is a worker-run node as it was declared.
type step struct {
	at       string
	what     string
	name     string
	id       string
	settings *wigglev1.Step
}

// stmt is one statement of a chain.
type stmt interface {
	place() string
	what() string
	// build adds the statement's nodes to the graph, leads the edges that come in to
	// its first node, and returns the edges that go on.
	build(g *graph, in edges) edges
}

type base struct{ at string }

func (b base) place() string { return b.at }

func (s *step) place() string { return s.at }

type (
	taskStmt struct {
		*step
		effect bool
	}
	gateStmt struct {
		*step
		branches  bool // an If: what follows comes after both ways
		then      *Flow
		otherwise *Flow
	}
	namedChain struct {
		name string
		at   string
		flow *Flow
	}
	chooseStmt struct {
		*step
		cases    []namedChain
		fallback *Flow
	}
	sleepStmt struct {
		base
		duration time.Duration
		instant  string
		until    bool
	}
	forkStmt struct {
		base
		branches []namedChain
		combine  *step
	}
	forEachStmt struct {
		base
		items       string
		maxInFlight int32
		body        *Flow
		combine     *step
	}
	repeatStmt struct {
		base
		body      *Flow
		gate      *step
		until     bool
		budget    int32
		badBudget bool
	}
	endStmt struct {
		base
		failed bool
		reason string
	}
)

func (s *taskStmt) what() string    { return fmt.Sprintf("%s %q", s.step.what, s.name) }
func (s *gateStmt) what() string    { return fmt.Sprintf("gate %q", s.name) }
func (s *chooseStmt) what() string  { return fmt.Sprintf("choose %q", s.name) }
func (s *sleepStmt) what() string   { return "Sleep" }
func (s *forEachStmt) what() string { return fmt.Sprintf("ForEach over %q", s.items) }
func (s *repeatStmt) what() string  { return "Repeat" }

func (s *endStmt) what() string {
	if s.failed {
		return "Fail"
	}
	return "End"
}

func (s *forkStmt) what() string {
	names := make([]string, len(s.branches))
	for i, b := range s.branches {
		names[i] = fmt.Sprintf("%q", b.name)
	}
	return "Fork of " + strings.Join(names, ", ")
}

func (d *draft) problemf(at, format string, args ...any) {
	d.problems = append(d.problems, Problem{Where: at, Message: fmt.Sprintf(format, args...)})
}

// chain runs a function on a chain of its own.
func (d *draft) chain(at, what string, build func(*Flow)) *Flow {
	inner := &Flow{draft: d}
	if build == nil {
		d.problemf(at, "%s without a function", what)
		return inner
	}
	outer := d.current
	d.current = inner
	build(inner)
	d.current = outer
	return inner
}

// declare gives a step its node id: its name, made to fit the alphabet of ids.
func (d *draft) declare(s *step) {
	if strings.TrimSpace(s.name) == "" {
		d.problemf(s.at, "%s without a name", s.what)
	} else if first, ok := d.steps[s.name]; ok {
		d.problemf(s.at, "a second step with the name %q, the first is the %s at %s: names are unique, steps may share an Activity",
			s.name, first.what, first.at)
	} else {
		d.steps[s.name] = s
	}
	s.id = d.id(slug(s.name))
	if s.id != s.name {
		s.settings.Name = s.name
	}
}

// id makes an id unique by a number at its end.
func (d *draft) id(want string) string {
	id := want
	for n := 2; d.ids[id]; n++ {
		id = fmt.Sprintf("%s-%d", want, n)
	}
	d.ids[id] = true
	return id
}

// maxSlugLength leaves room for a suffix in the 128 characters of an id.
const maxSlugLength = 100

// slug makes a name fit the alphabet of ids: letters, digits, '.', '_', '-'.
func slug(name string) string {
	var b strings.Builder
	for _, r := range name {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9':
			b.WriteRune(r)
		case b.Len() == 0: // an id begins with a letter or digit
		case r == '.' || r == '_' || r == '-':
			b.WriteRune(r)
		case !strings.HasSuffix(b.String(), "-"):
			b.WriteByte('-')
		}
	}
	if b.Len() == 0 {
		return "step"
	}
	if out := b.String(); len(out) > maxSlugLength {
		return out[:maxSlugLength]
	}
	return b.String()
}

// checkPointer tells a JSON Pointer (RFC 6901) that is none.
func (d *draft) checkPointer(at, what, pointer string) {
	if _, err := definition.ParsePointer(pointer); err != nil {
		d.problemf(at, "%s: the JSON Pointer %v", what, err)
	}
}
