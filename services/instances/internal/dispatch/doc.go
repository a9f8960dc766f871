// Package dispatch runs one shard in one process: it gathers what callers want
// into batches (group commit), hands tasks to workers and wakes whoever waits.
//
// # Batches
//
// A call that changes instances becomes one operation per item. Operations go
// into a lane by their instance, so that two batches of this process never wait
// for each other's locks. A lane commits one batch at a time: while it is under
// way, what comes in waits, and is the next batch. So nothing waits for company
// when there is little to do, and batches grow by themselves when there is much
// (WRK-10). Each operation sees what those before it in the batch made. One that
// the machine refuses writes nothing and fails alone; one that the database
// refuses is found by running the batch's items one by one.
//
// # Wake-ups
//
// After a commit the shard tells who may be waiting: tokens that became ready
// wake a poll that is parked here (package wake) or, if there is none, go as a
// hint to the routers that watch; times go to the sweeper; ends go to the callers
// of WaitInstance. Each of these is only a hint: what is true is in the rows, and
// the sweeper's tick finds what a hint missed, because it was made by another
// process or got lost with one.
package dispatch
