// Package lifecycle is how processes and what lives in them run and stop.
//
// It guarantees that every goroutine has an owner, a name and a way to stop ([Group]); that a panic in one becomes an
// error with its stack and not the end of the process with everything else in it; that the parts of a process stop in the
// reverse order of their start within a grace period ([Run]); and that periodic work is jittered over its whole interval,
// bounded in time, and can be woken ([Loop]).
//
// # States of a component under Run
//
//	waiting --Start--> starting --ok--> running --its turn to stop--> draining --returned--> stopped
//	                      |                |                             |
//	                      | error          | error or return             | grace period over
//	                      v                v                             v
//	                 all others stop   all others stop               hard context ends; if it still does not
//	                                                                 return, Run names it and returns
//
// A component is told to drain by the end of its context. What it then still has to do (finish what is in flight, hand
// back leases) it does under [DrainContext], which lives on until the grace period is over.
package lifecycle
