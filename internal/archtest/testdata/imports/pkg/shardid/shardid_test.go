package shardid

import (
	_ "github.com/wiggle-run/wiggle/internal/app"
	_ "github.com/wiggle-run/wiggle/internal/pgtest"
	_ "testing"
)
