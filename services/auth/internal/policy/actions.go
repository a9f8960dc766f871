package policy

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/wiggle-run/wiggle/pkg/permission"
	"github.com/wiggle-run/wiggle/pkg/spelling"
)

// Actions are those that there are, each with whether a scope may limit it.
type Actions map[string]bool

// Check is an error if a permission, which is well-formed, allows nothing that there is.
func (a Actions) Check(text string) error {
	p, err := permission.Parse(text)
	if err != nil {
		return err
	}
	known, limits := false, p.Scope == permission.Everywhere()
	for name, scoped := range a {
		if p.Action.Matches(name) {
			known, limits = true, limits || scoped
		}
	}
	switch {
	case !known:
		return fmt.Errorf("permission %q: there is no action %s; the nearest is %s", text, p.Action, a.nearest(string(p.Action)))
	case !limits:
		return fmt.Errorf("permission %q: %s is about the whole cluster and allows nothing within a scope; leave out the scope",
			text, p.Action)
	}
	return nil
}

// nearest is the known action, or for a pattern the known beginning with an asterisk, that is spelt most alike.
func (a Actions) nearest(action string) string {
	words := slices.Sorted(maps.Keys(a))
	if strings.HasSuffix(action, "*") {
		for i, word := range words {
			before, _, _ := strings.Cut(word, ".")
			words[i] = before + ".*"
		}
		words = slices.Compact(words)
	}
	return slices.MinFunc(words, func(x, y string) int { return spelling.Distance(action, x) - spelling.Distance(action, y) })
}
