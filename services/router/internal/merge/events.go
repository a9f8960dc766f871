package merge

import (
	"maps"

	"github.com/wiggle-run/wiggle/pkg/eventcursor"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
)

// EventPage is what one shard has of its event log.
type EventPage struct {
	Shard int
	// Events are in the order of the log.
	Events []*wigglev1.Event
	// UpTo is the number up to which the shard has read: the last event's, or beyond it what the filter left out.
	UpTo int64
}

// EventResult is the merged page.
type EventResult struct {
	// Events have cursors over all shards.
	Events []*wigglev1.Event
	// Cursor is behind all of them, and what filters left out.
	Cursor eventcursor.Cursor
	// Counts is how many events each page gave, in the order of the pages.
	Counts []int64
}

// Events merges shards' pages into one of at most limit events, whose payloads have no more than maxBytes unless one
// alone has: by time, and in the order of each shard's log, which is that of each instance (EVT-5). An event's cursor names
// on every shard what was delivered up to it. after is where the reader was, which still holds for shards without a page.
func Events(after eventcursor.Cursor, pages []EventPage, limit, maxBytes int) EventResult {
	res := EventResult{Cursor: maps.Clone(after), Counts: make([]int64, len(pages))}
	if res.Cursor == nil {
		res.Cursor = eventcursor.Cursor{}
	}
	for _, p := range pages {
		res.Cursor[p.Shard] = p.UpTo
		if len(p.Events) > 0 {
			res.Cursor[p.Shard] = p.Events[0].GetSeq() - 1
		}
	}
	for bytes := 0; len(res.Events) < limit; {
		i := earliest(pages, res.Counts)
		if i < 0 {
			break
		}
		p := &pages[i]
		e := p.Events[res.Counts[i]]
		if bytes += len(e.GetPayload().GetData()); bytes > maxBytes && len(res.Events) > 0 {
			break
		}
		res.Counts[i]++
		res.Cursor[p.Shard] = e.GetSeq()
		e.Cursor = eventcursor.Encode(res.Cursor)
		res.Events = append(res.Events, e)
		if int(res.Counts[i]) == len(p.Events) {
			res.Cursor[p.Shard] = p.UpTo
		}
	}
	return res
}

// earliest is the page whose next event is the earliest of all, -1 if none has one.
func earliest(pages []EventPage, taken []int64) int {
	best := -1
	for i := range pages {
		if int(taken[i]) == len(pages[i].Events) {
			continue
		}
		if best < 0 || before(pages[i].Events[taken[i]], pages[best].Events[taken[best]]) {
			best = i
		}
	}
	return best
}

func before(a, b *wigglev1.Event) bool {
	s, t := a.GetTime(), b.GetTime()
	return s.GetSeconds() < t.GetSeconds() || s.GetSeconds() == t.GetSeconds() && s.GetNanos() < t.GetNanos()
}
