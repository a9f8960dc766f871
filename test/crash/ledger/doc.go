// Package ledger holds what workers know against what the server recorded. A
// worker writes a line for each thing it was told, when it was told; lines survive
// the worker. After the run [Check] holds the lines of an instance against its
// history: whatever was acknowledged is there exactly once, whatever was refused is
// not, no lease was given twice, none overlaps another, and nothing is missing.
//
// Both sides are plain data, so that the check itself is tested with histories that
// are broken in every way it must find.
package ledger
