package definition

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
)

// maxProblems bounds how many problems one answer lists, so that the answer to a
// hostile definition still fits a message.
const maxProblems = 1000

// Problems lists everything that is wrong with a definition. A nil *Problems
// means that nothing is; use [Problems.Err] where an error is wanted, because a
// nil *Problems in an error variable is not a nil error.
type Problems struct {
	// List holds the problems: first those of the whole document, where Where is
	// a field's path, then those of nodes by id, where Where is the node's id.
	// At most 1 000; the last one then tells how many more there are.
	List []*wigglev1.Problem
}

// Error lists the problems, a line each.
func (p *Problems) Error() string {
	var b strings.Builder
	b.WriteString("the definition is not valid:")
	for _, q := range p.List {
		b.WriteString("\n  ")
		if q.GetWhere() != "" {
			b.WriteString(q.GetWhere() + ": ")
		}
		b.WriteString(q.GetMessage())
	}
	return b.String()
}

// Err is the problems as an error, nil when there are none.
func (p *Problems) Err() error {
	if p == nil {
		return nil
	}
	return p
}

// Invalid is the problems as the typed detail of an error, nil when there are
// none.
func (p *Problems) Invalid() *wigglev1.Invalid {
	if p == nil {
		return nil
	}
	return &wigglev1.Invalid{Problems: p.List}
}

// collector gathers problems while the checks run in whatever order suits them.
type collector struct {
	found   []found
	flagged map[string]bool // ids of nodes with a problem
}

// found is a problem and where it belongs in the list.
type found struct {
	node    bool
	id      string
	problem *wigglev1.Problem
}

// add notes a problem of the whole document at a field's path.
func (c *collector) add(path, format string, args ...any) {
	p := &wigglev1.Problem{Where: path, Message: fmt.Sprintf(format, args...)}
	c.found = append(c.found, found{problem: p})
}

// node notes a problem of a node.
func (c *collector) node(id, format string, args ...any) {
	p := &wigglev1.Problem{Where: printable(id), Message: fmt.Sprintf(format, args...)}
	c.found = append(c.found, found{node: true, id: id, problem: p})
	c.flag(id)
}

func (c *collector) flag(id string) {
	if c.flagged == nil {
		c.flagged = map[string]bool{}
	}
	c.flagged[id] = true
}

// reset forgets what was noted after the first n problems.
func (c *collector) reset(n int) {
	c.found = c.found[:n]
	c.flagged = nil
	for _, f := range c.found {
		if f.node {
			c.flag(f.id)
		}
	}
}

// problems returns what was gathered, or nil: the document's in the order they
// were found, then the nodes' by id.
func (c *collector) problems() *Problems {
	if len(c.found) == 0 {
		return nil
	}
	slices.SortStableFunc(c.found, func(a, b found) int {
		if a.node != b.node {
			if b.node {
				return -1
			}
			return 1
		}
		return strings.Compare(a.id, b.id)
	})
	list := make([]*wigglev1.Problem, 0, min(len(c.found), maxProblems+1))
	for _, f := range c.found[:min(len(c.found), maxProblems)] {
		list = append(list, f.problem)
	}
	if more := len(c.found) - maxProblems; more > 0 {
		list = append(list, &wigglev1.Problem{Message: fmt.Sprintf("%d more problems are not listed", more)})
	}
	return &Problems{List: list}
}

// maxQuoted bounds how much of a name from the definition a message repeats.
const maxQuoted = 140

// quote quotes text from a definition for a message: printable and bounded.
func quote(s string) string {
	return strconv.Quote(shorten(s))
}

// printable is text from a definition without its unprintable characters.
func printable(s string) string {
	q := quote(s)
	return q[1 : len(q)-1]
}

func shorten(s string) string {
	if len(s) <= maxQuoted {
		return s
	}
	return strings.ToValidUTF8(s[:maxQuoted], "") + "..."
}
