// Package app assembles.
package app

import (
	_ "github.com/wiggle-run/wiggle/cmd/wiggle"
	_ "github.com/wiggle-run/wiggle/sdk/go/client"
	_ "github.com/wiggle-run/wiggle/services/auth"
	_ "github.com/wiggle-run/wiggle/services/router"
)
