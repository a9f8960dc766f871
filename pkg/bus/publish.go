package bus

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

const (
	// maxRefusals is how often in a row a publisher finds the stream at another place than it expected, with nothing of its
	// own stored in between, before it says that it is not alone.
	maxRefusals = 3
	// stallTime bounds waiting for messages that were given up.
	stallTime = time.Second
	// codeWrongLastID is what a server says of a message that expects another last message than there is.
	codeWrongLastID jetstream.ErrorCode = 10070
)

// Publish appends events in their order to the stream of the given ID, and tells how many of them, from the first, are in
// it for certain. With an error the others may be there or not; giving them again is right, and stores none twice within
// ten minutes. ErrUnavailable, ErrDisplaced, ErrOtherStream.
func (b *Bus) Publish(ctx context.Context, stream string, events []Event) (stored int, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	refusals := 0
	for stored < len(events) {
		if err := b.see(ctx, stream); err != nil {
			return stored, err
		}
		n, err := b.append(ctx, events[stored:min(len(events), stored+b.window)])
		stored += n
		if n > 0 {
			refusals = 0
		}
		if err == nil {
			continue
		}
		b.seen = ""
		if !isWrongLast(err) {
			return stored, unavailable(ctx, "publish", err)
		}
		// The stream is further than was thought: by what was sent before and never answered, or by what it knew.
		if refusals++; refusals > maxRefusals {
			return stored, fmt.Errorf("publish: %w", ErrDisplaced)
		}
	}
	return stored, nil
}

// see makes sure that the end of the stream is known, and that it is the stream that is meant.
func (b *Bus) see(ctx context.Context, stream string) error {
	if b.seen == "" {
		s, err := b.EnsureStream(ctx)
		if err != nil {
			return err
		}
		// What was sent before may be there: events go one by one until one is new, since a server that knows an event does
		// not count it, and would refuse all that are sent along with it.
		b.seen, b.last, b.window = s.ID, s.Last, 1
	}
	if b.seen != stream {
		b.seen = ""
		return fmt.Errorf("publish: %w", ErrOtherStream)
	}
	return nil
}

// append sends events at once, each to stand right behind the one before, and waits for what became of them.
func (b *Bus) append(ctx context.Context, events []Event) (stored int, err error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	acks, err := b.send(ctx, events)
	for _, ack := range acks {
		select {
		case ok := <-ack.Ok():
			stored++
			if !ok.Duplicate {
				b.last, b.window = ok.Sequence, MaxInFlight
			}
		case failed := <-ack.Err():
			return stored, failed
		case <-ctx.Done():
			return stored, ctx.Err()
		}
	}
	return stored, err
}

// send sends events. Besides its number, each but the first names the event that it stands behind: the number alone would
// do where only one publisher sends, but not beside what an earlier one, or an earlier connection, still has under way.
func (b *Bus) send(ctx context.Context, events []Event) ([]jetstream.PubAckFuture, error) {
	acks := make([]jetstream.PubAckFuture, 0, len(events))
	behind := ""
	for i := range events {
		if ctx.Err() != nil {
			return acks, ctx.Err()
		}
		id := events[i].ID()
		options := []jetstream.PublishOpt{
			jetstream.WithMsgID(id), jetstream.WithExpectStream(StreamName),
			jetstream.WithExpectLastSequence(b.last + uint64(i)),
			jetstream.WithStallWait(stallTime), jetstream.WithRetryAttempts(0),
		}
		if behind != "" {
			options = append(options, jetstream.WithExpectLastMsgID(behind))
		}
		ack, err := b.js.PublishMsgAsync(events[i].message(b.conn.MaxPayload()), options...)
		if err != nil {
			return acks, err
		}
		acks = append(acks, ack)
		behind = id
	}
	return acks, nil
}

// isWrongLast tells whether the stream was not at the place that a message expected.
func isWrongLast(err error) bool {
	api, ok := errors.AsType[*jetstream.APIError](err)
	if !ok {
		return false
	}
	switch api.ErrorCode {
	case jetstream.JSErrCodeStreamWrongLastSequence, jetstream.JSErrCodeStreamWrongLastSequenceConstant, codeWrongLastID:
		return true
	default:
		return false
	}
}
