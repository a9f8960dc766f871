// Package poll serves workers' polls over all shards.
//
// A poll claims on one shard at a time, from a rotating cursor, shards that are known to have work first (WRK-7), until it
// has what it has room for or has tried them all. If there was nothing and the worker wants to wait, it is parked
// until a hint from an instances process says where to look.
//
// Polls that could take the same tasks (same namespace, queues and workflows) form a class. A class is what is woken and
// re-checked, so what waiting costs depends on the number of classes, not of polls (WRK-13):
//
//   - A hint wakes one poll of each class that waits for the queue, and that poll tries the hinted shard only. Got all it
//     has room for, it wakes the next.
//   - Every few seconds one poll of each class tries all shards: the safety net for a lost hint.
//   - A poll that joins a class whose last look at all shards was empty and recent is parked without looking again.
//
// No wake-up is lost: a poll is subscribed before it tries for the last time, and one that leaves with a wake-up in
// hand passes it on (package wake).
//
// No claim is lost either: claims run apart from the caller. If the caller goes away, or a shard takes so long that the
// poll goes on without it, what is claimed late is handed back at once, without an attempt spent.
//
// The number of parked polls is bounded (WRK-15): beyond it a poll is answered empty, with the time to come back.
package poll
