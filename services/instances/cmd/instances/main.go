// Command instances runs the instances service as a process of its own.
package main

import (
	"os"

	"github.com/wiggle-run/wiggle/pkg/process"
	"github.com/wiggle-run/wiggle/services/instances"
)

func main() { os.Exit(process.Main("instances", instances.Main)) }
