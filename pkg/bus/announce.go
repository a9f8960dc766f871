package bus

import (
	"errors"
	"fmt"

	"github.com/nats-io/nats.go"
)

// maxHeard is how many announcements a subscription keeps that are not handled yet; more are dropped.
const maxHeard = 1024

// Announce sends a message to whoever listens on the subject now. Nothing keeps it: who is not connected misses it, so it can
// only be a hint to look sooner. It does not wait for NATS. ErrUnavailable while that is away.
func (b *Bus) Announce(subject string, data []byte) error {
	if !b.Connected() {
		return fmt.Errorf("announce: %w: %w", ErrUnavailable, errNotConnected)
	}
	if err := b.conn.Publish(subject, data); err != nil {
		return fmt.Errorf("announce: %w: %w", ErrUnavailable, err)
	}
	return nil
}

// Listen calls heard with the data of every message on the subject, one at a time, from now until stop is called. It
// survives the loss of the connection; messages sent meanwhile are lost.
func (b *Bus) Listen(subject string, heard func(data []byte)) (stop func(), err error) {
	sub, err := b.conn.Subscribe(subject, func(m *nats.Msg) { heard(m.Data) })
	if err == nil {
		err = sub.SetPendingLimits(maxHeard, -1)
	}
	if err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	return func() {
		if err := sub.Unsubscribe(); err != nil && !errors.Is(err, nats.ErrConnectionClosed) && !errors.Is(err, nats.ErrBadSubscription) {
			b.log.Warn("a subscription could not be ended", "subject", subject, "error", err)
		}
	}, nil
}
