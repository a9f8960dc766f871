// Package pgmeter is what the bench asks of PostgreSQL: its counters before and after, and the limit (PRF-6), which is what
// the server does when nothing but rows is written.
package pgmeter
