// Package policy is what the auth service decides: who may give what, which names are names, when a session or a key is over,
// how often somebody may try to sign in. It is pure; times are arguments.
package policy
