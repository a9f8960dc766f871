package timeline

import (
	"cmp"
	"slices"
	"strconv"
	"time"

	wiggle "github.com/wiggle-run/wiggle/sdk/go"
)

// Kinds of history entries that are drawn.
const (
	kindStepCompleted = "STEP_COMPLETED"
	kindStepFailed    = "STEP_FAILED"
	kindTimerSet      = "TIMER_SET"
	kindTimerFired    = "TIMER_FIRED"
	kindFannedOut     = "FANNED_OUT"
	kindJoined        = "JOINED"
)

// lane is what happened to one token.
type lane struct {
	parent string // the token whose branch it is
	branch string
	first  time.Time
	rows   []row
}

// row is one line, or a fan-out with the lanes of its branches.
type row struct {
	label   string
	mark    mark
	failure string
	// queued, from and to bound the bar; zero where there is none. retry is until when a failed attempt was left alone.
	queued, from, to, retry time.Time
	// ran is what the worker says that the attempt took.
	ran time.Duration
	fan *fan
}

// mark is how a row's bar is filled.
type mark int

const (
	markRan mark = iota
	markFailed
	markSlept
)

// fan is one fan-out.
type fan struct {
	token      string
	at, joined time.Time
	branches   int
	lanes      []*lane
}

// build makes the lanes of an instance's history and returns the first token's.
func build(entries []wiggle.HistoryEntry) *lane {
	lanes := map[string]*lane{}
	var order []*lane
	fans := map[*lane][]*fan{}
	for _, e := range entries {
		if e.TokenID == "" {
			continue
		}
		l := lanes[e.TokenID]
		if l == nil {
			l = &lane{parent: e.ParentTokenID, branch: e.Branch, first: e.RecordedAt}
			lanes[e.TokenID] = l
			order = append(order, l)
		}
		if !e.QueuedAt.IsZero() && e.QueuedAt.Before(l.first) {
			l.first = e.QueuedAt
		}
		if f := l.add(e); f != nil {
			fans[l] = append(fans[l], f)
		}
	}
	return attach(order, fans)
}

// add appends what an entry tells, and returns the fan-out that it begins.
func (l *lane) add(e wiggle.HistoryEntry) *fan {
	switch e.Kind {
	case kindStepCompleted, kindStepFailed:
		l.rows = append(l.rows, l.attempt(e))
	case kindTimerSet:
		l.rows = append(l.rows, row{label: "sleep", mark: markSlept, from: e.RecordedAt, to: e.DueAt})
	case kindTimerFired:
		if i := lastOf(l.rows, func(r row) bool { return r.mark == markSlept }); i >= 0 {
			l.rows[i].to = e.RecordedAt
		}
	case kindFannedOut:
		f := &fan{token: e.TokenID, at: e.RecordedAt, branches: e.Branches}
		l.rows = append(l.rows, row{fan: f})
		return f
	case kindJoined:
		if i := lastOf(l.rows, func(r row) bool { return r.fan != nil }); i >= 0 {
			l.rows[i].fan.joined = e.RecordedAt
		}
	}
	return nil
}

func (l *lane) attempt(e wiggle.HistoryEntry) row {
	r := row{label: cmp.Or(e.Step, e.Node), queued: e.QueuedAt, from: e.DispatchedAt, to: e.RecordedAt}
	// An attempt waits from when it may be dispatched on, not from when the step was queued at first.
	if i := len(l.rows) - 1; i >= 0 && l.rows[i].retry.After(r.queued) {
		r.queued = l.rows[i].retry
	}
	if !e.StartedAt.IsZero() && !e.FinishedAt.IsZero() {
		r.ran = e.FinishedAt.Sub(e.StartedAt)
	} else if !r.from.IsZero() {
		r.ran = r.to.Sub(r.from)
	}
	if e.Attempt > 1 {
		r.label += " #" + strconv.Itoa(e.Attempt)
	}
	if e.Answer != "" {
		r.label += " = " + e.Answer
	}
	if e.Kind == kindStepFailed {
		r.mark, r.retry = markFailed, e.DueAt
		if e.Failure != nil {
			r.failure = cmp.Or(e.Failure.Type, "failed") + ": " + e.Failure.Message
		}
	}
	return r
}

// attach puts each branch's lane under the fan-out that began it. A lane is only put under one that is already part of
// the tree, so that there are no circles.
func attach(order []*lane, fans map[*lane][]*fan) *lane {
	if len(order) == 0 {
		return &lane{}
	}
	root := order[0]
	open := fans[root]
	rest := slices.Clone(order[1:])
	slices.SortStableFunc(rest, func(a, b *lane) int { return a.first.Compare(b.first) })
	for len(rest) > 0 {
		i := slices.IndexFunc(rest, func(l *lane) bool { return bestFan(open, l) != nil })
		if i < 0 {
			// Nothing fits, as in a history that is not whole: better shown at the end than not at all.
			root.rows = append(root.rows, row{fan: &fan{branches: len(rest), lanes: rest}})
			break
		}
		l := rest[i]
		f := bestFan(open, l)
		f.lanes = append(f.lanes, l)
		open = append(open, fans[l]...)
		rest = slices.Delete(rest, i, i+1)
	}
	for _, f := range open {
		slices.SortStableFunc(f.lanes, byBranch)
	}
	return root
}

// byBranch puts elements in the order of their indexes and branches in that of their names.
func byBranch(a, b *lane) int {
	i, iErr := strconv.Atoi(a.branch)
	j, jErr := strconv.Atoi(b.branch)
	if iErr == nil && jErr == nil {
		return cmp.Compare(i, j)
	}
	return cmp.Compare(a.branch, b.branch)
}

// bestFan is the latest fan-out of the lane's parent that can have begun it.
func bestFan(open []*fan, l *lane) *fan {
	var best *fan
	for _, f := range open {
		if f.token != l.parent || f.at.After(l.first) {
			continue
		}
		if best == nil || f.at.After(best.at) {
			best = f
		}
	}
	return best
}

func lastOf(rows []row, is func(row) bool) int {
	for i, r := range slices.Backward(rows) {
		if is(r) {
			return i
		}
	}
	return -1
}
