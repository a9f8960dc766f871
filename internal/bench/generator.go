package bench

import (
	"context"
	"sync"
	"time"

	wiggle "github.com/wiggle-run/wiggle/sdk/go"
)

const (
	// startCalls is how many calls start instances at the same time, startBatch how many one starts at most.
	startCalls = 4
	startBatch = 250
	// bulkBatch is how many a call starts where as many as possible are to be started.
	bulkBatch = 1000
	// startPause is what follows a call in which a start failed.
	startPause = 100 * time.Millisecond
	// stallTime is how long nothing may end before a run is given up.
	stallTime = time.Minute
	lookAgain = 200 * time.Millisecond
)

// generator starts instances of one workload and knows how many of them are in flight.
type generator struct {
	bench *bench
	load  workload
	// since is before every start, by the databases' clock.
	since time.Time
	// before are the ends that were not ours.
	before uint64

	mu       sync.Mutex
	asked    int64 // starts that were made or are under way
	failed   int64
	failures []string
	ids      []string
	late     map[string]time.Duration // by how much a start was late, in an open loop
}

// clockSlack is how far apart two clocks of one machine are taken to be at most.
const clockSlack = 2 * time.Millisecond

func newGenerator(b *bench, w workload) *generator {
	g := &generator{bench: b, load: w, since: time.Now().Add(b.skew - clockSlack), late: map[string]time.Duration{}}
	if tally := b.Tally(); tally != nil {
		g.before = tally.Sum().Ended
	}
	return g
}

// inFlight is how many instances have been asked for and have not ended.
func (g *generator) inFlight() int64 {
	ended := g.bench.Tally().Sum().Ended - g.before
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.asked - int64(ended) //nolint:gosec // counts instances
}

// keep keeps n instances in flight until stop is closed. Each call starts as many as are wanting.
func (g *generator) keep(ctx context.Context, n int, stop <-chan struct{}) error {
	slots := make(chan struct{}, startCalls)
	var calls sync.WaitGroup
	defer calls.Wait()
	changed := g.bench.Tally().Changed
	for {
		select {
		case <-stop:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		case slots <- struct{}{}:
		}
		want := int64(n) - g.inFlight()
		if want <= 0 {
			<-slots
			select {
			case <-stop:
				return nil
			case <-ctx.Done():
				return context.Cause(ctx)
			case <-changed:
			case <-time.After(lookAgain): // a start that failed is wanting too
			}
			continue
		}
		batch := int(min(want, startBatch))
		g.ask(batch)
		calls.Go(func() {
			defer func() { <-slots }()
			g.start(ctx, batch)
		})
	}
}

func (g *generator) ask(n int) {
	g.mu.Lock()
	g.asked += int64(n)
	g.mu.Unlock()
}

// start starts a batch, and notes what became of it.
func (g *generator) start(ctx context.Context, n int) {
	starts := make([]wiggle.Start, n)
	for i := range starts {
		starts[i] = wiggle.Start{Workflow: g.load.workflow, Input: g.load.input}
	}
	outcomes, err := g.bench.client.StartMany(ctx, starts)
	g.mu.Lock()
	for _, o := range outcomes {
		if o.Err == nil {
			g.ids = append(g.ids, o.Run.ID)
			continue
		}
		g.asked--
		g.fail(o.Err)
	}
	g.mu.Unlock()
	if err != nil && ctx.Err() == nil {
		_ = g.bench.pause(ctx, startPause)
	}
}

// fail notes a start that failed. It is called with the lock held.
func (g *generator) fail(err error) {
	g.failed++
	if len(g.failures) < maxProblems {
		g.failures = append(g.failures, "not started: "+err.Error())
	}
}

// drain waits until nothing is in flight any more.
func (g *generator) drain(ctx context.Context) error {
	last, since := int64(-1), time.Now()
	for {
		left := g.inFlight()
		if left <= 0 {
			return nil
		}
		if left != last {
			last, since = left, time.Now()
		} else if time.Since(since) > stallTime {
			return stalled(left, g.asked, stallTime)
		}
		select {
		case <-g.bench.Tally().Changed:
		case <-time.After(lookAgain):
			if err := g.bench.Ended(); err != nil {
				return err
			}
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// startAll starts n instances as fast as it can.
func (g *generator) startAll(ctx context.Context, n int) error {
	slots := make(chan struct{}, startCalls)
	var calls sync.WaitGroup
	defer calls.Wait()
	for left := n; left > 0; {
		select {
		case slots <- struct{}{}:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		batch := min(left, bulkBatch)
		left -= batch
		g.ask(batch)
		calls.Go(func() {
			defer func() { <-slots }()
			g.start(ctx, batch)
		})
	}
	return nil
}
