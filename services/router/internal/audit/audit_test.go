package audit_test

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.opentelemetry.io/otel/metric/noop"

	"github.com/wiggle-run/wiggle/pkg/faults"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	wiggleinternalv1 "github.com/wiggle-run/wiggle/proto/gen/wiggleinternal/v1"
	"github.com/wiggle-run/wiggle/services/router/internal/audit"
)

// sink is an auth service that keeps what it is told.
type sink struct {
	mu      sync.Mutex
	err     error
	entries []*wigglev1.AuditEntry
	largest int
}

func (s *sink) RecordAudit(
	_ context.Context, req *wiggleinternalv1.RecordAuditRequest,
) (*wiggleinternalv1.RecordAuditResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.largest = max(s.largest, len(req.GetEntries()))
	if s.err != nil {
		return nil, s.err
	}
	s.entries = append(s.entries, req.GetEntries()...)
	return &wiggleinternalv1.RecordAuditResponse{}, nil
}

func (s *sink) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.err = err
}

// all is what came, as text.
func (s *sink) all() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var list []string
	for _, e := range s.entries {
		list = append(list, e.GetTarget()+": "+e.GetDetail())
	}
	return list
}

func inBubble(t *testing.T, test func(t *testing.T, s *sink, l *audit.Log, stop func())) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &sink{}
		l, err := audit.New(s, slog.New(slog.DiscardHandler), noop.NewMeterProvider().Meter("test"))
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan struct{})
		go func() {
			defer close(done)
			if err := l.Run(ctx); err != nil {
				t.Error(err)
			}
		}()
		stop := func() {
			cancel()
			<-done
		}
		defer stop()
		test(t, s, l, stop)
	})
}

func entry(target, detail string, allowed bool) *wigglev1.AuditEntry {
	return &wigglev1.AuditEntry{Action: "a.b", Target: target, Detail: detail, Allowed: allowed}
}

// Entries come in order; denied calls that are alike are one.
func TestOrder(t *testing.T) {
	inBubble(t, func(t *testing.T, s *sink, l *audit.Log, _ func()) {
		l.Record(entry("x", "cancelled", true))
		for range 57 {
			l.Record(entry("y", "no", false))
		}
		l.Record(entry("x", "cancelled", true))
		time.Sleep(time.Second)
		if got := fmt.Sprint(s.all()); got != "[x: cancelled y: no (57 times) x: cancelled]" {
			t.Errorf("recorded %s", got)
		}
		l.Record(entry("y", "no", false))
		time.Sleep(time.Second)
		if got := s.all(); len(got) != 4 || got[3] != "y: no" {
			t.Errorf("recorded %s", got)
		}
	})
}

// While no auth process answers entries wait, as many as are kept, and come when one does.
func TestAway(t *testing.T) {
	inBubble(t, func(t *testing.T, s *sink, l *audit.Log, _ func()) {
		s.fail(faults.Unavailable(time.Second, "down"))
		for i := range 10_100 {
			l.Record(entry(fmt.Sprint(i), "no", false))
		}
		time.Sleep(time.Hour)
		s.fail(nil)
		time.Sleep(time.Minute)
		got := s.all()
		if len(got) != 10_000 || got[0] != "0: no" || got[9_999] != "9999: no" || s.largest != 1000 {
			t.Errorf("%d entries, at most %d at once", len(got), s.largest)
		}
	})
}

// What waits is sent on the way down.
func TestFlush(t *testing.T) {
	inBubble(t, func(t *testing.T, s *sink, l *audit.Log, stop func()) {
		l.Record(entry("x", "\xff", true))
		stop()
		if got := s.all(); len(got) != 1 || !strings.Contains(got[0], `"\xff"`) {
			t.Errorf("recorded %q", got)
		}
	})
}

// Entries that are refused for what they are do not hold up the others.
func TestRefused(t *testing.T) {
	inBubble(t, func(t *testing.T, s *sink, l *audit.Log, _ func()) {
		s.fail(faults.InvalidArgument("no"))
		l.Record(entry("x", "", true))
		time.Sleep(time.Second)
		s.fail(nil)
		l.Record(entry("y", "", true))
		time.Sleep(time.Second)
		if got := fmt.Sprint(s.all()); got != "[y: ]" {
			t.Errorf("recorded %s", got)
		}
	})
}
