package work

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/wiggle-run/wiggle/pkg/faults"
)

// ledger keeps the credits of one worker (docs/stream.md). It holds at all times
//
//	the worker's credits = pool + repay + sum over shares of unused
//
// where the worker's credits are what it granted, less a credit for each task that was
// sent to it and less what it was told to be taken back. Nothing else makes or loses a
// credit. A ledger is not safe for concurrent use.
type ledger struct {
	pool  int // given to no shard
	repay int // taken back, and to be told to the worker
	owed  int // asked back by the worker, and still to be had
	// asking says that the worker waits for the answer to a revoke.
	asking bool
	closed bool // takes no more credits: what comes is repaid
	shares []*share
	turn   int // who gets what cannot be split evenly
	tasks  int // sent, modulo decayEvery
	// later says that settling again after chance would bring something.
	later bool
	now   func() time.Time
}

// chance is how long a shard that was given credits because it needed some has them
// before they count as unused.
const chance = 100 * time.Millisecond

// decayEvery is after how many tasks the guesses of what is in hand are cut by a
// quarter: a worker may let go of a task without saying so.
const decayEvery = 1024

// share is the part of a shard's stream.
type share struct {
	link   *link
	unused int // given, and as far as known neither used nor given back
	asked  int // of these, how many the shard was asked for
	asks   []int
	hand   int  // tasks that it sent and that are not settled, about
	coming bool // will be open soon: its part is kept for it
	open   bool // may be given credits
	hungry bool // has used up its share, or is said to have tasks
	// refused says that it gave back less than it was asked for: what it has is in use,
	// or being used. It is asked again when something has happened.
	refused bool
	given   time.Time // when it was given credits that it needed

	// give and ask are to be told to the shard.
	give, ask int
}

// hold is what of the worker's room a share takes up.
func (s *share) hold() int { return s.unused + s.hand }

// rank puts streams that are open before those that will be.
func (s *share) rank() int {
	if s.open {
		return 1
	}
	return 0
}

// total is how many credits the worker has.
func (l *ledger) total() int {
	n := l.pool + l.repay
	for _, s := range l.shares {
		n += s.unused
	}
	return n
}

// expect adds the share of a stream that is being opened.
func (l *ledger) expect(of *link) *share {
	s := &share{link: of, coming: true}
	l.shares = append(l.shares, s)
	return s
}

// open begins the giving to a stream.
func (l *ledger) open(s *share) {
	s.coming, s.open = false, true
	l.settle()
	if l.total() > 0 {
		l.want(s)
	}
}

// shut ends the giving to a stream, which sends no more tasks after those under way.
func (l *ledger) shut(s *share) {
	s.coming, s.open, s.hungry = false, false, false
	l.pool += s.give // was not told yet
	s.unused -= s.give
	s.give = 0
}

// remove takes a stream out that is over: what it had not used is in the pool again.
func (l *ledger) remove(s *share) {
	l.shut(s)
	l.pool += s.unused
	s.unused, s.asked, s.asks, s.ask = 0, 0, nil, 0
	l.shares = slices.DeleteFunc(l.shares, func(o *share) bool { return o == s })
	l.settle()
}

// grant adds credits of the worker.
func (l *ledger) grant(n int) error {
	if now := l.total(); now+n > maxCredits {
		return faults.InvalidArgument("with credits %d the worker has %d, at most %d are allowed", n, now+n, maxCredits)
	}
	l.pool += n
	return nil
}

// settled takes note that n tasks of a share are done with, and gives it as many of the
// credits that came with them: the steps that follow are leased with the reports. A
// shard that has used up its share while this one has more goes first.
func (l *ledger) settled(s *share, n, credits int) {
	s.hand = max(s.hand-n, 0)
	if !s.open || l.closed || l.owed > 0 {
		return
	}
	credits = min(n, credits, l.pool)
	if len(l.shares) == 1 && credits > 0 {
		l.giveTo(s, credits)
		return
	}
	for range credits {
		to := s
		for _, o := range l.shares {
			if o.open && o.hungry && o.unused == 0 && o.hold() < to.hold() {
				to = o
			}
		}
		l.giveTo(to, 1)
	}
}

func (l *ledger) giveTo(s *share, n int) {
	if s.hungry {
		s.given = l.now()
	}
	l.pool -= n
	s.unused += n
	s.give += n
	s.hungry, s.refused = false, false
}

// used takes note of n tasks that a shard has sent.
func (l *ledger) used(s *share, n int) error {
	if n > s.unused {
		return faults.Internal(fmt.Errorf("a shard sent %d tasks and was given %d credits", n, s.unused))
	}
	s.unused -= n
	s.hand += n
	s.refused = s.refused && n == 0
	if l.tasks += n; l.tasks >= decayEvery {
		l.tasks = 0
		for _, o := range l.shares {
			o.hand -= o.hand / 4
		}
	}
	if n > 0 && s.unused == 0 && s.open {
		s.hungry = true
		l.settle()
	}
	return nil
}

// returned takes note of n credits that a shard gave back. Each ask is answered once,
// in turn; a shard may give back unasked.
func (l *ledger) returned(s *share, n int) error {
	if n > s.unused || n < 0 {
		return faults.Internal(fmt.Errorf("a shard gave back %d credits and was given %d", n, s.unused))
	}
	if len(s.asks) > 0 {
		s.refused = n < s.asks[0]
		s.asked -= s.asks[0]
		s.asks = s.asks[1:]
	}
	s.unused -= n
	l.pool += n
	l.settle()
	return nil
}

