package bus

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

const (
	// ackWait is how long a follower may take for an event before it is delivered again.
	ackWait = 30 * time.Second
	// maxAckPending is how many events a group of followers may have in hand.
	maxAckPending = 10_000
	// leastWait is what the client can wait for at least.
	leastWait = 10 * time.Millisecond
)

// Follower reads the stream as one of a group that shares it: each event goes to one of them, and again to one of them if
// it is not acknowledged within half a minute. A Follower is for one goroutine; acknowledging is for any.
type Follower struct {
	bus      *Bus
	name     string
	consumer jetstream.Consumer
}

// Follow prepares to read the stream from its beginning on, or from where the group of that name has come to. Nothing is
// asked of NATS yet.
func (b *Bus) Follow(group string) *Follower { return &Follower{bus: b, name: group} }

// Delivery is an event that is to be acknowledged.
type Delivery struct {
	Event
	// Attempt counts the deliveries of the event, from 1.
	Attempt int
	msg     jetstream.Msg
}

// Ack tells that the event is dealt with. An error means that it may be delivered again.
func (d *Delivery) Ack() error { return d.msg.Ack() }

// Retry asks for the event again after a pause.
func (d *Delivery) Retry(after time.Duration) error { return d.msg.NakWithDelay(after) }

// Fetch waits until there are events, at most for the given time, and takes what is there, at most so many. No event is no
// error. What is no event of Wiggle's is acknowledged and left out. ErrUnavailable.
func (f *Follower) Fetch(ctx context.Context, most int, wait time.Duration) ([]Delivery, error) {
	if f.consumer == nil {
		if err := f.open(ctx); err != nil {
			return nil, err
		}
	}
	got, err := f.fetch(ctx, func() (jetstream.MessageBatch, error) { return f.consumer.FetchNoWait(most) })
	if err != nil || len(got) > 0 || wait <= 0 {
		return got, err
	}
	// A fetch that waits does so until it has all that it asked for: it asks for one.
	waiting, cancel := context.WithTimeout(ctx, max(wait, leastWait))
	defer cancel()
	got, err = f.fetch(ctx, func() (jetstream.MessageBatch, error) {
		return f.consumer.Fetch(1, jetstream.FetchContext(waiting))
	})
	if err != nil || len(got) == 0 || most == 1 {
		return got, err
	}
	more, err := f.fetch(ctx, func() (jetstream.MessageBatch, error) { return f.consumer.FetchNoWait(most - 1) })
	if ctx.Err() == nil {
		err = nil // what there is comes first; the next call meets it again
	}
	return append(got, more...), err
}

// fetch takes what a request to the consumer gets.
func (f *Follower) fetch(ctx context.Context, request func() (jetstream.MessageBatch, error)) ([]Delivery, error) {
	if !f.bus.Connected() {
		f.consumer = nil // the stream may be another one then
		return nil, unavailable(ctx, "fetch events", errNotConnected)
	}
	batch, err := request()
	if err != nil {
		f.consumer = nil
		return nil, unavailable(ctx, "fetch events", err)
	}
	var got []Delivery
	for msg := range batch.Messages() {
		d := Delivery{msg: msg, Attempt: 1}
		if d.Event, err = Parse(msg.Headers(), msg.Data()); err != nil {
			f.bus.log.Warn("left out a message of the event stream", "subject", msg.Subject(), "error", err)
			_ = msg.Ack()
			continue
		}
		if meta, err := msg.Metadata(); err == nil {
			d.Attempt = int(meta.NumDelivered) //nolint:gosec // small
		}
		got = append(got, d)
	}
	err = batch.Error()
	switch {
	case ctx.Err() != nil:
		return got, unavailable(ctx, "fetch events", ctx.Err())
	case err == nil, len(got) > 0, errors.Is(err, jetstream.ErrNoMessages), errors.Is(err, context.DeadlineExceeded):
		return got, nil
	}
	f.consumer = nil
	return nil, unavailable(ctx, "fetch events", err)
}

// Pending is how many events wait for the group, those in hand included: at least those that were stored when it was called.
// Events that the stream has given up before the group came to them may be counted too.
func (f *Follower) Pending(ctx context.Context) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	// The consumer's own count learns of an event a moment after it was stored, so the stream's end is asked for, and before.
	stream, err := f.bus.js.Stream(ctx, StreamName)
	if err != nil {
		return 0, unavailable(ctx, "look at the stream", err)
	}
	consumer, err := stream.Consumer(ctx, f.name)
	if err != nil {
		return 0, unavailable(ctx, "look at the consumer", err)
	}
	info, state := consumer.CachedInfo(), stream.CachedInfo().State
	undelivered := info.NumPending
	if delivered := info.Delivered.Stream; state.LastSeq > delivered {
		undelivered = max(undelivered, min(state.LastSeq-delivered, state.Msgs))
	}
	return int64(undelivered) + int64(info.NumAckPending), nil //nolint:gosec // counts
}

func (f *Follower) open(ctx context.Context) error {
	if _, err := f.bus.EnsureStream(ctx); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	consumer, err := f.bus.js.CreateOrUpdateConsumer(ctx, StreamName, jetstream.ConsumerConfig{
		Durable: f.name, DeliverPolicy: jetstream.DeliverAllPolicy, AckPolicy: jetstream.AckExplicitPolicy,
		AckWait: ackWait, MaxAckPending: maxAckPending, ReplayPolicy: jetstream.ReplayInstantPolicy,
	})
	if err != nil {
		return unavailable(ctx, fmt.Sprintf("open consumer %q", f.name), err)
	}
	f.consumer = consumer
	return nil
}
