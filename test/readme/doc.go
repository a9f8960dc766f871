// Package readme holds the README to what it says, and docs/accounts.md and docs/upgrades.md: the program is the one in
// examples, and the commands do what they promise on a server. They are typed at a terminal, as some ask for passwords there.
package readme
