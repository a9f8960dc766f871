package wiggle

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
)

// Types of the events that tell what became of an instance. Handlers [Emit] others.
const (
	EventStarted   = "wf.started"
	EventCompleted = "wf.completed"
	EventFailed    = "wf.failed"
	EventCancelled = "wf.cancelled"
)

// Event is one entry of the event log.
type Event struct {
	// Cursor names the event and all that were delivered before it, for
	// [Client.AckEvents] and [EventOptions].After. Opaque.
	Cursor string
	// Shard whose log it is from, and its number there: rising, with gaps. Together
	// they name the event for ever.
	Shard int
	Seq   int64
	// InstanceID of the instance, of Workflow at Version, in Namespace, with its Key if
	// it has one.
	InstanceID string
	Namespace  string
	Workflow   string
	Version    int
	Key        string
	// Type: [EventStarted], [EventCompleted], [EventFailed], [EventCancelled], or what a
	// handler emitted.
	Type string
	// Node whose handler emitted it. Empty for what became of the instance.
	Node string
	// Time when it was written, by the clock of the shard.
	Time time.Time
	// Revision of the instance when it was written: higher is later.
	Revision int

	payload *wigglev1.Payload
}

// Decode reads what the handler emitted into a pointer. What tells what became of an
// instance carries nothing, and leaves it as it is.
func (e *Event) Decode(into any) error { return decode(e.payload, into) }

// Payload is what the handler emitted, as bytes.
func (e *Event) Payload() Payload {
	var p Payload
	if err := decode(e.payload, &p); err != nil {
		return Payload{}
	}
	return p
}

func eventOf(e *wigglev1.Event) *Event {
	return &Event{
		Cursor: e.GetCursor(), Shard: int(e.GetShard()), Seq: e.GetSeq(), InstanceID: e.GetInstanceId(), Namespace: e.GetNamespace(),
		Workflow: e.GetWorkflow(), Version: int(e.GetVersion()), Key: e.GetKey(), Type: e.GetType(), Node: e.GetNode(),
		Time: timeOf(e.GetTime()), Revision: int(e.GetRevision()), payload: e.GetPayload(),
	}
}

// EventStart says where a consumer begins that the shards do not know yet.
type EventStart int32

const (
	// FromTail begins with what is written from now on. It is what holds for a new
	// consumer where nothing is said.
	FromTail = EventStart(wigglev1.EventStart_EVENT_START_TAIL)
	// FromEarliest begins with the earliest event that is kept.
	FromEarliest = EventStart(wigglev1.EventStart_EVENT_START_EARLIEST)
)

// EventOptions say what [Client.Events] reads. The zero value is every event of the
// client's namespace.
type EventOptions struct {
	// Start says where a consumer begins that is not known, or a read without one. Zero:
	// a new one at the tail, and on a shard that was added since, or was away when it was
	// new, with the earliest event.
	Start EventStart
	// After reads behind a cursor.
	After string
	// Workflows. Empty means all.
	Workflows []string
	// Types; one that ends with ".*" stands for all that begin so. Empty means all.
	Types []string
	// AllowPartial goes on with the other shards when one does not answer. Its events
	// come later.
	AllowPartial bool
}

// eventWait is how long one call waits for events, and eventPage how many it brings.
const (
	eventWait = 30 * time.Second
	eventPage = 500
)

// Events iterates over the events that follow what the consumer has acknowledged, and
// waits for more, until ctx is done. They are in order for each instance, and none is
// skipped; what was not acknowledged with [Client.AckEvents] comes again to the next
// who reads for the consumer: delivery is at least once. Without a consumer's name no
// position is kept.
//
//	for event, err := range client.Events(ctx, "billing", wiggle.EventOptions{Types: []string{"order.*"}}) {
//		if err != nil {
//			return err // range again to go on
//		}
//		if err := handle(event); err != nil {
//			return err
//		}
//		if err := client.AckEvents(ctx, "billing", event.Cursor); err != nil {
//			return err
//		}
//	}
//
// Acknowledging every hundredth event or so is as good, and costs less. An error ends
// the iteration; a server that is away is waited for as by other calls. With
// [EventOptions].AllowPartial a [*PartialError] comes between events when it is no longer
// the same shards that are missing, and ends nothing.
func (c *Client) Events(ctx context.Context, consumer string, opts EventOptions) iter.Seq2[*Event, error] {
	return func(yield func(*Event, error) bool) {
		req := c.eventRequest(consumer, opts)
		known := ""
		for ctx.Err() == nil {
			res, err := call(ctx, c, "poll events", eventWait+callTimeout, c.events.PollEvents, req)
			if err != nil {
				if ctx.Err() == nil {
					yield(nil, err)
				}
				return
			}
			missing := missingShards{}
			missing.add("poll events", res.GetShards())
			for _, e := range res.GetEvents() {
				if !yield(eventOf(e), nil) {
					return
				}
			}
			if now := fmt.Sprint(sortedShards(missing)); now != known {
				known = now
				if err := missing.err(); err != nil && !yield(nil, err) {
					return
				}
			}
			req.After = res.GetCursor()
		}
	}
}

func sortedShards(m missingShards) []int {
	var e *PartialError
	if !errors.As(m.err(), &e) {
		return nil
	}
	shards := make([]int, len(e.Missing))
	for i, s := range e.Missing {
		shards[i] = s.Shard
	}
	return shards
}

