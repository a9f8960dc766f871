package dispatch

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/wiggle-run/wiggle/pkg/tracecontext"
	"github.com/wiggle-run/wiggle/services/instances/internal/machine"
	"github.com/wiggle-run/wiggle/services/instances/internal/store"
)

// ErrNoWorkflow: the shard has no version of the workflow, or not the one asked for.
var ErrNoWorkflow = errors.New("no such workflow version")

// ErrOtherStart: the ulid of a start belongs to an instance of another workflow.
var ErrOtherStart = errors.New("the ulid belongs to an instance of another workflow")

// StartItem is one start. Version 0 is the latest.
type StartItem struct {
	Workflow string
	Version  int32
	Event    machine.Start
	// Caller is the span of the call that the start came with.
	Caller trace.SpanContext
}

// Started tells what became of a start.
type Started struct {
	Version int32
	Created bool
	Err     error
}

// Start starts instances. Its answers are in the order of items.
func (s *Shard) Start(items []StartItem) []Started {
	results := make([]Started, len(items))
	ops := make([]*op, len(items))
	for i := range items {
		item, result := &items[i], &results[i]
		o := &op{
			instance: item.Event.ID, keys: store.Keys{Instances: []machine.ID{item.Event.ID}},
			start: true, bytes: len(item.Event.Input.Data), span: s.beginStart(item),
		}
		if item.Version == 0 {
			o.keys.Latest = []store.WorkflowKey{{Namespace: item.Event.Namespace, Workflow: item.Workflow}}
		}
		o.apply = func(ctx context.Context, w *store.World) (err error) {
			*result, err = s.start(ctx, w, item, o)
			return err
		}
		ops[i] = o
	}
	s.do(ops)
	for i, o := range ops {
		results[i].Err = o.err
	}
	s.metrics.starts(results)
	return results
}

func (s *Shard) start(ctx context.Context, w *store.World, item *StartItem, o *op) (Started, error) {
	ev := item.Event
	if in := w.Instance(ev.ID); in != nil {
		if in.Workflow != item.Workflow || in.Namespace != ev.Namespace {
			return Started{}, ErrOtherStart
		}
		return Started{Version: in.Version}, nil
	}
	version := item.Version
	if version == 0 {
		version = w.Latest(store.WorkflowKey{Namespace: ev.Namespace, Workflow: item.Workflow})
	}
	if version == 0 {
		return Started{}, ErrNoWorkflow
	}
	m, err := s.machines.get(ctx, machineKey{ev.Namespace, item.Workflow, version})
	if errors.Is(err, store.ErrNotFound) {
		return Started{}, ErrNoWorkflow
	}
	if err != nil {
		return Started{}, err
	}
	changes, err := m.Start(s.env(w.Now), ev)
	if err != nil {
		return Started{}, err
	}
	s.traced(o, startSpan, changes.Instance, nil, changes)
	w.Put(changes, ev.ID)
	return Started{Version: version, Created: true}, nil
}

// Outcome tells what became of an event on a task.
type Outcome struct {
	// Changes are nil if Err is not.
	Changes *machine.Changes
	// Next is the step that follows, leased to the one who reported; nil if there is
	// none, or it waits for a poll.
	Next *store.Claimed
	Err  error
}

// Event is something that happens to a task under a lease.
type Event struct {
	Lease store.Lease
	// By is how the event settles the lease.
	By machine.SettledBy
	// Apply runs it on the machine.
	Apply apply
	// Following is how many leases the event uses up beside its own: those of the
	// steps that followed a report.
	Following int64
	// Emits tells that a report adds to the event log, which is written with the instance
	// locked.
	Emits bool
	// Bytes is what payload it holds.
	Bytes int
	// Traceparent is the span of whoever reports it, if that is sampled.
	Traceparent string
}

func newEvent(l store.Lease, by machine.SettledBy, bytes int, run apply) Event {
	return Event{Lease: l, By: by, Apply: run, Bytes: bytes}
}

// apply runs an event on a machine.
type apply = func(m *machine.Machine, env machine.Env, st machine.State) (*machine.Changes, error)

