// Package authstore keeps accounts, roles, sessions, keys, the limits of tries and the audit log in the auth shard's primary
// (AUT-1). It never reads a replica: what was revoked must not come back.
//
// # Changes
//
// Whatever changes who may do what goes through [Store.Change]. It locks one row, auth_state, first of all, so changes follow
// each other: each sees all earlier ones, whatever it read before (the last administrator cannot be removed by two at a
// time), and revisions are numbered without gaps in the order of commits. What caches must forget is written with the
// revision, and the audit entries with it too, in the same transaction.
//
// # Lock order
//
// auth_state, then rows of accounts and what belongs to them, then audit_head. Limits of tries (slots in their order) are a
// transaction of their own; the use of a session or key is a statement of its own.
//
// Time is the database's, unless a test gives another.
package authstore
