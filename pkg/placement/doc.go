// Package placement decides on which shard a new, unkeyed root instance starts (SHD-4, SHD-20).
//
// A generation is one version of the weights of the shards, in force from an instant on. The shard of a start is a
// weighted rendezvous hash of its ULID over the weights of the generation in force at the ULID's own time. So it depends on the
// ULID and the generations alone: the same start sent twice, through any router and at any time, goes to the same
// shard. That holds between processes with different generations too, as long as they agree on those in force at the
// ULID's time; that is why a change of weights is a new generation that lies ahead, never an edit of an old one.
//
// Guarantees: over many ids the split follows the weights; a shard of weight zero gets nothing; when a weight is
// raised or a shard added, ids move only to that shard, and when lowered or removed, only away from it; the
// answer is the same on every platform and in every release (testdata/placement.golden).
//
// The package is pure: no clock, no input or output.
package placement
