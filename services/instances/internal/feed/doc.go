// Package feed serves the event log of a process's shards (EVT-3, 5, 6): it answers polls, lets them wait for what is
// written, keeps consumers' positions, and trims what nobody needs any more.
//
// Each shard has a [Feed]. Nothing looks at a shard while nobody waits there. While somebody does, one look after the other
// asks up to which number the log is decided, for all that wait:
//
//	        a poll arms                  decided moved: all are woken and read
//	idle ---------------> looking ------+
//	  ^                      ^  |       |  pause: 10 ms after a commit of this process,
//	  |                      |  +-------+  5 to 50 ms while transactions hold the log back,
//	  +--- nobody waits -----+             50 ms to 1 s while nothing happens
//
// A poll arms before it reads, so what is written between its reading and its waiting wakes it.
package feed
