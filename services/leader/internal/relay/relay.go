package relay

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/wiggle-run/wiggle/pkg/bus"
	"github.com/wiggle-run/wiggle/pkg/postgres/eventlog"
	"github.com/wiggle-run/wiggle/pkg/shardid"
	"github.com/wiggle-run/wiggle/services/leader/internal/election"
	"github.com/wiggle-run/wiggle/services/leader/internal/heartbeat"
	"github.com/wiggle-run/wiggle/services/leader/internal/store"
)

const (
	// pageSize is how many entries are read and published at a time.
	pageSize = 500
	// saveEvery is how often the cursor is written while events flow: what comes again when the leader dies.
	saveEvery = 200 * time.Millisecond
	// Pauses between looks at the log: the first after one that found something, the last before the relay is idle.
	firstPause = 50 * time.Millisecond
	lastPause  = 800 * time.Millisecond
	// rest is how long a relay that has a full page behind it rests, in terms of what the page took: what it makes up for takes
	// a quarter of its time, as work on the same machines goes before.
	rest = 3
	// Pauses while NATS is away.
	awayPause     = 250 * time.Millisecond
	lastAwayPause = 2 * time.Second
	// pulseTime is how long a relay without news from the heartbeat stays idle.
	pulseTime = 5 * time.Second
	// saveTime bounds writing the cursor at the end.
	saveTime = time.Second
)

// Database is the shard.
type Database interface {
	// Open waits for nothing: it fails unless the shard is migrated and claimed.
	Open(ctx context.Context) error
	// TakeCursor reads the cursor and keeps earlier leaders from writing it.
	TakeCursor(ctx context.Context, term int64) (store.Cursor, error)
	// WriteCursor writes the cursor.
	WriteCursor(ctx context.Context, term int64, c store.Cursor) error
	// NewReader makes a reader of the event log.
	NewReader() *eventlog.Reader
}

// Relay is the duty for one shard.
type Relay struct {
	shard int
	db    Database
	hub   *Hub
	pulse *heartbeat.Pulse
	log   *slog.Logger
	// Tracer makes the spans of what is published. Nil: none. It is set before Run.
	Tracer trace.Tracer

	relayed atomic.Int64 // entries, by this process
	working atomic.Bool
	passed  atomic.Int64 // the number up to which NATS has everything; some behind the cursor may have no entry
	current atomic.Int64 // unix nanoseconds when NATS last had everything
}

// New makes the duty.
func New(shard int, db Database, hub *Hub, pulse *heartbeat.Pulse, log *slog.Logger) *Relay {
	return &Relay{shard: shard, db: db, hub: hub, pulse: pulse, log: log.With("shard", shard)}
}

// Run relays until ctx ends.
func (r *Relay) Run(ctx context.Context, term int64) error {
	if err := r.db.Open(ctx); err != nil {
		return err
	}
	guarded, cancel, err := election.Guard(ctx)
	if err != nil {
		return err
	}
	cursor, err := r.db.TakeCursor(guarded, term)
	cancel()
	if err != nil {
		return err
	}
	r.passed.Store(cursor.Seq)
	r.current.Store(time.Now().UnixNano())
	r.working.Store(true)
	defer r.working.Store(false)
	t := &turn{Relay: r, term: term, reader: r.db.NewReader(), cursor: cursor, saved: cursor, pause: firstPause}
	return t.run(ctx)
}

// turn is one running of a relay.
type turn struct {
	*Relay
	term          int64
	reader        *eventlog.Reader
	cursor, saved store.Cursor
	savedAt       time.Time
	pause         time.Duration // after which to look again; above lastPause the relay is idle
}

func (t *turn) run(ctx context.Context) error {
	away := awayPause
	for ctx.Err() == nil {
		err := t.once(ctx)
		var wait time.Duration
		switch {
		case err == nil:
			wait, away = t.pause, awayPause
		case ctx.Err() != nil, errors.Is(err, bus.ErrOtherStream):
		case errors.Is(err, bus.ErrUnavailable):
			wait = away/2 + rand.N(away/2) //nolint:gosec // jitter
			away = min(2*away, lastAwayPause)
		default:
			return err
		}
		if wait > lastPause && err == nil {
			t.idle(ctx)
		} else if wait > 0 {
			sleep(ctx, wait)
		}
	}
	return t.saveLast(ctx)
}

