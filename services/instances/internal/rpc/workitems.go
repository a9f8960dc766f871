package rpc

import (
	"time"

	"github.com/wiggle-run/wiggle/pkg/faults"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	"github.com/wiggle-run/wiggle/services/instances/internal/dispatch"
	"github.com/wiggle-run/wiggle/services/instances/internal/store"
)

// maxItems is how many items of a kind one message may carry.
const maxItems = 1000

// itemKind says what an item of a message asks for.
type itemKind int

const (
	reportItem itemKind = iota
	failureItem
	releaseItem
)

// workItem is one item of a message.
type workItem struct {
	kind          itemKind
	taskID, lease string
}

// answer is what became of an item.
type answer struct {
	workItem
	err     error
	retryAt time.Time             // of a failure
	beat    *wigglev1.BeatOutcome // if set, it is the answer to a beat
}

// submission is the items of one message that concern the machine.
type submission struct {
	events  []dispatch.Event
	items   []workItem // one for each event
	reports int
	// credits come with the reports, for the steps that follow them.
	credits int
	bytes   int
}

func (s *submission) add(ev dispatch.Event, item workItem, size int) {
	s.events, s.items = append(s.events, ev), append(s.items, item)
	s.bytes += itemBytes + size
	if item.kind == reportItem {
		s.reports++
	}
}

// take does what a message asks for.
func (w *work) take(req *wigglev1.WorkRequest) error {
	if err := checkWork(req); err != nil {
		return err
	}
	subs, refused := w.itemsOf(req)
	w.mu.Lock()
	grant, consumer, err := w.admit(req, subs)
	if err != nil {
		w.mu.Unlock()
		return err
	}
	w.out.addAnswers(refused)
	for _, sub := range subs {
		w.applying += sub.bytes
	}
	w.mu.Unlock()
	w.consumer.Grant(grant)
	for _, sub := range subs {
		if len(sub.events) > 0 {
			w.shard.Submit(sub.events, consumer, sub.credits, func(o []dispatch.Outcome) { w.answered(sub, o) })
		}
	}
	w.beat(req.GetBeats())
	if n := int(req.GetRevoke()); n > 0 {
		w.revoke(n)
	}
	if req.GetLook() {
		w.consumer.Look()
	}
	poke(w.wake)
	return nil
}

// admit books a message's credits: with the reports, as many as there are; the rest, in
// grant, is for the consumer. The mutex is held.
func (w *work) admit(req *wigglev1.WorkRequest, subs []*submission) (grant int, c *dispatch.Consumer, err error) {
	if !w.sent.confirm(req.GetReceived()) {
		return 0, nil, faults.InvalidArgument("received is %d, more than the tasks that were sent", req.GetReceived())
	}
	n := int(req.GetCredits())
	if w.credits+n > maxCredits {
		return 0, nil, faults.InvalidArgument("with credits %d the worker has %d, at most %d are allowed", n, w.credits+n, maxCredits)
	}
	w.credits += n
	if w.closed {
		if n > 0 {
			w.takeBack(n)
		}
		return 0, nil, nil
	}
	grant = n
	for _, sub := range subs {
		sub.credits = min(grant, sub.reports)
		w.kept += sub.credits
		grant -= sub.credits
	}
	if w.holding {
		w.withheld += grant
		grant = 0
	}
	return grant, w.consumer, nil
}

// checkWork refuses a message that breaks the rules of its schema, which a router that
// passes it on does not look into.
func checkWork(req *wigglev1.WorkRequest) error {
	if req.GetHello() != nil {
		return faults.InvalidArgument("hello must be in the first message of a stream only")
	}
	for _, list := range []struct {
		name string
		n    int
	}{
		{"reports", len(req.GetReports())},
		{"failures", len(req.GetFailures())},
		{"beats", len(req.GetBeats())},
		{"releases", len(req.GetReleases())},
	} {
		if list.n > maxItems {
			return faults.InvalidArgument("%s has %d items, at most %d are allowed", list.name, list.n, maxItems)
		}
	}
	for _, number := range []struct {
		name string
		n    int64
		most int64
	}{
		{"credits", int64(req.GetCredits()), maxCredits},
		{"revoke", int64(req.GetRevoke()), maxCredits},
		{"received", req.GetReceived(), 1<<63 - 1},
	} {
		if number.n < 0 || number.n > number.most {
			return faults.InvalidArgument("%s is %d, want 0 to %d", number.name, number.n, number.most)
		}
	}
	return nil
}

