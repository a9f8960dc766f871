// Package trouble shows what a cluster of real processes does when a database is
// down, at the start or later, and when a process is asked to stop: who is told
// what, how soon, and that everybody else notices nothing (issue 2, "Bad input and
// trouble"; ARC-2, ENG-25, SHD-26).
package trouble
