package bench

import (
	"testing"
	"time"

	"github.com/wiggle-run/wiggle/internal/bench/pgmeter"
)

func TestPercentile(t *testing.T) {
	t.Parallel()
	hundred := make([]int, 100)
	for i := range hundred {
		hundred[i] = i + 1
	}
	for _, test := range []struct {
		values  []int
		percent float64
		want    int
	}{
		{nil, 50, 0},
		{[]int{7}, 0, 7},
		{[]int{7}, 50, 7},
		{[]int{7}, 99, 7},
		{[]int{1, 2}, 50, 1},
		{[]int{1, 2}, 51, 2},
		{[]int{1, 2, 3}, 50, 2},
		{hundred, 50, 50},
		{hundred, 95, 95},
		{hundred, 99, 99},
		{hundred, 99.9, 100},
		{hundred, 100, 100},
	} {
		if got := percentile(test.values, test.percent); got != test.want {
			t.Errorf("percentile %v of %d values: %d, want %d", test.percent, len(test.values), got, test.want)
		}
	}
	if got := median([]float64{3, 1, 2}); got != 2 {
		t.Errorf("median: %v", got)
	}
	if got := millis(1234567 * time.Nanosecond); got != 1.235 {
		t.Errorf("millis: %v", got)
	}
}

// TestOmission: an instance that was started late has been waited for since it was to start.
func TestOmission(t *testing.T) {
	t.Parallel()
	begin := time.Unix(100, 0)
	a := account{completed: []ended{
		{start: begin, end: begin.Add(3 * time.Second)},
		{start: begin, end: begin.Add(time.Second), late: 5 * time.Second},
	}}
	if got := a.latencies(); got[0] != 3*time.Second || got[1] != 6*time.Second {
		t.Errorf("%v", got)
	}
	if got := a.within(begin.Add(time.Second), begin.Add(3*time.Second)); len(got) != 1 || got[0] != 6*time.Second {
		t.Errorf("%v", got)
	}
}

func TestCosts(t *testing.T) {
	t.Parallel()
	before := sample{cpu: map[string]float64{"router": 1}, db: pgmeter.Counters{Known: true, Commits: 10, WAL: 100, Rows: map[string]pgmeter.RowCounts{"tokens": {Inserted: 1, Updated: 1, Hot: 1, Deleted: 1}}}}
	after := sample{cpu: map[string]float64{"router": 3}, db: pgmeter.Counters{Known: true, Commits: 60, WAL: 1100, Rows: map[string]pgmeter.RowCounts{"tokens": {Inserted: 51, Updated: 151, Hot: 76, Deleted: 1}}}}
	var r Run
	r.setRate(10, 100, 2*time.Second)
	r.setCosts(before, after)
	if r.StepsPerSecond != 50 || r.CPUSeconds["router"] != 2 || r.CPUPerStep["router"] != 20_000 || *r.CommitsPerStep != 0.5 ||
		*r.WALBytesPerStep != 10 || *r.RowVersionsPerStep != 2 || *r.HotRatio != 0.5 || r.Tables["tokens"] != (RowRate{0.5, 1.5, 0.75, 0}) {
		t.Errorf("%+v", r)
	}
	after.db = pgmeter.Counters{}
	r = Run{}
	r.setCosts(before, after)
	if r.CommitsPerStep != nil || r.HotRatio != nil {
		t.Errorf("costs without databases: %+v", r)
	}
}
