// Package replica reads from the replicas of a shard: it knows of each how far it lags and whether it is one at all, and
// sends reads that tolerate staleness to one that will do (REP-1 to 4, 6, 7).
//
// # Lag
//
// The leader writes a beat to the primary once a second: a number that rises, and the time by the primary's clock. A process
// that has replicas to read from asks the primary and each replica for it once a second, in one statement each; with no
// replica it asks nobody. The lag of a replica is the age of the beat that it shows: what was committed before that beat is
// there. Replicas' clocks play no part, nor does whether anything else is written.
//
// The age is told in two ways. By the primary's clock, which every look at the primary compares with this process's: now
// minus the beat's time. And by when this process, in its monotonic time, first saw that beat or a later one on the primary:
// the beat is at least as old as that, and not older than the look before. Where the first lies outside the second by more
// than [SkewTolerance], a clock has jumped or the beat was stamped by another one: that is told (log, metric), and the
// lag is then the most that the second allows. So a clock that is wrong neither hides a lag nor makes one.
//
// Without beats (there is no leader) the beat of the primary itself grows old, and so does every replica's, since nothing
// tells a replica that has everything from one that has stopped. The replicas leave within their bound and reads go where the
// fallback says, the primary unless it is set otherwise.
//
// # States of a replica
//
//	           it follows the primary, and its lag is ...
//	untried ---------- within the bound ----------> serving <-----+
//	   |  |                                          |   |  ^      |
//	   |  +----------- beyond it, or unknown ---> lagging|  |      | probe
//	   |                                             |   |  |      |
//	   |  a probe or a query fails                   v   v  |      |
//	   +------------------------------------------> failed -+------+
//	   |                                                           |
//	   |  it is not a replica of this primary                      |
//	   +------------------------------------------> refused -------+
//
// Every state but untried can be followed by every other, by what a probe finds. Probes of a replica that is failed or
// refused come after 2, 4 and 8 seconds, and at once when its server takes connections again.
//
// # What is never read from
//
// Every connection, before it is used, is asked what it leads to: a server with the primary's system identifier that is in
// recovery, and a database that the shard of this cluster has claimed. Every probe makes sure that it follows the primary's
// timeline: that it is on it, or (what it is on may be told late) shows a beat that the primary has written since. A beat
// under a number that the primary has given to another is proof of another history. And every answer tells, in the parameter
// in_hot_standby that PostgreSQL reports by itself, whether the server is still a replica: that of one which was promoted is
// thrown away.
package replica
