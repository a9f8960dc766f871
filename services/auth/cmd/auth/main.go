// Command auth runs the auth service as a process of its own.
package main

import (
	"os"

	"github.com/wiggle-run/wiggle/pkg/process"
	"github.com/wiggle-run/wiggle/services/auth"
)

func main() { os.Exit(process.Main("auth", auth.Main)) }
