//go:build clients

package clients

import "testing"

// TestClients: one stack serves all, as its start is what takes longest.
func TestClients(t *testing.T) {
	s := start(t)
	t.Run("commands", s.testCommands)
	t.Run("typescript", s.testTypeScript)
}
