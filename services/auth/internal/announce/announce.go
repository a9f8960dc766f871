// Package announce tells caches of changes by NATS (AUT-5), on the subject wiggle.auth.changes, as encoded
// wiggle.internal.v1.ListChangesResponse messages. It is a hint: a cache that misses it finds the change by its next look at
// the revision. So nothing here waits, is tried again, or is kept beyond a bounded number.
package announce

import (
	"context"
	"errors"
	"log/slog"

	"google.golang.org/protobuf/proto"

	"github.com/wiggle-run/wiggle/pkg/bus"
	internalv1 "github.com/wiggle-run/wiggle/proto/gen/wiggleinternal/v1"
)

const (
	// Subject is where changes are told.
	Subject = "wiggle.auth.changes"
	// maxPending is how many changes wait to be told; more are dropped.
	maxPending = 256
)

// Herald tells changes.
type Herald struct {
	bus     *bus.Bus
	log     *slog.Logger
	pending chan *internalv1.ListChangesResponse
}

// New prepares a connection to NATS, which may be away.
func New(cfg bus.Config, log *slog.Logger) (*Herald, error) {
	b, err := bus.Open(cfg)
	if err != nil {
		return nil, err
	}
	return &Herald{bus: b, log: log, pending: make(chan *internalv1.ListChangesResponse, maxPending)}, nil
}

// Tell has a change told soon. It never blocks.
func (h *Herald) Tell(changes *internalv1.ListChangesResponse) {
	select {
	case h.pending <- changes:
	default:
	}
}

// Run tells changes until ctx is done.
func (h *Herald) Run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case changes := <-h.pending:
			if err := h.tell(changes); err != nil && !errors.Is(err, bus.ErrUnavailable) {
				h.log.WarnContext(ctx, "a change could not be told by NATS; caches find it by themselves", slog.Any("error", err))
			}
		}
	}
}

func (h *Herald) tell(changes *internalv1.ListChangesResponse) error {
	data, err := proto.Marshal(changes)
	if err != nil {
		return err
	}
	return h.bus.Announce(Subject, data)
}

// Connected tells whether NATS answers.
func (h *Herald) Connected() bool { return h.bus.Connected() }

// Close ends the connection.
func (h *Herald) Close() { h.bus.Close() }