// itemsOf reads a message's items; what cannot be read is answered at once. Reports that
// are written by themselves need not wait for the others, so they are a submission of
// their own, unless the message has more about their task.
func (w *work) itemsOf(req *wigglev1.WorkRequest) (subs []*submission, refused []answer) {
	alone, others := &submission{}, &submission{}
	more := map[string]bool{}
	for _, f := range req.GetFailures() {
		more[f.GetTaskId()] = true
	}
	for _, r := range req.GetReleases() {
		more[r.GetTaskId()] = true
	}
	add := func(item workItem, size int, read func(store.Lease) (dispatch.Event, error)) {
		lease, err := w.lease(item.taskID, item.lease)
		var ev dispatch.Event
		if err == nil {
			ev, err = read(lease)
		}
		switch {
		case err != nil:
			refused = append(refused, answer{workItem: item, err: err})
		case item.kind == reportItem && ev.Following == 0 && !ev.Emits && !more[item.taskID] && w.shard.Alone(lease):
			alone.add(ev, item, size)
		default:
			others.add(ev, item, size)
		}
	}
	for _, r := range req.GetReports() {
		add(workItem{reportItem, r.GetTaskId(), r.GetLease()}, reportBytes(r), func(l store.Lease) (dispatch.Event, error) {
			return reportEvent(w.ctx, w.worker, l, r)
		})
	}
	for _, f := range req.GetFailures() {
		size := len(f.GetFailure().GetMessage()) + len(f.GetFailure().GetStack())
		add(workItem{failureItem, f.GetTaskId(), f.GetLease()}, size, func(l store.Lease) (dispatch.Event, error) {
			if f.GetFailure() == nil {
				return dispatch.Event{}, faults.InvalidArgument("the failure of task %s says nothing: set failure", f.GetTaskId())
			}
			fail, err := failOf(f)
			fail.Worker = w.worker
			ev := dispatch.Fail(l, fail)
			ev.Traceparent = f.GetTraceparent()
			return ev, err
		})
	}
	for _, r := range req.GetReleases() {
		add(workItem{releaseItem, r.GetTaskId(), r.GetLease()}, 0, func(l store.Lease) (dispatch.Event, error) {
			return dispatch.Release(l), nil
		})
	}
	return []*submission{alone, others}, refused
}

// reportBytes is how much payload a report carries.
func reportBytes(r *wigglev1.StepReport) int {
	n := len(r.GetResult().GetData()) + emittedBytes(r.GetEvents())
	for _, f := range r.GetFollowedBy() {
		n += itemBytes + len(f.GetResult().GetData()) + emittedBytes(f.GetEvents())
	}
	return n
}

// emittedBytes is how much events that are emitted take.
func emittedBytes(events []*wigglev1.EmittedEvent) int {
	n := 0
	for _, e := range events {
		n += itemBytes + len(e.GetPayload().GetData())
	}
	return n
}

// lease reads which lease an item is about, on the shard of the stream.
func (w *work) lease(taskID, text string) (store.Lease, error) {
	shard, l, err := w.s.lease(taskID, text)
	if err == nil && shard != w.shard {
		err = faults.InvalidArgument("task %s is of shard %d, the stream is of shard %d", taskID, shard.ID(), w.shard.ID())
	}
	return l, err
}

// answered takes what became of a message's items, with the steps that follow. It does
// not block.
func (w *work) answered(sub *submission, outcomes []dispatch.Outcome) {
	answers := make([]answer, len(outcomes))
	var next []store.Claimed
	for i, o := range outcomes {
		answers[i] = answer{workItem: sub.items[i], err: o.Err}
		if o.Changes != nil {
			answers[i].retryAt = o.Changes.RetryAt
		}
		if o.Next != nil {
			next = append(next, *o.Next)
		}
	}
	var back []store.Claimed
	w.mu.Lock()
	w.kept -= sub.credits
	if w.closed {
		// Credits of the consumer went back to the worker; these are what is left.
		fit := min(len(next), sub.credits)
		if w.ended {
			fit = 0
		}
		next, back = next[:fit], next[fit:]
		if left := sub.credits - fit; left > 0 {
			w.takeBack(left)
		}
	}
	w.credits -= len(next)
	w.out.addTasks(next)
	w.out.addAnswers(answers)
	w.applying -= sub.bytes
	w.mu.Unlock()
	if len(back) > 0 {
		go w.shard.HandBack(back) // it waits for a lane, which is what calls
	}
	poke(w.room)
	poke(w.wake)
}

// revoke takes back up to n credits that are not used. It is always answered.
func (w *work) revoke(n int) {
	w.mu.Lock()
	held := min(n, w.withheld)
	w.withheld -= held
	w.mu.Unlock()
	got := held + w.consumer.Revoke(n-held)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		got = 0 // all were taken back before
	}
	w.takeBack(got)
}

// beat extends leases, one batch at a time.
func (w *work) beat(beats []*wigglev1.Beat) {
	if len(beats) == 0 {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, b := range beats {
		w.applying += itemBytes + len(b.GetProgress().GetData())
	}
	w.beats = append(w.beats, beats...)
	if !w.beating {
		w.beating = true
		go w.beatAll()
	}
}

func (w *work) beatAll() {
	for {
		w.mu.Lock()
		beats := w.beats
		w.beats = nil
		w.beating = len(beats) > 0
		w.mu.Unlock()
		if len(beats) == 0 {
			return
		}
		size := 0
		outcomes := w.s.heartbeat(w.ctx, beats)
		answers := make([]answer, len(beats))
		for i, o := range outcomes {
			o.Lease = beats[i].GetLease()
			answers[i] = answer{beat: o}
			size += itemBytes + len(beats[i].GetProgress().GetData())
		}
		w.mu.Lock()
		w.out.addAnswers(answers)
		w.applying -= size
		w.mu.Unlock()
		poke(w.room)
		poke(w.wake)
	}
}
