package election

import (
	"context"
	"fmt"
	"time"
)

// Ask is what a process asks of the lease.
type Ask struct {
	// Holder names the process.
	Holder string
	// Term is the term that it believes to hold, or 0.
	Term int64
	// Floor is a term that must be passed by a new one.
	Floor int64
	// Length is for how long the lease is taken or renewed.
	Length time.Duration
}

// Standing is how the lease stands after the asking.
type Standing struct {
	// Held tells that the process that asked holds it.
	Held bool
	// Term is the holder's: if the process holds the lease and it is not the one that was asked for, it is a new one.
	Term int64
	// Holder names who holds it, or held it last.
	Holder string
}

// Lease is the row.
type Lease interface {
	// Try takes the lease if it is free or over, renews it if the one who asks holds it under the term that he names and it is
	// not over, and else tells how it stands. A holder who names another term takes it anew.
	Try(ctx context.Context, ask Ask) (Standing, error)
	// Release ends the lease if that holder has it under that term.
	Release(ctx context.Context, holder string, term int64) error
}

// FencedError says that a write met a later term than its own, and changed nothing: somebody else leads, or has led.
type FencedError struct {
	// Term is the later one.
	Term int64
}

// Error names the term.
func (e *FencedError) Error() string { return fmt.Sprintf("written under a later term, %d", e.Term) }
