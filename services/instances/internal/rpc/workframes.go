package rpc

import (
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	"github.com/wiggle-run/wiggle/services/instances/internal/machine"
	"github.com/wiggle-run/wiggle/services/instances/internal/store"
)

// What bounds one message: the first task is always taken.
const (
	maxFrameItems = 1000
	maxFrameBytes = 1 << 20
)

// outbox is what waits to be sent on a stream.
type outbox struct {
	tasks    []store.Claimed
	answers  []answer
	revoked  []int
	draining bool
	bytes    int
}

// batch is what goes into one message.
type batch struct {
	tasks    []store.Claimed
	answers  []answer
	revoked  int
	draining bool
}

func (o *outbox) empty() bool {
	return len(o.tasks) == 0 && len(o.answers) == 0 && len(o.revoked) == 0 && !o.draining
}

func (o *outbox) addTasks(tasks []store.Claimed) {
	o.tasks = append(o.tasks, tasks...)
	for i := range tasks {
		o.bytes += taskBytes(&tasks[i])
	}
}

func (o *outbox) addAnswers(answers []answer) {
	o.answers = append(o.answers, answers...)
	o.bytes += itemBytes * len(answers)
}

// takeTasks removes all tasks.
func (o *outbox) takeTasks() []store.Claimed {
	for i := range o.tasks {
		o.bytes -= taskBytes(&o.tasks[i])
	}
	tasks := o.tasks
	o.tasks = nil
	return tasks
}

// next takes what goes into the next message. How many credits were taken back is a
// message of its own, one for each time, so that who asked knows that it was answered.
func (o *outbox) next() (batch, bool) {
	var b batch
	switch {
	case o.empty():
		return b, false
	case len(o.revoked) > 0 || o.draining:
		b.draining, o.draining = o.draining, false
		if len(o.revoked) > 0 {
			b.revoked, o.revoked = o.revoked[0], o.revoked[1:]
		}
		return b, true
	}
	n := min(len(o.answers), maxFrameItems)
	b.answers, o.answers = o.answers[:n:n], o.answers[n:]
	o.bytes -= itemBytes * n
	n = o.fitting()
	b.tasks, o.tasks = o.tasks[:n:n], o.tasks[n:]
	for i := range b.tasks {
		o.bytes -= taskBytes(&b.tasks[i])
	}
	return b, true
}

// fitting is how many tasks go into one message. The context around branches is in it
// once for all that have the same.
func (o *outbox) fitting() int {
	size, n := 0, 0
	bases := map[machine.ID]bool{}
	for ; n < len(o.tasks) && n < maxFrameItems; n++ {
		c := &o.tasks[n]
		size += taskBytes(c)
		if !bases[c.Token.Parent] {
			bases[c.Token.Parent] = true
			size += len(c.Base.Data)
		}
		if n > 0 && size > maxFrameBytes {
			break
		}
	}
	return n
}

// taskBytes is about how long a task is as it is sent, without the context around it,
// which tasks share.
func taskBytes(c *store.Claimed) int {
	n := itemBytes + len(c.Token.View.Data) + len(c.Token.Progress.Data)
	for _, r := range c.Results {
		n += len(r.View.Data)
	}
	return n
}

// frame makes a message. A task that cannot be described is handed back, and its
// credit with it.
func (w *work) frame(b batch) *wigglev1.WorkResponse {
	res := &wigglev1.WorkResponse{Revoked: int32(b.revoked), Draining: b.draining} //nolint:gosec // at most maxCredits
	for _, a := range b.answers {
		w.addAnswer(res, a)
	}
	list := taskList{share: true}
	for _, c := range b.tasks {
		if err := list.add(w.ctx, w.shard, c); err != nil {
			w.s.log.ErrorContext(w.ctx, "a task cannot be described", "shard", w.shard.ID(), "error", err)
			w.shard.HandBack([]store.Claimed{c})
			w.mu.Lock()
			w.credits++
			w.takeBack(1)
			w.mu.Unlock()
		}
	}
	res.Tasks, res.BaseContexts = list.tasks, list.bases
	return res
}

func (w *work) addAnswer(res *wigglev1.WorkResponse, a answer) {
	if a.beat != nil {
		res.Beats = append(res.Beats, a.beat)
		return
	}
	fault := w.s.item(w.ctx, taskFault(w.shard.ID(), a.taskID, a.err))
	switch a.kind {
	case reportItem:
		res.Reported = append(res.Reported, &wigglev1.TaskOutcome{TaskId: a.taskID, Lease: a.lease, Fault: fault})
	case failureItem:
		res.Failed = append(res.Failed, &wigglev1.FailureOutcome{
			TaskId: a.taskID, Lease: a.lease, Fault: fault, WillRetry: !a.retryAt.IsZero(), RetryAt: stamp(a.retryAt),
		})
	case releaseItem:
		res.Released = append(res.Released, &wigglev1.TaskOutcome{TaskId: a.taskID, Lease: a.lease, Fault: fault})
	}
}
