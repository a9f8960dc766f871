package pgstore

import (
	"encoding/binary"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/wiggle-run/wiggle/services/instances/internal/machine"
	"github.com/wiggle-run/wiggle/services/instances/internal/store"
)

// A token that was claimed leaves its entry at the front of tokens_ready until the
// table is vacuumed, and vacuum can take away nothing that an old transaction might
// still see. A claim that begins at the front of a queue then reads all of these
// first, more with each claim. So a store remembers how far the front of each queue
// has been used up, and claims go on from there (WRK-17).
//
// What is remembered decides only where to begin, never what is true. It is put
// back by every token that this process makes ready. What others make ready
// further ahead is found by claims that do begin at the front, now and then and
// when there seems to be nothing.

const (
	priorities = 10
	// usedUp is from how many claimed tokens on a queue's front is passed over.
	usedUp = 1000
	// lookEvery is how often a claim begins at the front all the same, and lookPart how
	// little of the time such looks may take: the fiftieth part.
	lookEvery = time.Second
	lookPart  = 50
	// emptyPart is the same for looks of claims that found nothing, which have time, and emptyMost how long they wait at most.
	emptyPart = 10
	emptyMost = 2 * time.Second
	// perToken is what a claimed token takes of a look: that is not for looking.
	perToken = 100 * time.Microsecond
	// cheapLook is how long a look takes that finds nothing to pass over.
	cheapLook = 2 * time.Millisecond
	// maxFronts bounds what is remembered.
	maxFronts = 4096
)

// place is where a token stands among those of its queue and priority.
type place struct{ instance, token machine.ID }

func placeOf(t *machine.Token) place { return place{t.Instance, t.ID} }

func (p place) before(o place) bool {
	if c := compareIDs(p.instance, o.instance); c != 0 {
		return c < 0
	}
	return compareIDs(p.token, o.token) < 0
}

// following is the first place after it.
func (p place) following() place {
	low := binary.BigEndian.Uint64(p.token[8:]) + 1
	binary.BigEndian.PutUint64(p.token[8:], low)
	if low == 0 {
		binary.BigEndian.PutUint64(p.token[:8], binary.BigEndian.Uint64(p.token[:8])+1)
	}
	return p
}

// afterAll is after every token.
func afterAll() (p place) {
	for i := range p.instance {
		p.instance[i], p.token[i] = 0xff, 0xff
	}
	return p
}

// places are a place for each priority.
type places [priorities]place

// front is how far a queue has been used up by claims of a kind.
type front struct {
	from   places // where the first token may be
	passed int    // tokens claimed since there was nothing to pass over
	// When a claim last began at the front of the queue, and what that took.
	looked time.Time
	took   time.Duration
	// flights are the claims under way, with the queue's number in each.
	flights map[*flight]int
}

// fronts are the fronts of a shard's queues, by the workflows that a claim is bound to.
type fronts struct {
	mu    sync.Mutex
	known map[store.QueueKey]map[string]*front
	count int
}

// flight is one claim, from its beginning to its end.
type flight struct {
	fronts []*front // by queue of the claim
	index  map[string]int
	// from is where to begin, nil for the front of each queue.
	from  []places
	began time.Time
	// made are the first tokens that this process made ready meanwhile, by queue. The claim may not have seen them.
	made []places
}

// begin begins a claim on some queues; with look at their front whatever is remembered.
func (f *fronts) begin(c *store.Claim, queues []string, look bool, now time.Time) *flight {
	f.mu.Lock()
	defer f.mu.Unlock()
	fl := &flight{began: now, index: make(map[string]int, len(queues)), made: make([]places, len(queues))}
	bindings := bindingsOf(c)
	onward := false
	for i, q := range queues {
		one := f.of(store.QueueKey{Namespace: c.Namespace, Queue: q}, bindings)
		fl.fronts, fl.index[q] = append(fl.fronts, one), i
		for p := range fl.made[i] {
			fl.made[i][p] = afterAll()
		}
		one.flights[fl] = i
		onward = onward || one.passed >= usedUp
		look = look || one.passed >= usedUp && now.Sub(one.looked) >= max(lookEvery, lookPart*one.took)
	}
	if onward && !look {
		for _, one := range fl.fronts {
			fl.from = append(fl.from, one.from)
		}
	}
	return fl
}

