// Package postgres is the one place that knows PostgreSQL connections and error codes.
//
// It gives every member of a shard (its primary, each replica) one [Pool] and guarantees that
//
//   - opening a pool never needs the database: a process starts while a shard is down;
//   - every connection carries time limits (connect, ping, statement, lock, idle in transaction, commit);
//   - a shard that is down is known without asking: calls fail at once with [Unavailable] while one probe looks
//     for its return (see the states below);
//   - a server that lost its role (25006, 57P01 to 57P03, a broken connection) costs the whole pool at once, so
//     that a demoted primary is not written to connection by connection (REP-10);
//   - every storage failure has a [Class] that says whether anything was written (ENG-23). [Pool.InTx] repeats in
//     place, bounded, what certainly was not, and reports a commit whose answer was lost as [ErrOutcomeUnknown];
//   - the text of an error holds no host, user, SQL, table or password, only a class, a reason and a reference; the
//     detail is for logs ([Detail]);
//   - schemas are migrated per role under a lock, forward only and checksummed ([Migrate]), and a database belongs
//     to one shard of one cluster ([Claim]).
//
// # States of a pool
//
//	          first success
//	Untried -----------------> Up <---------------------------+
//	   |                       |  |                            |
//	   |      broken connection|  |connect failure, read only  | probe succeeded
//	   |                       v  |                            |
//	   |                  Suspect |----------------------------+
//	   |                       |  |                            |
//	   |          probe failed v  v                            |
//	   +--------------------> Down ----------------------------+
//	     connect failure
//
// In Suspect calls still go through on what the pool can connect; in Down they fail at once. Only a probe leaves
// these two. A probe is a connection of its own that is not taken from the pool, so a busy pool does not look like a
// dead server; it checks that a read-write pool reaches a server that takes writes. Probes follow each other after
// a jittered pause of up to [probePauseMax], one at a time, and none run while the pool is Up.
package postgres
