package work

import (
	"math/rand/v2"
	"testing"
	"time"
)

// party is a shard's stream as the tests of the ledger play it: what is on the way to it
// and from it, and the credits that it has.
type party struct {
	share   *share
	in      []controls
	out     []response
	credits int
}

// table is a ledger with everybody around it.
type table struct {
	*testing.T

	ledger  ledger
	credits int // as the worker counts them
	hand    int // tasks that the worker has
	now     time.Time
	parties []*party
}

func newTable(t *testing.T) *table {
	t.Helper()
	tb := &table{T: t, now: time.Unix(1_000_000_000, 0)}
	tb.ledger.now = func() time.Time { return tb.now }
	return tb
}

func (t *table) join() *party {
	p := &party{share: t.ledger.expect(nil)}
	t.parties = append(t.parties, p)
	return p
}

// flush tells everybody what the ledger has for them, and checks it.
func (t *table) flush() {
	t.Helper()
	t.ledger.settle()
	for _, p := range t.parties {
		if give, ask := p.share.orders(); give > 0 || ask > 0 {
			p.in = append(p.in, controls{credits: give, revoke: ask})
		}
	}
	if n, ok := t.ledger.answer(); ok {
		t.credits -= n
	}
	t.check()
}

// check holds the ledger to its line, and each share to what its shard has and what is on
// the way.
func (t *table) check() {
	t.Helper()
	sum := t.ledger.pool + t.ledger.repay
	for i, p := range t.parties {
		sum += p.share.unused
		n := p.credits
		for _, c := range p.in {
			n += c.credits
		}
		for _, r := range p.out {
			n += r.tasks + r.revoked
		}
		if n != p.share.unused {
			t.Fatalf("share %d is %d unused, its shard has %d with what is on the way", i, p.share.unused, n)
		}
		if p.share.unused < 0 || p.share.asked < 0 || t.ledger.pool < 0 {
			t.Fatalf("below zero: %+v, pool %d", p.share, t.ledger.pool)
		}
	}
	if sum != t.credits {
		t.Fatalf("the worker has %d credits, the ledger %d", t.credits, sum)
	}
}

func (t *table) grant(n int) {
	t.Helper()
	if err := t.ledger.grant(n); err != nil {
		t.Fatal(err)
	}
	t.credits += n
}

// work has a shard use up to n of its credits for tasks.
func (p *party) work(n int) {
	if n = min(n, p.credits); n > 0 {
		p.credits -= n
		p.out = append(p.out, response{tasks: n})
	}
}

// hear has a shard take its next message.
func (p *party) hear() {
	if len(p.in) == 0 {
		return
	}
	c := p.in[0]
	p.in = p.in[1:]
	p.credits += c.credits
	if c.revoke > 0 {
		n := min(c.revoke, p.credits)
		p.credits -= n
		p.out = append(p.out, response{revoked: n})
	}
}

