// Package shardid reads and writes the ids of instances and tokens, whose text names the shard that holds them.
//
// A sharded id is {prefix}.s{shard}.{ulid} (SHD-1): wfi for an instance, tok for a token, the ULID in lower-case
// Crockford base 32. The shard is fixed when the id is minted (SHD-2), so an id routes by itself, without a lookup.
//
// Two older forms parse for ever and route to the cluster's home shard, whatever they say inside (SHD-3):
//
//	wfi_{body}, tok_{body}                       bare ids, from before sharding
//	{namespace}[.c{cell}].e{epoch}.s{n}.{ulid}   ids of the removed coordinator
//
// What the package guarantees: an accepted id prints exactly as it was read; an id has one spelling, so two ids are
// equal (==) if and only if their text and kind are; anything that is not one of these forms is a *ParseError; parsing a valid
// id allocates nothing. testdata/ids.json holds the same cases for every language that parses ids.
package shardid
