package conformance

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/wiggle-run/wiggle/pkg/faults"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	wiggle "github.com/wiggle-run/wiggle/sdk/go"
)

func events() []Scenario {
	return []Scenario{
		{Name: "the log tells what became of instances", Covers: "EVT-1 EVT-2", Flow: chain("log", "a"), Script: lifecycleEvents},
		{Name: "what handlers emit is in the log with their reports", Covers: "EVT-1", Flow: chain("emit", "a", "b"), Script: emittedEvents},
		{Name: "events of batched steps are each with its node", Covers: "EVT-1 WRK-14", Flow: batchedChain("emit"), Script: batchedEvents},
		{Name: "an event that cannot be refuses its report alone", Covers: "EVT-1 ENG-25", Flow: chain("refuse", "a"), Script: refusedEvents},
		{Name: "a consumer goes on behind what it has acknowledged", Covers: "EVT-5", Flow: chain("consume", "a"), Script: consumedEvents},
		{Name: "a poll waits for what is written", Covers: "EVT-5", Flow: chain("wait", "a"), Script: awaitedEvents},
		{Name: "events are filtered by workflow and type", Covers: "EVT-5", Flow: chain("filter", "a"), Script: filteredEvents},
		{Name: "nobody acknowledges as Wiggle", Covers: "EVT-5 ENG-25", Flow: chain("reserved", "a"), Script: reservedConsumers},
	}
}

// PollEvents polls for events of the scenario's workflow, from the earliest on unless it says otherwise, without waiting.
func (r *Run) PollEvents(change ...func(*wigglev1.PollEventsRequest)) *wigglev1.PollEventsResponse {
	r.Helper()
	req := &wigglev1.PollEventsRequest{
		Start: wigglev1.EventStart_EVENT_START_EARLIEST, MaxEvents: batchMax, Wait: durationpb.New(0),
		Filter: &wigglev1.EventFilter{Workflows: []string{r.Workflow}},
	}
	for _, c := range change {
		c(req)
	}
	res, err := r.Events.PollEvents(r.ctx, req)
	if err != nil {
		r.Fatalf("poll events: %v", err)
	}
	if res.GetCursor() == "" || len(res.GetShards()) == 0 {
		r.Errorf("the answer is %v", res)
	}
	return res
}

// Consuming polls for a consumer.
func Consuming(name string) func(*wigglev1.PollEventsRequest) {
	return func(q *wigglev1.PollEventsRequest) { q.Consumer = name }
}

// Behind polls behind a cursor.
func Behind(cursor string) func(*wigglev1.PollEventsRequest) {
	return func(q *wigglev1.PollEventsRequest) { q.After = cursor }
}

// Log reads events until there are so many: they come when the transactions that wrote to the log before have ended.
func (r *Run) Log(n int, change ...func(*wigglev1.PollEventsRequest)) []*wigglev1.Event {
	r.Helper()
	var all []*wigglev1.Event
	wait := func(q *wigglev1.PollEventsRequest) { q.Wait = durationpb.New(10 * time.Second) }
	change = append(slices.Clone(change), wait)
	for cursor := ""; len(all) < n; {
		res := r.PollEvents(append(change, func(q *wigglev1.PollEventsRequest) {
			if cursor != "" {
				q.After = cursor
			}
		})...)
		all = append(all, res.GetEvents()...)
		if cursor = res.GetCursor(); r.ctx.Err() != nil {
			r.Fatalf("%d of %d events came", len(all), n)
		}
	}
	if len(all) != n {
		r.Fatalf("%d events came, want %d: %v", len(all), n, told(all))
	}
	return all
}

// told is what events tell, in short, by instance.
func told(all []*wigglev1.Event) map[string]string {
	out := map[string]string{}
	for _, e := range all {
		text := e.GetType()
		if e.GetNode() != "" {
			text += fmt.Sprintf("(%s %s)", e.GetNode(), e.GetPayload().GetData())
		}
		out[e.GetInstanceId()] = strings.TrimPrefix(out[e.GetInstanceId()]+" "+text, " ")
	}
	return out
}

func (r *Run) wantTold(all []*wigglev1.Event, id, want string) {
	r.Helper()
	if got := told(all)[id]; got != want {
		r.Errorf("of %s the log tells %q, want %q", id, got, want)
	}
}

