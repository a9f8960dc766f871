package election_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/wiggle-run/wiggle/services/leader/internal/election"
	"github.com/wiggle-run/wiggle/services/leader/internal/election/electiontest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestMemoryConforms(t *testing.T) {
	t.Parallel()
	electiontest.Conform(t, &electiontest.Memory{})
}

var errAway = errors.New("home does not answer")

// home is the lease as one process reaches it.
type home struct {
	election.Lease

	mu    sync.Mutex
	away  bool          // it does not answer
	dead  bool          // neither does it hear
	takes time.Duration // there, and back again
}

func (h *home) set(change func(h *home)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	change(h)
}

func (h *home) reach(ctx context.Context) (dead, away bool, err error) {
	h.mu.Lock()
	dead, away, takes := h.dead, h.away, h.takes
	h.mu.Unlock()
	select {
	case <-ctx.Done():
		return dead, away, ctx.Err()
	case <-time.After(takes):
		return dead, away, nil
	}
}

func (h *home) Try(ctx context.Context, ask election.Ask) (election.Standing, error) {
	dead, _, err := h.reach(ctx)
	if err != nil || dead {
		return election.Standing{}, errors.Join(err, errAway)
	}
	s, err := h.Lease.Try(ctx, ask)
	if _, away, _ := h.reach(ctx); away || ctx.Err() != nil {
		return election.Standing{}, errAway // though it was done
	}
	return s, err
}

func (h *home) Release(ctx context.Context, holder string, term int64) error {
	if dead, _, err := h.reach(ctx); err != nil || dead {
		return errors.Join(err, errAway)
	}
	return h.Lease.Release(ctx, holder, term)
}

// candidate is one process.
type candidate struct {
	*election.Election
	home *home
	stop func() // and wait
}

// register is what duties write on a shard.
type register struct {
	mu     sync.Mutex
	term   int64
	writes map[int64]int
}

func (r *register) write(term int64) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.term > term {
		return &election.FencedError{Term: r.term}
	}
	r.term = term
	r.writes[term]++
	return nil
}

func (r *register) count(term int64) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.writes[term]
}

func newRegister() *register { return &register{writes: map[int64]int{}} }

// stand has a candidate stand for election over a lease. Its duty writes in a register all the time.
func stand(t *testing.T, name string, lease election.Lease, r *register) *candidate {
	t.Helper()
	c := &candidate{home: &home{Lease: lease, takes: time.Millisecond}}
	c.Election = election.New(election.Config{
		Lease: c.home, Holder: name, Logger: slog.New(slog.DiscardHandler),
		Duties: func(ctx context.Context, term int64) error {
			for {
				writing, cancel, err := election.Guard(ctx)
				if err != nil {
					return nil //nolint:nilerr // told to end
				}
				err = r.write(term)
				if _, ok := writing.Deadline(); !ok {
					t.Error("a write has no deadline")
				}
				cancel()
				if err != nil {
					return fmt.Errorf("write: %w", err)
				}
				select {
				case <-ctx.Done():
					return nil
				case <-time.After(50 * time.Millisecond):
				}
			}
		},
	})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := c.Run(ctx); err != nil {
			t.Error(err)
		}
	}()
	c.stop = func() { cancel(); <-done }
	t.Cleanup(c.stop)
	return c
}

// leader waits until one of the candidates leads and tells which.
func leader(t *testing.T, within time.Duration, all ...*candidate) (*candidate, int64) {
	t.Helper()
	for began := time.Now(); time.Since(began) <= within; time.Sleep(5 * time.Millisecond) { // by the time of the bubble
		for _, c := range all {
			if term, ok := c.Term(); ok {
				return c, term
			}
		}
	}
	t.Fatalf("nobody leads in %v", within)
	return nil, 0
}

// others are the candidates but for one.
func others(all []*candidate, but *candidate) []*candidate {
	var rest []*candidate
	for _, c := range all {
		if c != but {
			rest = append(rest, c)
		}
	}
	return rest
}

func inBubble(t *testing.T, test func(t *testing.T)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, test)
}

// TestTakeover: a leader that vanishes without a word is replaced within five seconds, and does not lead any more when it is.
func TestTakeover(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		for range 50 {
			lease, r := &electiontest.Memory{}, newRegister()
			all := []*candidate{stand(t, "a", lease, r), stand(t, "b", lease, r), stand(t, "c", lease, r)}
			first, term := leader(t, 2*time.Second, all...)
			time.Sleep(rand.N(5 * time.Second)) // by the time of the bubble
			first.home.set(func(h *home) { h.dead = true })
			gone := time.Now()
			_, next := leader(t, 5*time.Second, others(all, first)...)
			if _, leads := first.Term(); leads || next != term+1 {
				t.Fatalf("term %d follows %d; the first leads: %v", next, term, leads)
			}
			if took := time.Since(gone); took < time.Second || took > 5*time.Second {
				t.Fatalf("took over after %v", took)
			}
			for _, c := range all {
				c.stop()
			}
		}
	})
}

