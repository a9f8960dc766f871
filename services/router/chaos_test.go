package router_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/wiggle-run/wiggle/pkg/faults"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
)

// While processes are killed and started again, callers leave and hints are lost, every start succeeds on repeating and
// every task is handed out; none is leased to a worker that does not know of it, except by the death of a process.
func TestChaos(t *testing.T) {
	t.Parallel()
	inBubble(t, map[string][]int{"a": {0, 1, 2}, "b": {0, 1, 2}}, func(c *cluster) {
		t := c.t
		const tasks = 150
		seed := uint64(time.Now().UnixNano()) + rand.Uint64()
		t.Logf("seed %d", seed)
		random := rand.New(rand.NewPCG(seed, 1))
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var mu sync.Mutex
		got := map[string]bool{}
		var workers sync.WaitGroup
		for i := range 8 {
			r := rand.New(rand.NewPCG(seed, uint64(i)+2))
			workers.Go(func() {
				for ctx.Err() == nil {
					patience := time.Duration(r.IntN(2000)) * time.Millisecond
					pollCtx, leave := context.WithTimeout(ctx, patience)
					res, err := c.workers.PollTasks(pollCtx, &wigglev1.PollTasksRequest{
						Worker: "w", Queues: []string{"q"}, MaxTasks: int32(1 + r.IntN(3)), Wait: durationpb.New(30 * time.Second),
					})
					leave()
					mu.Lock()
					for _, task := range res.GetTasks() {
						if got[task.GetId()] {
							t.Errorf("task %s was handed out twice", task.GetId())
						}
						got[task.GetId()] = true
					}
					if len(got) == tasks {
						cancel()
					}
					mu.Unlock()
					if err != nil && ctx.Err() == nil && !errors.Is(err, faults.ErrDeadlineExceeded) && !errors.Is(err, faults.ErrCanceled) {
						t.Errorf("poll: %v", err)
					}
				}
			})
		}
		for made := 0; made < tasks; made += 5 {
			shard := random.IntN(3)
			c.databases[shard].addTasks("q", 5)
			if random.IntN(2) == 0 {
				for _, p := range c.processes {
					select {
					case p.hints <- nil: // a hint that says nothing
					default:
					}
				}
			}
			c.startAgain(shard)
			if random.IntN(4) == 0 {
				victim := []string{"a", "b"}[random.IntN(2)]
				c.kill(victim)
				time.Sleep(time.Duration(random.IntN(1500)) * time.Millisecond)
				c.startAgain(random.IntN(3))
				c.startProcess(victim, 0, 1, 2)
			}
			time.Sleep(time.Duration(random.IntN(1500)) * time.Millisecond)
		}
		// What the death of a process lost comes back as leases would run out.
		for range 40 {
			time.Sleep(10 * time.Second)
			mu.Lock()
			for _, d := range c.databases {
				d.update(func() {
					for id, task := range d.leased {
						if !got[id] {
							delete(d.leased, id)
							d.ready["q"] = append(d.ready["q"], task)
						}
					}
				})
			}
			mu.Unlock()
			if ctx.Err() != nil {
				break
			}
		}
		workers.Wait()
		if len(got) != tasks {
			t.Errorf("%d of %d tasks were handed out", len(got), tasks)
		}
	})
}

// startAgain starts an instance as clients do: the same start again while the shard is out of reach, which it may be
// while one process was just killed and the other has just come back.
func (c *cluster) startAgain(shard int) {
	c.t.Helper()
	req := &wigglev1.StartInstanceRequest{Workflow: "w", Ulid: c.ulidOn(shard)}
	var err error
	for range 10 {
		if _, err = c.instances.StartInstance(c.t.Context(), req); err == nil {
			return
		}
		after, ok := faults.FromError(err).RetryAfter()
		if !ok {
			break
		}
		time.Sleep(after)
	}
	c.t.Errorf("start on shard %d: %v", shard, err)
}
