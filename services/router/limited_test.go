package router_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/wiggle-run/wiggle/pkg/faults"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	wiggleinternalv1 "github.com/wiggle-run/wiggle/proto/gen/wiggleinternal/v1"
	"github.com/wiggle-run/wiggle/proto/gen/wiggleinternal/v1/wiggleinternalv1connect"
)

// subjects tells of what queues a process's tasks are.
type subjects struct {
	wiggleinternalv1connect.UnimplementedScopeServiceHandler

	p *process
}

func (s subjects) ResolveTasks(
	ctx context.Context, req *wiggleinternalv1.ResolveTasksRequest,
) (*wiggleinternalv1.ResolveTasksResponse, error) {
	d, err := s.p.enter(ctx, "ResolveTasks")
	if err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	res := &wiggleinternalv1.ResolveTasksResponse{}
	for _, ref := range req.GetTasks() {
		of := &wiggleinternalv1.Subject{}
		if t := d.leased[ref.GetTaskId()]; t != nil {
			of = &wiggleinternalv1.Subject{Namespace: "default", Name: t.GetQueue(), Found: true}
		}
		res.Subjects = append(res.Subjects, of)
	}
	return res, nil
}

// lease has another worker hold a task of a queue.
func (d *database) lease(queue string) *wigglev1.Task {
	d.addTasks(queue, 1)
	var task *wigglev1.Task
	d.update(func() {
		task = d.ready[queue][0]
		task.Lease = "other"
		d.ready[queue], d.leased[task.GetId()] = d.ready[queue][1:], task
	})
	return task
}

// settled lists what was done to a shard's tasks.
func (d *database) settled() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.reports)
}

// gpuStream opens a stream of a worker that may take tasks of the queue gpu alone.
func (c *cluster) gpuStream(held ...*wigglev1.Task) *workStream {
	c.t.Helper()
	hello := &wigglev1.WorkHello{Worker: "w", Queues: []string{"gpu"}}
	for _, t := range held {
		hello.Held = append(hello.Held, &wigglev1.TaskLease{TaskId: t.GetId(), Lease: t.GetLease()})
	}
	return c.workIn(as(c.t.Context(), "gpu"), c.workers, hello).reading()
}

// outcomes are the answers to the items of a stream: code by kind and task.
func outcomes(res *wigglev1.WorkResponse) map[string]faults.Code {
	all := map[string]faults.Code{}
	add := func(kind, id string, fault *wigglev1.Fault) {
		code := faults.CodeOK
		if fault != nil {
			code = faults.FromProto(fault).Code()
		}
		all[kind+" "+id] = code
	}
	for _, o := range res.GetReported() {
		add("report", o.GetTaskId(), o.GetFault())
	}
	for _, o := range res.GetFailed() {
		add("fail", o.GetTaskId(), o.GetFault())
	}
	for _, o := range res.GetBeats() {
		add("beat", o.GetTaskId(), o.GetFault())
	}
	for _, o := range res.GetReleased() {
		add("release", o.GetTaskId(), o.GetFault())
	}
	return all
}

// A limited worker gets tasks of its queues only, and of a message what is about others' tasks, or none, is denied item by item,
// in the same words, while the rest goes through.
func TestLimitedStreamItems(t *testing.T) {
	t.Parallel()
	withAuth(t, func(c *cluster, a *fakeAuth) {
		t := c.t
		a.add("gpu", "task.poll:*/gpu")
		for _, d := range c.databases {
			d.addTasks("gpu", 2)
			d.addTasks("cpu", 2)
		}
		w := c.gpuStream()
		w.send(&wigglev1.WorkRequest{Credits: 12})
		mine := w.got().GetTasks()
		if len(mine) != 6 || slices.ContainsFunc(mine, func(t *wigglev1.Task) bool { return t.GetQueue() != "gpu" }) {
			t.Fatalf("got %v", mine)
		}
		req, want := &wigglev1.WorkRequest{}, map[string]faults.Code{}
		item := func(kind string, task *wigglev1.Task, code faults.Code) {
			id, lease := task.GetId(), task.GetLease()
			want[kind+" "+id] = code
			switch kind {
			case "report":
				req.Reports = append(req.Reports, &wigglev1.StepReport{TaskId: id, Lease: lease})
			case "fail":
				req.Failures = append(req.Failures, &wigglev1.FailTaskRequest{TaskId: id, Lease: lease})
			case "beat":
				req.Beats = append(req.Beats, &wigglev1.Beat{TaskId: id, Lease: lease})
			case "release":
				req.Releases = append(req.Releases, &wigglev1.TaskLease{TaskId: id, Lease: lease})
			}
		}
		for i, kind := range []string{"report", "fail", "beat", "release"} {
			item(kind, c.databases[i%3].lease("cpu"), faults.CodePermissionDenied)
			item(kind, mine[i], faults.CodeOK)
			for _, id := range []string{tokenOn(1), tokenOn(9), "nonsense"} {
				item(kind, &wigglev1.Task{Id: id, Lease: "x"}, faults.CodePermissionDenied)
			}
			item(kind, &wigglev1.Task{Id: tokenOn(7), Lease: "x"}, faults.CodeUnavailable) // a shard that is not known yet
		}
		w.send(req)
		answer := w.got()
		if got := outcomes(answer); fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("got %v, want %v", got, want)
		}
		words := map[string]bool{}
		for _, o := range answer.GetReported() {
			if err := faults.FromProto(o.GetFault()); o.GetFault().GetPermissionMissing() != nil {
				words[strings.ReplaceAll(err.Error(), o.GetTaskId(), "X")] = true
			}
		}
		if len(words) != 1 {
			t.Errorf("denials differ: %v", words)
		}
		var settled []string
		for _, d := range c.databases {
			settled = append(settled, d.settled()...)
		}
		if len(settled) != 4 {
			t.Errorf("the shards settled %q", settled)
		}
		time.Sleep(5 * time.Second) // of the bubble
		if recorded := a.recorded(); len(recorded) != 1 || !strings.HasPrefix(recorded[0].GetDetail(), "16 of 24 items") {
			t.Errorf("the audit log has %v", recorded)
		}
	}, oneEach)
}

