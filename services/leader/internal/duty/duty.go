// Package duty runs what a leader does: each duty by itself, so that one that fails, as its shard is down, holds no other
// back.
//
//	          elected                     error
//	stopped ---------> running --------------------------> waiting (250 ms, doubling to 2 s, jittered)
//	   ^                |  ^                                  |
//	   |                |  +----------------------------------+
//	   +----------------+
//	   the term is over, or a write of any duty met a later one
package duty

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/wiggle-run/wiggle/pkg/lifecycle"
	"github.com/wiggle-run/wiggle/services/leader/internal/election"
)

// Pauses before a duty that failed is run again, and for how long it must run then before it counts as mended.
const (
	firstPause = 250 * time.Millisecond
	lastPause  = 2 * time.Second
	mendedTime = 2 * lastPause
)

// Duty is something that the leader does, for one shard or for the whole cluster.
//
// Run does it until ctx ends, under the term of the leader. Before each write it asks [election.Guard], whose context is
// the write's; and it writes fenced: rows that hold a term only under one that is no later than its own, writing its own
// with them. If a row holds a later one Run returns an *election.FencedError, and this process leads no more. Any other
// error is logged, and Run is called again after a pause.
type Duty struct {
	// Name is what it does, as in "heartbeat".
	Name string
	// Shard is whose database it is about; home's, for what is the whole cluster's.
	Shard int
	// Run does it.
	Run func(ctx context.Context, term int64) error
}

// Run runs the duties until ctx ends, or a write of one of them met a later term. Then it ends all of them and waits; its
// error is nil or an *election.FencedError.
func Run(ctx context.Context, term int64, log *slog.Logger, duties []Duty) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var running sync.WaitGroup
	for _, d := range duties {
		running.Go(func() {
			keeper := keeper{duty: d, log: log.With("duty", d.Name, "shard", d.Shard, "term", term)}
			if err := keeper.run(ctx, term); err != nil {
				stop(err)
			}
		})
	}
	running.Wait()
	if fenced, ok := errors.AsType[*election.FencedError](context.Cause(ctx)); ok {
		return fenced
	}
	return nil
}

// keeper keeps one duty running.
type keeper struct {
	duty Duty
	log  *slog.Logger

	mu     sync.Mutex
	failed bool // and not mended since
}

// run runs the duty again and again. Its error is that of a write that met a later term.
func (k *keeper) run(ctx context.Context, term int64) error {
	pause := firstPause
	for {
		began := time.Now()
		err := k.once(ctx, term)
		if ctx.Err() != nil {
			return nil //nolint:nilerr // it was told to end
		}
		if _, fenced := errors.AsType[*election.FencedError](err); fenced {
			return fmt.Errorf("%s of shard %d: %w", k.duty.Name, k.duty.Shard, err)
		}
		if err == nil {
			err = errors.New("returned although nobody stopped it")
		}
		k.report(err)
		if time.Since(began) > mendedTime {
			pause = firstPause
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause/2 + rand.N(pause/2)): //nolint:gosec // jitter
		}
		pause = min(2*pause, lastPause)
	}
}

// once runs the duty. If it does not fail at once again it is mended.
func (k *keeper) once(ctx context.Context, term int64) error {
	reported := make(chan struct{})
	mended := time.AfterFunc(mendedTime, func() {
		defer close(reported)
		k.report(nil)
	})
	defer func() {
		if !mended.Stop() {
			<-reported
		}
	}()
	return lifecycle.Protect(ctx, func(ctx context.Context) error { return k.duty.Run(ctx, term) })
}

// report logs when the duty begins to fail and when it works again.
func (k *keeper) report(err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	switch failed := err != nil; {
	case failed && !k.failed:
		k.log.Warn("a duty of the leader fails; it is tried again and again", "error", err)
	case !failed && k.failed:
		k.log.Info("the duty goes on")
	}
	k.failed = err != nil
}
