package guard

import (
	"fmt"

	"google.golang.org/protobuf/proto"

	"github.com/wiggle-run/wiggle/services/router/internal/subject"
)

// maxTargetBytes bounds what an entry of the audit log repeats of a caller's own words.
const maxTargetBytes = 256

// target is what a call is about, for the audit log.
func (c *caller) target(message any) string {
	m, ok := message.(proto.Message)
	if !ok || c.rule == nil || c.rule.about == nil {
		return ""
	}
	text := c.rule.about(m).text()
	return text[:min(len(text), maxTargetBytes)]
}

// text is the first of what it names, and how many more there are.
func (a about) text() string {
	if a.target != "" {
		return a.target
	}
	var first string
	n := len(a.all) + len(a.items) + len(a.instances) + len(a.tasks)
	switch {
	case len(a.instances) > 0:
		first = a.instances[0]
	case len(a.tasks) > 0:
		first, _ = subject.SplitTask(a.tasks[0])
	case len(a.items) > 0:
		first = a.items[0].String()
	case len(a.all) > 0:
		first = a.all[0].String()
	case len(a.filter) > 0:
		return a.filter[0].String()
	default:
		return ""
	}
	if n > 1 {
		return fmt.Sprintf("%s and %d more", first, n-1)
	}
	return first
}

func itemsDetail(denied, items int, first error) string {
	return fmt.Sprintf("%d of %d items: %v", denied, items, first)
}
