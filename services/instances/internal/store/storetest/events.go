package storetest

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/wiggle-run/wiggle/services/instances/internal/machine"
	"github.com/wiggle-run/wiggle/services/instances/internal/store"
)

// log reads the whole event log, in pages of one, once it is decided: other tests'
// transactions may hold it back for a moment.
func (s *shard) log() []store.StoredEvent {
	s.Helper()
	for open := true; open; {
		var err error
		_, open, err = s.DecidedEvents(s.Context())
		s.must(err)
	}
	var all []store.StoredEvent
	for after := int64(0); ; {
		page, err := s.ReadEvents(s.Context(), after, 1)
		s.must(err)
		if page.UpTo < after || len(page.Events) == 0 && page.UpTo != after {
			s.Fatalf("behind %d is read up to %d: %+v", after, page.UpTo, page)
		}
		if len(page.Events) == 0 {
			return all
		}
		all = append(all, page.Events...)
		after = page.UpTo
	}
}

// words are what is told of events in short.
func words(events []store.StoredEvent) []string {
	var out []string
	for _, e := range events {
		text := fmt.Sprintf("%s@%d", e.Type, e.Revision)
		if e.Node != "" {
			text += fmt.Sprintf(" %s %s", e.Node, e.Payload)
		}
		out = append(out, text)
	}
	return out
}

func (s *shard) expectLog(want ...string) []store.StoredEvent {
	s.Helper()
	all := s.log()
	if got := words(all); !slices.Equal(got, want) {
		s.Errorf("the log is %q, want %q", got, want)
	}
	return all
}

// emits reports a step that emitted something.
func (s *shard) emits(m *machine.Machine, c store.Claimed, events ...machine.Emitted) error {
	ev := machine.Report{Fence: c.Token.Fence, Worker: worker, Kind: machine.OutcomeUnchanged, Events: events}
	return s.update(on(c), c.Token.Instance, func(w *store.World) (*machine.Changes, error) {
		return m.Report(s.env(w.Now), w.State(c.Token.Instance, c.Token.ID), ev)
	})
}

func emitted(kind, payload string) machine.Emitted {
	return machine.Emitted{Type: kind, Payload: json(payload)}
}

// What becomes of an instance, and what its handlers emit, is in the log in the order in
// which it happened, as it was then (EVT-1, EVT-2).
func testEvents(s *shard) {
	m := chain()
	id := s.start(m, `1`)
	s.must(s.emits(m, s.claimOne(), emitted("order.priced", `{"n":1}`), machine.Emitted{Type: "order.seen"}))
	s.must(s.emits(m, s.claimOne(), emitted("order.sent", ` {"n":2}`)))
	in := s.view(id).Instance
	all := s.expectLog("wf.started@1", `order.priced@1 a {"n":1}`, "order.seen@1 a {}", `order.sent@2 b  {"n":2}`, "wf.completed@2")
	for i, e := range all {
		if e.Instance != id || e.Namespace != namespace || e.Workflow != "chain" || e.Version != 1 || e.Time.IsZero() {
			s.Errorf("event %d is %+v", i, e)
		}
		if i > 0 && (e.Seq <= all[i-1].Seq || e.Time.Before(all[i-1].Time)) {
			s.Errorf("event %d is %+v behind %+v", i, e, all[i-1])
		}
	}
	first, last := all[0], all[len(all)-1]
	if !first.Time.Equal(in.CreatedAt) || !last.Time.Equal(in.EndedAt) || last.Revision != in.Position || first.Payload != nil {
		s.Errorf("of %+v the log has %+v and %+v", in, first, last)
	}
}

// Every end is in the log, and a start that ends at once is there with both.
func testEventsOfEnds(s *shard) {
	m := one("w", 1, attempts(1))
	s.start(m, `1`)
	c := s.claimOne()
	s.must(s.update(on(c), c.Token.Instance, func(w *store.World) (*machine.Changes, error) {
		return m.Fail(s.env(w.Now), w.State(c.Token.Instance, c.Token.ID), machine.Fail{Fence: c.Token.Fence, Type: "E"})
	}))
	s.cancel(m, s.start(m, `1`))
	s.expectLog("wf.started@1", "wf.failed@2", "wf.started@1", "wf.cancelled@2")
}