// end takes note of what a claim got. Of a queue it got all that there was of higher priorities than the lowest that it
// got, and of that one all up to the last; if it got nothing there was nothing.
func (f *fronts) end(fl *flight, claimed []store.Claimed, err error, now time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i, one := range fl.fronts {
		delete(one.flights, fl)
		if fl.from == nil {
			one.looked, one.took = now, max(now.Sub(fl.began)-time.Duration(len(claimed))*perToken, 0)
			if one.took < cheapLook {
				one.passed = 0
			}
		}
		if err == nil && len(claimed) == 0 {
			one.advance(-1, place{}, &fl.made[i])
		}
	}
	if err != nil {
		return
	}
	lowest := make([]*machine.Token, len(fl.fronts)) // the last of a queue, as claims are in order
	for _, c := range claimed {
		i := fl.index[c.Token.Queue]
		lowest[i] = c.Token
		fl.fronts[i].passed++
	}
	for i, t := range lowest {
		if t != nil {
			fl.fronts[i].advance(int(t.Priority), placeOf(t).following(), &fl.made[i])
		}
	}
}

// advance notes that a queue has nothing left of the priorities above one, and of that one nothing before a place, but for
// what was made ready meanwhile.
func (one *front) advance(priority int, to place, made *places) {
	for p := range one.from {
		switch {
		case p > priority:
			one.from[p] = afterAll()
		case p == priority && one.from[p].before(to):
			one.from[p] = to
		}
		if p >= priority && made[p].before(one.from[p]) {
			one.from[p] = made[p]
		}
	}
}

// mayLook tells whether a claim that found nothing should begin at the front of its queues.
func (f *fronts) mayLook(fl *flight, now time.Time) bool {
	if fl.from == nil {
		return false // it did
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return !slices.ContainsFunc(fl.fronts, func(one *front) bool {
		return now.Sub(one.looked) < min(emptyPart*one.took, emptyMost)
	})
}

// made notes what a batch has made ready.
func (f *fronts) made(w *store.World) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.count == 0 {
		return
	}
	writes := w.Writes()
	for _, tokens := range []map[machine.ID]*machine.Token{writes.NewTokens, writes.Tokens} {
		for _, t := range tokens {
			if t.State == machine.Ready && t.DueAt.IsZero() {
				f.ready(store.QueueKey{Namespace: w.Instance(t.Instance).Namespace, Queue: t.Queue}, int(t.Priority), placeOf(t))
			}
		}
	}
}

// moved takes note of the tokens that an Advance has made ready.
func (f *fronts) moved(moves []store.Move, moved []bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i, m := range moves {
		if t := m.To; moved[i] && t.State == machine.Ready {
			f.ready(store.QueueKey{Namespace: m.Namespace, Queue: t.Queue}, int(t.Priority), placeOf(t))
		}
	}
}

// ready notes that a token is ready. The mutex is held.
func (f *fronts) ready(key store.QueueKey, priority int, at place) {
	if priority < 0 || priority >= priorities {
		return
	}
	for _, one := range f.known[key] {
		if at.before(one.from[priority]) {
			one.from[priority] = at
		}
		for fl, i := range one.flights {
			if at.before(fl.made[i][priority]) {
				fl.made[i][priority] = at
			}
		}
	}
}

// of finds or makes the front of a queue. The mutex is held.
func (f *fronts) of(key store.QueueKey, bindings string) *front {
	one := f.known[key][bindings]
	if one != nil {
		return one
	}
	if f.known == nil || f.count >= maxFronts {
		f.known, f.count = map[store.QueueKey]map[string]*front{}, 0
	}
	if f.known[key] == nil {
		f.known[key] = map[string]*front{}
	}
	one = &front{flights: map[*flight]int{}}
	f.known[key][bindings] = one
	f.count++
	return one
}

// bindingsOf spells out what a claim is bound to.
func bindingsOf(c *store.Claim) string {
	parts := make([]string, len(c.Workflows))
	for i, b := range c.Workflows {
		parts[i] = b.Workflow + "\x00" + strconv.Itoa(int(b.Version))
	}
	slices.Sort(parts)
	return strings.Join(parts, "\x01")
}