// Report is a step that is done.
func Report(l store.Lease, ev machine.Report) Event {
	ev.Fence = l.Fence
	run := func(m *machine.Machine, env machine.Env, st machine.State) (*machine.Changes, error) {
		return m.Report(env, st, ev)
	}
	out := newEvent(l, machine.ByReport, reportBytes(&ev), run)
	out.Emits = len(ev.Events) > 0
	return out
}

// reportBytes is what payload a report holds.
func reportBytes(ev *machine.Report) int {
	n := len(ev.Result.Data)
	for _, e := range ev.Events {
		n += len(e.Payload.Data)
	}
	return n
}

// Fail is an attempt that failed.
func Fail(l store.Lease, ev machine.Fail) Event {
	ev.Fence = l.Fence
	run := func(m *machine.Machine, env machine.Env, st machine.State) (*machine.Changes, error) {
		return m.Fail(env, st, ev)
	}
	return newEvent(l, machine.ByFailure, len(ev.Message)+len(ev.Stack), run)
}

// Release is a task that is handed back.
func Release(l store.Lease) Event {
	return newEvent(l, machine.ByRelease, 0, func(m *machine.Machine, env machine.Env, st machine.State) (*machine.Changes, error) {
		return m.Release(env, st, l.Fence)
	})
}

// Expire is a lease whose time is over.
func Expire(l store.Lease) Event {
	return newEvent(l, machine.ByExpiry, 0, func(m *machine.Machine, env machine.Env, st machine.State) (*machine.Changes, error) {
		return m.Expire(env, st, l.Fence)
	})
}

// Wake is a timer that is due.
func Wake(ref store.TokenRef) Event {
	token := store.Lease{Instance: ref.Instance, Token: ref.Token}
	return newEvent(token, machine.NotSettled, 0, func(m *machine.Machine, env machine.Env, st machine.State) (*machine.Changes, error) {
		return m.Wake(env, st)
	})
}

// Apply applies events. Its answers are in the order of events.
func (s *Shard) Apply(events []Event) []Outcome { return s.ApplyAndClaim(events, nil) }

// ApplyAndClaim applies events and, if there is a claim, leases the step that
// follows each to whoever reported it, in the same transaction and up to the claim's
// bound (WRK-11).
func (s *Shard) ApplyAndClaim(events []Event, claim *store.Claim) []Outcome {
	var outcomes []Outcome
	done := make(chan struct{})
	s.apply(events, newRoom(claim), func(o []Outcome) { outcomes = o; close(done) })
	<-done
	return outcomes
}

// Submit applies events as Apply does, without waiting: answer is called once, with
// the outcomes in the order of events, and must not block. With a consumer the step
// that follows a report is leased to it, if it has room: the credits that come with the
// call, which are kept for that and are the consumer's afterwards, and those that it
// has. Such a task is in its Outcome and not delivered.
func (s *Shard) Submit(events []Event, to *Consumer, credits int, answer func([]Outcome)) {
	if to == nil {
		s.apply(events, newRoom(nil), answer)
		return
	}
	r := &room{claim: &to.claim, to: to}
	r.left.Store(int64(credits))
	s.apply(events, r, func(outcomes []Outcome) {
		to.Grant(int(r.left.Swap(0)))
		answer(outcomes)
	})
}

// apply applies events and calls answer with the outcomes.
func (s *Shard) apply(events []Event, r *room, answer func([]Outcome)) {
	outcomes := make([]Outcome, len(events))
	ops := make([]*op, len(events))
	for i := range events {
		ops[i] = s.eventOp(&events[i], &outcomes[i], r)
	}
	s.guard(ops, events, outcomes, r)
	s.submit(ops, func() {
		for i, o := range ops {
			if o.err != nil {
				r.forget(&outcomes[i].Next)
				outcomes[i] = Outcome{Err: o.err}
			}
		}
		s.metrics.steps(events, outcomes)
		s.wentOn(outcomes)
		answer(outcomes)
	})
}

