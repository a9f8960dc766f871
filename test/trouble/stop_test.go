package trouble

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	"github.com/wiggle-run/wiggle/test/crash/cluster"
)

// traffic is what clients do while processes are stopped: start, poll and report,
// wait for ends, park polls for work that never comes.
type traffic struct {
	c       *cluster.Cluster
	clients cluster.Clients
	// quick are calls that are answered at once, slow those that wait.
	quick, slow calls

	mu      sync.Mutex
	started []string
}

const (
	starters, workers, parked, waiters = 2, 3, 4, 2
	// parkTime is how long a poll waits for work.
	parkTime = 4 * time.Second
)

// run makes calls until use is done; calls under way are finished with ctx.
func (f *traffic) run(ctx, use context.Context) {
	var all sync.WaitGroup
	loop := func(n int, body func(i int)) {
		for i := range n {
			all.Go(func() {
				for use.Err() == nil {
					body(i)
				}
			})
		}
	}
	loop(starters, func(i int) { f.start(ctx, i); cluster.Pause(use, 2*time.Millisecond) })
	loop(workers, func(int) {
		f.slow.measure("work", func() error { _, err := work(ctx, f.clients); return err })
	})
	loop(parked, func(i int) {
		f.slow.measure("parked poll", func() error {
			_, err := f.clients.Workers.PollTasks(ctx, &wigglev1.PollTasksRequest{
				Worker: "parked", Queues: []string{fmt.Sprint("idle-", i)}, Wait: durationpb.New(parkTime),
			})
			return err
		})
	})
	loop(waiters, func(i int) {
		f.slow.measure("WaitInstance", func() error {
			res, err := f.clients.Instances.StartInstance(ctx, startOn(f.c.Topology, i%2))
			if err != nil {
				return err
			}
			_, err = f.clients.Instances.WaitInstance(ctx, &wigglev1.WaitInstanceRequest{
				InstanceId: res.GetInstanceId(), Wait: durationpb.New(parkTime),
			})
			return err
		})
	})
	all.Wait()
}

func (f *traffic) start(ctx context.Context, shard int) {
	f.quick.measure("StartInstance", func() error {
		res, err := f.clients.Instances.StartInstance(ctx, startOn(f.c.Topology, shard%2))
		if err == nil {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.started = append(f.started, res.GetInstanceId())
		}
		return err
	})
}

// TestGracefulStop: a process that is asked to stop, while others serve its shards,
// goes without a call failing or taking longer than a second (ARC-2), and comes
// back without one, too.
func TestGracefulStop(t *testing.T) {
	ctx, c, clients := start(t, cluster.Config{Shards: 2, Processes: 2})
	waitProcesses(ctx, t, c, 2)
	register(ctx, t, clients)

	f := &traffic{c: c, clients: clients}
	use, stop := context.WithCancel(ctx)
	finished := make(chan struct{})
	go func() { defer close(finished); f.run(ctx, use) }()
	cluster.Pause(ctx, time.Second)
	for _, p := range c.Instances {
		began := time.Now()
		if err := p.Stop(ctx); err != nil {
			t.Errorf("%s stopped with %v", p.Name, err)
		}
		took := time.Since(began)
		t.Logf("%s took %s to stop", p.Name, took)
		if took > 5*time.Second {
			t.Errorf("%s took %s to stop although others take its work", p.Name, took)
		}
		cluster.Pause(ctx, time.Second)
		if err := p.Start(); err != nil {
			t.Fatal(err)
		}
		waitProcesses(ctx, t, c, 2)
		cluster.Pause(ctx, time.Second/2)
	}
	stop()
	<-finished
	f.judge(ctx, t)
}

func waitProcesses(ctx context.Context, t *testing.T, c *cluster.Cluster, n int) {
	t.Helper()
	waitProcessesAt(ctx, t, c.RouterURL(), n)
}

// waitProcessesAt waits until a router finds every shard served by so many processes.
func waitProcessesAt(ctx context.Context, t *testing.T, routerURL string, n int) {
	t.Helper()
	if _, err := until(ctx, func() error {
		states, err := shardStates(ctx, routerURL)
		if err != nil {
			return err
		}
		for _, s := range states {
			if s.Processes != n {
				return fmt.Errorf("shard %d has %d processes", s.Shard, s.Processes)
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

func (f *traffic) judge(ctx context.Context, t *testing.T) {
	t.Helper()
	n, median, longest := f.quick.summary()
	waits, _, longestWait := f.slow.summary()
	t.Logf("%d starts: median %s, longest %s; %d waiting calls, longest %s", n, median, longest, waits, longestWait)
	if longest > soon {
		t.Errorf("a start took %s", longest)
	}
	if longestWait > parkTime+soon {
		t.Errorf("a waiting call took %s, and waits for %s at most", longestWait, parkTime)
	}
	for _, c := range []*calls{&f.quick, &f.slow} {
		for i, err := range c.failed {
			if i < 5 {
				t.Error(err)
			}
		}
		if len(c.failed) > 5 {
			t.Errorf("%d calls failed", len(c.failed))
		}
	}
	// What was started is there, and is worked off.
	if _, err := until(ctx, func() error {
		n, err := work(ctx, f.clients)
		if err == nil && n > 0 {
			err = fmt.Errorf("%d tasks were left", n)
		}
		return err
	}); err != nil {
		t.Error(err)
	}
	count, err := f.clients.Instances.CountInstances(ctx, &wigglev1.CountInstancesRequest{Filter: &wigglev1.InstanceFilter{
		States: []wigglev1.InstanceState{wigglev1.InstanceState_INSTANCE_STATE_COMPLETED},
	}})
	if err != nil || count.GetTotal() < int64(len(f.started)) {
		t.Errorf("%d instances were started, and %d have completed, %v", len(f.started), count.GetTotal(), err)
	}
}
