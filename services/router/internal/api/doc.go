// Package api implements the public services in front of the instances processes.
//
// A call that an id routes goes to the id's shard. A batch is split by shard, sent to all of them at once, and answered
// item by item in the order of the request: a dead shard fails its items only. A call over all shards has a deadline for
// each, so that a slow one costs the others nothing. Payloads pass through as bytes.
package api