// eventOp is the operation of an event.
func (s *Shard) eventOp(ev *Event, outcome *Outcome, r *room) *op {
	o := &op{instance: ev.Lease.Instance, bytes: ev.Bytes, keys: store.Keys{
		Instances: []machine.ID{ev.Lease.Instance}, Tokens: []machine.ID{ev.Lease.Token},
	}}
	if ev.Lease.Fence > 0 {
		o.keys.Leases = []store.Lease{ev.Lease}
	}
	if ev.Traceparent != "" {
		o.span = s.begin(spanNames[ev.By], tracecontext.Parse(ev.Traceparent), time.Now())
	}
	o.apply = func(ctx context.Context, w *store.World) (err error) {
		r.forget(&outcome.Next) // of a run that was not committed
		outcome.Changes, err = s.event(ctx, w, ev, o)
		if err == nil {
			outcome.Next = s.goOn(w, ev, outcome.Changes, r)
		}
		return err
	}
	return o
}

func (s *Shard) event(ctx context.Context, w *store.World, ev *Event, o *op) (*machine.Changes, error) {
	st := w.State(ev.Lease.Instance, ev.Lease.Token)
	// A call that was applied before its token moved on or went is known from the
	// history, and answered as it was then (WRK-5).
	if past := w.Settled(ev.Lease); past.Fence > 0 && past.By == ev.By {
		return &machine.Changes{Duplicate: true, RetryAt: past.RetryAt}, nil
	}
	if st.Instance == nil || st.Token == nil {
		return nil, machine.ErrLeaseLost
	}
	m, err := s.machines.of(ctx, st.Instance)
	if err != nil {
		return nil, err
	}
	changes, err := ev.Apply(m, s.env(w.Now), st)
	if err != nil {
		return nil, err
	}
	s.traced(o, spanNames[ev.By], st.Instance, st.Token, changes)
	w.Put(changes, ev.Lease.Instance)
	return changes, nil
}

// Cancel ends an instance and tells its state; store.ErrNotFound, machine.ErrEnded
// with the state that it has.
func (s *Shard) Cancel(ctx context.Context, id machine.ID, reason string) (machine.InstanceState, error) {
	var state machine.InstanceState
	o := &op{instance: id, keys: store.Keys{Instances: []machine.ID{id}}, caller: trace.SpanContextFromContext(ctx)}
	o.apply = func(ctx context.Context, w *store.World) error {
		in := w.Instance(id)
		if in == nil {
			return store.ErrNotFound
		}
		state = in.State
		m, err := s.machines.of(ctx, in)
		if err != nil {
			return err
		}
		changes, err := m.Cancel(s.env(w.Now), in, reason)
		if err != nil {
			return err
		}
		s.traced(o, cancelSpan, in, nil, changes)
		w.Put(changes, id)
		state = w.Instance(id).State
		return nil
	}
	s.do([]*op{o})
	return state, o.err
}

// Beat extends leases; a lease that is lost gets a zero time.
func (s *Shard) Beat(ctx context.Context, beats []store.Beat) ([]store.BeatResult, error) {
	for _, b := range beats {
		if err := s.cfg.Limits.Payload("progress", b.Progress); err != nil {
			return nil, err
		}
	}
	results, err := s.store.Beat(ctx, beats)
	if err != nil {
		s.noteFailure(err)
		return nil, fmt.Errorf("extend leases: %w", err)
	}
	return results, nil
}

// WaitEnd waits until the instance has ended, ctx is done, or the process goes
// down. It returns what the instance is then.
func (s *Shard) WaitEnd(ctx context.Context, id machine.ID) (*machine.Instance, error) {
	for {
		// Listening before looking: an end between the two is not missed.
		ended, stop := s.ends.wait(id)
		view, err := s.store.Instance(context.WithoutCancel(ctx), id, 0)
		if err != nil || view.Instance.State.Terminal() || ctx.Err() != nil {
			stop()
			return view.Instance, err
		}
		select {
		case <-ended:
		case <-ctx.Done():
		case <-s.draining():
			stop()
			return view.Instance, nil
		}
		stop()
	}
}

// CheckEnds looks for ends that another process made, for whoever waits here.
func (s *Shard) CheckEnds(ctx context.Context) error {
	ids := s.ends.ids()
	if len(ids) == 0 {
		return nil
	}
	ended, err := s.store.Ended(ctx, ids)
	if err != nil {
		return fmt.Errorf("look for ended instances: %w", err)
	}
	for _, id := range ended {
		s.ends.notify(id)
	}
	return nil
}