// revoke asks n credits back for the worker.
func (l *ledger) revoke(n int) {
	l.owed += n
	l.asking = true
	l.forgive()
	l.settle()
}

// forgive has shards asked again that could not give: something has happened.
func (l *ledger) forgive() {
	for _, s := range l.shares {
		s.refused = false
	}
}

// want says that a stream's shard may have tasks.
func (l *ledger) want(s *share) {
	l.forgive()
	if s.open && s.unused == 0 {
		s.hungry = true
		l.settle()
	}
}

// close gives everything back to the worker, now and from now on.
func (l *ledger) close() {
	l.closed = true
	l.forgive()
	l.settle()
}

// settle does what the numbers ask for: pays what is owed, gives away the pool, and asks
// shards for what others need.
func (l *ledger) settle() {
	l.pay()
	if l.owed > 0 {
		l.collect()
	}
	if !l.closed && l.owed == 0 {
		l.spread()
		l.feed()
	}
}

// pay pays what is owed to the worker, as far as the pool goes.
func (l *ledger) pay() {
	if l.closed {
		l.owed = l.total() - l.repay
	}
	paid := min(l.owed, l.pool)
	l.owed, l.pool, l.repay = l.owed-paid, l.pool-paid, l.repay+paid
}

// asked is how many credits shards were asked for.
func (l *ledger) asked() int {
	n := 0
	for _, s := range l.shares {
		n += s.asked
	}
	return n
}

// collect asks shards for what is owed to the worker, those that have most first. What
// cannot be had is owed no longer.
func (l *ledger) collect() {
	missing := l.owed - l.asked()
	if missing <= 0 {
		return
	}
	rich := slices.Clone(l.shares)
	slices.SortStableFunc(rich, func(a, b *share) int { return cmp.Compare(b.unused-b.asked, a.unused-a.asked) })
	for _, s := range rich {
		if !s.refused {
			missing -= s.askFor(missing)
		}
	}
	if !l.closed {
		l.owed -= max(missing, 0)
	}
}

// askFor asks for up to n credits and tells how many.
func (s *share) askFor(n int) int {
	if n = min(n, s.unused-s.asked); n <= 0 {
		return 0
	}
	s.asked += n
	s.ask += n
	return n
}

// spread gives the pool away: to those that need it, else to all, so that their holds
// come to be equal.
func (l *ledger) spread() {
	if l.pool == 0 {
		return
	}
	var to, hungry []*share
	for i := range l.shares {
		s := l.shares[(l.turn+i)%len(l.shares)]
		if s.open || s.coming {
			to = append(to, s)
		}
		if s.open && s.hungry {
			hungry = append(hungry, s)
		}
	}
	if len(hungry) > 0 {
		to = hungry
	}
	l.turn++
	slices.SortStableFunc(to, func(a, b *share) int {
		return cmp.Or(cmp.Compare(a.hold(), b.hold()), cmp.Compare(b.rank(), a.rank()))
	})
	// Fill up from the lowest: as many as the pool lifts to one level.
	sum, n := l.pool, 0
	for n < len(to) && (n == 0 || to[n].hold()*n < sum) {
		sum += to[n].hold()
		n++
	}
	for i, s := range to[:n] {
		level := sum / n
		if i < sum%n {
			level++
		}
		if more := level - s.hold(); more > 0 && s.open {
			l.giveTo(s, more)
		}
	}
}

// feed asks shards for credits that others need: half of what one has that has shown no
// work, or what one has more than the one in need.
func (l *ledger) feed() {
	l.later = false
	var need *share
	for i := range l.shares {
		s := l.shares[(l.turn+i)%len(l.shares)]
		if s.asked > 0 {
			return // some are on their way
		}
		if s.open && s.hungry && s.unused == 0 && (need == nil || s.hold() < need.hold()) {
			need = s
		}
	}
	if need == nil {
		return
	}
	var donor *share
	most := 0
	for _, s := range l.shares {
		spare := (s.unused + 1) / 2
		if s.hand > 0 {
			spare = min(spare, (s.hold()-need.hold())/2)
		}
		switch {
		case !s.open || s.refused || spare <= most:
		case s.hand == 0 && l.now().Sub(s.given) < chance:
			l.later = true
		default:
			donor, most = s, spare
		}
	}
	if donor != nil {
		donor.askFor(most)
	}
}

// orders is what is to be told to a share's shard since the last time.
func (s *share) orders() (give, ask int) {
	give, ask = s.give, s.ask
	s.give, s.ask = 0, 0
	if ask > 0 {
		s.asks = append(s.asks, ask)
	}
	return give, ask
}

// answer is what is to be told to the worker; ok says whether there is something to tell.
// A revoke is answered when all is there that can be had, be it nothing.
func (l *ledger) answer() (n int, ok bool) {
	switch {
	case l.owed > 0 && !l.closed, !l.asking && l.repay == 0, l.closed && l.repay == 0:
		return 0, false
	}
	n = l.repay
	l.repay, l.asking = 0, false
	return n, true
}
