// Package machine is the engine as a pure function: given a definition's graph,
// what is stored of an instance and one of its tokens, an event and a time, it
// returns the changes to make. It does no input or output, reads no clock and
// starts no goroutine, so the PostgreSQL store, the in-memory store of the test
// server and the property tests all run the very same code.
//
// # What is stored
//
// An instance is one [Instance] and its tokens. A [Token] is one point of
// execution; the first has the instance's own id. A token that reaches a fork or
// a for_each stays where it is, JOINED, and one child token starts for each
// branch. The chain of parents is the stack of frames that a branch runs in: a
// token's View is its context, its parent's View is what the fan-out saw, and no
// token ever writes another's. A child that arrives at the join is DONE and keeps
// its View as the branch's result; its parent counts it off. When the last has
// arrived the parent becomes READY at the combine, which is handed its own View
// and every child's, and whose result replaces the View and removes the children.
//
// So an event needs no more than the instance, one token and its parent, however
// wide the fan-out is.
//
// # Token states
//
//	             claim                 report
//	(start) -> READY ------> LEASED ----------> moves on: READY, SLEEPING, JOINED,
//	            ^  ^           |  |                       DONE, or the instance ends
//	   due (a   |  |  release  |  | failed, expired, timed out
//	   retry)   |  +-----------+  |
//	            +-----------------+--> no attempts left: FAILED, and the instance
//
//	SLEEPING -- due --> moves on        JOINED -- last branch arrived --> READY (combine)
//
// A token that settles (DONE at the end of the instance, FAILED, CANCELLED) is
// removed with its instance's other tokens; DONE children stay until their
// combine is reported. A transition that the table in state.go does not list is
// [ErrTransition], never a write.
//
// # Invariants
//
//   - A terminal instance has no token (ENG-3).
//   - Fence rises by one with each claim; what a worker reports counts only while
//     the token is LEASED under that fence. The same report sent twice is told
//     from a late one by Settled (WRK-5).
//   - A parent's Pending is the number of its children that are not DONE.
//   - Apply either returns the whole change or an error and no change.
package machine
