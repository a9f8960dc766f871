package merge_test

import (
	"fmt"
	"slices"
	"testing"

	"google.golang.org/protobuf/types/known/timestamppb"
	"pgregory.net/rapid"

	"github.com/wiggle-run/wiggle/pkg/eventcursor"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	"github.com/wiggle-run/wiggle/services/router/internal/merge"
)

// log is the event log of one shard; what is not wanted is left out by its filter.
type log struct {
	shard  int
	events []*wigglev1.Event
	wanted map[int64]bool
}

// page is what a shard has behind a number.
func (l *log) page(after int64, most int) merge.EventPage {
	p := merge.EventPage{Shard: l.shard, UpTo: after}
	for _, e := range l.events {
		if e.GetSeq() <= after {
			continue
		}
		if l.wanted[e.GetSeq()] {
			if len(p.Events) == most {
				return p
			}
			p.Events = append(p.Events, &wigglev1.Event{Shard: e.GetShard(), Seq: e.GetSeq(), Time: e.GetTime(), Payload: e.GetPayload()})
		}
		p.UpTo = e.GetSeq()
	}
	return p
}

func name(e *wigglev1.Event) string { return fmt.Sprintf("%d/%d", e.GetShard(), e.GetSeq()) }

// Whatever pages shards give, and wherever a reader goes on from (the cursor of an answer or that of any event), it is
// given every event that is wanted once, each shard's in its order; and what was delivered up to an event is what
// its cursor names (EVT-5).
func TestEventsAreAllDelivered(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var logs []*log
		want := map[string]bool{}
		for shard := range rapid.IntRange(1, 4).Draw(t, "shards") {
			l := &log{shard: shard * 3, wanted: map[int64]bool{}}
			seq, at := int64(0), int64(1000)
			for range rapid.IntRange(0, 12).Draw(t, "events") {
				seq += int64(rapid.IntRange(1, 3).Draw(t, "gap"))
				at += int64(rapid.IntRange(-1, 5).Draw(t, "time")) // clocks of transactions are not in order
				e := &wigglev1.Event{Shard: int32(l.shard), Seq: seq, Time: &timestamppb.Timestamp{Seconds: at}, Payload: &wigglev1.Payload{Data: []byte("12")}}
				l.events = append(l.events, e)
				if l.wanted[seq] = rapid.Bool().Draw(t, "wanted"); l.wanted[seq] {
					want[name(e)] = true
				}
			}
			logs = append(logs, l)
		}
		cursor := eventcursor.Cursor{}
		seen := map[string]bool{}
		for rounds := 0; ; rounds++ {
			if rounds > 200 {
				t.Fatal("it does not end")
			}
			var pages []merge.EventPage
			for _, l := range logs {
				if rapid.IntRange(0, 5).Draw(t, "down") > 0 {
					pages = append(pages, l.page(cursor[l.shard], rapid.IntRange(1, 4).Draw(t, "page")))
				}
			}
			res := merge.Events(cursor, pages, rapid.IntRange(1, 6).Draw(t, "limit"), rapid.IntRange(0, 9).Draw(t, "bytes"))
			next := res.Cursor
			last := map[int32]int64{}
			stop := rapid.IntRange(-6, len(res.Events)-1).Draw(t, "stop")
			for i, e := range res.Events {
				if seen[name(e)] || e.GetSeq() <= last[e.GetShard()] {
					t.Fatalf("%s comes again, or behind %d", name(e), last[e.GetShard()])
				}
				seen[name(e)], last[e.GetShard()] = true, e.GetSeq()
				if i == stop { // the reader acknowledges this one, and comes back
					var err error
					if next, err = eventcursor.Decode(e.GetCursor()); err != nil {
						t.Fatal(err)
					}
					break
				}
			}
			for shard, seq := range cursor {
				if next[shard] < seq {
					t.Fatalf("the cursor goes back on shard %d, from %d to %d", shard, seq, next[shard])
				}
			}
			cursor = next
			if len(pages) == len(logs) && len(res.Events) == 0 {
				break
			}
		}
		if len(seen) != len(want) {
			t.Fatalf("%d events came, want %d", len(seen), len(want))
		}
	})
}

// Events of several shards come by time; those of one never change places.
func TestEventsByTime(t *testing.T) {
	t.Parallel()
	at := func(shard int32, seq, seconds int64) *wigglev1.Event {
		return &wigglev1.Event{Shard: shard, Seq: seq, Time: &timestamppb.Timestamp{Seconds: seconds}}
	}
	res := merge.Events(eventcursor.Cursor{7: 70}, []merge.EventPage{
		{Shard: 0, Events: []*wigglev1.Event{at(0, 1, 10), at(0, 2, 9), at(0, 4, 30)}, UpTo: 5},
		{Shard: 1, UpTo: 99},
		{Shard: 2, Events: []*wigglev1.Event{at(2, 8, 10), at(2, 9, 20)}, UpTo: 9},
	}, 4, 100)
	var got []string
	for _, e := range res.Events {
		c, err := eventcursor.Decode(e.GetCursor())
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, fmt.Sprintf("%s %v", name(e), c))
	}
	want := []string{
		"0/1 map[0:1 1:99 2:7 7:70]", "0/2 map[0:2 1:99 2:7 7:70]", "2/8 map[0:2 1:99 2:8 7:70]", "2/9 map[0:2 1:99 2:9 7:70]",
	}
	if !slices.Equal(got, want) || fmt.Sprint(res.Cursor) != "map[0:2 1:99 2:9 7:70]" || !slices.Equal(res.Counts, []int64{2, 0, 2}) {
		t.Errorf("got %q, %v, %v", got, res.Cursor, res.Counts)
	}
}
