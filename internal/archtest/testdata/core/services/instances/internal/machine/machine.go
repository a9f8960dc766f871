// Package machine should be pure.
package machine

import (
	"fmt"
	"sync"
	clock "time"

	"github.com/wiggle-run/wiggle/pkg/placement"
)

var mu sync.Mutex

// Step reads a clock and starts a goroutine.
func Step(now clock.Time) clock.Duration {
	go func() {}()
	return clock.Since(now)
}

// Later only computes.
func Later(now clock.Time) clock.Time { return now.Add(clock.Second) }