// A shard is told of held tasks only as far as the worker may have to do with them.
func TestLimitedHeldTasks(t *testing.T) {
	t.Parallel()
	withAuth(t, func(c *cluster, a *fakeAuth) {
		t := c.t
		a.add("gpu", "task.poll:*/gpu")
		mine, others := c.databases[1].lease("gpu"), c.databases[1].lease("cpu")
		w := c.gpuStream(mine, others, &wigglev1.Task{Id: tokenOn(1), Lease: "x"}, &wigglev1.Task{Id: "nonsense"}, c.databases[2].lease("cpu"))
		if told := c.processes["a"].held(1); len(told) != 1 || told[0] != mine.GetId() {
			t.Errorf("shard 1 was told of %q, want %q", told, mine.GetId())
		}
		if told := c.processes["a"].held(2); len(told) != 0 {
			t.Errorf("shard 2 was told of %q", told)
		}
		for shard, d := range c.databases {
			if settled := d.settled(); len(settled) != 0 {
				t.Errorf("shard %d settled %q", shard, settled)
			}
		}
		w.leave()
	})
}

// held lists the tasks of which the hello to a shard told.
func (p *process) held(shard int) []string {
	p.streams.mu.Lock()
	defer p.streams.mu.Unlock()
	var ids []string
	for _, w := range p.streams.all {
		for _, t := range w.held {
			if w.d.shard == shard {
				ids = append(ids, t.GetTaskId())
			}
		}
	}
	return ids
}

// While a shard is away a limited worker works with the others, and what it holds there is its own when the shard is back.
func TestLimitedStreamWithoutAShard(t *testing.T) {
	t.Parallel()
	withAuth(t, func(c *cluster, a *fakeAuth) {
		t := c.t
		a.add("gpu", "task.poll:*/gpu")
		away, there := c.databases[1].lease("gpu"), c.databases[2].lease("gpu")
		c.kill("p1")
		c.settle()
		w := c.gpuStream(away, c.databases[1].lease("cpu"))
		w.send(reports(away))
		if got := outcomes(w.got()); got["report "+away.GetId()] != faults.CodeUnavailable || len(got) != 1 {
			t.Errorf("got %v", got)
		}
		w.send(reports(away, there))
		got := outcomes(w.got())
		if got["report "+away.GetId()] != faults.CodeUnavailable || got["report "+there.GetId()] != faults.CodeOK {
			t.Errorf("got %v", got)
		}
		p := c.startProcess("p1", 1)
		time.Sleep(5 * time.Second) // of the bubble
		if told := p.held(1); len(told) != 1 || told[0] != away.GetId() {
			t.Errorf("the shard that is back was told of %q", told)
		}
		w.send(reports(away))
		if got := outcomes(w.got()); got["report "+away.GetId()] != faults.CodeOK {
			t.Errorf("got %v", got)
		}
	}, oneEach)
}

// A shard that cannot tell of held tasks yet is asked again.
func TestLimitedHeldTasksAreAskedForAgain(t *testing.T) {
	t.Parallel()
	withAuth(t, func(c *cluster, a *fakeAuth) {
		a.add("gpu", "task.poll:*/gpu")
		mine, p := c.databases[1].lease("gpu"), c.processes["a"]
		p.setHook(func(_ context.Context, method string, shard int) error {
			if method == "ResolveTasks" && shard == 1 {
				return faults.ShardUnavailable(shard, time.Second)
			}
			return nil
		})
		w := c.gpuStream(mine)
		if told := p.held(1); len(told) != 0 {
			c.t.Errorf("the shard was told of %q", told)
		}
		p.setHook(nil)
		time.Sleep(5 * time.Second) // of the bubble
		if told := p.held(1); len(told) != 1 {
			c.t.Errorf("the shard was told of %q", told)
		}
		w.leave()
	})
}
