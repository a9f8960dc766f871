// Command router runs it.
package main

import (
	_ "github.com/wiggle-run/wiggle/services/router"
)

func main() {}
