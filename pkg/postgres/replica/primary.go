package replica

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/wiggle-run/wiggle/pkg/clock"
	"github.com/wiggle-run/wiggle/pkg/postgres"
)

const (
	// SkewTolerance is how far the age of a beat by the primary's clock may lie outside what this process has seen, before
	// the clock counts as wrong.
	SkewTolerance = time.Second
	// maxSightings bounds what is kept of beats: ten minutes of them. The age of an older one is told by the clock alone.
	maxSightings = 600
)

// readPrimary is the one statement that a second costs the primary. The timeline is that of the segment being written,
// which a promotion changes at once; the control file's changes with the next checkpoint.
const readPrimary = `select h.beat, h.beaten_at, clock_timestamp(), (pg_control_system()).system_identifier::text,
	case when pg_is_in_recovery() then 0
		else ('x' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8))::bit(32)::int end
from wiggle_heartbeat h`

var errDemoted = errors.New("the primary is in recovery: it was demoted")

// reading is what a look at the primary found.
type reading struct {
	beat     int64
	beatenAt time.Time
	clock    time.Time // the primary's
	systemID string
	timeline int32
	// began and ended are by this process's clock.
	began, ended time.Time
}

// sighting is a beat as it was seen on the primary.
type sighting struct {
	beat     int64
	beatenAt time.Time
	// first is the end of the look that saw it first, last the beginning of the one that saw it last.
	first, last time.Time
}

// primary is what this process knows of a shard's primary.
type primary struct {
	pool  *postgres.Pool
	clock clock.Clock

	mu        sync.Mutex
	known     bool
	reading   reading
	sightings []sighting // of the present timeline, by beat
}

// look asks the primary, and tells whether it is another one than before, or the first.
func (p *primary) look(ctx context.Context) (changed bool, err error) {
	r := reading{began: p.clock.Now()}
	if err := p.pool.QueryRow(ctx, readPrimary).Scan(&r.beat, &r.beatenAt, &r.clock, &r.systemID, &r.timeline); err != nil {
		return false, err
	}
	if r.timeline == 0 {
		return false, errDemoted
	}
	r.ended = p.clock.Now()
	return p.take(r), nil
}

// take takes note of a reading, and tells whether it is of another primary than the one before.
func (p *primary) take(r reading) (changed bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	changed = !p.known || p.reading.systemID != r.systemID
	if changed || p.reading.timeline != r.timeline || p.reading.beat > r.beat {
		p.sightings = nil // of another history, or one that ends before
	}
	p.known, p.reading = true, r
	if n := len(p.sightings); n > 0 && p.sightings[n-1].beat == r.beat {
		p.sightings[n-1].last = r.began
		return changed
	}
	if len(p.sightings) == maxSightings {
		p.sightings = slices.Delete(p.sightings, 0, 1)
	}
	p.sightings = append(p.sightings, sighting{beat: r.beat, beatenAt: r.beatenAt, first: r.ended, last: r.began})
	return changed
}

// identity is what a replica of this primary has in common with it. ok is false before the first look.
func (p *primary) identity() (systemID string, timeline int32, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.reading.systemID, p.reading.timeline, p.known
}

// latest is the number of the newest beat that was seen on the primary.
func (p *primary) latest() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.reading.beat
}

// seen tells whether the beat was written by the primary while it was on its timeline, and whether the primary had another
// one under the same number, so that this one is of another history.
func (p *primary) seen(beat int64, beatenAt time.Time) (here, other bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	at, found := p.find(beat)
	if !found {
		return false, false
	}
	same := p.sightings[at].beatenAt.Equal(beatenAt)
	// The first may be of the timeline before.
	return same && at > 0, !same
}

// find is the first sighting of the beat or a later one, and whether it is of the beat. The mutex is held.
func (p *primary) find(beat int64) (int, bool) {
	return slices.BinarySearchFunc(p.sightings, beat, func(s sighting, beat int64) int {
		switch {
		case s.beat < beat:
			return -1
		case s.beat > beat:
			return 1
		}
		return 0
	})
}

// age is how old a beat is.
type age struct {
	// lag is at least the age, to what is known. It is not known at all where a clock is wrong and the beat is older than what
	// was seen, or before the first look.
	lag   time.Duration
	known bool
	// skew is by how much the age by the primary's clock lies outside what was seen: positive if by the clock the beat is too
	// old, negative if it is too young. 0 if it fits.
	skew time.Duration
}

// age tells how old a beat is now, by the package's two ways.
func (p *primary) age(beat int64, beatenAt, now time.Time) age {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.known {
		return age{}
	}
	// The primary's clock was read after the look began, so this errs towards too old, by the time that the look took.
	byClock := p.reading.clock.Add(now.Sub(p.reading.began)).Sub(beatenAt)
	least, most, bounded := p.bounds(beat, now)
	switch {
	case byClock < least-SkewTolerance:
		return age{lag: most, known: bounded, skew: byClock - least}
	case bounded && byClock > most+SkewTolerance:
		return age{lag: most, known: true, skew: byClock - most}
	}
	return age{lag: max(byClock, 0), known: true}
}

// bounds is what this process's own time says about the age of a beat. Without bounded there is no most. The mutex is held.
func (p *primary) bounds(beat int64, now time.Time) (least, most time.Duration, bounded bool) {
	at, _ := p.find(beat)
	if at < len(p.sightings) {
		least = now.Sub(p.sightings[at].first)
	}
	if at > 0 {
		return least, now.Sub(p.sightings[at-1].last), true
	}
	return least, 0, false
}
