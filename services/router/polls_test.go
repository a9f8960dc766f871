package router_test

import (
	"context"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	"github.com/wiggle-run/wiggle/services/router"
)

// pollAnswer is what a poll in the background came to.
type pollAnswer struct {
	res   *wigglev1.PollTasksResponse
	err   error
	after time.Duration
}

// poll polls in the background and comes to rest.
func (c *cluster) poll(ctx context.Context, req *wigglev1.PollTasksRequest) chan pollAnswer {
	answers := make(chan pollAnswer, 1)
	begin := time.Now()
	go func() {
		res, err := c.workers.PollTasks(ctx, req)
		answers <- pollAnswer{res, err, time.Since(begin)}
	}()
	c.settle()
	return answers
}

func waiting(queues ...string) *wigglev1.PollTasksRequest {
	return &wigglev1.PollTasksRequest{Worker: "w", Queues: queues, Wait: durationpb.New(30 * time.Second)}
}

func TestPollRotates(t *testing.T) {
	t.Parallel()
	inBubble(t, oneEach, func(c *cluster) {
		t := c.t
		firsts := map[string]int{}
		for range 6 {
			for _, d := range c.databases {
				d.addTasks("default", 1)
			}
			res, err := c.workers.PollTasks(t.Context(), &wigglev1.PollTasksRequest{Worker: "w"})
			if err != nil || len(res.GetTasks()) != 1 {
				t.Fatalf("got %v, %v", res, err)
			}
			calls := c.called("PollTasks")
			if len(calls) != 1 {
				t.Errorf("one task needs one claim, got %v", calls)
			}
			firsts[calls[0]]++
		}
		if len(firsts) != 3 {
			t.Errorf("polls began at %v", firsts)
		}
	})
}

func TestPollFillsFromAllShards(t *testing.T) {
	t.Parallel()
	inBubble(t, oneEach, func(c *cluster) {
		t := c.t
		for _, d := range c.databases {
			d.addTasks("q", 3)
		}
		res, err := c.workers.PollTasks(t.Context(), &wigglev1.PollTasksRequest{Worker: "w", Queues: []string{"q"}, MaxTasks: 7})
		if err != nil || len(res.GetTasks()) != 7 {
			t.Errorf("got %d tasks, %v", len(res.GetTasks()), err)
		}
		res, err = c.workers.PollTasks(t.Context(), &wigglev1.PollTasksRequest{Worker: "w", Queues: []string{"q"}, MaxTasks: 7})
		if err != nil || len(res.GetTasks()) != 2 {
			t.Errorf("got %d tasks, %v", len(res.GetTasks()), err)
		}
	})
}

// Waiting polls make one round of claims every few seconds, however many they are.
func TestParkedPollsCostNothing(t *testing.T) {
	t.Parallel()
	inBubble(t, oneEach, func(c *cluster) {
		t := c.t
		var polls []chan pollAnswer
		for range 200 {
			polls = append(polls, c.poll(t.Context(), waiting("q")))
		}
		if n := len(c.called("PollTasks")); n > 6 {
			t.Errorf("%d claims for 200 polls on 3 shards", n)
		}
		time.Sleep(25 * time.Second)
		if n := len(c.called("PollTasks")); n > 3*7 {
			t.Errorf("%d claims in 25 s", n)
		}
		// A hint makes one claim, on the shard that it names, and one more to see whether it named several tasks.
		c.databases[2].addTasks("q", 1)
		c.processes["p2"].hint(2, "q")
		c.settle()
		if calls := c.called("PollTasks"); !slices.Equal(calls, []string{"PollTasks@2", "PollTasks@2"}) {
			t.Errorf("a hint made the claims %v", calls)
		}
		got := 0
		for _, p := range polls {
			if a := <-p; len(a.res.GetTasks()) == 1 {
				got++
			} else if a.err != nil || a.after < 29*time.Second {
				t.Errorf("a poll without a task ended with %v after %v", a.err, a.after)
			}
		}
		if got != 1 {
			t.Errorf("%d polls got the task", got)
		}
	})
}

// One hint for many tasks wakes as many polls as there are tasks.
func TestOneHintWakesAChain(t *testing.T) {
	t.Parallel()
	inBubble(t, oneEach, func(c *cluster) {
		t := c.t
		var polls []chan pollAnswer
		for range 20 {
			polls = append(polls, c.poll(t.Context(), waiting("q")))
		}
		c.databases[1].addTasks("q", 15)
		c.processes["p1"].hint(1, "q")
		c.settle()
		got := 0
		for _, p := range polls {
			select {
			case a := <-p:
				got += len(a.res.GetTasks())
			default:
			}
		}
		if got != 15 {
			t.Errorf("%d of 15 tasks were handed out at once", got)
		}
	})
}

