// Package election decides which process leads the cluster: the one that holds a lease, which is a row on the home shard.
//
// # States of a process
//
//	           taken: a new term                        answered in time: until is moved on
//	standing by ----------------> leading --------------------+
//	  ^   ^  |                     |  |  ^                    |
//	  |   |  | another holds it    |  |  +--------------------+
//	  |   +--+                     |  |
//	  |                            |  | the process stops
//	  |    another holds it,       |  v
//	  |    the time is over,       |  handing back: duties end, then the lease is given back
//	  |    a write met a later term|
//	  +--- ending <----------------+
//	       (duties end)
//
// One statement takes the lease if it is free or over, renews it for its holder, or tells who holds it. The time in the
// row is the database's. Each taking raises the term; renewing does not.
//
// # What it guarantees
//
// A process leads only while it can be sure that nobody else holds the lease: until the time at which it sent the last
// renewal that was answered, plus the length of the lease, less a margin for clocks that run at different rates, all by its own
// monotonic clock. The database counts the length from a later moment on. When that time comes, the context of all duties
// ends, whether or not home answers.
//
// A process that was held up (by the scheduler, SIGSTOP, a virtual machine that moved) may wake up behind that time, in
// the middle of a duty. So duties ask before each write ([Guard]), and what they write is fenced: a row that holds a term
// is written only under one that is no earlier. Between asking and writing a process may be held up too, and its clock may
// stand still with it; then the fence alone keeps it from changing anything. A write that meets a later term ends the
// leading ([FencedError]).
//
// Terms do not go back where home does (a restored backup, a failover that lost the last commits): a leader that met a
// later term takes the lease under one that is later still.
package election
