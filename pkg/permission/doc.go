// Package permission is what a principal may do (AUT-3).
//
// A permission is an action with an optional scope: "instance.start:orders/refund". The action is two words joined by a dot.
// The scope is a namespace and, behind a slash, a workflow or a queue, whichever the action is about. Each part may end in
// an asterisk, which stands for whatever follows, also nothing:
//
//	instance.start:orders/*    starts any workflow of the namespace orders
//	task.poll:*/gpu            takes tasks of the queue gpu in every namespace
//	instance.*                 does anything with any instance
//	*                          does anything
//
// Without a scope a permission is not limited. Actions about the cluster, such as user.manage, have no scope: a permission
// that is limited does not allow them.
//
// The package is pure. A [Set] is made once for a principal and asked for every call, so that is fast and allocates nothing.
package permission
