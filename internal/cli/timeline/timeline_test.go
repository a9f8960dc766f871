package timeline

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	wiggle "github.com/wiggle-run/wiggle/sdk/go"
)

var update = flag.Bool("update", false, "write the golden files")

var begin = time.Date(2026, 10, 1, 9, 0, 0, 0, time.UTC)

// parentOf reads the parent out of a token's name: a0x is in a0, a0 in a, a and b and t7 in the first token, root.
func parentOf(token string) string {
	switch {
	case token == "root" || token == "":
		return ""
	case len(token) == 1 || token[0] == 't':
		return "root"
	}
	return token[:len(token)-1]
}

func at(ms int) time.Time { return begin.Add(time.Duration(ms) * time.Millisecond) }

// history writes histories in few words.
type history struct{ entries []wiggle.HistoryEntry }

func (h *history) step(token, branch, step string, queued, dispatched, recorded int) *wiggle.HistoryEntry {
	h.entries = append(h.entries, wiggle.HistoryEntry{
		Kind: "STEP_COMPLETED", TokenID: token, ParentTokenID: parentOf(token), Branch: branch, Step: step, Node: step, Attempt: 1, QueuedAt: at(queued),
		DispatchedAt: at(dispatched), RecordedAt: at(recorded), StartedAt: at(dispatched), FinishedAt: at(recorded - 1),
	})
	return &h.entries[len(h.entries)-1]
}

func (h *history) event(kind, token, branch string, ms int) *wiggle.HistoryEntry {
	h.entries = append(h.entries, wiggle.HistoryEntry{
		Kind: kind, TokenID: token, ParentTokenID: parentOf(token), Branch: branch, RecordedAt: at(ms),
	})
	return &h.entries[len(h.entries)-1]
}

// nested is a fork, one branch of which runs a for_each whose elements fork again.
func nested() []wiggle.HistoryEntry {
	h := &history{}
	h.event("STARTED", "", "", 0)
	h.step("root", "", "first", 0, 5, 10)
	h.event("FANNED_OUT", "root", "", 10).Branches = 2
	h.step("b", "right", "slow", 10, 20, 200)
	failed := h.step("a", "left", "flaky", 10, 15, 30)
	failed.Kind, failed.DueAt, failed.Failure = "STEP_FAILED", at(60), &wiggle.Failure{Type: "Busy", Message: "come back later\nstack"}
	h.step("a", "left", "flaky", 10, 62, 70).Attempt = 2
	h.event("FANNED_OUT", "a", "left", 70).Branches = 3
	for i := range 3 {
		token, branch := fmt.Sprintf("a%d", i), fmt.Sprint(i)
		h.step(token, branch, "open", 70, 72+i, 80+i)
		h.event("FANNED_OUT", token, branch, 80+i).Branches = 2
		h.step(token+"x", "x", "left-hand", 80+i, 85, 90+i)
		h.step(token+"y", "y", "right-hand", 80+i, 85, 95+i)
		h.event("JOINED", token, branch, 95+i)
		h.step(token, branch, "close", 95+i, 100, 105+i)
	}
	h.event("JOINED", "a", "left", 107)
	h.step("a", "left", "sum", 107, 110, 115)
	h.event("TIMER_SET", "a", "left", 115).DueAt = at(150)
	h.event("TIMER_FIRED", "a", "left", 151)
	h.event("JOINED", "root", "", 200)
	h.step("root", "", "a-step-whose-name-is-longer-than-its-column", 200, 210, 250).Answer = "true"
	h.event("COMPLETED", "", "", 250)
	return h.entries
}

func draw(t *testing.T, inst *wiggle.Instance, entries []wiggle.HistoryEntry, opts Options) string {
	t.Helper()
	var out strings.Builder
	if err := Draw(&out, inst, entries, opts); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

func TestDraw(t *testing.T) {
	t.Parallel()
	done := &wiggle.Instance{CreatedAt: at(0), EndedAt: at(250), State: wiggle.Completed}
	many := &history{}
	many.event("FANNED_OUT", "root", "", 0).Branches = 10_000
	for i := range 40 {
		many.step(fmt.Sprintf("t%d", i), fmt.Sprint(39-i), "price", 0, 5, 10+i)
	}
	for name, text := range map[string]string{
		"nested":  draw(t, done, nested(), Options{}),
		"ascii":   draw(t, done, nested(), Options{ASCII: true}),
		"wide":    draw(t, done, nested(), Options{Width: 110}),
		"many":    draw(t, &wiggle.Instance{CreatedAt: at(0)}, many.entries, Options{Now: at(60)}),
		"nothing": draw(t, &wiggle.Instance{CreatedAt: at(0)}, nil, Options{Now: at(60)}),
	} {
		path := filepath.Join("testdata", name+".txt")
		if *update {
			if err := os.MkdirAll("testdata", 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if want, err := os.ReadFile(path); err != nil || text != string(want) {
			t.Errorf("%s (%v): got\n%swant\n%s", name, err, text, want)
		}
	}
}

// TestFits: no line is wider than asked for, and ASCII is.
func TestFits(t *testing.T) {
	t.Parallel()
	done := &wiggle.Instance{CreatedAt: at(0), EndedAt: at(250)}
	for _, width := range []int{0, 1, 60, 80, 117} {
		for _, ascii := range []bool{false, true} {
			text := draw(t, done, nested(), Options{Width: width, ASCII: ascii})
			for line := range strings.Lines(text) {
				if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > max(width, 60) && width > 0 || n > 80 && width == 0 {
					t.Errorf("width %d: %d columns: %s", width, n, line)
				}
				if ascii && len(line) != utf8.RuneCountInString(line) {
					t.Errorf("not ASCII: %s", line)
				}
			}
		}
	}
}

// TestOddHistories: whatever a history lacks, every attempt in it is drawn once.
func TestOddHistories(t *testing.T) {
	t.Parallel()
	whole := nested()
	attempts := func(entries []wiggle.HistoryEntry) (n int) {
		for _, e := range entries {
			if e.Kind == kindStepCompleted || e.Kind == kindStepFailed {
				n++
			}
		}
		return n
	}
	for drop := range whole {
		entries := append(append([]wiggle.HistoryEntry{}, whole[:drop]...), whole[drop+1:]...)
		rows := 0
		var count func(l *lane)
		count = func(l *lane) {
			for _, r := range l.rows {
				if r.fan == nil {
					if r.mark != markSlept {
						rows++
					}
					continue
				}
				for _, child := range r.fan.lanes {
					count(child)
				}
			}
		}
		count(build(entries))
		if want := attempts(entries); rows != want {
			t.Errorf("without entry %d (%s) %d attempts are drawn of %d", drop, whole[drop].Kind, rows, want)
		}
		draw(t, &wiggle.Instance{CreatedAt: at(0)}, entries, Options{})
	}
}

func TestDuration(t *testing.T) {
	t.Parallel()
	for d, want := range map[time.Duration]string{
		0: "0.0 ms", 420 * time.Microsecond: "0.4 ms", 12 * time.Millisecond: "12 ms", 3210 * time.Millisecond: "3.21 s",
		245 * time.Second: "4m05s", 26*time.Hour + 10*time.Minute: "26h10m",
	} {
		if got := Duration(d); got != want {
			t.Errorf("%v is %q, want %q", d, got, want)
		}
	}
}
