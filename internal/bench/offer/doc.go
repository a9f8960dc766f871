// Package offer starts instances at a rate, whatever becomes of them: as a flood, which takes no notice of refusals, or
// steadily, by a client that does as it is told. Each instance has the time at which it was intended to start in its ulid.
package offer
