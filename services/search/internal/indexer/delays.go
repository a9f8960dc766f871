package indexer

import (
	"math"
	"sync"
	"time"
)

const (
	// slotTime and slots are the window that percentiles are of: five minutes.
	slotTime = 10 * time.Second
	slots    = 30
	// buckets grow by growth from least: from a millisecond to about half an hour, to within an eighth.
	buckets = 64
	growth  = 1.25
	least   = time.Millisecond
)

// Delays remembers how long events took to get into the index, of the last minutes. It is safe for concurrent use.
type Delays struct {
	mu    sync.Mutex
	last  time.Duration
	known bool
	slots [slots]slot
}

// slot counts the delays of ten seconds.
type slot struct {
	number int64
	counts [buckets]int64
}

// Note takes note of a delay. Clocks differ: one that is negative counts as none.
func (d *Delays) Note(now time.Time, delay time.Duration) {
	delay = max(delay, 0)
	number := now.UnixNano() / int64(slotTime)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.last, d.known = delay, true
	s := &d.slots[number%slots]
	if s.number != number {
		*s = slot{number: number}
	}
	s.counts[bucketOf(delay)]++
}

// bucketOf is the first bucket whose upper bound is not less.
func bucketOf(delay time.Duration) int {
	if delay <= least {
		return 0
	}
	return min(int(math.Ceil(math.Log(float64(delay)/float64(least))/math.Log(growth))), buckets-1)
}

func upperOf(bucket int) time.Duration {
	return time.Duration(float64(least) * math.Pow(growth, float64(bucket)))
}

// Last is the last delay, and whether there was one.
func (d *Delays) Last() (time.Duration, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.last, d.known
}

// Percentile is the delay that a part q of those of the last minutes does not exceed, to within an eighth above; false if
// there were none.
func (d *Delays) Percentile(now time.Time, q float64) (time.Duration, bool) {
	oldest := now.UnixNano()/int64(slotTime) - slots + 1
	var counts [buckets]int64
	total := int64(0)
	d.mu.Lock()
	defer d.mu.Unlock()
	for i := range d.slots {
		if d.slots[i].number < oldest {
			continue
		}
		for b, n := range d.slots[i].counts {
			counts[b] += n
			total += n
		}
	}
	if total == 0 {
		return 0, false
	}
	rest := int64(math.Ceil(q * float64(total)))
	for b, n := range counts {
		if rest -= n; rest <= 0 {
			return upperOf(b), true
		}
	}
	return upperOf(buckets - 1), true
}
