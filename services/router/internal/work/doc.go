// Package work passes the streams of workers on to the shards (WRK-1, docs/stream.md).
//
// A worker's stream is a session. For each shard the session has a link, which is a
// stream to the process that now serves it. Messages pass through as the bytes that they
// are: of a worker's message the session reads whose tasks its items are about and the
// numbers, of a shard's how many tasks it brings.
//
//	            hello                    accepted
//	(no link) ---------> connecting -----------------> open
//	    ^                    |                           | it drains, or another
//	    |    not accepted    |                           | process is preferred
//	    +--------------------+                           v
//	    +------------------------------------------- leaving
//	                everything is answered
//
// What comes for a shard while its link is connecting waits; without a link it is answered
// UNAVAILABLE, item by item. A link that breaks ends the session: the router does not
// know what was answered, but the worker does, and its next hello says what it holds.
//
// What the package guarantees:
//
//   - The worker's credits are never more and never less than it granted ([ledger]).
//   - A session holds a bounded number of bytes in each direction. While a worker does not
//     read, nothing is read of it or for it.
//   - A stream without work costs nothing but its memory. A hint wakes one session of each
//     class, as with polls; every few seconds one session of each class looks at all
//     shards.
package work
