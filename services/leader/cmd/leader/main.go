// Command leader runs the leader service as a process of its own.
package main

import (
	"os"

	"github.com/wiggle-run/wiggle/pkg/process"
	"github.com/wiggle-run/wiggle/services/leader"
)

func main() { os.Exit(process.Main("leader", leader.Main)) }
