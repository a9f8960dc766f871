// Package subject is what a call is about, in the words of permissions' scopes (AUT-3): who finds it out and who judges it
// meet here.
package subject

import "strings"

// Subject is a workflow or a queue of a namespace.
type Subject struct {
	// Namespace and Name name it.
	Namespace, Name string
	// Found is false for an id that does not exist.
	Found bool
	// Err is why it could not be found out, such as a shard that does not answer. Found is false then.
	Err error
}

// String is the subject as a permission's scope names it.
func (s Subject) String() string { return s.Namespace + "/" + s.Name }

// Task names a task together with the lease under which somebody holds it, for who asks what it is about: the id alone names
// a token, which goes on from step to step. Without a lease it is the id.
func Task(id, lease string) string {
	if lease == "" {
		return id
	}
	return id + separator + lease
}

// separator is in neither ids nor leases. An id that somebody sends with it is that of no task.
const separator = "\x00"

// SplitTask is what [Task] put together.
func SplitTask(ref string) (id, lease string) {
	id, lease, _ = strings.Cut(ref, separator)
	return id, lease
}
