package feed_test

import (
	"fmt"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/wiggle-run/wiggle/pkg/eventcursor"
	"github.com/wiggle-run/wiggle/pkg/identity"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	wiggleinternalv1 "github.com/wiggle-run/wiggle/proto/gen/wiggleinternal/v1"
)

// What somebody may not see does not end its wait, and is passed, so many entries at a time; others' cursors are the same
// (AUT-3, EVT-5).
func TestWhatMayNotBeSeenIsPassed(t *testing.T) {
	t.Parallel()
	play(t, func(s *scene) {
		p, err := identity.New(&wiggleinternalv1.Principal{Name: "alice", Permissions: []string{"event.read:default/order*", "instance.read"}})
		if err != nil {
			s.Fatal(err)
		}
		poll := func(after int64, wait time.Duration, want ...string) int64 {
			s.Helper()
			ctx, call := connect.NewClientContext(s.ctx())
			p.Write(call.RequestHeader())
			res, err := s.client.PollEvents(ctx, &wigglev1.PollEventsRequest{
				After: eventcursor.Encode(eventcursor.Cursor{shard: after}), Wait: durationpb.New(wait),
			})
			if err != nil {
				s.Fatal(err)
			}
			var got []string
			for _, e := range res.GetEvents() {
				got = append(got, e.GetType())
			}
			if fmt.Sprint(got) != fmt.Sprint(want) {
				s.Errorf("behind %d: %v, want %v", after, got, want)
			}
			cursor, err := eventcursor.Decode(res.GetCursor())
			if err != nil {
				s.Fatal(err)
			}
			return cursor[shard]
		}
		s.write("default", "mail", make([]string, 10_500)...)
		s.write("default", "orders", "mine")
		s.write("other", "orders", "theirs")
		if at := poll(0, 0); at != 10_000 {
			t.Errorf("a poll has passed %d entries", at)
		}
		if at := poll(10_000, 0, "mine"); at != 10_502 {
			t.Errorf("the next is at %d", at)
		}
		began := time.Now()
		time.AfterFunc(time.Second, func() {
			s.write("default", "mail", "theirs")
			s.feed.Logged()
		})
		if at := poll(10_502, 10*time.Second); at != 10_503 || time.Since(began) != 10*time.Second {
			t.Errorf("a wait has ended after %s at %d", time.Since(began), at)
		}
	})
}
