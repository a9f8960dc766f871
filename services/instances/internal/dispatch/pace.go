package dispatch

import (
	"math"
	"time"
)

const (
	// yielding is how much of its time a lane keeps free of starts for each part of it
	// that work under way takes: with a third of it, all.
	yielding = 3
	// forEnds is how many starts may follow each instance that has ended, so that a load
	// that ends as fast as it comes is never held up, and may still grow.
	forEnds = 1.05
	// forOthers is how many may follow each operation of work under way, so that starts
	// get on beside instances that take long.
	forOthers = 1.0 / 64
	// startCost is what a start takes of a batch's time, in other operations.
	startCost = 2
	// smoothing is over how long shares and rates are taken.
	smoothing = time.Second
	// savedUp is how much of a lane's time starts may save up, and overdrawn how much they
	// may be behind: a batch that the database kept waiting was not theirs to pay for.
	savedUp   = 250 * time.Millisecond
	overdrawn = 250 * time.Millisecond
	// saved is how many starts may be saved up that may follow, in batches: instances tend to
	// end in waves.
	saved = 8
	// leastPart is the part of a batch that may wait however slow it goes.
	leastPart = 4
	// lookAgain is how soon a lane looks whether starts may go on that had to wait.
	lookAgain = 10 * time.Millisecond
	// firstRate is how many starts a second a lane is taken to do before that is known.
	firstRate = 5000
)

// pace says how many starts a lane may take, so that what is accepted already also
// gets done (WRK-15). That starts wait their turn in each batch is not enough: each
// of them makes work far beyond the lane, and database and machine are shared. So
// starts may take
//
//	1 - yielding * the part of the lane's time that work under way takes
//
// of its time. Where that is nothing, they may be as many as forEnds and forOthers
// say. So a shard with little to do takes starts as fast as it can, and a busy one
// as fast as it gets them done, and a bit more.
type pace struct {
	at       time.Time     // up to when the rest counts
	underWay float64       // the part of the time that went to work under way
	credit   time.Duration // of time that starts may take
	follow   float64       // how many may follow what was done

	// How fast starts are taken while some wait.
	takenAt time.Time
	taken   int
	waiting bool
	rate    float64 // a second; 0: not known yet
}

// accrue adds what has come up since.
func (p *pace) accrue(now time.Time) {
	if p.at.IsZero() {
		p.at, p.credit = now, savedUp
	}
	elapsed := max(now.Sub(p.at), 0)
	p.at = now
	share := max(1-yielding*p.underWay, 0)
	p.credit += time.Duration(share * float64(elapsed))
	p.underWay = smooth(p.underWay, 0, elapsed)
}

// allow tells how many starts a batch may hold.
func (p *pace) allow(now time.Time) int {
	p.accrue(now)
	p.credit = min(p.credit, savedUp)
	if p.credit > 0 {
		return math.MaxInt
	}
	return int(p.follow)
}

// settle notes what a batch took, and how many instances have ended since the last.
func (p *pace) settle(now time.Time, took time.Duration, starts, others, ended, batchSize int) {
	p.accrue(now)
	weight := float64(startCost*starts + others)
	forStarts := float64(took) * startCost * float64(starts) / max(weight, 1)
	p.underWay = min(p.underWay+(float64(took)-forStarts)/float64(smoothing), 1)
	// What may follow is used first.
	followed := min(float64(starts), p.follow)
	p.follow = min(p.follow-followed+forEnds*float64(ended)+forOthers*float64(others), float64(saved*batchSize))
	if starts > 0 {
		spent := time.Duration(forStarts * (1 - followed/float64(starts)))
		p.credit = max(p.credit-spent, -overdrawn)
	}
}

// took notes how many starts went into a batch and how many are left.
func (p *pace) took(now time.Time, starts, left int) {
	if elapsed := now.Sub(p.takenAt); p.waiting && elapsed > 0 {
		if p.rate == 0 {
			p.rate = firstRate
		}
		p.rate = smooth(p.rate, float64(p.taken)/elapsed.Seconds(), elapsed)
	}
	p.takenAt, p.taken, p.waiting = now, starts, left > 0
}

// longest is how many starts may wait: what is taken within Config.StartWait, and a part
// of a batch at least.
func (p *pace) longest(cfg *Config) int {
	rate := p.rate
	if rate == 0 {
		rate = firstRate
	}
	return min(max(int(rate*cfg.StartWait.Seconds()), cfg.BatchSize/leastPart), cfg.QueueLength)
}

// smooth moves a value to one that held for a while.
func smooth(value, sample float64, held time.Duration) float64 {
	keep := math.Exp(-held.Seconds() / smoothing.Seconds())
	return keep*value + (1-keep)*sample
}
