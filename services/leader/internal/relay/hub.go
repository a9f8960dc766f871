package relay

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/wiggle-run/wiggle/pkg/bus"
)

// lookEvery is how old the knowledge may be of which making of the stream there is.
const lookEvery = 5 * time.Second

// Hub is the connection to NATS that the relays of all shards share. It is safe for concurrent use.
type Hub struct {
	cfg bus.Config
	log *slog.Logger

	mu     sync.Mutex
	bus    *bus.Bus
	stream string
	looked time.Time
	away   bool
}

// NewHub makes the hub. It connects when it is first used.
func NewHub(cfg bus.Config, log *slog.Logger) *Hub { return &Hub{cfg: cfg, log: log} }

// Close ends the connection.
func (h *Hub) Close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.bus != nil {
		h.bus.Close()
	}
}

// Connected tells whether NATS answers.
func (h *Hub) Connected() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.bus != nil && h.bus.Connected()
}

// Stream makes the stream if it is not there, and tells its ID as it was a moment ago.
func (h *Hub) Stream(ctx context.Context) (string, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return "", err
	}
	if h.bus == nil {
		var err error
		if h.bus, err = bus.Open(h.cfg); err != nil {
			return "", err
		}
	}
	if h.stream != "" && time.Since(h.looked) < lookEvery && h.bus.Connected() {
		return h.stream, nil
	}
	stream, err := h.bus.EnsureStream(ctx)
	h.report(err)
	if err != nil {
		return "", err
	}
	h.stream, h.looked = stream.ID, time.Now()
	return h.stream, nil
}

// Publish appends events to the stream of that ID, as [bus.Bus.Publish].
func (h *Hub) Publish(ctx context.Context, stream string, events []bus.Event) (stored int, err error) {
	h.mu.Lock()
	b := h.bus
	h.mu.Unlock()
	stored, err = b.Publish(ctx, stream, events)
	if err != nil {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.stream = "" // look again
		h.report(err)
	}
	return stored, err
}

// report logs when NATS stops and begins to answer; h.mu is held.
func (h *Hub) report(err error) {
	away := errors.Is(err, bus.ErrUnavailable)
	switch {
	case away && !h.away:
		h.log.Warn("NATS does not answer: events wait in the shards until it does", "error", err)
	case err == nil && h.away:
		h.log.Info("NATS answers again: events are relayed")
	case err != nil && !away:
		return
	}
	h.away = away
}
