// Package cluster runs a cluster of real processes for tests that kill them: the
// instances processes and the router are the test binary, started again with a
// role in its environment, and every shard has a PostgreSQL server of its own. All
// listen on ports of 127.0.0.1 that stay the same, so that what was killed comes
// back under its address.
//
// A test binary that uses it hands its TestMain to [Main]. No process outlives the
// binary: children are tied to it by the parent death signal where there is one,
// and by a pipe everywhere.
package cluster
