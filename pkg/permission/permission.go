package permission

import (
	"fmt"
	"slices"
	"strings"
)

// Limits of a permission's text.
const (
	// MaxBytes bounds a permission.
	MaxBytes = 320
	// MaxPermissions bounds a set. A set with more is not made.
	MaxPermissions = 2000
)

// Pattern is a name, or what a name begins with and an asterisk.
type Pattern string

// Any is the pattern that matches every name.
const Any Pattern = "*"

// Matches reports whether the pattern matches the name.
func (p Pattern) Matches(name string) bool {
	if prefix, ok := strings.CutSuffix(string(p), "*"); ok {
		return strings.HasPrefix(name, prefix)
	}
	return string(p) == name
}

// covers reports whether p matches every name that q matches.
func (p Pattern) covers(q Pattern) bool {
	prefix, open := strings.CutSuffix(string(p), "*")
	if !open {
		return p == q
	}
	return strings.HasPrefix(strings.TrimSuffix(string(q), "*"), prefix)
}

// Scope is what a permission is limited to.
type Scope struct {
	// Namespace is a pattern of namespaces.
	Namespace Pattern
	// Name is a pattern of workflows or queues, whichever the action is about.
	Name Pattern
}

// Everywhere is the scope that limits nothing.
func Everywhere() Scope { return Scope{Namespace: Any, Name: Any} }

// Matches reports whether the scope holds the name of the namespace.
func (s Scope) Matches(namespace, name string) bool {
	return s.Namespace.Matches(namespace) && s.Name.Matches(name)
}

func (s Scope) covers(t Scope) bool { return s.Namespace.covers(t.Namespace) && s.Name.covers(t.Name) }

// String is the scope as a permission has it behind the colon.
func (s Scope) String() string { return string(s.Namespace) + "/" + string(s.Name) }

// Permission is an action with a scope.
type Permission struct {
	// Action is a pattern of actions.
	Action Pattern
	// Scope is what it is limited to.
	Scope Scope
}

// String is the permission as it is written.
func (p Permission) String() string {
	if p.Scope == Everywhere() {
		return string(p.Action)
	}
	return string(p.Action) + ":" + p.Scope.String()
}

// Parse reads a permission. A scope without a slash is a namespace with everything in it.
func Parse(text string) (Permission, error) {
	if len(text) > MaxBytes {
		return Permission{}, fmt.Errorf("permission of %d bytes: at most %d are allowed", len(text), MaxBytes)
	}
	action, scope, scoped := strings.Cut(text, ":")
	if !validAction(action) {
		return Permission{}, fmt.Errorf("permission %q: %q is no action: it is two words and a dot, such as instance.start, or ends in *",
			text, action)
	}
	p := Permission{Action: Pattern(action), Scope: Everywhere()}
	if !scoped {
		return p, nil
	}
	namespace, name, named := strings.Cut(scope, "/")
	if !named {
		name = string(Any)
	}
	if !validName(namespace) || !validName(name) {
		return Permission{}, fmt.Errorf(
			"permission %q: %q is no scope: it is namespace/name, each of which may end in *, such as orders/refund*", text, scope)
	}
	p.Scope = Scope{Namespace: Pattern(namespace), Name: Pattern(name)}
	return p, nil
}

// validAction: a dot between two words, or a prefix of that and an asterisk.
func validAction(action string) bool {
	prefix, open := strings.CutSuffix(action, "*")
	words := strings.Split(prefix, ".")
	if len(words) > 2 || !open && len(words) != 2 {
		return false
	}
	for i, word := range words {
		if word == "" && (!open || i != len(words)-1) {
			return false
		}
		if strings.Trim(word, "abcdefghijklmnopqrstuvwxyz_") != "" {
			return false
		}
	}
	return true
}

// validName: not empty, and an asterisk nowhere but at the end.
func validName(name string) bool {
	return name != "" && !strings.ContainsAny(strings.TrimSuffix(name, "*"), "*:/\x00")
}

// Set is what a principal may do. The zero value may do nothing. It does not change once made.
type Set struct {
	permissions []Permission
}

// NewSet parses permissions. Its error names the first that is none.
func NewSet(texts []string) (Set, error) {
	if len(texts) > MaxPermissions {
		return Set{}, fmt.Errorf("%d permissions: at most %d are allowed", len(texts), MaxPermissions)
	}
	set := Set{permissions: make([]Permission, 0, len(texts))}
	for _, text := range texts {
		p, err := Parse(text)
		if err != nil {
			return Set{}, err
		}
		if !slices.Contains(set.permissions, p) {
			set.permissions = append(set.permissions, p)
		}
	}
	return set, nil
}

// Everything is the set that may do everything.
func Everything() Set { return Set{permissions: []Permission{{Action: Any, Scope: Everywhere()}}} }

// Allows reports whether the action is allowed on the name (a workflow, a queue) of the namespace.
func (s Set) Allows(action, namespace, name string) bool {
	for _, p := range s.permissions {
		if p.Action.Matches(action) && p.Scope.Matches(namespace, name) {
			return true
		}
	}
	return false
}

// AllowsEverywhere reports whether the action is allowed without a limit.
func (s Set) AllowsEverywhere(action string) bool {
	for _, p := range s.permissions {
		if p.Scope == Everywhere() && p.Action.Matches(action) {
			return true
		}
	}
	return false
}

// Scopes are those within which the action is allowed: none if it is not, and only [Everywhere] if without a limit.
func (s Set) Scopes(action string) []Scope {
	if s.AllowsEverywhere(action) {
		return []Scope{Everywhere()}
	}
	var scopes []Scope
	for _, p := range s.permissions {
		if p.Action.Matches(action) && !slices.Contains(scopes, p.Scope) {
			scopes = append(scopes, p.Scope)
		}
	}
	return scopes
}

// Covers returns the first of the other set's permissions that no single permission of s has whole: what a principal with s
// may not give to others. ok if there is none.
func (s Set) Covers(other Set) (missing Permission, ok bool) {
	for _, q := range other.permissions {
		covered := slices.ContainsFunc(s.permissions, func(p Permission) bool {
			return p.Action.covers(q.Action) && p.Scope.covers(q.Scope)
		})
		if !covered {
			return q, false
		}
	}
	return Permission{}, true
}

// Strings are the permissions as they are written.
func (s Set) Strings() []string {
	texts := make([]string, 0, len(s.permissions))
	for _, p := range s.permissions {
		texts = append(texts, p.String())
	}
	return texts
}
