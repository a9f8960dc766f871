// Package instances is the service that runs workflow instances: it owns the
// instance shards it is told to serve, any subset of the cluster's, and any number
// of its processes may serve the same shard (ARC-2). Everything that matters is in
// the shards' rows: killing a process at any instant loses nothing that was
// acknowledged (ARC-3).
//
// # A shard in a process
//
//	opening --migrated, claimed--> ready <--database away, back--> not ready
//	   |  ^                          |
//	   |  +-- database away          | the process stops
//	   v                             v
//	refused (another shard's      draining: parked polls go home, reports and
//	database, edited migration)   heartbeats are served to the end of the grace
//
// A shard whose database is away holds no other shard back: calls for it answer
// UNAVAILABLE with a retry hint, readiness and Status say so, and it is tried
// again once a second. A database that belongs to another shard or cluster stops
// the process.
//
// # Inside
//
//	internal/machine    the pure engine
//	internal/store      what it needs of a database; pgstore and memstore
//	internal/dispatch   batches, claims, wake-ups: one shard in one process
//	internal/sweep      timers and leases
//	internal/registry   definitions, and the copies that shards hold of them
//	internal/reads      which call may be answered from a replica
//	internal/rpc        the services
package instances
