package cli

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/wiggle-run/wiggle/internal/demo"
)

func TestProgress(t *testing.T) {
	t.Parallel()
	half := demo.Progress{Total: 100, Started: 80, Ended: 50, Steps: 1000, Elapsed: 2 * time.Second}
	for want, p := range map[string]*Program{
		"\r" + strings.Repeat("█", 15) + strings.Repeat("▒", 9) + strings.Repeat("░", 6) + " 50 of 100 orders, 500 steps/s\x1b[K\r\x1b[K": {
			Terminal: true, Environ: []string{"LC_ALL=en_US.UTF-8"},
		},
		"\r###############=========...... 50 of 100 orders, 500 steps/s\x1b[K\r\x1b[K": {Terminal: true},
		"  2.0 s  50 of 100 orders, 500 steps/s\n":                                     {},
	} {
		var out bytes.Buffer
		p.Err = &out
		b := newProgress(p)
		b.show(half)
		if !p.Terminal {
			half.Elapsed++ // too soon for another line
			b.show(half)
			half.Elapsed--
		}
		b.done()
		if out.String() != want {
			t.Errorf("got %q, want %q", out.String(), want)
		}
	}
}
