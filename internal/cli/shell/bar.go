package shell

import (
	"fmt"
	"io"
	"strings"
	"time"
)

const (
	barCells = 30
	// lineEvery is how often progress is told where there is no terminal to draw on.
	lineEvery = 2 * time.Second
)

// Progress is how far something long is: of Total things so many are Done, and so many Started, which counts those too.
type Progress struct {
	Done, Started, Total int
	// Elapsed since it began.
	Elapsed time.Duration
}

// Bar shows how far something long is: it is drawn over itself on a terminal, else there is a line now and then.
type Bar struct {
	w                 io.Writer
	terminal, unicode bool
	last              time.Duration
	drawn             bool
}

// NewBar makes a bar on what is a terminal or not, and shows more than ASCII or not.
func NewBar(w io.Writer, terminal, unicode bool) *Bar {
	return &Bar{w: w, terminal: terminal, unicode: unicode, last: -lineEvery}
}

// Tell shows some progress, and a text beside it.
func (b *Bar) Tell(now Progress, text string) {
	if b.terminal {
		b.drawn = true
		_, _ = fmt.Fprintf(b.w, "\r%s %s\x1b[K", b.cells(now), text)
		return
	}
	if now.Elapsed-b.last >= lineEvery {
		b.last = now.Elapsed
		_, _ = fmt.Fprintf(b.w, "%5.1f s  %s\n", now.Elapsed.Seconds(), text)
	}
}

func (b *Bar) cells(now Progress) string {
	full, started, empty := "█", "▒", "░"
	if !b.unicode {
		full, started, empty = "#", "=", "."
	}
	total := max(now.Total, 1)
	done := barCells * now.Done / total
	begun := max(barCells*now.Started/total, done)
	return strings.Repeat(full, done) + strings.Repeat(started, begun-done) + strings.Repeat(empty, barCells-begun)
}

// Close takes the bar away: what follows says more.
func (b *Bar) Close() {
	if b.drawn {
		_, _ = fmt.Fprint(b.w, "\r\x1b[K")
	}
}
