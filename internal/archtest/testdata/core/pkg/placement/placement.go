// Package placement reaches a socket through another package.
package placement

import (
	_ "github.com/wiggle-run/wiggle/pkg/dial"
	_ "net/url"
)