func (c *Client) eventRequest(consumer string, opts EventOptions) *wigglev1.PollEventsRequest {
	req := &wigglev1.PollEventsRequest{
		Consumer: consumer, Start: wigglev1.EventStart(opts.Start), After: opts.After, MaxEvents: eventPage,
		Filter: &wigglev1.EventFilter{Namespace: c.namespace, Workflows: opts.Workflows, Types: opts.Types},
		Wait:   durationpb.New(eventWait), MissingShards: wigglev1.MissingShards_MISSING_SHARDS_FAIL,
	}
	if opts.AllowPartial {
		req.MissingShards = wigglev1.MissingShards_MISSING_SHARDS_PARTIAL
	}
	return req
}

// AckEvents acknowledges, for a consumer, the event with a cursor and all that were
// delivered before it: they are not delivered to it again, and not kept for it. It never
// moves a consumer back. [ErrShardsMissing] names shards that did not answer; the others
// know, and doing it again is safe.
func (c *Client) AckEvents(ctx context.Context, consumer, cursor string) error {
	_, err := call(ctx, c, "acknowledge events", callTimeout, c.events.AckEvents,
		&wigglev1.AckEventsRequest{Consumer: consumer, Cursor: cursor})
	return err
}

// EventConsumer is how far a consumer of events is.
type EventConsumer struct {
	// Name. "wiggle.relay" is what brings the log to NATS.
	Name string
	// Positions by shard, in their order.
	Positions []EventPosition
}

// EventPosition is how far a consumer is on one shard.
type EventPosition struct {
	// Shard.
	Shard int
	// Seq of the last event that it has acknowledged, and about how many are Behind it.
	Seq, Behind int64
	// AckedAt is when it acknowledged last, by the clock of the shard.
	AckedAt time.Time
}

// EventConsumers lists the consumers of events, by name. With [AllowPartial] it may
// return both a list and a [*PartialError].
func (c *Client) EventConsumers(ctx context.Context, opts ...ListOption) ([]EventConsumer, error) {
	res, err := call(ctx, c, "list event consumers", callTimeout, c.events.ListEventConsumers,
		&wigglev1.ListEventConsumersRequest{MissingShards: listConfigOf(opts).missing})
	if err != nil {
		return nil, err
	}
	list := make([]EventConsumer, 0, len(res.GetConsumers()))
	for _, e := range res.GetConsumers() {
		one := EventConsumer{Name: e.GetName()}
		for _, p := range e.GetPositions() {
			one.Positions = append(one.Positions, EventPosition{
				Shard: int(p.GetShard()), Seq: p.GetSeq(), Behind: p.GetBehind(), AckedAt: timeOf(p.GetAckedAt()),
			})
		}
		list = append(list, one)
	}
	missing := missingShards{}
	missing.add("list event consumers", res.GetShards())
	return list, missing.err()
}

// DeleteEventConsumer forgets a consumer of events, known or not: nothing is kept for
// it any more.
func (c *Client) DeleteEventConsumer(ctx context.Context, name string) error {
	_, err := call(ctx, c, "delete event consumer", callTimeout, c.events.DeleteEventConsumer,
		&wigglev1.DeleteEventConsumerRequest{Consumer: name})
	return err
}

// What a handler may emit.
const (
	maxEmitted   = 100
	maxEventType = 128
)

// Emit adds an event to the event log of the instance, with the step's report or not at
// all: if the handler fails, or its lease is lost, it never was. The payload is a JSON
// object; nil is an empty one. Events are in the log in the order in which a handler
// emitted them, at most 100. Errors: a type that begins with "wf." or has other
// characters than letters, digits, '.', '_' and '-', a payload that is no object. A
// payload over the server's limit (64 KiB) has the report refused, which fails the
// attempt. Outside of a handler it does nothing.
func Emit(ctx context.Context, kind string, payload any) error {
	h := heldFrom(ctx)
	if h == nil {
		return nil
	}
	if err := checkEventType(kind); err != nil {
		return NonRetryable(err)
	}
	event := &wigglev1.EmittedEvent{Type: kind}
	if payload != nil {
		p, err := encode(payload)
		if err != nil {
			return ErrorType(typePayload, &payloadError{"the event", err})
		}
		if text := strings.TrimLeft(string(p.GetData()), " \t\r\n"); !isJSON(p.GetContentType()) || !strings.HasPrefix(text, "{") {
			return ErrorType(typePayload, &payloadError{"the event", fmt.Errorf("%T is no JSON object", payload)})
		}
		event.Payload = p
	}
	h.emitMu.Lock()
	defer h.emitMu.Unlock()
	if len(h.emitted) >= maxEmitted {
		return NonRetryable(fmt.Errorf("wiggle: emit %q: the handler has emitted %d events, which is the most", kind, maxEmitted))
	}
	h.emitted = append(h.emitted, event)
	return nil
}

func checkEventType(kind string) error {
	if strings.HasPrefix(kind, "wf.") {
		return fmt.Errorf("wiggle: emit %q: types that begin with \"wf.\" are the engine's own", kind)
	}
	ok := kind != "" && len(kind) <= maxEventType
	for i, r := range kind {
		letter := r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9'
		ok = ok && (letter || i > 0 && (r == '.' || r == '_' || r == '-'))
	}
	if !ok {
		return fmt.Errorf("wiggle: emit %q: want 1 to %d letters, digits, '.', '_' and '-', the first a letter or digit",
			kind, maxEventType)
	}
	return nil
}

// takeEmitted is what the handler that was given ctx has emitted.
func takeEmitted(ctx context.Context) []*wigglev1.EmittedEvent {
	h := heldFrom(ctx)
	if h == nil {
		return nil
	}
	h.emitMu.Lock()
	defer h.emitMu.Unlock()
	events := h.emitted
	h.emitted = nil
	return events
}
