// Package route finds the shard that a call belongs to and gets the call answered by a process that serves it.
//
// [Cluster] answers from the topology alone: an id names its shard (SHD-1), a legacy id means home, an unknown shard
// is UNAVAILABLE because the topology may only be older than the id, a retired one NOT_FOUND without any connection
// (SHD-22), and a malformed id INVALID_ARGUMENT.
//
// [Do] makes a call. It repeats it on another process when the connection failed, or when the process cannot reach the
// shard and another one can; every operation is safe to repeat. Other faults are answers and go back as they are. It tries
// a few times, within the time of the call, with short jittered pauses.
package route
