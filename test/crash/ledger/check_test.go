package ledger

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
)

const (
	started   = wigglev1.HistoryKind_HISTORY_KIND_STARTED
	completed = wigglev1.HistoryKind_HISTORY_KIND_COMPLETED
	stepDone  = wigglev1.HistoryKind_HISTORY_KIND_STEP_COMPLETED
	stepFail  = wigglev1.HistoryKind_HISTORY_KIND_STEP_FAILED
)

// at is an instant, in milliseconds from the start.
func at(ms int) *timestamppb.Timestamp {
	return timestamppb.New(time.Unix(1_700_000_000, 0).Add(time.Duration(ms) * time.Millisecond))
}

// attempt is the entry of an attempt that was leased from one instant to another.
func attempt(kind wigglev1.HistoryKind, position int32, fence int64, number int32, from, to int) *wigglev1.HistoryEntry {
	return &wigglev1.HistoryEntry{
		Kind: kind, TokenId: "tok", Node: "a", Step: "a", Worker: "w", Attempt: number,
		Position: position, Fence: fence, DispatchedAt: at(from), RecordedAt: at(to),
	}
}

func line(what What, fence int64, number int32) Line {
	return Line{What: what, Worker: "w", Instance: "wfi", Task: "tok", Fence: fence, Step: "a", Attempt: number}
}

// sound is a history with what a worker was told about it: the first lease ran
// out, the second attempt was failed, a third lease given back, and the fourth
// reported.
func sound() ([]*wigglev1.HistoryEntry, []Line) {
	expired := attempt(stepFail, 0, 1, 1, 10, 20)
	expired.Failure = &wigglev1.Failure{Type: leaseExpired}
	failed := attempt(stepFail, 1, 2, 2, 20, 30)
	failed.Failure = &wigglev1.Failure{Type: "crash.OnPurpose"}
	history := []*wigglev1.HistoryEntry{
		{Kind: started, RecordedAt: at(0), Position: 0},
		expired, failed,
		attempt(stepDone, 2, 4, 3, 40, 50),
		{Kind: completed, RecordedAt: at(50), Position: 1},
	}
	return history, []Line{
		line(Given, 1, 1), line(Refused, 1, 1),
		line(Given, 2, 2), line(Failed, 2, 2),
		line(Given, 3, 3), line(Returning, 3, 3),
		line(Given, 4, 3), line(Done, 4, 3), line(Again, 4, 3),
	}
}

func TestSoundHistory(t *testing.T) {
	t.Parallel()
	if problems := Check(sound()); len(problems) > 0 {
		t.Fatalf("problems where there are none:\n%s", strings.Join(problems, "\n"))
	}
}

