// Package router is the service in front of all others: workers, clients, the portal and the command line talk to it,
// over Connect, gRPC and gRPC-Web on one port.
//
//	          workers, clients, portal, CLI
//	                       |
//	+----------------------v-----------------------+
//	| rpc.Server   traces, errors, validation      |
//	|   guard      who calls, and whether they may |
//	|   api        splits by shard, merges         |
//	|     poll     parks and wakes polls           |
//	|     definitions  brings graphs to shards     |
//	|       route  id -> shard, repeats calls      |
//	|         backends  shard -> process           |
//	+-----+----------------+----------------+------+
//	      | gRPC           |                |
//	  instances        instances        instances
//	  shards 0,1       shards 0,1        shard 2
//
// It owns nothing durable, opens no database and knows no graph. What it guarantees:
//
//   - A call that an id names goes to the id's shard, found in the id and the topology alone (SHD-1, SHD-22); a start goes
//     where its ulid and the generations say (SHD-4), through whichever router.
//   - All calls of a shard go to one process while that is well, and to the next within a second when it is not (ARC-2).
//     A call whose process went away is made again on another; every operation is safe to repeat.
//   - One slow or dead shard costs the others nothing: batches are answered item by item, lists and counts have a deadline
//     per shard, polls pass over it.
//   - A running cluster needs neither home nor the leader: with home down everything but registering goes on (ARC-1).
//   - Waiting polls cost the shards nothing, are bounded, and none misses work (WRK-13, WRK-15). What is claimed for a
//     caller that is gone is handed back.
//   - On the way down it answers waiting polls at once and finishes what is in flight (OPS-4).
//
// Killing a router at any instant loses nothing acknowledged (ARC-3). A claim whose answer was on its way is taken by
// another worker when its lease runs out.
package router
