// Package leader is the service that does the clock-driven work of the whole cluster: heartbeats for the replicas, the relay
// of the event log to NATS, schedules. Any number of its processes may run; one leads, the others stand by.
//
// # States of a process
//
//	opening --home migrated and claimed--> standing by <----------------+
//	   |                                       |                        | the lease is lost, or cannot
//	   | home's database is another's          | takes the lease        | be renewed in its time
//	   v                                       v                        |
//	refused (the process ends)              leading --------------------+
//	                                           |
//	                                           | the process stops
//	                                           v
//	                                        handing back: duties end, the lease is given back
//
// What leading is, and why two never write, says internal/election. A leader runs each duty for each shard by itself: a
// shard that is down holds no other back. The leader sits on no request's path: while there is none, running work goes on
// and new work starts (ARC-1); what stands still is said in docs/leader.md.
//
// # Inside
//
//	internal/election   who leads: a lease on home
//	internal/duty       runs duties, again when they fail
//	internal/heartbeat  the row by which replicas' lag is measured
//	internal/relay      the event log to NATS
//	internal/store      the SQL of all these
//	internal/schedule   the pure core of schedules: due times, and what is due
//	internal/firing     starts instances when schedules are due, through internal/routers
//	internal/scheduleapi, internal/schedulestore   the service by which users change schedules, and their rows
package leader
