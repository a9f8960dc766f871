// Package indexer brings the index up to the event log (SRC-1): it follows the stream of events as one of the group
// "search", reads the instances that events are about, and writes their documents.
//
// # An event
//
//	delivered --not of the life of an instance--> acknowledged
//	    |
//	    v
//	read through a router --not there--> document deleted --> acknowledged
//	    |        |
//	    |        +-- no answer --> asked for again, after a pause that doubles up to half a minute
//	    v
//	written to its search shard --> acknowledged
//	    |        |
//	    |        +-- shard away --> asked for again
//	    +-- the database refuses it --> tried alone, five times, then skipped, logged and counted
//
// Events are taken in batches; of an instance that several of them are about it is read once, at the highest revision. One
// that cannot be read or written holds up no other. Order does not matter: a document is what the instance is when it is
// read, and an older one never replaces a newer one. Nothing is acknowledged before it is committed, so a process that is
// killed loses nothing; its events are delivered again within half a minute.
package indexer