func lifecycleEvents(r *Run) {
	began := r.Start(`1`)
	r.Answer(r.Task("a"), nil)
	failing := r.Start(`2`)
	r.Answer(r.Task("a"), Fail("E", Fatal))
	ended := r.Start(`3`)
	r.MustCancel("enough")
	all := r.Log(6)
	r.wantTold(all, began, "wf.started wf.completed")
	r.wantTold(all, failing, "wf.started wf.failed")
	r.wantTold(all, ended, "wf.started wf.cancelled")
	in := r.Get()
	for _, e := range all {
		if e.GetWorkflow() != r.Workflow || e.GetVersion() != 1 || e.GetNamespace() != "default" || e.GetSeq() <= 0 || e.GetCursor() == "" ||
			e.GetRevision() <= 0 || e.GetPayload() != nil || e.GetTime() == nil {
			r.Errorf("event %v", e)
		}
		if e.GetInstanceId() == ended && e.GetType() == "wf.cancelled" && !e.GetTime().AsTime().Equal(in.GetEndedAt().AsTime()) {
			r.Errorf("%v of an instance that ended at %s", e, in.GetEndedAt().AsTime())
		}
	}
}

// Emits is an answer with events.
func Emits(answer Answer, events ...*wigglev1.EmittedEvent) Answer {
	return func(t *wigglev1.Task) Reply {
		reply := answer(t)
		reply.Report.Events = events
		return reply
	}
}

func emit(kind, object string) *wigglev1.EmittedEvent {
	return &wigglev1.EmittedEvent{Type: kind, Payload: payload(object)}
}

func emittedEvents(r *Run) {
	id := r.Start(`1`)
	first := r.Task("a")
	answer := Emits(Unchanged, emit("order.priced", `{"total":12345678901234567890}`), &wigglev1.EmittedEvent{Type: "order.seen"})
	for range 2 { // the second is known again and writes nothing
		if f := r.Report(first, answer); f != nil {
			r.Fatal(f)
		}
	}
	if f := r.Report(r.Task("b"), Emits(Result(`{}`), emit("order.sent", `{}`))); f != nil {
		r.Fatal(f)
	}
	r.wantTold(r.Log(5), id,
		`wf.started order.priced(a {"total":12345678901234567890}) order.seen(a {}) order.sent(b {}) wf.completed`)
}

func batchedChain(name string) *wiggle.Definition {
	return wiggle.Define(name, func(f *wiggle.Flow) {
		f.Task("a")
		f.Task("b")
	}, wiggle.Batched())
}

func batchedEvents(r *Run) {
	id := r.Start(`1`)
	report := reportOf(r.Task("a"), Emits(Result(`2`), emit("x", `{"n":1}`))(nil))
	report.FollowedBy = []*wigglev1.FollowingStep{{
		Node: "b", Outcome: &wigglev1.FollowingStep_Result{Result: payload(`3`)},
		Events: []*wigglev1.EmittedEvent{emit("x", `{"n":2}`), emit("y", `{}`)},
	}}
	if f := r.ReportAll(report)[0]; f != nil {
		r.Fatal(f)
	}
	r.wantTold(r.Log(5), id, `wf.started x(a {"n":1}) x(b {"n":2}) y(b {}) wf.completed`)
}

func refusedEvents(r *Run) {
	r.Start(`1`)
	bad := r.Task("a")
	good := r.Start(`2`)
	fine := r.Task("a")
	large := `{"a":"` + strings.Repeat("x", 64<<10) + `"}`
	for want, event := range map[string]*wigglev1.EmittedEvent{
		"engine's own": emit("wf.completed", `{}`), "no JSON object": emit("x", `[1]`), "WIGGLE_LIMIT_EVENT_BYTES": emit("x", large),
	} {
		f := r.Report(bad, Emits(Unchanged, emit("lost", `{}`), event))
		if f == nil || !strings.Contains(f.GetMessage(), want) {
			r.Errorf("the fault is %v, want one that tells of %q", f, want)
		}
	}
	got := r.ReportAll(
		reportOf(bad, Emits(Unchanged, emit("wf.x", `{}`))(bad)), reportOf(fine, Emits(Unchanged, emit("kept", `{}`))(fine)))
	if got[0] == nil || faults.Code(got[0].GetCode()) != faults.CodeInvalidArgument || got[1] != nil {
		r.Errorf("the faults are %v", got)
	}
	all := r.Log(4)
	r.wantTold(all, bad.GetInstanceId(), "wf.started")
	r.wantTold(all, good, "wf.started kept(a {}) wf.completed")
	if f := r.Report(bad, Unchanged); f != nil {
		r.Errorf("without events it is refused: %v", f)
	}
}

// ack acknowledges.
func (r *Run) ack(consumer, cursor string) {
	r.Helper()
	if _, err := r.Events.AckEvents(r.ctx, &wigglev1.AckEventsRequest{Consumer: consumer, Cursor: cursor}); err != nil {
		r.Fatalf("acknowledge: %v", err)
	}
}

