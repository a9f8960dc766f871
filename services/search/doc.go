// Package search is the service that finds instances by what their contexts say (SRC-1 to 8). It owns the search shards, fills
// them from the event log that NATS carries, and answers from them; it opens no instance shard. Any number of its
// processes may run: they share the stream, and each of them answers over all search shards.
//
// # A search shard in a process
//
//	opening --migrated, claimed--> ready <--database away, back--> not ready
//	   |  ^
//	   |  +-- database away, or new and home's has not told the cluster's id
//	   v
//	refused (another shard's database, edited migration, unknown language)
//
// A process starts while NATS, the routers or a search shard are away, and says what is missing: documents of a shard that
// is away wait in the stream, and searches name the shard or fail, as the caller chooses.
//
// # Inside
//
//	internal/document     what is kept of an instance (pure)
//	internal/searchstore  documents in PostgreSQL: one search shard
//	internal/index        the search shards together
//	internal/source       instances, read through routers
//	internal/indexer      from the event log to documents
//	internal/query        searches over all shards
//	internal/rebuild      reindex and verify
//	internal/rpc          the service
package search
