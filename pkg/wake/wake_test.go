package wake_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/wiggle-run/wiggle/pkg/wake"
)

func isWoken[K comparable](w *wake.Waiter[K]) bool {
	select {
	case <-w.C():
		return true
	default:
		return false
	}
}

func TestNotifyWakesOneOfEachGroup(t *testing.T) {
	t.Parallel()
	var h wake.Hub[string]
	a1 := h.Subscribe("a", "q1", "q2")
	a2 := h.Subscribe("a", "q1")
	b1 := h.Subscribe("b", "q1")
	c1 := h.Subscribe("c", "q2")

	if n := h.Notify("q1"); n != 2 {
		t.Fatalf("Notify woke %d, want 2", n)
	}
	if !isWoken(a1) || !isWoken(b1) {
		t.Fatal("the longest waiting of each group is not woken")
	}
	if isWoken(a2) || isWoken(c1) {
		t.Fatal("woke more than one of a group, or one that does not wait for the key")
	}
	if n := h.Notify("q1"); n != 1 || !isWoken(a2) {
		t.Fatalf("the second notification woke %d, want the next of group a", n)
	}
	if n := h.Notify("q1"); n != 0 {
		t.Fatalf("nobody is armed, and %d were woken", n)
	}
	a1.Rearm()
	if isWoken(a1) {
		t.Fatal("a notification before Rearm was kept")
	}
	if n := h.Notify("q2"); n != 2 || !isWoken(a1) || !isWoken(c1) {
		t.Fatalf("Notify(q2) woke %d, want 2", n)
	}
	if n := h.Notify("nobody"); n != 0 {
		t.Fatalf("woke %d for an unknown key", n)
	}
}

func TestRearmGoesToTheEnd(t *testing.T) {
	t.Parallel()
	var h wake.Hub[int]
	first, second := h.Subscribe("", 1), h.Subscribe("", 1)
	h.Notify(1)
	first.Rearm()
	h.Notify(1)
	if isWoken(first) || !isWoken(second) {
		t.Fatal("a waiter that was just woken is woken before one that was not")
	}
}

func TestClosePassesOn(t *testing.T) {
	t.Parallel()
	var h wake.Hub[string]
	w1, w2, other := h.Subscribe("g", "q"), h.Subscribe("g", "q"), h.Subscribe("g", "elsewhere")
	h.Notify("q")
	w1.Close()
	w1.Close()
	if !isWoken(w2) {
		t.Fatal("the wake-up of a closed waiter is lost")
	}
	if isWoken(other) {
		t.Fatal("passed on to a waiter for another key")
	}
	w2.Rearm()
	w2.Close()
	if isWoken(other) || h.Len() != 1 {
		t.Fatal("a waiter that acted on its wake-up passed it on")
	}

	w3 := h.Subscribe("g", "q")
	if !h.NotifyGroup("g") {
		t.Fatal("no waiter in the group")
	}
	other.Close() // it is the oldest of the group, and was woken
	if !isWoken(w3) {
		t.Fatal("a wake-up by group is lost")
	}
}

func TestNotifyAll(t *testing.T) {
	t.Parallel()
	var h wake.Hub[int]
	if h.NotifyAll() != 0 || h.NotifyGroup("x") || h.Notify(1) != 0 || len(h.Groups()) != 0 {
		t.Fatal("an empty hub woke somebody")
	}
	ws := make([]*wake.Waiter[int], 10)
	for i := range ws {
		ws[i] = h.Subscribe(fmt.Sprint(i%3), i, i)
	}
	if len(h.Groups()) != 3 || !h.Waits(4) || h.Waits(11) {
		t.Fatalf("groups %v", h.Groups())
	}
	h.Notify(4)
	if n := h.NotifyAll(); n != 9 {
		t.Fatalf("woke %d, want 9", n)
	}
	for i, w := range ws {
		if !isWoken(w) {
			t.Fatalf("waiter %d sleeps", i)
		}
		w.Close()
	}
	if h.Len() != 0 || len(h.Groups()) != 0 {
		t.Fatal("something is left")
	}
}

func TestWait(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var h wake.Hub[string]
		w := h.Subscribe("", "q")
		defer w.Close()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := w.Wait(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("got %v", err)
		}
		go func() {
			time.Sleep(time.Minute)
			h.Notify("q")
		}()
		start := time.Now()
		if err := w.Wait(t.Context()); err != nil || time.Since(start) != time.Minute {
			t.Fatalf("got %v after %v", err, time.Since(start))
		}
		if h.Notify("q") != 1 {
			t.Fatal("Wait did not arm again")
		}
	})
}

// Work is put into queues and notified; waiters take one piece at a time, and give up and come back at random. If a
// wake-up could be lost, a piece would lie there with every waiter asleep, and the bubble would deadlock.
func TestNoWakeUpIsLost(t *testing.T) {
	t.Parallel()
	const queues, waiters, pieces = 3, 12, 3000
	var (
		h     wake.Hub[int]
		ready [queues]atomic.Int64
		taken atomic.Int64
		wg    sync.WaitGroup
	)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	take := func(q int) bool {
		for {
			n := ready[q].Load()
			if n == 0 {
				return false
			}
			if ready[q].CompareAndSwap(n, n-1) {
				return true
			}
		}
	}
	for i := range waiters {
		wg.Go(func() {
			q := i % queues
			for ctx.Err() == nil && taken.Load() < pieces {
				w := h.Subscribe(fmt.Sprint("group ", q), q)
				for range 1 + rand.IntN(4) {
					for take(q) {
						if taken.Add(1) == pieces {
							cancel()
						}
						if rand.IntN(3) == 0 {
							break
						}
					}
					if ready[q].Load() > 0 {
						h.Notify(q) // took what it had room for
					}
					if w.Wait(ctx) != nil {
						break
					}
				}
				w.Close() // perhaps with a wake-up in hand
			}
		})
	}
	for range 4 {
		wg.Go(func() {
			for range pieces / 4 {
				q := rand.IntN(queues)
				ready[q].Add(1)
				h.Notify(q)
			}
		})
	}
	wg.Wait()
	if taken.Load() != pieces {
		t.Fatalf("%d of %d pieces were taken", taken.Load(), pieces)
	}
	if h.Len() != 0 {
		t.Fatalf("%d waiters are left", h.Len())
	}
}

func BenchmarkNotify(b *testing.B) {
	var h wake.Hub[int]
	for range 1000 {
		h.Subscribe("g", 1)
	}
	for b.Loop() {
		w := h.Subscribe("g", 2)
		h.Notify(2)
		w.Close()
	}
}
