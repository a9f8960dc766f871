package demo

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/wiggle-run/wiggle/pkg/shardid"
	wiggle "github.com/wiggle-run/wiggle/sdk/go"
)

const (
	// startBatch is how many orders one call starts, startCalls how many calls are made at once.
	startBatch = 100
	startCalls = 4
	// countEvery is how often the instances are counted while they run.
	countEvery = 200 * time.Millisecond
	// stallTime is how long nothing may end before the run is given up.
	stallTime = 2 * time.Minute
	// clockSlack is how far the database's clock may be behind ours: both are on one machine.
	clockSlack = time.Millisecond
	listPage   = 1000
)

// Options say what to run.
type Options struct {
	// Count is how many orders.
	Count int
	// Seed chooses them.
	Seed uint64
	// Indexed waits until the search index has all orders, too.
	Indexed bool
	// Progress, if set, is called as the run goes on, by one goroutine at a time.
	Progress func(Progress)
}

// Progress is how far a run is.
type Progress struct {
	Total, Started, Ended int
	Steps                 int64
	Elapsed               time.Duration
}

// Result is what came of a run. All times are the databases'.
type Result struct {
	// Version of the workflow that ran.
	Version int
	// Started is how many instances there are; the starts that failed are not among them.
	Started int
	// Completed and Failed add up to the orders: an order that could not be started has failed too.
	Completed, Failed int
	// Elapsed is from the first instance's start to the last one's end.
	Elapsed time.Duration
	// Steps is how many attempts of steps the workers made, Retries how many of them were not the first.
	Steps, Retries int64
	// P50 and P99 are from start to end of an instance.
	P50, P99 time.Duration
	// Indexed is how many the search index has, IndexDelayP99 how long after its event all but one in a hundred was in it.
	Indexed       int
	IndexDelayP99 time.Duration
	// ByShard counts the started instances.
	ByShard map[int]int
	// Problems are what failed, the first few.
	Problems []string
	// Example is the id of an instance worth looking at, empty if none completed.
	Example string
}

// StepsPerSecond is the rate over the whole run.
func (r Result) StepsPerSecond() float64 {
	if r.Elapsed <= 0 {
		return 0
	}
	return float64(r.Steps) / r.Elapsed.Seconds()
}

// maxProblems bounds how many failures are told one by one.
const maxProblems = 5

// Run registers the workflow, starts the orders and waits for all of them to end; workers must be running. The error is
// that of a run that could not be brought to its end: the result then tells how far it came. Instances that fail are
// no error but in the result.
func Run(ctx context.Context, client *wiggle.Client, shop *Shop, opts Options) (Result, error) {
	registered, err := client.Register(ctx, Flow())
	if err != nil {
		return Result{}, err
	}
	r := &run{
		client: client, shop: shop, opts: opts, orders: NewOrders(opts.Count, opts.Seed),
		began: time.Now(), stepsBefore: shop.Steps(), retriesBefore: shop.Retries(), ids: make([]string, opts.Count),
	}
	r.result = Result{Version: registered.Version, ByShard: map[int]int{}}
	err = r.run(ctx)
	r.result.Steps, r.result.Retries = shop.Steps()-r.stepsBefore, shop.Retries()-r.retriesBefore
	return r.result, err
}

// run is one run under way.
type run struct {
	client        *wiggle.Client
	shop          *Shop
	opts          Options
	orders        []Order
	began         time.Time
	stepsBefore   int64
	retriesBefore int64

	mu     sync.Mutex
	ids    []string // by order; empty if it was not started
	result Result
}

func (r *run) run(ctx context.Context) error {
	counting, stop := context.WithCancel(ctx)
	defer stop()
	started := make(chan struct{})
	watched := make(chan error, 1)
	go func() { watched <- r.watch(counting, started) }()
	r.start(ctx)
	close(started)
	err := <-watched
	if ctx.Err() != nil {
		return err
	}
	if err = errors.Join(err, r.verify(ctx)); err == nil && r.opts.Indexed {
		err = r.awaitIndex(ctx)
	}
	return err
}

// filter matches what this run started, and what others may have started meanwhile.
func (r *run) filter() wiggle.Filter {
	return wiggle.Filter{Workflow: Workflow, CreatedFrom: r.began.Add(-clockSlack)}
}

// start starts all orders, a bounded number of calls at a time.
func (r *run) start(ctx context.Context) {
	slots := make(chan struct{}, startCalls)
	var wg sync.WaitGroup
	for first := 0; first < len(r.orders) && ctx.Err() == nil; first += startBatch {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			r.startBatch(ctx, first, min(first+startBatch, len(r.orders)))
		})
	}
	wg.Wait()
}

