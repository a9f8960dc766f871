// Package pause holds the pauses between tries: jittered, so that routers and callers do not act in step, and ended early by
// a context.
package pause

import (
	"context"
	"math/rand/v2"
	"time"
)

// Jitter spreads a pause over 80 to 120 per cent of itself.
func Jitter(d time.Duration) time.Duration { return Between(d*8/10, d*12/10) }

// Between draws a pause from low to high.
func Between(low, high time.Duration) time.Duration {
	if high <= low {
		return low
	}
	return low + rand.N(high-low) //nolint:gosec // spreading load needs no secrecy
}

// Pick draws a number from 0 to n-1.
func Pick(n int) int { return rand.IntN(n) } //nolint:gosec // spreading load needs no secrecy

// For waits, and tells whether it did so to the end: false if ctx was done first. A nil channel is never ready; another
// one ends the pause early when it is.
func For(ctx context.Context, d time.Duration, early <-chan struct{}) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-early:
		return true
	case <-ctx.Done():
		return false
	}
}
