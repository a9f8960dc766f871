// Package rpc offers the shards of an instances process: the public instance and
// worker services, as the router offers them to the outside (ARC-5), and the
// internal shard service. It turns messages into the engine's terms and errors
// into faults; what is right is decided below it.
package rpc
