// Package backends knows the instances processes: which there are, which shards each serves, and which one a call for a
// shard should go to.
//
// Every process is looked after by one probe loop and one stream of work hints. What the package guarantees:
//
//   - [Set.Shard] answers from memory. Its processes are in the order in which to try them, the same in every router
//     that sees the same processes: rendezvous hash of (process id, shard), so that all calls of a shard meet in one
//     process (ARC-2) and losing a process moves only its shards.
//   - A process that refuses or drops a connection is left out at once, whoever noticed ([Set.Failed]); one that does
//     not answer a probe in time is tried last, and left out when it misses the next one. Either way calls go
//     elsewhere within a second, and what waits for an answer from a process that is gone is cut ([Process.Alive]).
//   - A process that drains is tried after those that do not, and gets no polls.
//   - A probe of a process that is down comes soon (25 ms, doubling up to the interval) and costs one small call.
//
// The states of a process:
//
//	             answer                        no answer in time
//	Down ----------------------> Up ----------------------------> Suspect
//	 ^                           | ^            answer              | |
//	 |  connection failed        | +--------------------------------+ |
//	 +---------------------------+                                    |
//	 +----------------------------------------------------------------+
//	             no answer in time again, or connection failed
package backends
