// Package query answers searches over all search shards (SRC-3, SRC-6).
//
// A search asks every shard at once for its best hits and merges them: the best first, of equal ones the newest, and of
// those by id. A shard that does not answer fails the search, or, where the caller takes what there is, is named beside the
// hits.
//
// # Pages
//
// A page token names the last hit of its page, and the next page starts behind that place on every shard. Documents that
// come, change or go meanwhile make no other document come twice or be left out. With words the token also holds the
// window of each shard (package searchstore): hits come in rounds, of which each ranks about the newest thousand matches of
// each shard that are left. Few searches get beyond the first round.
//
// A shard that was missing from one page is missing from the rest of that list.
package query
