//go:build clients

package clients

import (
	"testing"

	"github.com/wiggle-run/wiggle/internal/cli"
	"github.com/wiggle-run/wiggle/test/commands"
)

func TestMain(m *testing.M) {
	commands.Main(map[string]func() int{"wiggle": cli.Main})
	m.Run()
}

// TestClients: one stack serves all, as its start is what takes longest.
func TestClients(t *testing.T) {
	s := start(t)
	t.Run("commands", s.testCommands)
	t.Run("typescript", s.testTypeScript)
}
