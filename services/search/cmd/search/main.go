// Command search runs the search service as a process of its own.
package main

import (
	"os"

	"github.com/wiggle-run/wiggle/pkg/process"
	"github.com/wiggle-run/wiggle/services/search"
)

func main() { os.Exit(process.Main("search", search.Main)) }
