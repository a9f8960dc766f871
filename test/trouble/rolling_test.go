package trouble

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"testing"
	"time"

	wiggle "github.com/wiggle-run/wiggle/sdk/go"
	"github.com/wiggle-run/wiggle/test/crash/cluster"
)

const (
	// rollingTime bounds a whole round of restarts on a machine that is busy with other tests.
	rollingTime = 4 * time.Minute
	// rollingStarters is how many goroutines start instances and wait for their ends, one after the other.
	rollingStarters = 8
)

// rolling is what the clients of a cluster do while its processes are replaced one by one.
type rolling struct {
	client *wiggle.Client

	mu     sync.Mutex
	runs   map[string]int // of the step, by instance
	ended  int
	failed []error
}

// step is the handler of the one step.
func (r *rolling) step(ctx context.Context, in map[string]int) (map[string]int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.runs[wiggle.TaskFrom(ctx).InstanceID]++
	return map[string]int{"b": in["a"] + 1}, nil
}

// order starts an instance and waits for its result.
func (r *rolling) order(ctx context.Context, n int) {
	run, err := r.client.Start(ctx, workflow, map[string]int{"a": n})
	var result map[string]int
	if err == nil {
		result, err = wiggle.Result[map[string]int](ctx, run)
	}
	if err == nil && result["b"] != n+1 {
		err = fmt.Errorf("%s ended with %v, want %d", run.ID, result, n+1)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if err != nil {
		r.failed = append(r.failed, fmt.Errorf("order %d at %s: %w", n, time.Now().Format("15:04:05.000"), err))
		return
	}
	r.ended++
}

func (r *rolling) count() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.ended
}

// TestRollingRestart: each process of a cluster is stopped (SIGTERM) and started again in turn, while a client and a worker that
// know both routers go on. No call fails, and no step is lost or done twice (OPS-4).
func TestRollingRestart(t *testing.T) {
	ctx, c, _ := startFor(t, cluster.Config{Shards: 2, Processes: 2, Routers: 2, Leaders: 2, Search: true}, rollingTime)
	urls := c.RouterURLs()
	for _, url := range urls {
		waitProcessesAt(ctx, t, url, len(c.Instances))
	}
	client, err := wiggle.Dial(urls[0], wiggle.WithServers(urls[1:]...))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	if _, err := client.Register(ctx, oneStep()); err != nil {
		t.Fatal(err)
	}
	r := &rolling{client: client, runs: map[string]int{}}
	stop := r.run(ctx, t)
	for _, p := range append(append(append([]*cluster.Process{c.Search}, c.Leaders...), c.Instances...), c.Routers...) {
		r.replace(ctx, t, p)
		for _, url := range urls {
			waitProcessesAt(ctx, t, url, len(c.Instances))
		}
	}
	stop()
	r.judge(t)
}

// run begins with the work. The returned function ends it when what is under way is done.
func (r *rolling) run(ctx context.Context, t *testing.T) (stop func()) {
	t.Helper()
	worker := wiggle.NewWorker(r.client, wiggle.WorkerOptions{Name: "rolling"})
	wiggle.HandleTask(worker, "step", r.step)
	working, stopWorker := context.WithCancel(ctx)
	worked := make(chan error, 1)
	go func() { worked <- worker.Run(working) }()
	use, stopStarts := context.WithCancel(ctx)
	var starters sync.WaitGroup
	for i := range rollingStarters {
		starters.Go(func() {
			for n := i; use.Err() == nil; n += rollingStarters {
				r.order(ctx, n)
			}
		})
	}
	return func() {
		stopStarts()
		starters.Wait()
		stopWorker()
		if err := <-worked; err != nil && !errors.Is(err, context.Canceled) {
			t.Errorf("the worker ended with %v", err)
		}
	}
}

// replace stops a process and starts it again, each time with work going on.
func (r *rolling) replace(ctx context.Context, t *testing.T, p *cluster.Process) {
	t.Helper()
	r.goesOn(ctx, t, "before "+p.Name+" stops")
	began := time.Now()
	if err := p.Stop(ctx); err != nil {
		t.Errorf("%s stopped with %v", p.Name, err)
	}
	took := time.Since(began)
	r.goesOn(ctx, t, "without "+p.Name)
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	ready, err := until(ctx, func() error {
		status, body, err := get(ctx, p.URL+"/readyz")
		if err == nil && status != http.StatusOK {
			err = errors.New(body)
		}
		return err
	})
	if err != nil {
		t.Fatalf("%s does not come back: %v", p.Name, err)
	}
	t.Logf("%s stopped in %s, and was ready again in %s", p.Name, took, ready)
}

// goesOn waits until more orders have ended than are under way at any time.
func (r *rolling) goesOn(ctx context.Context, t *testing.T, when string) {
	t.Helper()
	enough := r.count() + 5*rollingStarters
	if _, err := until(ctx, func() error {
		if n := r.count(); n < enough {
			return fmt.Errorf("%d orders have ended, %d are waited for", n, enough)
		}
		return nil
	}); err != nil {
		t.Fatalf("%s: %v", when, err)
	}
}

func (r *rolling) judge(t *testing.T) {
	t.Helper()
	for i, err := range r.failed {
		if i == 5 {
			t.Errorf("%d orders failed", len(r.failed))
			break
		}
		t.Error(err)
	}
	again := 0
	for id, runs := range r.runs {
		if runs > 1 {
			again++
			t.Logf("%s ran its step %d times", id, runs)
		}
	}
	if again > 0 || len(r.runs) != r.ended {
		t.Errorf("%d orders ended, %d ran their step, %d of them more than once", r.ended, len(r.runs), again)
	}
	t.Logf("%d orders", r.ended)
}
