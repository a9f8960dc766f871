package store

import (
	"context"
	"time"

	"github.com/wiggle-run/wiggle/services/instances/internal/machine"
)

// Events is the part of a store that reads and keeps the event log, which Update
// writes (EVT-1 to 6).
//
//nolint:interfacebloat // a seam, as Store is
type Events interface {
	// ReadEvents reads the entries behind a number, by number, at most limit. None is
	// passed over whose transaction may still commit (EVT-3).
	ReadEvents(ctx context.Context, after int64, limit int) (EventPage, error)
	// DecidedEvents is the number up to which every entry is there to be read, or never
	// will be; open tells that transactions may yet commit entries behind it. It changes
	// whenever there may be more to read.
	DecidedEvents(ctx context.Context) (seq int64, open bool, err error)
	// EventBounds tells behind which number the log ends now, and behind which the
	// earliest entry is that is kept.
	EventBounds(ctx context.Context) (tail, earliest int64, err error)

	// EventConsumer tells what a consumer has acknowledged; ErrNotFound.
	EventConsumer(ctx context.Context, name string) (seq int64, err error)
	// AddEventConsumer makes a consumer that is not known yet, and tells what it has
	// acknowledged.
	AddEventConsumer(ctx context.Context, name string, seq int64) (int64, error)
	// AckEvents acknowledges all up to a number, for a consumer that is made if it is not
	// known. It moves nobody back, and none behind the end of the log.
	AckEvents(ctx context.Context, name string, seq int64) error
	// EventConsumers lists the consumers, by name, [RelayConsumer] among them once the
	// leader has relayed.
	EventConsumers(ctx context.Context) ([]EventConsumer, error)
	// DeleteEventConsumer forgets a consumer, known or not.
	DeleteEventConsumer(ctx context.Context, name string) error

	// TrimEvents deletes entries from the front of the log (EVT-6), at most t.Limit, and
	// tells behind which number it has got and whether there may be more. Two at a time
	// do no harm.
	TrimEvents(ctx context.Context, t TrimEvents) (TrimmedEvents, error)
	// EventsSize tells how large the log is.
	EventsSize(ctx context.Context) (EventsSize, error)
}

// EventsSize is how large an event log is.
type EventsSize struct {
	// Entries is how many numbers it spans, a few of which may have no entry.
	Entries int64
	// Oldest is the age of the first entry.
	Oldest time.Duration
}

// RelayConsumer is the name by which lists show how far NATS has the log.
const RelayConsumer = "wiggle.relay"

// StoredEvent is an entry of the event log.
type StoredEvent struct {
	Seq                 int64
	Instance            machine.ID
	Revision, Version   int32
	Namespace, Workflow string
	Type, Node, Key     string
	Time                time.Time
	Payload             []byte
	// Trace is the span that wrote it, as a W3C traceparent; empty if it was not sampled.
	Trace string
}

// EventPage is what one reading of the log found.
type EventPage struct {
	Events []StoredEvent
	// UpTo is the number to go on behind: the last entry's, or what was asked for.
	UpTo int64
	// More tells that a further reading would find more at once.
	More bool
}

// EventConsumer is how far a consumer is.
type EventConsumer struct {
	Name string
	// Seq is the last number that it has acknowledged, Behind about how many entries
	// follow.
	Seq, Behind int64
	AckedAt     time.Time
}

// TrimEvents says which entries are not kept: from the front of the log those that are
// older than Retention and that everybody has passed, and those older than HardCap.
type TrimEvents struct {
	Retention, HardCap time.Duration
	// After is the number behind which to look: what is before it was found to be gone.
	After int64
	Limit int
}

// TrimmedEvents is what a trim has done.
type TrimmedEvents struct {
	// UpTo is the number up to which nothing is left.
	UpTo    int64
	Deleted int
	More    bool
}
