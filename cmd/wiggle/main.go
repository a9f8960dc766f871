// Command wiggle is Wiggle's command line: it runs the services, and does what operators and developers do with them.
package main

import (
	"os"

	"github.com/wiggle-run/wiggle/internal/cli"
)

func main() { os.Exit(cli.Main()) }
