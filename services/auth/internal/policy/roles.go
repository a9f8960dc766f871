package policy

import (
	"slices"

	"github.com/wiggle-run/wiggle/pkg/permission"
)

// Role is a named set of permissions.
type Role struct {
	Name, Description string
	Permissions       []string
	// BuiltIn roles come with the program and cannot be changed.
	BuiltIn bool
}

// RoleAdmin is the built-in role that may do everything.
const RoleAdmin = "admin"

// BuiltIn are the built-in roles, by name.
func BuiltIn() []Role {
	return []Role{
		{RoleAdmin, "Does anything.", permission.Everything().Strings(), true},
		{"operator", "Runs workflows and looks after them.", []string{
			"instance.*", "workflow.*", "schedule.*", "event.*", "search.*", "cluster.read",
		}, true},
		{"viewer", "Sees workflows and what becomes of them.", []string{
			"instance.read", "workflow.read", "schedule.read", "event.read", "event.list", "cluster.read",
		}, true},
		{"worker", "Works: takes tasks and registers workflows.", []string{"task.poll", "workflow.register", "workflow.read"}, true},
	}
}

// Roles are all roles that there are, the built-in ones among them.
type Roles []Role

// WithBuiltIn joins stored roles with the built-in ones, by name.
func WithBuiltIn(stored []Role) Roles {
	all := Roles(append(BuiltIn(), stored...))
	slices.SortFunc(all, func(a, b Role) int {
		if a.Name < b.Name {
			return -1
		}
		return 1
	})
	return all
}

// Find returns the role of a name.
func (r Roles) Find(name string) (Role, bool) {
	i := slices.IndexFunc(r, func(role Role) bool { return role.Name == name })
	if i < 0 {
		return Role{}, false
	}
	return r[i], true
}

// Missing is the first of the names that is no role.
func (r Roles) Missing(names []string) (string, bool) {
	for _, name := range names {
		if _, ok := r.Find(name); !ok {
			return name, true
		}
	}
	return "", false
}

// Permissions are those of the named roles and the given ones, each once. Names that are no role give nothing.
func (r Roles) Permissions(names, own []string) []string {
	var all []string
	for _, name := range names {
		role, _ := r.Find(name)
		all = append(all, role.Permissions...)
	}
	all = append(all, own...)
	slices.Sort(all)
	return slices.Compact(all)
}

// Admins are the names of the roles whose permissions cover everything.
func (r Roles) Admins() []string {
	var names []string
	for _, role := range r {
		if covers(role.Permissions, permission.Everything().Strings()) {
			names = append(names, role.Name)
		}
	}
	return names
}

// Put is the roles after one of them was put.
func (r Roles) Put(role Role) Roles { return append(r.Without(role.Name), role) }

// Without is the roles after one of them was deleted.
func (r Roles) Without(name string) Roles {
	return slices.DeleteFunc(slices.Clone(r), func(role Role) bool { return role.Name == name })
}

func covers(have, give []string) bool {
	h, err := permission.NewSet(have)
	if err != nil {
		return false
	}
	g, err := permission.NewSet(give)
	if err != nil {
		return false
	}
	_, ok := h.Covers(g)
	return ok
}
