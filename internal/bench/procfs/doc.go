// Package procfs reads what Linux tells in /proc: how much CPU and memory processes have used, and what the machine is. Where
// there is no /proc everything is 0 or empty.
package procfs
