package cli

import (
	"os"
	"testing"

	"github.com/wiggle-run/wiggle/internal/pgtest"
)

// asCommand makes the test binary be the command line: how tests run wiggle as a process of its own, with the race
// detector if they have it.
const asCommand = "CLI_TEST_AS_COMMAND"

func TestMain(m *testing.M) {
	if os.Getenv(asCommand) != "" {
		os.Exit(Main())
	}
	pgtest.Main(m)
}
