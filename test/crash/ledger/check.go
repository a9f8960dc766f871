package ledger

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
)

// leaseExpired is the type of failure by which the engine ends a lease itself.
const leaseExpired = "wiggle.LeaseExpired"

// lease names one lease of one token.
type lease struct {
	token string
	fence int64
}

// check is one instance under examination.
type check struct {
	problems []string
	history  []*wigglev1.HistoryEntry
	settled  map[lease][]*wigglev1.HistoryEntry
	lines    map[lease][]Line
}

// Check holds the history of an instance that has completed against what workers
// were told about it. It returns what is wrong, a line each.
func Check(history []*wigglev1.HistoryEntry, lines []Line) []string {
	c := &check{history: history, settled: map[lease][]*wigglev1.HistoryEntry{}, lines: map[lease][]Line{}}
	for _, e := range history {
		if e.GetFence() > 0 {
			l := lease{e.GetTokenId(), e.GetFence()}
			c.settled[l] = append(c.settled[l], e)
		}
	}
	for _, l := range lines {
		key := lease{l.Task, l.Fence}
		c.lines[key] = append(c.lines[key], l)
	}
	c.frame()
	c.positions()
	c.leases()
	c.overlaps()
	for _, key := range sortedLeases(c.lines) {
		c.told(key, c.lines[key])
	}
	return c.problems
}

func (c *check) problemf(format string, args ...any) {
	c.problems = append(c.problems, fmt.Sprintf(format, args...))
}

// frame: started once and first, completed once and last.
func (c *check) frame() {
	count := map[wigglev1.HistoryKind]int{}
	for _, e := range c.history {
		count[e.GetKind()]++
	}
	const started, completed = wigglev1.HistoryKind_HISTORY_KIND_STARTED, wigglev1.HistoryKind_HISTORY_KIND_COMPLETED
	if n := count[started]; n != 1 {
		c.problemf("it was started %d times", n)
	}
	if n := count[completed]; n != 1 {
		c.problemf("it was completed %d times", n)
	}
	if len(c.history) == 0 {
		return
	}
	if first := c.history[0]; first.GetKind() != started {
		c.problemf("its history begins with %s", describe(first))
	}
	if last := c.history[len(c.history)-1]; last.GetKind() != completed {
		c.problemf("its history ends with %s", describe(last))
	}
	for i, e := range c.history[1:] {
		if before := c.history[i]; e.GetRecordedAt().AsTime().Before(before.GetRecordedAt().AsTime()) {
			c.problemf("%s was recorded before %s, and is listed behind it", describe(e), describe(before))
		}
	}
}

// positions: those of each token, and of the instance itself, count up from the
// first without a gap, and in the order of the history.
func (c *check) positions() {
	next := map[string]int32{}
	for _, e := range c.history {
		token := e.GetTokenId()
		if want, got := next[token], e.GetPosition(); want != got {
			c.problemf("position %d of %s is where %d is expected: %s", got, nameOf(token), want, describe(e))
		}
		next[token] = e.GetPosition() + 1
	}
}

func nameOf(token string) string {
	if token == "" {
		return "the instance"
	}
	return token
}

// leases: each settled once, and none settled that no worker was given.
func (c *check) leases() {
	for _, key := range sortedLeases(c.settled) {
		entries := c.settled[key]
		if len(entries) > 1 {
			c.problemf("lease %d of %s was settled %d times: %s", key.fence, key.token, len(entries), describe(entries[0]))
		}
		e := entries[0]
		if e.GetKind() == wigglev1.HistoryKind_HISTORY_KIND_STEP_FAILED && e.GetFailure().GetType() == leaseExpired {
			continue // the worker may have died before it wrote down that it had it
		}
		if !slices.ContainsFunc(c.lines[key], func(l Line) bool {
			return l.What == Given && l.Worker == e.GetWorker() && l.Step == e.GetStep() && l.Attempt == e.GetAttempt()
		}) {
			c.problemf("no poll gave this to its worker: %s", describe(e))
		}
	}
}

