package cli

import (
	"fmt"
	"strings"
	"time"

	"github.com/wiggle-run/wiggle/internal/demo"
)

const (
	barCells = 30
	// lineEvery is how often progress is told where there is no terminal to draw on.
	lineEvery = 2 * time.Second
)

// progress shows how far a demo is: a bar that is drawn over itself on a terminal, else a line now and then.
type progress struct {
	p     *Program
	last  time.Duration
	drawn bool
}

func newProgress(p *Program) *progress { return &progress{p: p, last: -lineEvery} }

func (b *progress) show(now demo.Progress) {
	rate := float64(now.Steps) / max(now.Elapsed.Seconds(), 1e-9)
	text := fmt.Sprintf("%d of %d orders, %.0f steps/s", now.Ended, now.Total, rate)
	if b.p.Terminal {
		b.drawn = true
		_, _ = fmt.Fprintf(b.p.Err, "\r%s %s\x1b[K", b.bar(now), text)
		return
	}
	if now.Elapsed-b.last >= lineEvery {
		b.last = now.Elapsed
		_, _ = fmt.Fprintf(b.p.Err, "%5.1f s  %s\n", now.Elapsed.Seconds(), text)
	}
}

func (b *progress) bar(now demo.Progress) string {
	full, started, empty := "█", "▒", "░"
	if !b.p.unicode() {
		full, started, empty = "#", "=", "."
	}
	total := max(now.Total, 1)
	done := barCells * now.Ended / total
	begun := max(barCells*now.Started/total, done)
	return strings.Repeat(full, done) + strings.Repeat(started, begun-done) + strings.Repeat(empty, barCells-begun)
}

// done takes the bar away: what follows says more.
func (b *progress) done() {
	if b.drawn {
		_, _ = fmt.Fprint(b.p.Err, "\r\x1b[K")
	}
}