func consumedEvents(r *Run) {
	const n = 6
	for i := range n {
		r.Start(fmt.Sprint(i))
	}
	name := "c-" + r.Workflow
	all := r.Log(n, Consuming(name))
	if again := r.Log(n, Consuming(name)); !slices.Equal(names(again), names(all)) {
		r.Errorf("what is not acknowledged comes again: %v, want %v", names(again), names(all))
	}
	r.ack(name, all[2].GetCursor())
	r.ack(name, all[0].GetCursor()) // which moves nothing back
	rest := r.Log(n-3, Consuming(name))
	if !slices.Equal(names(rest), names(all[3:])) {
		r.Errorf("behind the third come %v, want %v", names(rest), names(all[3:]))
	}
	if last := r.Log(1, Consuming(name), Behind(rest[1].GetCursor())); !slices.Equal(names(last), names(rest[2:])) {
		r.Errorf("behind the last but one comes %v, want %v", names(last), names(rest[2:]))
	}
	r.ack(name, rest[2].GetCursor())
	if res := r.PollEvents(Consuming(name)); len(res.GetEvents()) != 0 {
		r.Errorf("when all is acknowledged come %v", res.GetEvents())
	}
	r.consumer(name, true)
	if _, err := r.Events.DeleteEventConsumer(r.ctx, &wigglev1.DeleteEventConsumerRequest{Consumer: name}); err != nil {
		r.Error(err)
	}
	r.consumer(name, false)
}

// names are what name events, in an order of their own: over shards events may come in another order each time.
func names(all []*wigglev1.Event) []string {
	var out []string
	for _, e := range all {
		out = append(out, fmt.Sprintf("%d/%d", e.GetShard(), e.GetSeq()))
	}
	slices.Sort(out)
	return out
}

// consumer sees whether a consumer is known, and then on every shard.
func (r *Run) consumer(name string, known bool) {
	r.Helper()
	res, err := r.Events.ListEventConsumers(r.ctx, &wigglev1.ListEventConsumersRequest{})
	if err != nil {
		r.Fatal(err)
	}
	i := slices.IndexFunc(res.GetConsumers(), func(c *wigglev1.EventConsumer) bool { return c.GetName() == name })
	if (i >= 0) != known {
		r.Errorf("the consumers are %v", res.GetConsumers())
	}
	if i >= 0 && len(res.GetConsumers()[i].GetPositions()) != len(res.GetShards()) {
		r.Errorf("of %d shards the consumer is on %v", len(res.GetShards()), res.GetConsumers()[i])
	}
}

func awaitedEvents(r *Run) {
	name := "c-" + r.Workflow
	atTail := func(q *wigglev1.PollEventsRequest) {
		q.Start, q.Consumer = wigglev1.EventStart_EVENT_START_UNSPECIFIED, name
	}
	r.Start(`1`)
	r.Log(1)
	r.PollEvents(atTail)
	began, started := time.Now(), make(chan string, 1)
	go func() { started <- r.Start(`2`) }()
	id := ""
	for cursor := ""; ; {
		res := r.PollEvents(atTail, Behind(cursor), func(q *wigglev1.PollEventsRequest) { q.Wait = durationpb.New(patience) })
		cursor = res.GetCursor()
		if id == "" && len(res.GetEvents()) > 0 {
			id = <-started
		}
		if told(res.GetEvents())[id] == "wf.started" {
			break
		}
		if r.ctx.Err() != nil {
			r.Fatal("the event did not come")
		}
	}
	if d := time.Since(began); d > patience/2 {
		r.Errorf("the event took %s", d)
	}
}

func filteredEvents(r *Run) {
	r.Start(`1`)
	r.Answer(r.Task("a"), Emits(Unchanged, emit("order.paid", `{}`), emit("orders", `{}`)))
	r.Log(4)
	for _, test := range []struct {
		pattern string
		n       int
		want    string
	}{{"wf.*", 2, "wf.started wf.completed"}, {"order.*", 1, "order.paid(a {})"}, {"orders", 1, "orders(a {})"}, {"none", 0, ""}} {
		all := r.Log(test.n, func(q *wigglev1.PollEventsRequest) { q.Filter.Types = []string{test.pattern} })
		r.wantTold(all, r.ID, test.want)
	}
	other := r.PollEvents(func(q *wigglev1.PollEventsRequest) { q.Filter.Namespace = "another" })
	if len(other.GetEvents()) != 0 {
		r.Errorf("another namespace has %v", other.GetEvents())
	}
}

func reservedConsumers(r *Run) {
	const name = "wiggle.relay"
	_, err := r.Events.PollEvents(r.ctx, &wigglev1.PollEventsRequest{Consumer: name, Wait: durationpb.New(0)})
	_, again := r.Events.DeleteEventConsumer(r.ctx, &wigglev1.DeleteEventConsumerRequest{Consumer: name})
	_, malformed := r.Events.PollEvents(r.ctx, &wigglev1.PollEventsRequest{After: "made-up", Wait: durationpb.New(0)})
	for _, err := range []error{err, again, malformed} {
		if faults.CodeOf(err) != faults.CodeInvalidArgument {
			r.Errorf("got %v", err)
		}
	}
}