// What is refused, or was applied before, or is not committed writes nothing.
func testEventsOrNothing(s *shard) {
	m := chain()
	s.start(m, `1`)
	c := s.claimOne()
	var refused *machine.EmitError
	if err := s.emits(m, c, emitted("fine", `{}`), emitted("wf.completed", `{}`)); !errors.As(err, &refused) {
		s.Errorf("an event of the engine's own gives %v", err)
	}
	failure := errors.New("no")
	keys := on(c)
	if err := s.Update(s.Context(), keys, func(w *store.World) error {
		ev := machine.Report{Fence: 1, Kind: machine.OutcomeUnchanged, Events: []machine.Emitted{{Type: "lost"}}}
		changes, err := m.Report(s.env(w.Now), w.State(c.Token.Instance, c.Token.ID), ev)
		s.must(err)
		w.Put(changes, c.Token.Instance)
		return failure
	}); !errors.Is(err, failure) {
		s.Errorf("error is %v, want apply's", err)
	}
	s.must(s.emits(m, c, emitted("once", `{}`)))
	s.must(s.emits(m, c, emitted("once", `{}`))) // the same report again
	lost := c
	lost.Token = c.Token.Clone()
	lost.Token.Fence = 77
	if err := s.emits(m, lost, emitted("late", `{}`)); !errors.Is(err, machine.ErrLeaseLost) {
		s.Errorf("a lease that is lost gives %v", err)
	}
	s.expectLog("wf.started@1", "once@1 a {}")
}

// The events of steps that a worker ran by itself are each with its node.
func testEventsBatched(s *shard) {
	m := again()
	s.start(m, `0`)
	c := s.claimOne()
	ev := machine.Report{Fence: 1, Kind: machine.OutcomeResult, Result: json(`1`), Events: []machine.Emitted{emitted("x", `{"step":1}`)}}
	following := []machine.Following{{Node: "b", Report: machine.Report{
		Kind: machine.OutcomeResult, Result: json(`[1]`), Events: []machine.Emitted{emitted("x", `{"step":2}`), emitted("y", `{}`)},
	}}}
	s.must(s.update(on(c), c.Token.Instance, func(w *store.World) (*machine.Changes, error) {
		return m.ReportBatch(s.env(w.Now), w.State(c.Token.Instance, c.Token.ID), ev, following)
	}))
	s.expectLog("wf.started@1", `x@1 a {"step":1}`, `x@1 b {"step":2}`, "y@1 b {}")
}

// Many instances in one batch keep their order each.
func testEventsOfOneBatch(s *shard) {
	const n = 50
	m := chain()
	var ids []machine.ID
	for range n {
		ids = append(ids, s.newID())
	}
	slices.Reverse(ids)
	s.must(s.Update(s.Context(), store.Keys{Instances: ids}, func(w *store.World) error {
		for _, id := range ids {
			c, err := m.Start(s.env(w.Now), machine.Start{ID: id, Namespace: namespace})
			if err != nil {
				return err
			}
			w.Put(c, id)
		}
		for _, id := range ids {
			c, err := m.Cancel(s.env(w.Now), w.Instance(id), "because")
			if err != nil {
				return err
			}
			w.Put(c, id)
		}
		return nil
	}))
	all := s.log()
	if len(all) != 2*n {
		s.Fatalf("%d events", len(all))
	}
	for i, e := range all {
		want := []string{machine.EventStarted, machine.EventCancelled}[i/n]
		if e.Instance != ids[i%n] || e.Type != want {
			s.Errorf("event %d is %s of %x", i, e.Type, e.Instance)
		}
	}
}

func testEventPages(s *shard) {
	m := chain()
	for range 5 {
		s.start(m, `1`)
	}
	all := s.log()
	page, err := s.ReadEvents(s.Context(), 0, 3)
	s.must(err)
	if len(page.Events) != 3 || !page.More || page.UpTo != page.Events[2].Seq {
		s.Errorf("the first page is %+v", page)
	}
	page, err = s.ReadEvents(s.Context(), page.UpTo, 3)
	s.must(err)
	if len(page.Events) != 2 || page.More {
		s.Errorf("the second page is %+v", page)
	}
	seq, open, err := s.DecidedEvents(s.Context())
	if err != nil || seq < page.UpTo || open {
		s.Errorf("decided up to %d, open %t, %v, read up to %d", seq, open, err, page.UpTo)
	}
	tail, earliest, err := s.EventBounds(s.Context())
	if err != nil || tail != all[4].Seq || earliest != all[0].Seq-1 {
		s.Errorf("the log goes from behind %d to %d, %v", earliest, tail, err)
	}
	// A number that was never given is not waited for.
	page, err = s.ReadEvents(s.Context(), 1<<40, 3)
	if err != nil || len(page.Events) != 0 || page.UpTo > seq {
		s.Errorf("behind what is not there: %+v, %v", page, err)
	}
}

func (s *shard) consumers() []string {
	s.Helper()
	list, err := s.EventConsumers(s.Context())
	s.must(err)
	var out []string
	for _, c := range list {
		if c.AckedAt.IsZero() {
			s.Errorf("consumer %s has acknowledged at no time", c.Name)
		}
		out = append(out, fmt.Sprintf("%s %d-%d", c.Name, c.Seq, c.Behind))
	}
	return out
}

