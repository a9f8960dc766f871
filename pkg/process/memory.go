package process

import (
	"os"
	"runtime/debug"
)

// collectAt is how much a heap grows, in percent of what is alive, before it is collected, unless GOGC says otherwise. What a
// service keeps is small and what passes through it is not: at Go's own 100 a busy process of 8 MB spends a sixth of its time
// collecting, at 400 a twentieth, for some tens of megabytes.
const collectAt = 400

// tuneMemory sets how often the heap is collected. GOMEMLIMIT holds beside it.
func tuneMemory() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(collectAt)
	}
}
