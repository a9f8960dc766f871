// Package relay brings the event log of each shard to NATS (EVT-4): what stands behind the shard's cursor is published,
// and then the cursor moved on.
//
//	                      nothing behind the cursor
//	            +----> looking ---------------------> idle
//	            |        |  ^                          |
//	   page     |        |  +--- the heartbeat saw ----+
//	   stored   |        v       the log grow
//	            +--- publishing ------ NATS away -----> waiting --+
//	                     ^                                        |
//	                     +--------------- a moment later ---------+
//
//	any --the stream was made anew--> looking, from the earliest entry that the shard keeps
//
// # What it guarantees
//
// Each entry gets to the stream at least once, and the entries of one instance in their order. The cursor is written after
// what it passes is stored, so a leader that dies in between has its successor publish that again; NATS drops it for ten
// minutes by its id, and followers may by theirs. Order is pkg/bus's: what follows a lost message is refused.
//
// The cursor says which making of the stream it is about. Where the stream is another one (its storage was lost, somebody
// deleted it), everything that the shard still keeps is published again.
//
// While NATS is away relays wait, and nothing else notices: the log is in the shard. How long it is kept there is the
// retention of events.
//
// A relay that finds something looks again at once, or in 50 ms if there was less than a page; one that finds nothing
// looks less and less often, and after two seconds no more: the heartbeat's statement tells when the log has grown. So an idle
// shard sees no statement of it.
package relay
