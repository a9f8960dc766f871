// Package bench is `wiggle bench`: it measures what a cluster does, in the units of the performance design (PRF-1 to 7), so
// that every figure comes with the limit of the same PostgreSQL server, the machine and the settings.
//
// # What runs
//
// Without a server to measure, bench starts a cluster of separate processes: PostgreSQL (fsync on, a database for each
// shard), instances, router and worker processes, which are this program again. Package cluster brings it up and watches it;
// what a worker runs is in package steps. The load comes from the process that measures. All of it ends with that process.
// The steps are no-ops that change one digit of their context, as real steps change theirs, so that no engine gains by
// noticing that nothing changed.
//
// # What is counted
//
// Only completed work. After the load has stopped and everything in flight has ended, every instance that was started is
// listed: each must be COMPLETED, or it is an error, and those whose end (by the database's clock) lies within the measured
// window are the figure. No counting goes on within the window, so it costs the engine nothing. Of a sample the history is
// read: it must have the right number of completed steps. Scenarios with few instances in flight are measured from the first
// start to the last end instead of through a window.
//
// # The closed loop
//
// So many instances are kept in flight: a new one is started when one has ended. That an instance has ended is known to the
// worker process, which sees the server's answer to the report of the last step, after the commit; it writes totals to a
// pipe whenever they change, so that a busy moment costs one write. An instance whose last report is under way is thus still
// in flight.
//
// # Latency
//
// Start to end is from created_at to ended_at. In an open loop each instance has an intended start; by how much the generator
// was late is added to its latency (coordinated omission). What a client sees, from the intended start to the answer of
// WaitInstance, is told apart, as are the times from ready to dispatched and to running, from the history.
//
// # The limit
//
// Package pgmeter has PRF-6: one step updates one row by its key and inserts another; a hundred steps are one statement. It is
// measured just before, on the same server, with nothing else running.
//
// # Costs
//
// CPU seconds are user and system time from /proc, for PostgreSQL those of the postmaster and all its children. Commits, WAL
// and row versions are differences of PostgreSQL's counters, which sessions update once a second: in windows of a few
// seconds they are estimates. Everything is divided by the steps that completed in the window.
package bench
