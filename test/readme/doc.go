// Package readme holds the README to what it says, and docs/accounts.md: the program is the one in examples, and the commands do
// what they promise on a server. Those of accounts are typed at a terminal, as they ask for passwords there.
package readme