// TestHandover: a leader that is stopped is replaced at the next look of another, at most about a second later.
func TestHandover(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		lease, r := &electiontest.Memory{}, newRegister()
		all := []*candidate{stand(t, "a", lease, r), stand(t, "b", lease, r)}
		first, _ := leader(t, 2*time.Second, all...)
		time.Sleep(rand.N(5 * time.Second)) // by the time of the bubble
		first.stop()
		leader(t, election.RenewEvery+election.RenewEvery/10, others(all, first)...)
	})
}

// TestHomeAway: a leader goes on while home does not answer, until its lease would be over, and no longer; when home is back
// somebody leads again, under a later term.
func TestHomeAway(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		lease, r := &electiontest.Memory{}, newRegister()
		c := stand(t, "a", lease, r)
		_, term := leader(t, 2*time.Second, c)
		time.Sleep(10 * time.Second) // by the time of the bubble
		c.home.set(func(h *home) { h.away = true })
		away := time.Now()
		for {
			if _, ok := c.Term(); !ok {
				break
			}
			time.Sleep(10 * time.Millisecond)
		}
		most := election.Length - election.Margin
		if led := time.Since(away); led < most-election.RenewEvery*11/10 || led > most {
			t.Errorf("led for %v without home", led)
		}
		before := r.count(term)
		time.Sleep(time.Minute)
		if after := r.count(term); after != before {
			t.Errorf("wrote %d times without the lease", after-before)
		}
		c.home.set(func(h *home) { h.away = false })
		if _, next := leader(t, 2*time.Second, c); next <= term {
			t.Errorf("term %d follows %d", next, term)
		}
	})
}

// TestFenced: a leader that meets a later term on a shard ends, and passes that term: after home came back from a backup
// nobody is locked out.
func TestFenced(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		lease, r := &electiontest.Memory{}, newRegister()
		c := stand(t, "a", lease, r)
		leader(t, 2*time.Second, c)
		time.Sleep(5 * time.Second) // by the time of the bubble
		r.mu.Lock()
		r.term = 40
		r.mu.Unlock()
		for began := time.Now(); ; time.Sleep(5 * time.Millisecond) {
			if term, ok := c.Term(); ok && term == 41 {
				break
			}
			if time.Since(began) > 2*time.Second {
				t.Fatal("nobody leads under a term that passes the shard's")
			}
		}
	})
}

// TestNeverTwo: whatever calls are lost, late or done without being answered, and whoever stops or comes, two never lead at
// once, and terms rise.
func TestNeverTwo(t *testing.T) {
	t.Parallel()
	for range 20 {
		seed := rand.Uint64()
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) { neverTwo(t, rand.New(rand.NewPCG(seed, 0))) })
		})
	}
}

func neverTwo(t *testing.T, random *rand.Rand) {
	t.Helper()
	lease, r := &electiontest.Memory{}, newRegister()
	var all []*candidate
	for i := range 3 {
		all = append(all, stand(t, fmt.Sprint("p", i), lease, r))
	}
	names, led, last := len(all), 0, int64(0)
	for range 60_000 {
		time.Sleep(10 * time.Millisecond) // by the time of the bubble: ten minutes in all
		leading := 0
		for _, c := range all {
			if term, ok := c.Term(); ok {
				leading++
				if term < last {
					t.Fatalf("term %d after %d", term, last)
				}
				last = term
			}
		}
		if leading > 1 {
			t.Fatalf("%d lead at once", leading)
		}
		led += leading
		c := all[random.IntN(len(all))]
		switch random.IntN(1000) {
		case 0:
			c.home.set(func(h *home) { h.dead = !h.dead })
		case 1:
			c.home.set(func(h *home) { h.away = !h.away })
		case 2, 3:
			c.home.set(func(h *home) { h.takes = time.Duration(random.IntN(700)) * time.Millisecond })
		case 4, 5:
			c.home.set(func(h *home) { h.takes, h.away, h.dead = time.Millisecond, false, false })
		case 6:
			c.stop()
			all = append(others(all, c), stand(t, fmt.Sprint("p", names), lease, r))
			names++
		}
	}
	if led < 3000 {
		t.Errorf("somebody led for %d of 60000 moments", led)
	}
	t.Logf("%d terms, led for %d of 60000 moments", last, led)
}
