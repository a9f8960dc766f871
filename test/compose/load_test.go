//go:build compose

package compose

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/wiggle-run/wiggle/internal/demo"
	wiggle "github.com/wiggle-run/wiggle/sdk/go"
)

const (
	// batch is how many orders a run of the demo starts and sees complete.
	batch       = 60
	workers     = 2
	concurrency = 16
	workerGrace = 5 * time.Second
	// batchTime is how long two batches may take whatever happens to the stack.
	batchTime = 4 * time.Minute
)

// load runs batches of orders, one after the other, and workers for them, from outside the stack.
type load struct {
	t      *testing.T
	client *wiggle.Client
	stop   context.CancelFunc
	done   sync.WaitGroup
	began  time.Time

	mu      sync.Mutex
	batches int
	changed chan struct{} // closed when a batch is through, and made anew
	ended   bool
}

func startLoad(t *testing.T, client *wiggle.Client) *load {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	l := &load{t: t, client: client, stop: cancel, began: time.Now(), changed: make(chan struct{})}
	working, stopWorkers := context.WithCancel(t.Context())
	shop := &demo.Shop{}
	var atWork sync.WaitGroup
	for i := range workers {
		w := shop.Worker(client, wiggle.WorkerOptions{
			Name: fmt.Sprintf("outside-%d", i+1), Concurrency: concurrency, Grace: workerGrace, Logger: slog.New(slog.DiscardHandler),
		})
		atWork.Go(func() {
			if err := w.Run(working); err != nil {
				t.Errorf("worker: %v", err)
			}
		})
	}
	l.done.Go(func() {
		defer atWork.Wait()
		defer stopWorkers()
		l.run(ctx, shop)
	})
	return l
}

// run runs batches until ctx is done, and the last one to its end.
func (l *load) run(ctx context.Context, shop *demo.Shop) {
	for seed := uint64(1); ctx.Err() == nil; seed++ {
		result, err := demo.Run(l.t.Context(), l.client, shop, demo.Options{Count: batch, Seed: seed})
		failed := err != nil || result.Completed != batch || len(result.Problems) > 0
		if failed {
			l.t.Errorf("batch %d: %d of %d orders completed, %v: %q", seed, result.Completed, batch, err, result.Problems)
		}
		l.mu.Lock()
		l.batches++
		close(l.changed)
		l.changed = make(chan struct{})
		l.ended = failed
		l.mu.Unlock()
		if failed {
			return
		}
	}
}

// await waits until a batch has been started after now and is through.
func (l *load) await() {
	l.t.Helper()
	limit := time.NewTimer(batchTime)
	defer limit.Stop()
	for range 2 { // the one that runs, and the next
		l.mu.Lock()
		changed, ended := l.changed, l.ended
		l.mu.Unlock()
		if ended {
			l.t.Fatal("orders failed")
		}
		select {
		case <-changed:
		case <-limit.C:
			l.t.Fatalf("no batch of orders has ended within %v", batchTime)
		}
	}
}

// finish lets the last batch come to its end, and tells how many orders there were.
func (l *load) finish() (orders int) {
	l.stop()
	l.done.Wait()
	return l.batches * batch
}
