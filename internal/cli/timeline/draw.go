package timeline

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	wiggle "github.com/wiggle-run/wiggle/sdk/go"
)

// Options say how to draw. The zero value draws 80 columns of UTF-8.
type Options struct {
	// Width in columns. 0: 80; at least 60.
	Width int
	// ASCII draws with ASCII alone.
	ASCII bool
	// MaxBranches is how many branches of one fan-out are drawn. 0: 12.
	MaxBranches int
	// Now ends the bars of an instance that still runs. Zero: its last entry does.
	Now time.Time
}

const (
	defaultWidth, minWidth = 80, 60
	defaultBranches        = 12
	labelWidth             = 32
	timeWidth              = 9
)

// glyphs are the characters to draw with.
type glyphs struct {
	branch, last, pass, space                   string
	queued, ran, failed, slept, backoff, ellips string
	cross                                       string
}

var (
	unicodeGlyphs = glyphs{
		branch: "├ ", last: "└ ", pass: "│ ", space: "  ",
		queued: "░", ran: "█", failed: "▒", slept: "─", backoff: "·", ellips: "…", cross: " ✗",
	}
	asciiGlyphs = glyphs{
		branch: "+ ", last: "+ ", pass: "| ", space: "  ",
		queued: ".", ran: "#", failed: "x", slept: "-", backoff: "~", ellips: "~", cross: " (failed)",
	}
)

// Draw writes the timeline of an instance.
func Draw(w io.Writer, inst *wiggle.Instance, entries []wiggle.HistoryEntry, opts Options) error {
	d := &drawing{glyphs: unicodeGlyphs, width: opts.Width, branches: opts.MaxBranches}
	if opts.ASCII {
		d.glyphs = asciiGlyphs
	}
	if d.width == 0 {
		d.width = defaultWidth
	}
	d.width = max(d.width, minWidth)
	if d.branches == 0 {
		d.branches = defaultBranches
	}
	d.start, d.end = bounds(inst, entries, opts.Now)
	d.head()
	d.lane(build(entries), "")
	if _, err := io.WriteString(w, d.out.String()); err != nil {
		return fmt.Errorf("draw timeline: %w", err)
	}
	return nil
}

func bounds(inst *wiggle.Instance, entries []wiggle.HistoryEntry, now time.Time) (start, end time.Time) {
	start, end = inst.CreatedAt, inst.EndedAt
	if end.IsZero() {
		end = now
	}
	for _, e := range entries {
		if start.IsZero() || e.RecordedAt.Before(start) {
			start = e.RecordedAt
		}
		if e.RecordedAt.After(end) {
			end = e.RecordedAt
		}
	}
	return start, end
}

// drawing is one timeline being drawn.
type drawing struct {
	glyphs     glyphs
	width      int
	branches   int
	start, end time.Time
	out        strings.Builder
}

func (d *drawing) barWidth() int { return d.width - labelWidth - 2*timeWidth - 2 }

func (d *drawing) head() {
	total := Duration(d.end.Sub(d.start))
	fmt.Fprintf(&d.out, "%s%*s%*s  0%*s\n", strings.Repeat(" ", labelWidth), timeWidth, "queued", timeWidth, "ran", d.barWidth()-1, total)
}

func (d *drawing) lane(l *lane, indent string) {
	for _, r := range l.rows {
		if r.fan != nil {
			d.fan(r.fan, indent)
			continue
		}
		d.row(r, indent, indent)
	}
}

func (d *drawing) fan(f *fan, indent string) {
	shown := f.lanes
	if len(shown) > d.branches {
		shown = shown[:d.branches]
	}
	hidden := f.branches - len(shown)
	for i, l := range shown {
		head, body := d.glyphs.branch, d.glyphs.pass
		if i == len(shown)-1 && hidden <= 0 {
			head, body = d.glyphs.last, d.glyphs.space
		}
		d.branch(l, indent+head, indent+body)
	}
	if hidden > 0 {
		text := fmt.Sprintf("%s%s%s %d more", indent, d.glyphs.last, d.glyphs.ellips, hidden)
		fmt.Fprintf(&d.out, "%s\n", text)
	}
}

