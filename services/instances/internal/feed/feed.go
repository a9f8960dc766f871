package feed

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/wiggle-run/wiggle/services/instances/internal/store"
)

// How long a feed pauses between looks.
const (
	// afterCommit is the least: commits of this process say that there is something, and a busy shard has hundreds in a
	// second.
	afterCommit = 10 * time.Millisecond
	// While transactions hold the log back, they end soon.
	firstOpenPause, lastOpenPause = 5 * time.Millisecond, 50 * time.Millisecond
	// While nothing happens here, another process may have written.
	firstPause, lastPause = 50 * time.Millisecond, time.Second
)

// Feed tells those who wait for the event log of a shard that there may be something. Run must be running for that.
type Feed struct {
	shard    int
	log      store.Events
	draining <-chan struct{}

	waiting atomic.Int64
	joined  chan struct{} // somebody waits
	written chan struct{} // this process has written

	mu     sync.Mutex
	signal chan struct{} // closed, and another put in its place, to wake all
}

// New makes the feed of a shard. draining is closed when those who wait are to be sent home.
func New(shard int, log store.Events, draining <-chan struct{}) *Feed {
	return &Feed{
		shard: shard, log: log, draining: draining,
		joined: make(chan struct{}, 1), written: make(chan struct{}, 1), signal: make(chan struct{}),
	}
}

// Logged takes note that this process has written to the log. It does not block.
func (f *Feed) Logged() {
	if f.waiting.Load() > 0 {
		poke(f.written)
	}
}

func poke(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Run looks at the log while somebody waits, until ctx is done.
func (f *Feed) Run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-f.joined:
			f.follow(ctx)
		}
	}
}

// follow looks until nobody waits.
func (f *Feed) follow(ctx context.Context) {
	const unknown = -1
	known, idle, open := int64(unknown), firstPause, firstOpenPause
	timer := time.NewTimer(0)
	defer timer.Stop()
	<-timer.C
	for f.waiting.Load() > 0 {
		looked := time.Now()
		decided, undecided, err := f.log.DecidedEvents(ctx)
		pause := idle
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			f.wakeAll() // they find out what it is
			known, idle = unknown, lastPause
			pause = idle
		case decided != known:
			f.wakeAll()
			known, idle, open = decided, firstPause, firstOpenPause
			pause = idle
		default:
			idle = min(2*idle, lastPause)
		}
		if undecided {
			pause, open = open, min(2*open, lastOpenPause)
		}
		timer.Reset(pause)
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		case <-f.written:
			idle = firstPause
			timer.Reset(time.Until(looked.Add(afterCommit)))
			select {
			case <-ctx.Done():
				return
			case <-timer.C:
			}
		}
	}
}

func (f *Feed) wakeAll() {
	f.mu.Lock()
	defer f.mu.Unlock()
	close(f.signal)
	f.signal = make(chan struct{})
}

// join takes part in the waiting until leave is called.
func (f *Feed) join() (leave func()) {
	if f.waiting.Add(1) == 1 {
		poke(f.joined)
	}
	return func() { f.waiting.Add(-1) }
}

// armed is closed when there may be something that was not there before the call.
func (f *Feed) armed() <-chan struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.signal
}
