package wiggle

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/wiggle-run/wiggle/proto/definition"
)

// graphAgain is how long a worker goes without a definition that it could not read.
const graphAgain = 10 * time.Second

// graphs keeps the graphs of batched workflows. A version never changes once it is
// registered, so each is read once.
type graphs struct {
	mu    sync.Mutex
	known map[graphKey]*reading
}

type graphKey struct {
	workflow string
	version  int
}

// reading is one graph as it is read, by one call for all who want it.
type reading struct {
	done  chan struct{}
	graph *definition.Graph // nil if it could not be read
	at    time.Time         // when that was
}

// get is the graph of a version; nil if it cannot be read, or ctx ends before. Then
// steps are reported one by one, and after a while it is tried again.
func (g *graphs) get(ctx context.Context, w *Worker, workflow string, version int) *definition.Graph {
	key := graphKey{workflow, version}
	g.mu.Lock()
	r := g.known[key]
	if r == nil || r.failed() {
		r = &reading{done: make(chan struct{})}
		if g.known == nil {
			g.known = map[graphKey]*reading{}
		}
		g.known[key] = r
		go r.read(context.WithoutCancel(ctx), w, key) // ends with its call
	}
	g.mu.Unlock()
	select {
	case <-r.done:
		return r.graph
	case <-ctx.Done():
		return nil
	}
}

// failed tells whether it is time to read again what could not be read.
func (r *reading) failed() bool {
	select {
	case <-r.done:
		return r.graph == nil && time.Since(r.at) >= graphAgain
	default:
		return false
	}
}

func (r *reading) read(ctx context.Context, w *Worker, key graphKey) {
	defer close(r.done)
	client := *w.client
	client.retries.attempts = 1
	def, err := client.Workflow(ctx, key.workflow, key.version)
	r.at = time.Now()
	if err == nil {
		graph, problems := definition.Analyze(def.proto)
		if problems == nil {
			r.graph = graph
			return
		}
		err = problems
	}
	w.logger.LogAttrs(ctx, slog.LevelWarn, "wiggle: the definition of a batched workflow cannot be read; its steps are reported one by one",
		slog.String("workflow", key.workflow), slog.Int("version", key.version), slog.Any("error", err))
}