// branch draws a branch: on one line if it has only one row, else under its name.
func (d *drawing) branch(l *lane, head, body string) {
	if len(l.rows) == 1 && l.rows[0].fan == nil {
		r := l.rows[0]
		r.label = l.branch + "  " + r.label
		d.row(r, head, body)
		return
	}
	fmt.Fprintf(&d.out, "%s%s\n", head, d.fit(l.branch, d.width-utf8.RuneCountInString(head)))
	d.lane(l, body)
}

func (d *drawing) row(r row, head, body string) {
	label := r.label
	if r.mark == markFailed {
		label += d.glyphs.cross
	}
	queued, ran := "", Duration(r.ran)
	switch {
	case r.mark == markSlept:
		ran = Duration(r.to.Sub(r.from))
	case !r.queued.IsZero() && !r.from.IsZero():
		queued = Duration(max(0, r.from.Sub(r.queued)))
	}
	line := fmt.Sprintf("%s%*s%*s  %s", pad(head+d.fit(label, labelWidth-utf8.RuneCountInString(head)), labelWidth),
		timeWidth, queued, timeWidth, ran, d.bar(r))
	d.out.WriteString(strings.TrimRight(line, " ") + "\n")
	if r.failure != "" {
		first, _, _ := strings.Cut(r.failure, "\n")
		d.out.WriteString(d.fit(body+"  "+first, d.width) + "\n")
	}
}

// bar draws when the row waited and ran. Each part has a cell at least.
func (d *drawing) bar(r row) string {
	cells := []rune(strings.Repeat(" ", d.barWidth()))
	d.fill(cells, r.queued, r.from, d.glyphs.queued)
	d.fill(cells, r.to, r.retry, d.glyphs.backoff)
	fill := map[mark]string{markRan: d.glyphs.ran, markFailed: d.glyphs.failed, markSlept: d.glyphs.slept}[r.mark]
	d.fill(cells, r.from, r.to, fill)
	return string(cells)
}

func (d *drawing) fill(cells []rune, from, to time.Time, glyph string) {
	if from.IsZero() || to.IsZero() || to.Before(from) {
		return
	}
	r, _ := utf8.DecodeRuneInString(glyph)
	for i := d.cell(from, len(cells)); i <= d.cell(to, len(cells)); i++ {
		cells[i] = r
	}
}

// cell is where an instant lies.
func (d *drawing) cell(t time.Time, cells int) int {
	total := d.end.Sub(d.start)
	if total <= 0 {
		return 0
	}
	at := float64(t.Sub(d.start)) / float64(total) * float64(cells)
	return min(max(int(at), 0), cells-1)
}

// fit cuts text to so many columns.
func (d *drawing) fit(text string, columns int) string {
	if utf8.RuneCountInString(text) <= columns {
		return text
	}
	runes := []rune(text)
	return string(runes[:max(columns-1, 0)]) + d.glyphs.ellips
}

func pad(text string, columns int) string {
	return text + strings.Repeat(" ", max(0, columns-utf8.RuneCountInString(text)))
}

// Duration writes a duration short enough for a column: 0.4 ms, 12 ms, 3.21 s, 4m05s, 26h10m.
func Duration(d time.Duration) string {
	ms := float64(d) / float64(time.Millisecond)
	switch {
	case d < 10*time.Millisecond:
		return strconv.FormatFloat(ms, 'f', 1, 64) + " ms"
	case d < time.Second:
		return strconv.FormatFloat(ms, 'f', 0, 64) + " ms"
	case d < time.Minute:
		return strconv.FormatFloat(d.Seconds(), 'f', 2, 64) + " s"
	case d < time.Hour:
		return fmt.Sprintf("%dm%02ds", int(d.Minutes()), int(d.Seconds())%60)
	}
	return fmt.Sprintf("%dh%02dm", int(d.Hours()), int(d.Minutes())%60)
}
