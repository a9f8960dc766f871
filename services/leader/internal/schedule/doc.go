// Package schedule is the pure core of schedules (EVT-8): from what a schedule says to its due times, and from what is
// kept of it and a time to what there is to do. It knows no database, no network and no clock.
//
// # Due times
//
// A schedule has nominal times: those that its cron expression or its interval names, from its start to its end. Each is
// put off by its jitter, and that is the due time. A due time depends on the schedule's namespace, id and times, and on
// nothing else: not on who computes it, nor when, nor from where it is counted. Due times rise: jitter never reaches the
// nominal time that follows.
//
// Cron expressions are read by the clock on a wall in the schedule's time zone. A time that the clock skips is due when
// the clock has moved on, together with all others that were skipped; a time that the clock shows twice is due the
// first time. So a clock that is set back by an hour makes an hour without due times: who wants them at regular
// distances takes an interval.
//
// # What becomes of a due time
//
//	            paused, or the times changed
//	coming -----------------------------------> never was
//	   |
//	   | its time has come
//	   v            older than the catch-up window
//	  due ------------------------------------------> missed
//	   |  \  the instance before still runs
//	   |   +--------------------> skipped, or queued (QUEUE_ONE, one at a time)
//	   |                                        |
//	   v                                        | that instance has ended
//	 fired <------------------------------------+
package schedule