func (s *shard) expectConsumers(want ...string) {
	s.Helper()
	if got := s.consumers(); !slices.Equal(got, want) {
		s.Errorf("consumers are %q, want %q", got, want)
	}
}

// An acknowledgement moves a consumer forward, never back, and never behind the end
// (EVT-5).
func testEventConsumers(s *shard) {
	ctx := s.Context()
	if _, err := s.EventConsumer(ctx, "none"); !errors.Is(err, store.ErrNotFound) {
		s.Errorf("an unknown consumer gives %v", err)
	}
	s.must(s.AckEvents(ctx, "early", 7)) // of a log that is empty yet
	if seq, err := s.EventConsumer(ctx, "early"); err != nil || seq != 0 {
		s.Errorf("what was not there is acknowledged up to %d, %v", seq, err)
	}
	s.must(s.DeleteEventConsumer(ctx, "early"))
	m := chain()
	for range 3 {
		s.start(m, `1`)
	}
	all := s.log()
	first, last := all[0].Seq, all[2].Seq
	for _, want := range []int64{first, first} { // the second finds the first's
		seq, err := s.AddEventConsumer(ctx, "b", want)
		if err != nil || seq != first {
			s.Errorf("added at %d, %v, want %d", seq, err, first)
		}
	}
	if seq, err := s.AddEventConsumer(ctx, "b", last); err != nil || seq != first {
		s.Errorf("added again at %d, %v, want %d", seq, err, first)
	}
	s.expectConsumers(fmt.Sprintf("b %d-2", first))
	for _, step := range []struct{ ack, want int64 }{{last, last}, {first, last}, {1 << 60, last}} {
		s.must(s.AckEvents(ctx, "b", step.ack))
		if seq, err := s.EventConsumer(ctx, "b"); err != nil || seq != step.want {
			s.Errorf("after %d it is at %d, %v, want %d", step.ack, seq, err, step.want)
		}
	}
	s.must(s.AckEvents(ctx, "a", first)) // which makes it
	s.expectConsumers(fmt.Sprintf("a %d-2", first), fmt.Sprintf("b %d-0", last))
	for range 2 {
		s.must(s.DeleteEventConsumer(ctx, "b"))
	}
	s.expectConsumers(fmt.Sprintf("a %d-2", first))
}

// The front of the log goes as far as it is old and everybody has passed it, or very old
// (EVT-6).
func testTrimEvents(s *shard) {
	ctx := s.Context()
	m := chain()
	for range 6 {
		s.start(m, `1`)
	}
	all := s.log()
	const never, always = long, -long // an age that nothing has, and one that everything has
	trim := func(retention, hardCap time.Duration, after int64, limit int) store.TrimmedEvents {
		s.Helper()
		done, err := s.TrimEvents(ctx, store.TrimEvents{Retention: retention, HardCap: hardCap, After: after, Limit: limit})
		s.must(err)
		return done
	}
	left := func(n int) {
		s.Helper()
		if got := len(s.log()); got != n {
			s.Errorf("%d events are left, want %d", got, n)
		}
	}
	if done := trim(never, never, 0, 100); done.Deleted != 0 || done.More {
		s.Errorf("of a young log: %+v", done)
	}
	left(6)
	s.must(s.AckEvents(ctx, "ahead", all[4].Seq))
	s.must(s.AckEvents(ctx, "behind", all[1].Seq))
	if done := trim(always, never, 0, 1); done.Deleted != 1 || !done.More || done.UpTo != all[0].Seq {
		s.Errorf("one of what all have read: %+v", done)
	}
	if done := trim(always, never, all[0].Seq, 100); done.Deleted != 1 || done.More {
		s.Errorf("what all have read: %+v", done)
	}
	left(4)
	s.must(s.DeleteEventConsumer(ctx, "behind"))
	if done := trim(always, never, 0, 3); done.Deleted != 3 || !done.More {
		s.Errorf("without the last: %+v", done)
	}
	left(1)
	s.expectConsumers(fmt.Sprintf("ahead %d-1", all[4].Seq))
	if done := trim(always, always, all[4].Seq, 100); done.Deleted != 1 || done.More {
		s.Errorf("over the hard cap: %+v", done)
	}
	left(0)
	s.expectConsumers(fmt.Sprintf("ahead %d-0", all[4].Seq))
	if done := trim(always, always, 0, 100); done.Deleted != 0 || done.More {
		s.Errorf("of nothing: %+v", done)
	}
	s.start(m, `1`)
	s.expectLog("wf.started@1")
}
