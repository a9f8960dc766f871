package cli

import (
	"bytes"
	"testing"
	"time"

	"github.com/wiggle-run/wiggle/internal/cli/shell"
	"github.com/wiggle-run/wiggle/internal/demo"
)

func TestShowOrders(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	half := demo.Progress{Total: 100, Started: 80, Ended: 50, Steps: 1000, Elapsed: 2 * time.Second}
	showOrders(shell.NewBar(&out, true, false), half)
	if want := "\r###############=========...... 50 of 100 orders, 500 steps/s\x1b[K"; out.String() != want {
		t.Errorf("got %q, want %q", out.String(), want)
	}
}