// Polls that serve other workflows are a class of their own: the hint gets to those that can take the task.
func TestHintReachesEveryClass(t *testing.T) {
	t.Parallel()
	inBubble(t, oneEach, func(c *cluster) {
		t := c.t
		for range 3 {
			req := waiting("q")
			req.Workflows = []*wigglev1.WorkflowBinding{{Workflow: "other"}}
			c.poll(t.Context(), req)
		}
		right := waiting("q", "r")
		c.poll(t.Context(), right)
		c.called("PollTasks")
		c.processes["p1"].hint(1, "q")
		c.settle()
		if calls := c.called("PollTasks"); len(calls) != 2 {
			t.Errorf("two classes wait, and there were %v", calls)
		}
	})
}

// Without any hint a task is found by the re-check; a shard that comes back is tried at once.
func TestSafetyNets(t *testing.T) {
	t.Parallel()
	inBubble(t, oneEach, func(c *cluster) {
		t := c.t
		p := c.poll(t.Context(), waiting("q"))
		c.databases[1].addTasks("q", 1)
		if a := <-p; len(a.res.GetTasks()) != 1 || a.after > 7*time.Second {
			t.Errorf("got %v, %v after %v", a.res, a.err, a.after)
		}
		c.databases[2].update(func() { c.databases[2].down = "it is down" })
		time.Sleep(time.Second)
		p = c.poll(t.Context(), waiting("q"))
		c.databases[2].addTasks("q", 1)
		c.databases[2].update(func() { c.databases[2].down = "" })
		if a := <-p; len(a.res.GetTasks()) != 1 || a.after > time.Second {
			t.Errorf("got %v, %v after %v", a.res, a.err, a.after)
		}
		// The same when the stream of hints was cut and what it would have said is lost.
		p = c.poll(t.Context(), waiting("q"))
		c.kill("p1")
		c.databases[1].addTasks("q", 1)
		c.startProcess("p1", 1)
		if a := <-p; len(a.res.GetTasks()) != 1 || a.after > time.Second {
			t.Errorf("got %v, %v after %v", a.res, a.err, a.after)
		}
	})
}

// What a process made ready and did not live to hint is found by way of another at once.
func TestHintDiesWithItsProcess(t *testing.T) {
	t.Parallel()
	inBubble(t, map[string][]int{"a": {0, 1, 2}, "b": {0, 1, 2}}, func(c *cluster) {
		t := c.t
		p := c.poll(t.Context(), waiting("q"))
		c.databases[1].addTasks("q", 1)
		c.kill("a")
		if a := <-p; len(a.res.GetTasks()) != 1 || a.after > time.Second {
			t.Errorf("got %v, %v after %v", a.res, a.err, a.after)
		}
	})
}

// A hint that comes while nobody waits decides where the next poll looks first.
func TestHintedShardFirst(t *testing.T) {
	t.Parallel()
	inBubble(t, oneEach, func(c *cluster) {
		t := c.t
		for range 5 {
			c.databases[2].addTasks("q", 1)
			c.processes["p2"].hint(2, "q")
			c.settle()
			res, err := c.workers.PollTasks(t.Context(), &wigglev1.PollTasksRequest{Worker: "w", Queues: []string{"q"}})
			if err != nil || len(res.GetTasks()) != 1 {
				t.Fatalf("got %v, %v", res, err)
			}
			if calls := c.called("PollTasks"); !slices.Equal(calls, []string{"PollTasks@2"}) {
				t.Errorf("claims %v", calls)
			}
		}
	})
}

// What is claimed for a caller that went away is handed back, and another poll gets it.
func TestCallerGone(t *testing.T) {
	t.Parallel()
	inBubble(t, oneEach, func(c *cluster) {
		t := c.t
		claiming, answer := make(chan struct{}), make(chan struct{})
		var first atomic.Bool
		c.processes["p1"].setHook(func(_ context.Context, method string, _ int) error {
			if method == "PollTasks" && first.CompareAndSwap(false, true) {
				close(claiming)
				<-answer
			}
			return nil
		})
		c.databases[1].addTasks("q", 1)
		ctx, leave := context.WithCancel(t.Context())
		gone := c.poll(ctx, waiting("q"))
		<-claiming
		next := c.poll(t.Context(), waiting("q"))
		leave()
		if a := <-gone; a.err == nil {
			t.Errorf("the caller left and got %v", a.res)
		}
		c.settle()
		select {
		case a := <-next: // it may have looked at the shard itself meanwhile
			if len(a.res.GetTasks()) != 1 {
				t.Fatalf("got %v, %v", a.res, a.err)
			}
			close(answer)
		default:
			close(answer)
			if a := <-next; len(a.res.GetTasks()) != 1 || a.after > time.Second {
				t.Errorf("got %v, %v after %v", a.res, a.err, a.after)
			}
		}
		c.settle()
		if ready, leased := c.databases[1].counts(); ready != 0 || leased != 1 {
			t.Errorf("%d tasks ready, %d leased", ready, leased)
		}
	})
}

