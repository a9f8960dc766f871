package topology

import (
	"slices"
	"strconv"
	"strings"
)

// Environment looks up an environment variable, as os.LookupEnv does.
type Environment = func(name string) (string, bool)

// reader turns nodes into values, and what is wrong with them into problems. Its methods report whether the value can be
// used; what cannot is left out of further checks, so that one mistake is one problem.
type reader struct {
	*collector
	env Environment
}

// object checks that n is an object in which every field is known and there once.
func (r reader) object(n *node, at place, known ...string) bool {
	if n.kind != kindObject {
		r.addf(at, "must be an object, not %s", n.kind)
		return false
	}
	for _, f := range n.fields {
		if !slices.Contains(known, f.name) {
			r.addf(at, "has the unknown field %s; the nearest known one is %q", quote(f.name), nearest(f.name, known))
		} else if f.repeated {
			r.addf(at, "has the field %s more than once", quote(f.name))
		}
	}
	return true
}

// list returns the items of a list; ok is false if the field is there but no list.
func (r reader) list(n *node, at place, name string) (items []node, ok bool) {
	value := n.get(name)
	if value == nil {
		return nil, true
	}
	if value.kind != kindArray {
		r.addf(at, "%s must be a list, not %s", name, value.kind)
		return nil, false
	}
	return value.items, true
}

// text returns a string with its variables replaced. ok is false if the field is missing, no string, or names a variable
// that is not set.
func (r reader) text(n *node, at place, name string) (text string, ok bool) {
	value := n.get(name)
	if value == nil {
		return "", false
	}
	return r.textOf(value, at, name)
}

func (r reader) textOf(value *node, at place, name string) (text string, ok bool) {
	if value.kind != kindString {
		r.addf(at, "%s must be a string, not %s", name, value.kind)
		return "", false
	}
	text, unset := interpolate(value.text, r.env)
	for _, variable := range unset {
		r.addf(at, "%s needs the environment variable %s, which is not set", name, variable)
	}
	return text, len(unset) == 0
}

// whole returns a whole number from least to most. ok is false if the field is missing or no such number.
func (r reader) whole(n *node, at place, name string, least, most int) (number int, ok bool) {
	value := n.get(name)
	if value == nil {
		return 0, false
	}
	if value.kind != kindNumber {
		r.addf(at, "%s must be a whole number from %d to %d, not %s", name, least, most, value.kind)
		return 0, false
	}
	number, err := strconv.Atoi(value.text)
	if err != nil || number < least || number > most {
		r.addf(at, "%s must be a whole number from %d to %d", name, least, most)
		return 0, false
	}
	return number, true
}

// word returns one of known, in whatever case it is written. ok is false if the field is missing or none of them.
func word[T ~string](r reader, n *node, at place, name string, known []T) (w T, ok bool) {
	value := n.get(name)
	if value == nil {
		return "", false
	}
	return wordOf(r, value, at, name, known)
}

func wordOf[T ~string](r reader, value *node, at place, name string, known []T) (w T, ok bool) {
	text, ok := r.textOf(value, at, name)
	if !ok {
		return "", false
	}
	w, ok = match(text, known)
	if !ok {
		// What is shown is the text in the document, before variables are replaced: a variable may hold anything.
		r.addf(at, "%s", mismatch(name, value.text, known))
	}
	return w, ok
}

// interpolate replaces each ${NAME} by the variable's value, which is not looked at again, and returns the names of those that are
// not set. NAME is a letter or _, followed by letters, digits and _; anything else stays as it is.
func interpolate(text string, env Environment) (result string, unset []string) {
	var b strings.Builder
	for {
		before, after, found := strings.Cut(text, "${")
		b.WriteString(before)
		if !found {
			return b.String(), unset
		}
		name, rest, closed := strings.Cut(after, "}")
		if !closed || !isVariable(name) {
			b.WriteString("${")
			text = after
			continue
		}
		value, ok := env(name)
		if !ok {
			unset = append(unset, name)
		}
		b.WriteString(value)
		text = rest
	}
}

func isVariable(name string) bool {
	for i := range len(name) {
		switch c := name[i]; {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c == '_':
		case c >= '0' && c <= '9' && i > 0:
		default:
			return false
		}
	}
	return name != ""
}