// overlaps: a lease was given after the one before it was settled.
func (c *check) overlaps() {
	byToken := map[string][]*wigglev1.HistoryEntry{}
	for _, e := range c.history {
		if e.GetFence() > 0 {
			byToken[e.GetTokenId()] = append(byToken[e.GetTokenId()], e)
		}
	}
	for token, entries := range byToken {
		slices.SortStableFunc(entries, func(a, b *wigglev1.HistoryEntry) int { return cmp.Compare(a.GetFence(), b.GetFence()) })
		var until time.Time
		var before *wigglev1.HistoryEntry
		for _, e := range entries {
			from, to := e.GetDispatchedAt().AsTime(), e.GetRecordedAt().AsTime()
			if e.GetDispatchedAt() == nil || from.After(to) {
				c.problemf("a lease of %s ends before it begins: %s", token, describe(e))
			}
			if before != nil && from.Before(until) {
				c.problemf("two leases of %s at the same time: %s and %s", token, describe(before), describe(e))
			}
			until, before = to, e
		}
	}
}

// told holds what workers were told about one lease against the history.
func (c *check) told(key lease, lines []Line) {
	var given, acknowledged, refused, returning int
	for _, l := range lines {
		switch l.What {
		case Given:
			given++
		case Done:
			acknowledged++
			c.recorded(key, l, wigglev1.HistoryKind_HISTORY_KIND_STEP_COMPLETED)
		case Failed:
			acknowledged++
			c.recorded(key, l, wigglev1.HistoryKind_HISTORY_KIND_STEP_FAILED)
		case Refused:
			refused++
			c.notRecorded(key, l)
		case Returning:
			returning++
		case Denied:
			c.problemf("what was acknowledged was refused when it was sent again: %s", l)
		case Strange:
			c.problemf("no outage explains this answer: %s", l)
		case Again:
		}
	}
	if given > 1 {
		c.problemf("lease %d of %s was given %d times: %s", key.fence, key.token, given, lines[0])
	}
	if acknowledged > 0 && refused > 0 {
		c.problemf("lease %d of %s was acknowledged and refused: %s", key.fence, key.token, lines[0])
	}
	if given > 0 && returning == 0 && len(c.settled[key]) == 0 {
		c.problemf("how this lease ended is not in the history: %s", lines[0])
	}
}

// recorded: an acknowledged call is in the history, under its lease, as its kind.
func (c *check) recorded(key lease, l Line, kind wigglev1.HistoryKind) {
	entries := c.settled[key]
	if len(entries) == 0 {
		c.problemf("acknowledged, and not in the history: %s", l)
		return
	}
	e := entries[0]
	if e.GetKind() != kind || e.GetStep() != l.Step || e.GetWorker() != l.Worker || e.GetAttempt() != l.Attempt ||
		e.GetFailure().GetType() == leaseExpired {
		c.problemf("acknowledged, and the history has it as %s: %s", describe(e), l)
	}
}

// notRecorded: a refused call changed nothing.
func (c *check) notRecorded(key lease, l Line) {
	for _, e := range c.settled[key] {
		if e.GetFailure().GetType() != leaseExpired {
			c.problemf("refused, and the history has it as %s: %s", describe(e), l)
		}
	}
}

func sortedLeases[V any](m map[lease]V) []lease {
	keys := make([]lease, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, func(a, b lease) int {
		return cmp.Or(cmp.Compare(a.token, b.token), cmp.Compare(a.fence, b.fence))
	})
	return keys
}

// describe is an entry on one line.
func describe(e *wigglev1.HistoryEntry) string {
	text := fmt.Sprintf("%s %v", e.GetRecordedAt().AsTime().Format("15:04:05.000000"), e.GetKind())
	if e.GetTokenId() != "" {
		text += fmt.Sprintf(" %s position %d node %s", e.GetTokenId(), e.GetPosition(), e.GetNode())
	}
	if e.GetFence() > 0 {
		text += fmt.Sprintf(" fence %d attempt %d worker %s dispatched %s", e.GetFence(), e.GetAttempt(), e.GetWorker(),
			e.GetDispatchedAt().AsTime().Format("15:04:05.000000"))
	}
	if f := e.GetFailure(); f != nil {
		text += " failure " + f.GetType()
	}
	return text
}

// Describe is a history, an entry a line.
func Describe(history []*wigglev1.HistoryEntry) []string {
	lines := make([]string, len(history))
	for i, e := range history {
		lines[i] = describe(e)
	}
	return lines
}