func (r *run) startBatch(ctx context.Context, first, end int) {
	starts := make([]wiggle.Start, 0, end-first)
	for _, o := range r.orders[first:end] {
		starts = append(starts, wiggle.Start{Workflow: Workflow, Input: o})
	}
	outcomes, _ := r.client.StartMany(ctx, starts) // the outcomes have the errors
	r.mu.Lock()
	defer r.mu.Unlock()
	for i, o := range outcomes {
		if o.Err != nil {
			r.problem(fmt.Sprintf("order %s was not started: %v", r.orders[first+i].Number, o.Err))
			continue
		}
		r.ids[first+i] = o.Run.ID
		r.result.Started++
	}
}

// problem notes a failure. It is called with the lock held, or when nothing runs any more.
func (r *run) problem(text string) {
	if len(r.result.Problems) < maxProblems {
		r.result.Problems = append(r.result.Problems, text)
	}
}

func (r *run) startedSoFar() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.result.Started
}

// watch counts until all that was started has ended. Counting is for progress and to know when to look closely; verify
// decides. It takes longer pauses where counting takes long.
func (r *run) watch(ctx context.Context, started <-chan struct{}) error {
	pause := time.NewTimer(countEvery)
	defer pause.Stop()
	last, lastAt := -1, time.Now()
	for {
		select {
		case <-ctx.Done():
			return fmt.Errorf("the run was stopped: %w", context.Cause(ctx))
		case <-pause.C:
		}
		// What was started before the count is in it.
		allStarted, total := isClosed(started), r.startedSoFar()
		began := time.Now()
		counts, err := r.client.Count(ctx, r.filter())
		if err != nil && ctx.Err() == nil {
			return err
		}
		ended := int(counts.Total - counts.ByState[wiggle.Running])
		r.report(total, ended)
		if allStarted && counts.Total >= int64(total) && counts.ByState[wiggle.Running] == 0 {
			return nil
		}
		if ended != last {
			last, lastAt = ended, time.Now()
		} else if time.Since(lastAt) > stallTime {
			return fmt.Errorf("no order has ended for %v: %d of %d have", stallTime, ended, total)
		}
		pause.Reset(max(countEvery, 10*time.Since(began)))
	}
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

func (r *run) report(started, ended int) {
	if r.opts.Progress == nil {
		return
	}
	r.opts.Progress(Progress{
		Total: len(r.orders), Started: started, Ended: min(ended, started),
		Steps: r.shop.Steps() - r.stepsBefore, Elapsed: time.Since(r.began),
	})
}

// verify looks at every instance that was started: each must have ended, and well.
func (r *run) verify(ctx context.Context) error {
	mine := make(map[string]int, len(r.ids))
	for i, id := range r.ids {
		if id != "" {
			mine[id] = i
		}
	}
	var durations []time.Duration
	var first, last time.Time
	for inst, err := range r.client.List(ctx, r.filter(), wiggle.PageSize(listPage)) {
		if err != nil {
			return err
		}
		i, ok := mine[inst.ID]
		if !ok {
			continue
		}
		delete(mine, inst.ID)
		if id, err := shardid.ParseInstance(inst.ID); err == nil {
			r.result.ByShard[id.Shard()]++
		}
		if first.IsZero() || inst.CreatedAt.Before(first) {
			first = inst.CreatedAt
		}
		if inst.EndedAt.After(last) {
			last = inst.EndedAt
		}
		if inst.State != wiggle.Completed {
			r.problem(fmt.Sprintf("order %s, instance %s: %s: %s", r.orders[i].Number, inst.ID, inst.State, inst.Failure))
			continue
		}
		r.result.Completed++
		durations = append(durations, inst.EndedAt.Sub(inst.CreatedAt))
	}
	for id, i := range mine {
		r.problem(fmt.Sprintf("order %s, instance %s: was started and is not listed", r.orders[i].Number, id))
	}
	r.result.Failed = len(r.orders) - r.result.Completed
	if last.After(first) {
		r.result.Elapsed = last.Sub(first)
	}
	r.result.P50, r.result.P99 = percentile(durations, 50), percentile(durations, 99)
	r.result.Example = r.example()
	return nil
}

// percentile is the nearest rank: the least value that so many percent do not exceed. It sorts values.
func percentile(values []time.Duration, percent int) time.Duration {
	if len(values) == 0 {
		return 0
	}
	slices.Sort(values)
	rank := (len(values)*percent + 99) / 100
	return values[max(rank, 1)-1]
}

// example picks an instance whose trace shows most: one that went all the way, whose card was declined, with a few lines.
func (r *run) example() string {
	best, bestScore := "", -1
	for i, o := range r.orders {
		if r.ids[i] == "" {
			continue
		}
		score := 0
		if ok, _ := inStock(context.Background(), o); ok {
			score += 4
		}
		if o.Card != cardGood {
			score += 2
		}
		if len(o.Lines) >= 2 && len(o.Lines) <= 4 {
			score++
		}
		if score > bestScore {
			best, bestScore = r.ids[i], score
		}
	}
	return best
}
