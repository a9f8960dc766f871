package election

import (
	"context"
	"errors"
	"testing"
	"time"
)

// TestGuardWakesUpLate: a process that was stopped wakes up before its timers: what it is about to write is refused all the
// same.
func TestGuardWakesUpLate(t *testing.T) {
	t.Parallel()
	r := newReign(t.Context(), 7, time.Now().Add(time.Hour), func(ctx context.Context, term int64) error {
		<-ctx.Done()
		if term != 7 {
			t.Errorf("term %d", term)
		}
		return nil
	})
	guarded, cancel, err := Guard(r.ctx)
	if err != nil {
		t.Fatal(err)
	}
	if until, ok := guarded.Deadline(); !ok || time.Until(until) > time.Hour {
		t.Errorf("until %v, %v", until, ok)
	}
	cancel()
	r.mu.Lock()
	r.until = time.Now().Add(-time.Nanosecond) // its timer is an hour away
	r.mu.Unlock()
	if _, _, err := Guard(r.ctx); !errors.Is(err, errOver) {
		t.Errorf("got %v", err)
	}
	<-r.done
	r.extend(time.Now().Add(time.Hour))
	if err := r.check(); !errors.Is(err, errOver) {
		t.Errorf("it came back: %v", err)
	}
	if err := r.end(errStopping); err != nil {
		t.Error(err)
	}
	if HandingBack(r.ctx) {
		t.Error("what is over is not handed back")
	}
	stopped := newReign(t.Context(), 8, time.Now().Add(time.Hour), func(ctx context.Context, _ int64) error {
		<-ctx.Done()
		if !HandingBack(ctx) {
			t.Error("a process that stops hands back")
		}
		return nil
	})
	_ = stopped.end(errStopping)
	if _, cancel, err := Guard(t.Context()); err != nil {
		t.Errorf("without a reign: %v", err)
	} else {
		cancel()
	}
}
