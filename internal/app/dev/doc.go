// Package dev is `wiggle dev`: a PostgreSQL of its own with a database per shard, the router and the instances service in
// this process, and workers for the sample workflow (OPS-1).
//
// What it guarantees:
//
//   - One [Stack] uses a data directory at a time; a second one is told who does.
//   - However it ends, no process is left behind, and what was acknowledged is in the data directory: package devstack
//     ties the database to this process, and an orderly stop ends workers, router, instances and database in that order.
//   - The data directory remembers how many shards it has. It may be given more later, never fewer.
package dev