// TestBrokenHistories breaks one thing at a time and expects it to be found.
func TestBrokenHistories(t *testing.T) {
	t.Parallel()
	type entries = []*wigglev1.HistoryEntry
	for name, c := range map[string]struct {
		want  string
		spoil func(h entries, l []Line) (entries, []Line)
	}{
		"started twice": {"started 2 times", func(h entries, l []Line) (entries, []Line) {
			return append(entries{proto.CloneOf(h[0])}, h...), l
		}},
		"never started": {"started 0 times", func(h entries, l []Line) (entries, []Line) { return h[1:], l }},
		"nothing at all": {"started 0 times", func(entries, []Line) (entries, []Line) {
			return nil, nil
		}},
		"completed twice": {"completed 2 times", func(h entries, l []Line) (entries, []Line) {
			return append(h, proto.CloneOf(h[4])), l
		}},
		"goes on after its end": {"history ends with", func(h entries, l []Line) (entries, []Line) {
			h[3], h[4] = h[4], h[3]
			return h, l
		}},
		"out of order": {"is listed behind it", func(h entries, l []Line) (entries, []Line) {
			h[1].RecordedAt = at(31)
			return h, l
		}},
		"gap": {"position 3 of tok is where 2 is expected", func(h entries, l []Line) (entries, []Line) {
			h[3].Position = 3
			return h, l
		}},
		"gap of the instance": {"position 2 of the instance is where 1 is expected", func(h entries, l []Line) (entries, []Line) {
			h[4].Position = 2
			return h, l
		}},
		"position twice": {"position 1 of tok is where 2 is expected", func(h entries, l []Line) (entries, []Line) {
			h[3].Position = 1
			return h, l
		}},
		"lease settled twice": {"was settled 2 times", func(h entries, l []Line) (entries, []Line) {
			again := proto.CloneOf(h[3])
			again.Position = 3
			return append(h[:4:4], again, h[4]), l
		}},
		"settled by nobody": {"no poll gave this", func(h entries, l []Line) (entries, []Line) { return h, l[:6] }},
		"settled by another worker": {"no poll gave this", func(h entries, l []Line) (entries, []Line) {
			h[3].Worker = "other"
			return h, l
		}},
		"overlapping leases": {"two leases of tok at the same time", func(h entries, l []Line) (entries, []Line) {
			h[2].DispatchedAt = at(19)
			return h, l
		}},
		"lease that ends before it begins": {"ends before it begins", func(h entries, l []Line) (entries, []Line) {
			h[3].DispatchedAt = at(51)
			return h, l
		}},
		"lease without a begin": {"ends before it begins", func(h entries, l []Line) (entries, []Line) {
			h[3].DispatchedAt = nil
			return h, l
		}},
		"acknowledged report lost": {"acknowledged, and not in the history", func(h entries, l []Line) (entries, []Line) {
			return append(h[:3:3], h[4]), l
		}},
		"acknowledged report recorded as a failure": {"the history has it as", func(h entries, l []Line) (entries, []Line) {
			h[3].Kind = stepFail
			return h, l
		}},
		"acknowledged failure recorded as an expiry": {"the history has it as", func(h entries, l []Line) (entries, []Line) {
			h[2].Failure.Type = leaseExpired
			return h, l
		}},
		"acknowledged under another step": {"the history has it as", func(h entries, l []Line) (entries, []Line) {
			l[7].Step = "b"
			return h, l
		}},
		"refused and recorded": {"refused, and the history has it as", func(h entries, l []Line) (entries, []Line) {
			l[7].What = Refused
			return h, l
		}},
		"acknowledged and refused": {"was acknowledged and refused", func(h entries, l []Line) (entries, []Line) {
			return h, append(l, line(Refused, 4, 3))
		}},
		"given twice": {"was given 2 times", func(h entries, l []Line) (entries, []Line) {
			other := line(Given, 4, 3)
			other.Worker = "other"
			return h, append(l, other)
		}},
		"attempt lost": {"how this lease ended is not in the history", func(h entries, l []Line) (entries, []Line) {
			return h, append(l, line(Given, 5, 3))
		}},
		"repeated report refused": {"refused when it was sent again", func(h entries, l []Line) (entries, []Line) {
			l[8].What = Denied
			return h, l
		}},
		"strange answer": {"no outage explains this", func(h entries, l []Line) (entries, []Line) {
			return h, append(l, line(Strange, 4, 3))
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h, l := sound()
			problems := Check(c.spoil(h, l))
			if !strings.Contains(strings.Join(problems, "\n"), c.want) {
				t.Errorf("want a problem with %q, got %q", c.want, problems)
			}
		})
	}
}

// TestJournal: what several writers append is read back, and a torn line is found.
func TestJournal(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "journal")
	if lines, err := ReadJournal(path); err != nil || len(lines) != 0 {
		t.Fatalf("a journal that is not there: %v, %v", lines, err)
	}
	for fence := range int64(2) {
		j, err := OpenJournal(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := j.Write(line(Given, fence+1, 1), line(Done, fence+1, 1)); err != nil {
			t.Fatal(err)
		}
	}
	lines, err := ReadJournal(path)
	if err != nil || len(lines) != 4 || lines[3] != line(Done, 2, 1) {
		t.Fatalf("got %v, %v", lines, err)
	}
	j, err := OpenJournal(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := j.file.WriteString(`{"what":"do`); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadJournal(path); err == nil {
		t.Fatal("a torn line is read")
	}
}