// once looks at the log, publishes a page of what stands behind the cursor, and tells by t.pause when to look again.
func (t *turn) once(ctx context.Context) error {
	stream, err := t.hub.Stream(ctx)
	if err != nil {
		return err
	}
	if stream != t.cursor.Stream {
		t.restart(stream)
	}
	began := time.Now()
	given, _ := t.pulse.Last()
	page, err := t.reader.Read(ctx, t.cursor.Seq, pageSize)
	if err != nil {
		return fmt.Errorf("relay: %w", err)
	}
	stored, err := t.publish(ctx, stream, page.Entries)
	t.relayed.Add(int64(stored))
	if stored < len(page.Entries) {
		if stored > 0 {
			t.advance(page.Entries[stored-1].Seq)
		}
		return err
	}
	t.advance(page.UpTo)
	switch {
	case page.More:
		t.pause = min(rest*time.Since(began), lastPause)
	case len(page.Entries) > 0:
		t.pause = firstPause
	case page.Undecided:
		t.pause = min(2*t.pause, lastPause)
	default:
		t.pause *= 2
	}
	if !page.More && !page.Undecided {
		t.passed.Store(max(t.cursor.Seq, given))
		t.current.Store(time.Now().UnixNano())
	}
	if len(page.Entries) > 0 && time.Since(t.savedAt) < saveEvery {
		return nil
	}
	return t.save(ctx)
}

func (t *turn) publish(ctx context.Context, stream string, entries []eventlog.Entry) (stored int, err error) {
	ctx, cancel, err := election.Guard(ctx)
	if err != nil {
		return 0, err
	}
	defer cancel()
	events := t.events(entries)
	spans := t.begin(ctx, events)
	stored, err = t.hub.Publish(ctx, stream, events)
	spans.end(stored, err)
	return stored, err
}

// idle waits until the log has grown, the stream may be another, or no heartbeat tells.
func (t *turn) idle(ctx context.Context) {
	timer := time.NewTimer(pulseTime)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
			stream, err := t.hub.Stream(ctx)
			_, seen := t.pulse.Last()
			if err == nil && stream == t.cursor.Stream && time.Since(seen) < pulseTime {
				timer.Reset(pulseTime)
				continue
			}
		case <-t.pulse.Grew():
			if last, _ := t.pulse.Last(); last <= t.cursor.Seq {
				continue
			}
		}
		t.pause = firstPause
		return
	}
}

// restart begins anew with another making of the stream.
func (t *turn) restart(stream string) {
	if t.cursor.Stream != "" {
		t.log.Warn("NATS has another stream than before, without what was in that: relaying again from the earliest entry" +
			" that the shard keeps")
	}
	t.cursor = store.Cursor{Stream: stream}
	t.passed.Store(0)
	t.pause = firstPause
}

func (t *turn) advance(seq int64) {
	t.cursor.Seq = seq
	t.passed.Store(seq)
}

// save writes the cursor if it has moved.
func (t *turn) save(ctx context.Context) error {
	if t.cursor == t.saved {
		return nil
	}
	ctx, cancel, err := election.Guard(ctx)
	if err != nil {
		return err
	}
	defer cancel()
	if err := t.db.WriteCursor(ctx, t.term, t.cursor); err != nil {
		return err
	}
	t.saved, t.savedAt = t.cursor, time.Now()
	return nil
}

// saveLast writes the cursor when the relay has been told to end, if that is because the process stops: it holds the lease
// still.
func (t *turn) saveLast(ctx context.Context) error {
	if t.cursor == t.saved || !election.HandingBack(ctx) {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), saveTime)
	defer cancel()
	return t.db.WriteCursor(ctx, t.term, t.cursor)
}

func (t *turn) events(entries []eventlog.Entry) []bus.Event {
	events := make([]bus.Event, len(entries))
	for i, e := range entries {
		events[i] = bus.Event{
			Shard: t.shard, Seq: e.Seq, Instance: shardid.NewInstance(t.shard, e.Instance).String(), Revision: e.Revision,
			Namespace: e.Namespace, Workflow: e.Workflow, Version: e.Version, Key: e.Key, Type: e.Type, Node: e.Node,
			Time: e.Time, Payload: e.Payload, Trace: e.Trace,
		}
	}
	return events
}

func sleep(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}
