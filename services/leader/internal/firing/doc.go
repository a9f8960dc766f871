// Package firing is the duty of the leader to start the instances of schedules when they are due (EVT-8).
//
// # A pass
//
//	read what is due          a batch, the oldest first; nothing is locked
//	ask after instances       those that schedules started before, where the overlap policy wants to know
//	start                     all of the batch's due times in calls of many
//	record                    one statement: what was fired, what comes next
//
// Passes follow each other until nothing is due; then the loop sleeps until the next schedule is due, and looks every two
// seconds for schedules that were put elsewhere.
//
// # Exactly once
//
// The ulid of an instance derives from the schedule and the due time, so that a start which is repeated is the same start,
// whoever repeats it. A leader that dies between the start and its record leaves the due time due: the next one starts
// it again, is told that the instance exists, and records it. What it records is guarded ([schedulestore.Store.Record]), so
// that of two leaders which take themselves for the only one at most one is heard.
package firing
