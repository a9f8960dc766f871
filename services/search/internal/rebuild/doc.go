// Package rebuild brings the whole index up to the instances (SRC-8), and finds where the two differ. Both read all instances
// of a shard in the order of their ids, shard by shard, at a bounded rate, and tell how far they are after each part.
//
// A rebuild writes as the indexer does: an older document never replaces a newer one, and one that says what is stored is
// not written. So it may run at any time, beside the indexer, and again from any place.
//
// A comparison goes by stretches of ids: the heads of a stretch's instances against the documents of the same stretch on
// every search shard. What only looks different because the indexer is on its way is left out: an instance that was
// started or ended a moment ago, and a document whose instance came between the two readings.
package rebuild