func TestLateClaimIsHandedBack(t *testing.T) {
	t.Parallel()
	inBubble(t, oneEach, func(c *cluster) {
		t := c.t
		answer := make(chan struct{})
		c.processes["p1"].setHook(func(_ context.Context, method string, _ int) error {
			if method == "PollTasks" {
				<-answer
			}
			return nil
		})
		c.databases[1].addTasks("q", 1)
		ctx, leave := context.WithCancel(t.Context())
		gone := c.poll(ctx, waiting("q"))
		leave()
		<-gone
		close(answer)
		c.settle()
		if ready, leased := c.databases[1].counts(); ready != 1 || leased != 0 {
			t.Errorf("%d tasks ready, %d leased", ready, leased)
		}
		if calls := c.called("ReleaseTasks"); !slices.Equal(calls, []string{"ReleaseTasks@1"}) {
			t.Errorf("releases %v", calls)
		}
	})
}

// A slow shard holds up a poll for a second at most, and what it brings late is still handed out.
func TestSlowShard(t *testing.T) {
	t.Parallel()
	inBubble(t, oneEach, func(c *cluster) {
		t := c.t
		c.processes["p1"].setHook(func(_ context.Context, method string, _ int) error {
			if method == "PollTasks" {
				time.Sleep(3 * time.Second)
			}
			return nil
		})
		c.databases[1].addTasks("q", 1)
		a := <-c.poll(t.Context(), waiting("q"))
		if len(a.res.GetTasks()) != 1 || a.after > 3*time.Second+100*time.Millisecond {
			t.Errorf("got %v, %v after %v", a.res, a.err, a.after)
		}
		c.databases[2].addTasks("q", 1)
		a = <-c.poll(t.Context(), waiting("q"))
		if len(a.res.GetTasks()) != 1 || a.after > 1500*time.Millisecond {
			t.Errorf("another shard's task: %v, %v after %v", a.res, a.err, a.after)
		}
	})
}

func TestParkedPollsAreBounded(t *testing.T) {
	t.Parallel()
	inBubble(t, oneEach, func(c *cluster) {
		t := c.t
		for range 3 {
			c.poll(t.Context(), waiting("q"))
		}
		a := <-c.poll(t.Context(), waiting("q"))
		if a.err != nil || a.after > time.Second || a.res.GetRetryAfter().AsDuration() < time.Second {
			t.Errorf("got %v, %v after %v", a.res, a.err, a.after)
		}
	}, func(cfg *router.Config) { cfg.MaxParkedPolls = 3 })
}

func TestDrainAnswersParkedPolls(t *testing.T) {
	t.Parallel()
	inBubble(t, oneEach, func(c *cluster) {
		t := c.t
		p := c.poll(t.Context(), waiting("q"))
		c.stop()
		if a := <-p; a.err != nil || a.after > time.Second || a.res.GetRetryAfter() == nil {
			t.Errorf("got %v, %v after %v", a.res, a.err, a.after)
		}
	})
}

// Mistakes of the caller come back, troubles of a shard do not.
func TestPollErrors(t *testing.T) {
	t.Parallel()
	inBubble(t, oneEach, func(c *cluster) {
		t := c.t
		c.kill("p0")
		c.databases[2].addTasks("q", 1)
		res, err := c.workers.PollTasks(t.Context(), &wigglev1.PollTasksRequest{Worker: "w", Queues: []string{"q"}})
		if err != nil || len(res.GetTasks()) != 1 {
			t.Errorf("got %v, %v", res, err)
		}
		if _, err := c.workers.PollTasks(t.Context(), &wigglev1.PollTasksRequest{}); err == nil || !strings.Contains(err.Error(), "worker") {
			t.Errorf("no worker: %v", err)
		}
	})
}

// Batches go to the shards of their tasks and are answered in order.
func TestBatchesOfTasks(t *testing.T) {
	t.Parallel()
	inBubble(t, oneEach, func(c *cluster) {
		t := c.t
		for _, d := range c.databases {
			d.addTasks("q", 2)
		}
		res, err := c.workers.PollTasks(t.Context(), &wigglev1.PollTasksRequest{Worker: "w", Queues: []string{"q"}, MaxTasks: 10})
		if err != nil || len(res.GetTasks()) != 6 {
			t.Fatalf("got %v, %v", res, err)
		}
		c.kill("p2")
		var reports []*wigglev1.StepReport
		for i := range 6 {
			task := res.GetTasks()[i*5%6] // mixed
			reports = append(reports, &wigglev1.StepReport{TaskId: task.GetId(), Lease: task.GetLease()})
		}
		reports[1].Outcome = &wigglev1.StepReport_Result{Result: &wigglev1.Payload{Data: make([]byte, 1<<20+1)}}
		out, err := c.workers.ReportSteps(t.Context(), &wigglev1.ReportStepsRequest{Worker: "w", Reports: reports})
		if err != nil {
			t.Fatal(err)
		}
		for i, o := range out.GetOutcomes() {
			want := int32(0)
			if strings.HasPrefix(reports[i].GetTaskId(), "tok.s2.") {
				want = 14
			}
			if i == 1 {
				want = 8
			}
			if o.GetTaskId() != reports[i].GetTaskId() || o.GetFault().GetCode() != want {
				t.Errorf("report %d: %v, want code %d", i, o, want)
			}
		}
	})
}