// speak brings a shard's next message to the router.
func (t *table) speak(p *party) {
	t.Helper()
	if len(p.out) == 0 {
		return
	}
	r := p.out[0]
	p.out = p.out[1:]
	var err error
	if r.tasks > 0 {
		err = t.ledger.used(p.share, r.tasks)
		t.credits -= r.tasks
		t.hand += r.tasks
	} else {
		err = t.ledger.returned(p.share, r.revoked)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.flush()
}

// quiet brings all messages to where they go.
func (t *table) quiet() {
	t.Helper()
	for i := 0; ; i++ {
		busy := false
		for _, p := range t.parties {
			busy = busy || len(p.in)+len(p.out) > 0
			p.hear()
			t.speak(p)
		}
		if !busy {
			return
		}
		if i > 10_000 {
			t.Fatal("the ledger never comes to rest")
		}
	}
}

// report settles n tasks of a shard, with as many credits.
func (t *table) report(p *party, n int) {
	t.Helper()
	n = min(n, t.hand)
	t.hand -= n
	t.grant(n)
	t.ledger.settled(p.share, n, n)
	t.flush()
}

// TestLedgerNeverMakesOrLosesCredits plays random messages, lost streams and new ones: the
// line of docs/stream.md holds after each (WRK-1).
func TestLedgerNeverMakesOrLosesCredits(t *testing.T) {
	t.Parallel()
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	for round := range 300 {
		r := rand.New(rand.NewPCG(seed, uint64(round)))
		tb := newTable(t)
		for range 1 + r.IntN(4) {
			tb.join()
		}
		for range 400 {
			var p *party
			if len(tb.parties) > 0 {
				p = tb.parties[r.IntN(len(tb.parties))]
			}
			tb.step(r, p)
			tb.flush()
		}
		tb.quiet()
		for _, p := range tb.parties {
			if p.share.asked != 0 || len(p.share.asks) != 0 {
				t.Errorf("all is answered, and %d credits count as asked for", p.share.asked)
			}
		}
		if open := tb.opened(); open > 0 && tb.ledger.pool > 0 && !tb.ledger.closed && tb.ledger.owed == 0 && open == len(tb.parties) {
			t.Errorf("%d credits lie in the pool while %d shards are open", tb.ledger.pool, open)
		}
	}
}

func (t *table) opened() int {
	n := 0
	for _, p := range t.parties {
		if p.share.open {
			n++
		}
	}
	return n
}

// step does one thing at random.
func (t *table) step(r *rand.Rand, p *party) {
	t.Helper()
	switch k := r.IntN(100); {
	case p == nil || k < 3 && len(t.parties) < 5:
		t.join()
	case k < 6 && p.share.coming:
		t.ledger.open(p.share)
	case k < 8: // the stream is over, with all that was on the way
		if !p.share.open && !p.share.coming || r.IntN(2) == 0 {
			p.in, p.out, p.credits = nil, nil, 0
			t.ledger.remove(p.share)
			t.parties = removed(t.parties, p)
		} else {
			t.ledger.shut(p.share)
		}
	case k < 12:
		t.grant(r.IntN(20))
	case k < 15:
		t.ledger.revoke(r.IntN(20))
	case k < 18:
		t.ledger.want(p.share)
	case k < 40:
		p.work(1 + r.IntN(5))
	case k < 55:
		t.report(p, 1+r.IntN(5))
	case k < 75:
		p.hear()
	case k < 77:
		t.now = t.now.Add(chance)
	case k < 78 && r.IntN(10) == 0:
		t.ledger.close()
	default:
		t.speak(p)
	}
}

func removed(list []*party, p *party) []*party {
	var out []*party
	for _, o := range list {
		if o != p {
			out = append(out, o)
		}
	}
	return out
}

// TestLedgerShares: shards get equal shares, those that are not open yet have theirs kept,
// and with fewer credits than shards each goes to a shard that is open.
func TestLedgerShares(t *testing.T) {
	t.Parallel()
	tb := newTable(t)
	a, b := tb.join(), tb.join()
	tb.ledger.open(a.share)
	tb.grant(10)
	tb.flush()
	if a.share.unused != 5 || tb.ledger.pool != 5 {
		t.Errorf("the first has %d, %d are kept", a.share.unused, tb.ledger.pool)
	}
	tb.ledger.open(b.share)
	tb.flush()
	if a.share.unused != 5 || b.share.unused != 5 {
		t.Errorf("shares %d and %d", a.share.unused, b.share.unused)
	}
	tb = newTable(t)
	a, b = tb.join(), tb.join()
	tb.ledger.open(b.share)
	tb.grant(1)
	tb.flush()
	if b.share.unused != 1 {
		t.Errorf("one credit and it lies at %d, %d", a.share.unused, b.share.unused)
	}
}

// TestLedgerMovesCredits: what one shard does not use another gets that has work; the
// last credit, too, goes to where a hint says that there is some.
func TestLedgerMovesCredits(t *testing.T) {
	t.Parallel()
	tb := newTable(t)
	a, b := tb.join(), tb.join()
	tb.ledger.open(a.share)
	tb.ledger.open(b.share)
	tb.grant(10)
	tb.flush()
	for range 20 {
		tb.quiet()
		a.work(1)
	}
	tb.quiet()
	if a.share.hand != 10 {
		t.Errorf("the only shard with work has %d of 10 tasks out", a.share.hand)
	}
	// Now the other one has some: reports of the first bring it credits until both
	// have as much.
	tb.ledger.want(b.share)
	tb.flush()
	for range 40 {
		tb.report(a, 1)
		tb.quiet()
		b.work(1)
		a.work(1)
		tb.quiet()
	}
	if a.share.hand != 5 || b.share.hand != 5 {
		t.Errorf("two busy shards have %d and %d tasks out", a.share.hand, b.share.hand)
	}
	// It runs out of work: after its chance what it has goes back.
	for range 5 {
		tb.report(b, 1)
		tb.quiet()
	}
	if !tb.ledger.later {
		t.Error("there is something to settle later, and the ledger does not say so")
	}
	for range 5 {
		tb.now = tb.now.Add(chance)
		tb.flush()
		tb.quiet()
		a.work(5)
		tb.quiet()
	}
	if a.share.hand != 10 {
		t.Errorf("the only shard with work has %d of 10 tasks out again", a.share.hand)
	}

	tb = newTable(t)
	a, b = tb.join(), tb.join()
	tb.ledger.open(a.share)
	tb.ledger.open(b.share)
	tb.grant(1)
	tb.flush()
	poor, rich := a, b
	if a.share.unused == 1 {
		poor, rich = b, a
	}
	tb.ledger.want(poor.share)
	tb.flush()
	tb.quiet()
	if poor.credits != 1 || rich.credits != 0 {
		t.Errorf("the shard with work has %d credits", poor.credits)
	}
}

// TestLedgerLetsAskedShardsBe: a shard that gives back less than it was asked for is not
// asked again until something has happened, or the two would ask and answer for ever.
func TestLedgerLetsAskedShardsBe(t *testing.T) {
	t.Parallel()
	tb := newTable(t)
	a, b := tb.join(), tb.join()
	tb.ledger.open(a.share)
	tb.ledger.open(b.share)
	tb.grant(4)
	tb.flush()
	tb.quiet()
	busy := b.credits
	b.credits = 0 // a claim is under way with them
	a.work(2)
	tb.speakUnchecked(a)
	asked := 0
	for range 10 {
		for _, c := range b.in {
			asked += c.revoke
		}
		if len(b.in) > 0 {
			b.in = nil
			if err := tb.ledger.returned(b.share, 0); err != nil {
				t.Fatal(err)
			}
		}
		tb.ledger.settle()
		if give, ask := b.share.orders(); give+ask > 0 {
			b.in = append(b.in, controls{credits: give, revoke: ask})
		}
	}
	if asked != 1 { // half of two
		t.Errorf("a shard whose credits are in use was asked for %d", asked)
	}
	b.credits = busy
	tb.ledger.want(a.share)
	tb.flush()
	tb.quiet()
	if a.credits == 0 {
		t.Error("after a hint it was not asked again")
	}
}

func (t *table) speakUnchecked(p *party) {
	t.Helper()
	r := p.out[0]
	p.out = p.out[1:]
	if err := t.ledger.used(p.share, r.tasks); err != nil {
		t.Fatal(err)
	}
	t.credits -= r.tasks
	for _, p := range t.parties {
		if give, ask := p.share.orders(); give+ask > 0 {
			p.in = append(p.in, controls{credits: give, revoke: ask})
		}
	}
}

// TestLedgerRevokes: the worker gets back what it asks for, as far as it is not used, and
// one answer for it, be it none.
func TestLedgerRevokes(t *testing.T) {
	t.Parallel()
	tb := newTable(t)
	a, b := tb.join(), tb.join()
	tb.ledger.open(a.share)
	tb.ledger.open(b.share)
	tb.grant(10)
	tb.flush()
	tb.quiet()
	a.work(4)
	tb.ledger.revoke(8)
	tb.flush()
	if tb.credits != 10 {
		t.Errorf("an answer came before the shards', of %d", 10-tb.credits)
	}
	tb.quiet()
	if tb.credits != 0 {
		t.Errorf("of 6 credits that were left %d still are", tb.credits)
	}
	tb.ledger.revoke(5)
	tb.ledger.settle()
	if n, ok := tb.ledger.answer(); n != 0 || !ok {
		t.Errorf("with nothing to take back the answer is %d, %v", n, ok)
	}
	tb.ledger.close()
	tb.grant(3)
	tb.flush()
	if tb.credits != 0 {
		t.Errorf("a closed ledger keeps %d credits", tb.credits)
	}
}

// TestLedgerRefuses: too many credits are the worker's mistake, tasks without credits the
// shard's.
func TestLedgerRefuses(t *testing.T) {
	t.Parallel()
	tb := newTable(t)
	a := tb.join()
	tb.ledger.open(a.share)
	tb.grant(maxCredits)
	if err := tb.ledger.grant(1); err == nil {
		t.Error("more credits than there may be")
	}
	tb.flush()
	if err := tb.ledger.used(a.share, maxCredits+1); err == nil {
		t.Error("more tasks than credits")
	}
	if err := tb.ledger.returned(a.share, maxCredits+1); err == nil {
		t.Error("more given back than given")
	}
}
