package shell

import (
	"bytes"
	"strings"
	"testing"
	"time"
)

func TestBar(t *testing.T) {
	t.Parallel()
	half := Progress{Total: 100, Started: 80, Done: 50, Elapsed: 2 * time.Second}
	for want, on := range map[string]struct{ terminal, unicode bool }{
		"\r" + strings.Repeat("█", 15) + strings.Repeat("▒", 9) + strings.Repeat("░", 6) + " half of it\x1b[K\r\x1b[K": {terminal: true, unicode: true},
		"\r###############=========...... half of it\x1b[K\r\x1b[K":                                                    {terminal: true},
		"  2.0 s  half of it\n": {},
	} {
		var out bytes.Buffer
		b := NewBar(&out, on.terminal, on.unicode)
		b.Tell(half, "half of it")
		if !on.terminal {
			half.Elapsed++ // too soon for another line
			b.Tell(half, "half of it")
			half.Elapsed--
		}
		b.Close()
		if out.String() != want {
			t.Errorf("got %q, want %q", out.String(), want)
		}
	}
}
