// Command wiggle is thin.
package main

import (
	_ "github.com/spf13/cobra"
	_ "github.com/wiggle-run/wiggle/internal/app"
	_ "github.com/wiggle-run/wiggle/services/router"
	_ "os"
)

func main() {}
