package cluster

import (
	"context"
	"maps"
	"os"
	"sync"
	"time"

	"github.com/wiggle-run/wiggle/internal/bench/procfs"
)

// watchEvery is how often memory is looked at.
const watchEvery = time.Second

// resident is what every process that can be seen holds, by name.
func (c *Cluster) resident() map[string]int64 {
	held := map[string]int64{ProcessBench: procfs.ResidentBytes(os.Getpid())}
	for _, p := range c.Processes() {
		held[p.Name] += procfs.ResidentBytes(p.PID())
	}
	if c.server != nil {
		held[processPostgres] = procfs.ResidentBytesOfFamily(c.server.PID())
	}
	return held
}

// MemoryWatch looks at the memory of all processes until it is stopped.
type MemoryWatch struct {
	cluster *Cluster
	stop    context.CancelFunc
	done    sync.WaitGroup

	mu   sync.Mutex
	most map[string]int64
}

// WatchMemory begins to look.
func (c *Cluster) WatchMemory(ctx context.Context) *MemoryWatch {
	ctx, cancel := context.WithCancel(ctx)
	w := &MemoryWatch{cluster: c, stop: cancel, most: map[string]int64{}}
	w.done.Go(func() {
		tick := time.NewTicker(watchEvery)
		defer tick.Stop()
		for {
			w.Look()
			select {
			case <-tick.C:
			case <-ctx.Done():
				return
			}
		}
	})
	return w
}

// Look looks now, and returns how many bytes each process holds, by name.
func (w *MemoryWatch) Look() map[string]int64 {
	now := w.cluster.resident()
	w.mu.Lock()
	defer w.mu.Unlock()
	for name, bytes := range now {
		w.most[name] = max(w.most[name], bytes)
	}
	return now
}

// Stop stops watching.
func (w *MemoryWatch) Stop() { w.stop() }

// End stops watching and returns the most that each process held.
func (w *MemoryWatch) End() map[string]int64 {
	w.Stop()
	w.done.Wait()
	return maps.Clone(w.most)
}
