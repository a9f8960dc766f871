package indexer_test

import (
	"testing"
	"time"

	"github.com/wiggle-run/wiggle/services/search/internal/indexer"
)

func TestDelays(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC)
	d := &indexer.Delays{}
	if _, ok := d.Percentile(now, 0.99); ok {
		t.Error("there is a percentile of nothing")
	}
	if _, ok := d.Last(); ok {
		t.Error("there is a last delay of none")
	}
	for i := 1; i <= 1000; i++ {
		d.Note(now.Add(time.Duration(i)*100*time.Millisecond), time.Duration(i)*time.Millisecond)
	}
	now = now.Add(100 * time.Second)
	for q, want := range map[float64]time.Duration{0.5: 500 * time.Millisecond, 0.99: 990 * time.Millisecond, 1: time.Second} {
		if got, ok := d.Percentile(now, q); !ok || got < want || got > want+want/4 {
			t.Errorf("%v of the delays are within %v, want %v", q, got, want)
		}
	}
	if last, _ := d.Last(); last != time.Second {
		t.Errorf("the last delay is %v", last)
	}
	d.Note(now.Add(4*time.Minute), -time.Second) // clocks differ
	if got, ok := d.Percentile(now.Add(4*time.Minute), 1); !ok || got < time.Second {
		t.Errorf("within five minutes: %v", got)
	}
	if got, ok := d.Percentile(now.Add(6*time.Minute), 1); !ok || got > time.Millisecond {
		t.Errorf("of what is older than five minutes there is %v", got)
	}
	if _, ok := d.Percentile(now.Add(time.Hour), 1); ok {
		t.Error("after an hour there is a percentile")
	}
	d.Note(now.Add(time.Hour), 1000*time.Hour)
	if got, ok := d.Percentile(now.Add(time.Hour), 1); !ok || got < 20*time.Minute {
		t.Errorf("a delay without end is %v", got)
	}
}
