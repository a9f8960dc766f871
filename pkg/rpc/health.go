package rpc

import (
	"context"
	"fmt"
	"sync"
	"time"

	"connectrpc.com/connect"
	"connectrpc.com/grpchealth"
)

// HealthOfShard returns the name under which gRPC health knows a shard, such as "shard/3".
func HealthOfShard(shard int) string { return fmt.Sprintf("shard/%d", shard) }

// healthPause is how often gRPC health is brought up to the shards.
const healthPause = 500 * time.Millisecond

// keepHealth keeps gRPC health up to the shards until the returned function is called.
func (s *Server) keepHealth() (stop func()) {
	if s.cfg.Shards == nil {
		return func() {}
	}
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		ticker := time.NewTicker(healthPause)
		defer ticker.Stop()
		for {
			s.missingShards()
			select {
			case <-ticker.C:
			case <-done:
				return
			}
		}
	}()
	return func() {
		close(done)
		<-ended
	}
}

// missingShards tells which shards are not ready, and gRPC health of all.
func (s *Server) missingShards() []string {
	var missing []string
	for _, shard := range s.cfg.Shards() {
		s.health.Set(HealthOfShard(shard.Shard), shard.Ready)
		if !shard.Ready {
			missing = append(missing, fmt.Sprintf("shard %d: %s", shard.Shard, shard.Reason))
		}
	}
	return missing
}

// Health holds what gRPC health answers for each name: a service, or a shard as [HealthOfShard] names it. The empty name
// is the process: it serves unless it is draining. It is safe for concurrent use.
type Health struct {
	mu       sync.Mutex
	statuses map[string]grpchealth.Status
	draining bool
	watchers map[*watch]struct{}
}

type watch struct {
	name     string
	onChange func()
}

func newHealth() *Health {
	return &Health{
		statuses: map[string]grpchealth.Status{"": grpchealth.StatusServing},
		watchers: map[*watch]struct{}{},
	}
}

// Set tells whether the name serves. A name that was never set is answered with NOT_FOUND.
func (h *Health) Set(name string, serving bool) {
	status := grpchealth.StatusNotServing
	if serving {
		status = grpchealth.StatusServing
	}
	h.mu.Lock()
	changed := h.statuses[name] != status
	h.statuses[name] = status
	h.mu.Unlock()
	if changed {
		h.notify(func(w *watch) bool { return w.name == name })
	}
}

// Remove forgets the name.
func (h *Health) Remove(name string) {
	h.mu.Lock()
	delete(h.statuses, name)
	h.mu.Unlock()
	h.notify(func(w *watch) bool { return w.name == name })
}

// drain answers NOT_SERVING for every name from now on.
func (h *Health) drain() {
	h.mu.Lock()
	h.draining = true
	h.mu.Unlock()
	h.notify(func(*watch) bool { return true })
}

// Check implements [grpchealth.Checker].
func (h *Health) Check(_ context.Context, req *grpchealth.CheckRequest) (*grpchealth.CheckResponse, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	status, ok := h.statuses[req.Service]
	if !ok {
		return nil, connect.NewError(connect.CodeNotFound, fmt.Errorf("health knows no %q", req.Service))
	}
	if h.draining {
		status = grpchealth.StatusNotServing
	}
	return &grpchealth.CheckResponse{Status: status}, nil
}

// Watch implements [grpchealth.Watcher].
func (h *Health) Watch(
	ctx context.Context, req *grpchealth.CheckRequest, onChange func(),
) (stop func(), err error) {
	if _, err := h.Check(ctx, req); err != nil {
		return nil, err
	}
	w := &watch{name: req.Service, onChange: onChange}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.watchers[w] = struct{}{}
	return func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		delete(h.watchers, w)
	}, nil
}

// notify calls the watchers that match, without the lock: they may ask for the status at once.
func (h *Health) notify(matches func(*watch) bool) {
	h.mu.Lock()
	var called []*watch
	for w := range h.watchers {
		if matches(w) {
			called = append(called, w)
		}
	}
	h.mu.Unlock()
	for _, w := range called {
		w.onChange()
	}
}
