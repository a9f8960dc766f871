package permission

import (
	"slices"
	"strings"
)

// Names are the names of one namespace that somebody may see or touch: those that are listed and those that begin with
// something listed. Nil stands for all names, so that whoever is not limited costs nothing. Names do not change once made.
type Names struct {
	// Exact are names, sorted. None begins with one of Prefixes.
	Exact []string
	// Prefixes are beginnings of names, sorted. None begins with another.
	Prefixes []string
}

// Names are those of the namespace on which the action is allowed. Nil: all.
func (s Set) Names(action, namespace string) *Names {
	n := &Names{}
	for _, p := range s.permissions {
		switch {
		case !p.Action.Matches(action) || !p.Scope.Namespace.Matches(namespace):
		case p.Scope.Name == Any:
			return nil
		default:
			n.add(p.Scope.Name)
		}
	}
	n.compact()
	return n
}

func (n *Names) add(p Pattern) {
	if prefix, open := strings.CutSuffix(string(p), string(Any)); open {
		n.Prefixes = append(n.Prefixes, prefix)
		return
	}
	n.Exact = append(n.Exact, string(p))
}

// compact brings names into order and leaves out what others hold already.
func (n *Names) compact() {
	slices.Sort(n.Prefixes)
	var last string
	n.Prefixes = slices.DeleteFunc(n.Prefixes, func(prefix string) bool {
		if last != "" && strings.HasPrefix(prefix, last) { // whatever begins with it stands right behind it
			return true
		}
		last = prefix
		return false
	})
	slices.Sort(n.Exact)
	n.Exact = slices.DeleteFunc(slices.Compact(n.Exact), n.begins)
}

// begins reports whether the name begins with one of the prefixes. The only one that may is the last that is not behind it.
func (n *Names) begins(name string) bool {
	at, found := slices.BinarySearch(n.Prefixes, name)
	return found || at > 0 && strings.HasPrefix(name, n.Prefixes[at-1])
}

// All reports whether every name is among them.
func (n *Names) All() bool { return n == nil }

// Match reports whether the name is among them.
func (n *Names) Match(name string) bool {
	if n == nil || n.begins(name) {
		return true
	}
	_, found := slices.BinarySearch(n.Exact, name)
	return found
}
