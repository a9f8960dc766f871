package conformance

import (
	"fmt"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	wiggle "github.com/wiggle-run/wiggle/sdk/go"
)

func priorities() []Scenario {
	return []Scenario{
		{Name: "a claim takes the higher priority first, then the older instance", Covers: "ENG-22 WRK-7 SHD-27", Flow: chain("priority", "a"), Script: prioritised},
		{
			Name: "a step's own priority counts in place of its instance's", Covers: "WF-6 ENG-22",
			Flow: wiggle.Define("step-priority", func(f *wiggle.Flow) {
				f.Fork(
					wiggle.Branch("low", task("low", wiggle.Priority(1))),
					wiggle.Branch("own", task("own")),
					wiggle.Branch("high", task("high", wiggle.Priority(9))),
				).Combine("merge")
			}), Script: stepPriority,
		},
	}
}

// WithPriority sets a start's priority.
func WithPriority(p int32) StartOption {
	return func(q *wigglev1.StartInstanceRequest) { q.Priority = &p }
}

// prioritised claims one by one. Order is by shard: across shards there is none.
func prioritised(r *Run) {
	const n = 12
	began := time.Now().Add(-time.Minute)
	priority := map[string]int32{}
	for i := range n {
		p := int32(i*7) % 10
		id := r.Start(fmt.Sprint(i), WithPriority(p), WithULID(ulidAt(began.Add(time.Duration(i)*time.Second))))
		priority[id] = p
		if in := r.Get(); in.GetPriority() != p {
			r.Errorf("the instance has priority %d, want %d", in.GetPriority(), p)
		}
	}
	last := map[string]string{} // by shard, the instance that was claimed last
	for range n {
		tasks := r.Poll(Room(1))
		if len(tasks) != 1 {
			r.Fatalf("want one task, got %v", tasks)
		}
		id := tasks[0].GetInstanceId()
		shard := strings.Split(id, ".")[1]
		if before := last[shard]; before != "" {
			if priority[before] < priority[id] || (priority[before] == priority[id] && before > id) {
				r.Errorf("%s of priority %d came after %s of priority %d", id, priority[id], before, priority[before])
			}
		}
		last[shard] = id
		r.Applied("report", r.Report(tasks[0], Unchanged))
	}
	r.Workflow, r.ID = unique("none"), ""
}

func stepPriority(r *Run) {
	r.Start(`1`)
	for _, want := range []string{"high", "own", "low"} {
		tasks := r.Poll(Room(1))
		if len(tasks) != 1 || tasks[0].GetStep() != want {
			r.Fatalf("want step %q, got %v", want, tasks)
		}
		r.Applied(want, r.Report(tasks[0], Unchanged))
	}
	r.Work(nil)
	r.See(Want{State: completed, Attempts: map[string]int{"high": 1, "own": 1, "low": 1, "merge": 1}})
}

func queues() []Scenario {
	return []Scenario{
		{Name: "a worker gets tasks of its own queues only", Covers: "WF-6 WRK-2 WRK-7", Flow: twoQueues(), Script: ownQueues},
		{Name: "a worker gets tasks of its own workflows only", Covers: "WRK-2 WRK-7", Flow: chain("own", "a"), Script: ownWorkflows},
		{Name: "a worker gets no more than it has room for", Covers: "WRK-2", Flow: each("room"), Script: func(r *Run) {
			r.Start(`{"items":[1,2,3,4,5]}`)
			for _, want := range []int{2, 2, 1, 0} {
				tasks := r.Poll(Room(2))
				if len(tasks) != want {
					r.Errorf("a worker with room for 2 got %d, want %d", len(tasks), want)
				}
				r.held = append(r.held, tasks...)
			}
			r.Work(map[string]Answer{"gather": Collect})
			r.See(Want{State: completed, Context: `[1,2,3,4,5]`})
		}},
		{Name: "a poll that waits gets what becomes ready", Covers: "WRK-1 WRK-13", Flow: chain("parked", "a", "b"), Script: parked},
	}
}

func twoQueues() *wiggle.Definition {
	return wiggle.Define("queues", func(f *wiggle.Flow) {
		f.Fork(
			wiggle.Branch("x", task("in-a", wiggle.Queue("queue-a"))),
			wiggle.Branch("y", task("in-b")),
		).Combine("merge", wiggle.Queue("queue-c"))
	}, wiggle.DefaultQueue("queue-b"))
}

func ownQueues(r *Run) {
	r.Start(`1`)
	r.None()
	r.None(From("queue-c"))
	b := r.Task("in-b", From("queue-b", "queue-c"))
	if b.GetQueue() != "queue-b" {
		r.Errorf("the task is of queue %q", b.GetQueue())
	}
	r.None(From("queue-b"))
	r.Applied("b", r.Report(b, Unchanged))
	a := r.Task("in-a", From("queue-b", "queue-a"))
	r.Applied("a", r.Report(a, Unchanged))
	r.None(From("queue-a", "queue-b", "default"))
	r.Applied("merge", r.Report(r.Task("merge", From("queue-c")), Gather))
	r.See(Want{State: completed, Attempts: map[string]int{"in-a": 1, "in-b": 1, "merge": 1}})
}

func ownWorkflows(r *Run) {
	r.Start(`1`)
	first := r.Workflow
	r.Workflow = ""
	r.RegisterFlow(chain("other", "x"))
	r.None()
	r.Start(`2`)
	r.Work(nil)
	r.See(Want{State: completed, Context: `2`, Attempts: map[string]int{"x": 1}})
	second := r.Workflow
	both := func(q *wigglev1.PollTasksRequest) {
		q.Workflows = []*wigglev1.WorkflowBinding{{Workflow: first}, {Workflow: second}}
	}
	if t := r.Task("a", both); t.GetWorkflow() != first {
		r.Errorf("the task is of %q", t.GetWorkflow())
	}
}

func parked(r *Run) {
	type answer struct {
		res *wigglev1.PollTasksResponse
		err error
	}
	polled := make(chan answer)
	poll := func() {
		res, err := r.Workers.PollTasks(r.ctx, &wigglev1.PollTasksRequest{
			Worker: "parked", Wait: durationpb.New(patience), Lease: durationpb.New(aLease),
			Workflows: []*wigglev1.WorkflowBinding{{Workflow: r.Workflow}},
		})
		polled <- answer{res, err}
	}
	next := func(step string) *wigglev1.Task {
		got := <-polled
		if len(got.res.GetTasks()) != 1 || got.res.GetTasks()[0].GetStep() != step {
			r.Fatalf("the poll that waited for %s is answered with %v, %v", step, got.res, got.err)
		}
		return got.res.GetTasks()[0]
	}
	go poll()
	r.Start(`1`)
	a := next("a")
	go poll()
	r.Applied("a", r.Report(a, Unchanged))
	r.Applied("b", r.Report(next("b"), Unchanged))
	r.See(Want{State: completed, Context: `1`, Attempts: map[string]int{"a": 1, "b": 1}})
}
