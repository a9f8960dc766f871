// Package heartbeat writes the row by which the lag of replicas is measured (REP-1), on every primary, once a second; and
// it tells the relay of the same shard, which needs no statement of its own then, whether the event log has grown.
package heartbeat

import (
	"context"
	"sync"
	"time"

	"github.com/wiggle-run/wiggle/services/leader/internal/election"
)

// Every is the pause between two beats.
const Every = time.Second

// Database is the shard.
type Database interface {
	// Open waits for nothing: it fails unless the shard is migrated and claimed.
	Open(ctx context.Context) error
	// Beat writes the heartbeat and tells the last number of the event log.
	Beat(ctx context.Context, term int64) (last int64, err error)
}

// Heart is the duty for one shard.
type Heart struct {
	db    Database
	pulse *Pulse
}

// New makes the duty. What it sees goes to the pulse.
func New(db Database, pulse *Pulse) *Heart { return &Heart{db: db, pulse: pulse} }

// Run beats until ctx ends.
func (h *Heart) Run(ctx context.Context, term int64) error {
	if err := h.db.Open(ctx); err != nil {
		return err
	}
	ticker := time.NewTicker(Every)
	defer ticker.Stop()
	for {
		if err := h.beat(ctx, term); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

func (h *Heart) beat(ctx context.Context, term int64) error {
	ctx, cancel, err := election.Guard(ctx)
	if err != nil {
		return err
	}
	defer cancel()
	last, err := h.db.Beat(ctx, term)
	if err != nil {
		return err
	}
	h.pulse.set(last)
	return nil
}

// Pulse is what the heartbeat of a shard saw last. It is safe for concurrent use.
type Pulse struct {
	mu   sync.Mutex
	last int64
	at   time.Time
	grew chan struct{} // holds one if last has risen since it was taken
}

// NewPulse makes a pulse that has seen nothing.
func NewPulse() *Pulse { return &Pulse{grew: make(chan struct{}, 1)} }

func (p *Pulse) set(last int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	grew := last > p.last
	p.last, p.at = last, time.Now()
	if !grew {
		return
	}
	select {
	case p.grew <- struct{}{}:
	default:
	}
}

// Last is the last number of the event log that a beat saw, and when that was; zero if there was none.
func (p *Pulse) Last() (number int64, seen time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.last, p.at
}

// Grew is ready when the event log has grown.
func (p *Pulse) Grew() <-chan struct{} { return p.grew }
