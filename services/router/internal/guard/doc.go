// Package guard stands in front of everything that a router serves: it finds out who calls, and lets through what they may do
// (AUT-4, docs/permissions.md).
//
//	call --> credential --> principal --> permission of the procedure --> what the call is about --> handler
//	          credential.go  (principals)  rules.go                        subjects.go, limits.go
//
// What it guarantees:
//
//   - A procedure without a declared permission is not served: the router does not start.
//   - What a call needs is decided before its message is validated and before anything is forwarded.
//   - A principal whose permission for the action is not limited costs a look-up, whatever the call. One whose permission is
//     limited is held to it for everything the message names; ids are resolved first. Batches are judged item by item ([Denied]).
//   - Ids tell nothing: that one does not exist is only for those who may see everything; others learn that they may not.
//   - Lists are the services' to narrow: they get the principal ([Forward]) where its permission is limited.
//   - Streams and waits end within the second when their caller's credential does.
//   - What was denied, and what operators do, goes to the audit log.
package guard
