package machine

import (
	"time"

	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
)

// Changes is what one event does to an instance. Values in it are new: what was
// loaded is never changed.
type Changes struct {
	// Instance is the instance as it is now; nil if it did not change.
	Instance *Instance
	// Merged names parents whose combine is done: the children that they had go,
	// before those in Created come.
	Merged []ID
	// Created and Updated are tokens as they are now. A token is in one of them.
	Created, Updated []*Token
	// LetIn names the elements that max_in_flight now lets in: each becomes due.
	LetIn []LetIn
	// Ended says that the instance is terminal: every token of it goes, whether
	// it is in Created and Updated or not.
	Ended bool
	// History is what happened, in order.
	History []Entry
	// Events go to the shard's event log, in order (EVT-1).
	Events []Event
	// Trace is the span of the operation, as a W3C traceparent; empty if it is not
	// sampled. Whoever runs the machine sets it, with [Changes.TracedBy].
	Trace string
	// Duplicate says that the event was applied before and changed nothing now.
	Duplicate bool
	// RetryAt is when a failed step is tried again; zero if it is not.
	RetryAt time.Time
}

// TracedBy has what the event changes point to the span that did it: events go on
// with its trace, and tokens tell what brought them where they are.
func (c *Changes) TracedBy(traceparent string) {
	c.Trace = traceparent
	for _, t := range c.Created {
		t.Trace = traceparent
	}
	for _, t := range c.Updated {
		t.Trace = traceparent
	}
}

// LetIn names one element of a for_each.
type LetIn struct {
	Instance, Parent ID
	Index            int32
	DueAt            time.Time
	// Token is the element's, which only the store knows: it fills it in when it
	// writes.
	Token ID
}

// Entry is one history entry. Token and Position name it; Token is zero for what
// happened to the instance itself. Of ids Value has the parent
// token's ulid; the reader completes it and adds the token's own.
type Entry struct {
	Instance ID
	Token    ID
	Position int32
	// Fence is the lease that the entry settles; zero if it settles none.
	Fence int64
	// By is how the entry settles the lease.
	By    SettledBy
	Value *wigglev1.HistoryEntry
}
