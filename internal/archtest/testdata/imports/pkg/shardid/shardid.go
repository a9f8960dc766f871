// Package shardid is shared.
package shardid

import (
	_ "fmt"
	_ "github.com/oklog/ulid/v2"
	_ "github.com/wiggle-run/wiggle/pkg/faults"
	_ "github.com/wiggle-run/wiggle/services/router"
)
