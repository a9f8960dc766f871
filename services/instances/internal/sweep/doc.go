// Package sweep does on each shard what time asks for: it wakes tokens whose
// timer is due, takes back leases that ran out, and looks for what no wake-up
// told of.
//
// A process keeps the timers that it set itself in memory and wakes them to the
// millisecond, so a timer needs no scan. What no process remembers (it was set by
// one that is gone, or by one that had too many) is found by whoever holds the
// shard's sweep lease, a row with a term: it asks the shard at each tick for the
// next time that anything is due and reads a page of it. Who gains the lease does
// so at once, as the holder before may be gone with what it remembered. Wakes and expiries are
// checked by the machine under the instance's lock, so it does no harm that two
// processes know of the same timer.
//
//	          timer set, lease given
//	                   |
//	idle --next due, tick, or nudge--> wake what is due --> tick if it is time --+
//	  ^                                                                          |
//	  +--------------------------------------------------------------------------+
//
// An idle shard sees one statement per tick, every two seconds (WRK-13).
package sweep
