// Package wiggletest runs the engine in a test.
package wiggletest

import (
	"testing"

	"github.com/wiggle-run/wiggle/cmd/wiggle"
	"github.com/wiggle-run/wiggle/internal/app"
)
