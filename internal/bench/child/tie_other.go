//go:build unix && !linux

package child

import "syscall"

// tie has nothing to offer here: a child outlives us if we are killed without a chance to stop it.
func tie(*syscall.SysProcAttr) {}
