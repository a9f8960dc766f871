package crash

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/wiggle-run/wiggle/test/crash/cluster"
)

// A victim is started again after a drawn pause.
const shortPause, longPause = 50 * time.Millisecond, 1500 * time.Millisecond

// victim is something that can be killed and started again.
type victim struct {
	name  string
	kill  func() error
	start func(ctx context.Context) error
	// up holds a value while it runs.
	up chan struct{}
}

func newVictim(name string, kill func() error, start func(ctx context.Context) error) *victim {
	v := &victim{name: name, kill: kill, start: start, up: make(chan struct{}, 1)}
	v.up <- struct{}{}
	return v
}

// victimsOf are a cluster's, a list for each kind.
func victimsOf(c *cluster.Cluster, workers []*cluster.Process) [][]*victim {
	kinds := make([][]*victim, 4)
	process := func(kind int, p *cluster.Process) {
		kinds[kind] = append(kinds[kind], newVictim(p.Name,
			func() error { p.Kill(); return nil },
			func(context.Context) error { return p.Start() }))
	}
	for _, p := range c.Instances {
		process(0, p)
	}
	process(1, c.Router)
	for _, p := range workers {
		process(2, p)
	}
	for _, d := range c.Databases {
		kinds[3] = append(kinds[3], newVictim(d.Name, d.Kill, d.Start))
	}
	return kinds
}

// strike is one kill.
type strike struct {
	victim *victim
	// after is the time from the strike before, pause that until it is started again.
	after, pause time.Duration
}

// schedule draws strikes: each kind comes once in as many strikes as there are
// kinds, in a drawn order, and a quarter of them come right after the one before.
func schedule(seed uint64, kinds [][]*victim, kills int, gap time.Duration) []strike {
	r := rand.New(rand.NewPCG(seed, 0)) //nolint:gosec // to be repeated
	between := func(from, to time.Duration) time.Duration { return from + time.Duration(r.Int64N(int64(to-from))) }
	var bag []int
	strikes := make([]strike, 0, kills)
	for range kills {
		if len(bag) == 0 {
			bag = r.Perm(len(kinds))
		}
		kind := kinds[bag[0]]
		bag = bag[1:]
		s := strike{
			victim: kind[r.IntN(len(kind))], after: between(gap/2, gap*13/6), pause: between(shortPause, longPause),
		}
		if r.IntN(4) == 0 {
			s.after = between(0, 150*time.Millisecond)
		}
		strikes = append(strikes, s)
	}
	return strikes
}

// duration is how long a schedule takes.
func duration(strikes []strike) time.Duration {
	var d time.Duration
	for _, s := range strikes {
		d += s.after
	}
	return d
}

// killer carries out a schedule.
type killer struct {
	began time.Time

	mu    sync.Mutex
	log   []string
	kills []time.Time
	errs  []error
}

func (k *killer) notef(format string, args ...any) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.log = append(k.log, fmt.Sprintf("%8.3fs ", time.Since(k.began).Seconds())+fmt.Sprintf(format, args...))
}

func (k *killer) fail(err error) {
	k.notef("error: %v", err)
	k.mu.Lock()
	defer k.mu.Unlock()
	k.errs = append(k.errs, err)
}

// run kills and starts again, and returns when everything runs.
func (k *killer) run(ctx context.Context, strikes []strike) {
	var restarts sync.WaitGroup
	defer restarts.Wait()
	for _, s := range strikes {
		if !cluster.Pause(ctx, s.after) {
			return
		}
		select {
		case <-s.victim.up: // it may still be down from the last time
		case <-ctx.Done():
			return
		}
		k.mu.Lock()
		k.kills = append(k.kills, time.Now())
		k.mu.Unlock()
		k.notef("kill %s, start it again after %s", s.victim.name, s.pause.Round(time.Millisecond))
		if err := s.victim.kill(); err != nil {
			k.fail(err)
			return
		}
		restarts.Go(func() { k.restart(ctx, s) })
	}
}

func (k *killer) restart(ctx context.Context, s strike) {
	if !cluster.Pause(ctx, s.pause) {
		return
	}
	if err := s.victim.start(ctx); err != nil {
		k.fail(err)
		return
	}
	k.notef("%s runs again", s.victim.name)
	s.victim.up <- struct{}{}
}
