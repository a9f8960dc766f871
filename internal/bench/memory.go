package bench

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
func (c *cluster) resident() map[string]int64 {
	held := map[string]int64{processBench: procfs.ResidentBytes(os.Getpid())}
	for _, p := range c.services {
		held[p.Name] += procfs.ResidentBytes(p.PID())
	}
	if c.workers != nil {
		for _, p := range c.workers.children {
			held[p.Name] += procfs.ResidentBytes(p.PID())
		}
	}
	if c.server != nil {
		held[processPostgres] = procfs.ResidentBytesOfFamily(c.server.PID())
	}
	return held
}

// memoryWatch looks at the memory of all processes until it is stopped.
type memoryWatch struct {
	cluster *cluster
	stop    context.CancelFunc
	done    sync.WaitGroup

	mu   sync.Mutex
	most map[string]int64
}

func (c *cluster) watchMemory(ctx context.Context) *memoryWatch {
	ctx, cancel := context.WithCancel(ctx)
	w := &memoryWatch{cluster: c, stop: cancel, most: map[string]int64{}}
	w.done.Go(func() {
		tick := time.NewTicker(watchEvery)
		defer tick.Stop()
		for {
			w.look()
			select {
			case <-tick.C:
			case <-ctx.Done():
				return
			}
		}
	})
	return w
}

// look looks now, and returns what it sees.
func (w *memoryWatch) look() map[string]int64 {
	now := w.cluster.resident()
	w.mu.Lock()
	defer w.mu.Unlock()
	for name, bytes := range now {
		w.most[name] = max(w.most[name], bytes)
	}
	return now
}

// end stops watching and returns the most that each process held.
func (w *memoryWatch) end() map[string]int64 {
	w.stop()
	w.done.Wait()
	return maps.Clone(w.most)
}

// detailMemory adds memory_KIND_PROCESS_mib.
func (r *Run) detailMemory(kind string, held map[string]int64) {
	for name, bytes := range held {
		r.detail("memory_"+kind+"_"+name+"_mib", mebibytes(bytes))
	}
}

func mebibytes(bytes int64) float64 { return round(float64(bytes)/(1<<20), 1) }
