// Command router runs the router as a process of its own.
package main

import (
	"os"

	"github.com/wiggle-run/wiggle/pkg/process"
	"github.com/wiggle-run/wiggle/services/router"
)

func main() { os.Exit(process.Main("router", router.Main)) }
