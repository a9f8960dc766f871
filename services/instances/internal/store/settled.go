package store

import (
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	"github.com/wiggle-run/wiggle/services/instances/internal/machine"
)

// SettledFrom tells how a lease ended from the history entry that recorded it:
// what a repeated call is answered with once the token is gone.
func SettledFrom(fence int64, by machine.SettledBy, entry *wigglev1.HistoryEntry) machine.Settled {
	settled := machine.Settled{Fence: fence, By: by}
	if entry.GetDueAt() != nil {
		settled.RetryAt = entry.GetDueAt().AsTime()
	}
	return settled
}

// IsSettled reports whether a token in this state has nothing before it.
func IsSettled(s machine.TokenState) bool {
	return s == machine.Done || s == machine.TokenFailed || s == machine.TokenCancelled
}
