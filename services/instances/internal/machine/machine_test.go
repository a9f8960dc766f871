package machine_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/wiggle-run/wiggle/proto/definition"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	"github.com/wiggle-run/wiggle/services/instances/internal/machine"
)

// The nodes of small definitions.

func task(next string) *wigglev1.Node {
	return &wigglev1.Node{Kind: &wigglev1.Node_Task{Task: &wigglev1.TaskNode{Next: next}}}
}

func retried(next string, attempts int32, non ...string) *wigglev1.Node {
	n := task(next)
	n.GetTask().Step = &wigglev1.Step{Retry: &wigglev1.RetryPolicy{
		MaxAttempts: attempts, InitialBackoff: durationpb.New(10 * time.Second), Multiplier: 3,
		MaxBackoff: durationpb.New(time.Minute), NonRetryableErrors: non,
	}}
	return n
}

func end() *wigglev1.Node { return &wigglev1.Node{Kind: &wigglev1.Node_End{End: &wigglev1.EndNode{}}} }

func gate(next, otherwise string) *wigglev1.Node {
	return &wigglev1.Node{Kind: &wigglev1.Node_Gate{Gate: &wigglev1.GateNode{Next: next, Otherwise: otherwise, LoopBudget: 3}}}
}

func forEach(items, body string, inFlight int32) *wigglev1.Node {
	return &wigglev1.Node{Kind: &wigglev1.Node_ForEach{ForEach: &wigglev1.ForEachNode{Items: items, Body: body, Join: "join", MaxInFlight: inFlight}}}
}

func join(next string) *wigglev1.Node {
	return &wigglev1.Node{Kind: &wigglev1.Node_Join{Join: &wigglev1.JoinNode{Next: next}}}
}

// run is a small world for table tests: it starts an instance and steps through it.
type run struct {
	t *testing.T
	m *machine.Machine
	*store
}

// store keeps rows as shardSim does, for tests that are not random.
type store struct {
	now      time.Time
	next     byte
	instance *machine.Instance
	tokens   map[machine.ID]*machine.Token
	history  []machine.Entry
}

func start(t *testing.T, startNode string, nodes map[string]*wigglev1.Node, input string) *run {
	t.Helper()
	return startDefinition(t, &wigglev1.Definition{Name: "test", Version: 1, Start: startNode, Nodes: nodes}, input)
}

func startDefinition(t *testing.T, def *wigglev1.Definition, input string) *run {
	t.Helper()
	graph, problems := definition.Analyze(def)
	if problems != nil {
		t.Fatal(problems)
	}
	r := &run{t: t, m: machine.New(graph), store: &store{now: time.Unix(1_000_000, 0).UTC(), tokens: map[machine.ID]*machine.Token{}}}
	c, err := r.m.Start(r.env(), machine.Start{ID: machine.ID{1}, Input: machine.Payload{Data: []byte(input)}, Priority: 5})
	r.put(c, err)
	return r
}

func (r *run) env() machine.Env {
	limits := machine.DefaultLimits()
	limits.Branches = 5
	return machine.Env{Now: r.now, Random: func() float64 { return 0.5 }, Limits: limits, NewID: func() machine.ID {
		r.next++
		return machine.ID{2, r.next}
	}}
}

func (r *run) put(c *machine.Changes, err error) {
	r.t.Helper()
	if err != nil {
		r.t.Fatal(err)
	}
	if c.Instance != nil {
		r.instance = c.Instance
	}
	r.history = append(r.history, c.History...)
	for _, p := range c.Merged {
		for id, t := range r.tokens {
			if t.Parent == p {
				delete(r.tokens, id)
			}
		}
	}
	for _, t := range append(c.Created, c.Updated...) {
		r.tokens[t.ID] = t
	}
	if c.Ended {
		clear(r.tokens)
	}
}

func (r *run) state(id machine.ID) machine.State {
	st := machine.State{Instance: r.instance, Token: r.tokens[id]}
	if st.Token != nil {
		st.Parent = r.tokens[st.Token.Parent]
	}
	return st
}

// at finds the one token that stands at a node.
func (r *run) at(node string) *machine.Token {
	r.t.Helper()
	var found *machine.Token
	for _, t := range r.tokens {
		if t.Node == node && (found == nil || t.Index < found.Index) && t.State == machine.Ready {
			found = t
		}
	}
	if found == nil {
		r.t.Fatalf("no token is ready at %s; instance %s: %v", node, r.instance.State, r.instance.Failure)
	}
	return found
}

func (r *run) claim(node string) *machine.Token {
	r.t.Helper()
	c, err := machine.Claim(r.now, r.at(node), "w", 30*time.Second)
	if err != nil {
		r.t.Fatal(err)
	}
	r.tokens[c.ID] = c
	return c
}

func (r *run) report(node string, rep machine.Report) *machine.Token {
	r.t.Helper()
	t := r.claim(node)
	rep.Fence = t.Fence
	r.put(r.m.Report(r.env(), r.state(t.ID), rep))
	return t
}

func result(text string) machine.Report {
	return machine.Report{Kind: machine.OutcomeResult, Result: machine.Payload{Data: []byte(text)}}
}

func answer(yes bool) machine.Report { return machine.Report{Kind: machine.OutcomeGate, Gate: yes} }

func (r *run) ended(state machine.InstanceState, kind, message string) {
	r.t.Helper()
	if r.instance.State != state || r.instance.Failure.GetType() != kind || !strings.Contains(r.instance.Failure.GetMessage(), message) {
		r.t.Fatalf("instance is %s (%v), want %s (%s: %s)", r.instance.State, r.instance.Failure, state, kind, message)
	}
}

// TestRetries: backoff grows and is capped, attempts run out, some errors are never
// tried again, and the worker's own delay wins (ENG-14, WF-6).
func TestRetries(t *testing.T) {
	t.Parallel()
	r := start(t, "a", map[string]*wigglev1.Node{"a": retried("end", 5, "fatal"), "end": end()}, `1`)
	for _, want := range []time.Duration{10 * time.Second, 30 * time.Second, time.Minute} {
		c := r.claim("a")
		changes, err := r.m.Fail(r.env(), r.state(c.ID), machine.Fail{Fence: c.Fence, Type: "boom", Message: "no"})
		r.put(changes, err)
		if got := changes.RetryAt.Sub(r.now); got != want {
			t.Fatalf("attempt %d is followed by a pause of %s, want %s", c.Attempt, got, want)
		}
		if again, err := r.m.Fail(r.env(), r.state(c.ID), machine.Fail{Fence: c.Fence}); err != nil || !again.Duplicate || !again.RetryAt.Equal(changes.RetryAt) {
			t.Fatalf("WRK-5: the same failure again: %+v, %v", again, err)
		}
		if _, err := r.m.Wake(r.env(), r.state(c.ID)); !errors.Is(err, machine.ErrNotDue) {
			t.Fatalf("woken before its time: %v", err)
		}
		r.now = changes.RetryAt
		r.put(r.m.Wake(r.env(), r.state(c.ID)))
	}
	c := r.claim("a")
	changes, err := r.m.Fail(r.env(), r.state(c.ID), machine.Fail{Fence: c.Fence, HasRetryDelay: true})
	r.put(changes, err)
	c = r.claim("a") // no pause was asked for: ready at once
	r.put(r.m.Fail(r.env(), r.state(c.ID), machine.Fail{Fence: c.Fence, Type: "boom", Message: "the fifth"}))
	r.ended(machine.Failed, "boom", "the fifth")

	r = start(t, "a", map[string]*wigglev1.Node{"a": retried("end", 0, "fatal"), "end": end()}, `1`)
	c = r.claim("a")
	r.put(r.m.Fail(r.env(), r.state(c.ID), machine.Fail{Fence: c.Fence, Type: "fatal"}))
	r.ended(machine.Failed, "fatal", "")
}

// TestLoops: the budget of a gate's loop bounds it, and names itself (WF-4).
func TestLoops(t *testing.T) {
	t.Parallel()
	nodes := map[string]*wigglev1.Node{"work": task("again"), "again": gate("work", "end"), "end": end()}
	r := start(t, "work", nodes, `1`)
	for range 4 {
		r.report("work", result(`2`))
		r.report("again", answer(true))
	}
	r.ended(machine.Failed, machine.FailureLoop, `gate "again"`)
}

// TestForEach: what is no collection fails the instance and says what it found; an
// empty one goes on after the combine; the limit has a name (ENG-9, WF-8).
func TestForEach(t *testing.T) {
	t.Parallel()
	nodes := map[string]*wigglev1.Node{
		"each": forEach("/lines", "body", 0), "body": task("join"), "join": join("sum"), "sum": task("after"), "after": task("end"), "end": end(),
	}
	for input, want := range map[string]struct {
		state         machine.InstanceState
		kind, message string
		ready         string
	}{
		`{"lines":[]}`:            {state: machine.Running, ready: "after"},
		`{"lines":null}`:          {state: machine.Running, ready: "after"},
		`{}`:                      {state: machine.Running, ready: "after"},
		`null`:                    {state: machine.Running, ready: "after"},
		`{"lines":{}}`:            {state: machine.Running, ready: "after"},
		`{"lines":[1]}`:           {state: machine.Running, ready: "body"},
		`{"lines":{"k":1}}`:       {state: machine.Running, ready: "body"},
		`{"lines":7}`:             {state: machine.Failed, kind: machine.FailureItems, message: "a number"},
		`{"lines":"x"}`:           {state: machine.Failed, kind: machine.FailureItems, message: "a string"},
		`{"lines":true}`:          {state: machine.Failed, kind: machine.FailureItems, message: "a boolean"},
		`{"lines":[1,2,3,4,5,6]}`: {state: machine.Failed, kind: machine.FailureLimit, message: machine.SettingBranches},
		`not json`:                {state: machine.Failed, kind: machine.FailureItems, message: "not valid JSON"},
		`{"lines":[}`:             {state: machine.Failed, kind: machine.FailureItems, message: "not valid JSON"},
		`{"lines":{"\u0000":1}}`:  {state: machine.Failed, kind: machine.FailureItems, message: "NUL"},
	} {
		r := start(t, "each", nodes, input)
		r.ended(want.state, want.kind, want.message)
		if want.ready != "" {
			r.at(want.ready)
		}
	}
}

// TestElements: each branch starts with its element as it was written, and the
// combine follows when the last has arrived, with or without a result (WF-9, ENG-10).
func TestElements(t *testing.T) {
	t.Parallel()
	r := start(t, "each", map[string]*wigglev1.Node{
		"each": forEach("", "check", 0), "check": gate("body", ""), "body": task("join"), "join": join("sum"), "sum": task("end"), "end": end(),
	}, `[9007199254740993, 1.50, {"a": 1}]`)
	for i, want := range []string{`9007199254740993`, `1.50`, `{"a": 1}`} {
		if got := r.at("check"); string(got.View.Data) != want || int(got.Index) != i {
			t.Fatalf("element %d is %s, want %s", got.Index, got.View.Data, want)
		}
		c := r.report("check", answer(i != 1))
		if i == 1 {
			if arrived := r.tokens[c.ID]; arrived.State != machine.Done || arrived.HasResult {
				t.Fatalf("the branch that ended at its gate is %+v", arrived)
			}
		}
	}
	r.report("body", result(`"x"`))
	r.report("body", result(`"y"`))
	combine := r.report("sum", result(`"whole"`))
	if combine.Width != 3 || string(combine.View.Data) != `[9007199254740993, 1.50, {"a": 1}]` {
		t.Fatalf("ENG-8: the combine got %+v", combine)
	}
	r.ended(machine.Completed, "", "")
	if string(r.instance.Context.Data) != `"whole"` {
		t.Fatalf("the result is %s", r.instance.Context.Data)
	}
}

// TestMaxInFlight lets elements in one after the other.
func TestMaxInFlight(t *testing.T) {
	t.Parallel()
	r := start(t, "each", map[string]*wigglev1.Node{
		"each": forEach("", "body", 2), "body": task("join"), "join": join("sum"), "sum": task("end"), "end": end(),
	}, `[0,1,2,3]`)
	count := func(s machine.TokenState) (n int) {
		for _, t := range r.tokens {
			if t.State == s && !t.Parent.IsZero() {
				n++
			}
		}
		return n
	}
	if count(machine.Ready) != 2 || count(machine.Sleeping) != 2 {
		t.Fatalf("%d ready, %d held", count(machine.Ready), count(machine.Sleeping))
	}
	c := r.claim("body")
	changes, err := r.m.Report(r.env(), r.state(c.ID), machine.Report{Fence: c.Fence, Kind: machine.OutcomeUnchanged})
	r.put(changes, err)
	if len(changes.LetIn) != 1 || changes.LetIn[0].Index != 2 {
		t.Fatalf("let in: %+v", changes.LetIn)
	}
}

// TestOutcomesFitKinds: a report that does not fit changes nothing (ENG-4).
func TestOutcomesFitKinds(t *testing.T) {
	t.Parallel()
	r := start(t, "a", map[string]*wigglev1.Node{"a": task("g"), "g": gate("end", ""), "end": end()}, `1`)
	c := r.claim("a")
	for _, rep := range []machine.Report{answer(true), {Kind: machine.OutcomeChoice, Choice: "x"}, {}, {Kind: machine.OutcomeResult}} {
		rep.Fence = c.Fence
		var misfit *machine.OutcomeError
		if _, err := r.m.Report(r.env(), r.state(c.ID), rep); !errors.As(err, &misfit) {
			t.Fatalf("%s reported for a task: %v", rep.Kind, err)
		}
	}
	big := result(strings.Repeat("x", machine.DefaultLimits().PayloadBytes+1))
	big.Fence = c.Fence
	var limit *machine.LimitError
	if _, err := r.m.Report(r.env(), r.state(c.ID), big); !errors.As(err, &limit) || limit.Setting != machine.SettingPayloadBytes {
		t.Fatalf("a result over the limit: %v", err)
	}
}

// TestTimeouts: a start-to-finish timeout ends the attempt, whatever its heartbeats say.
func TestTimeouts(t *testing.T) {
	t.Parallel()
	slow := retried("end", 1)
	slow.GetTask().Step.Timeout = durationpb.New(time.Minute)
	r := start(t, "a", map[string]*wigglev1.Node{"a": slow, "end": end()}, `1`)
	c := r.claim("a")
	if _, err := r.m.Expire(r.env(), r.state(c.ID), c.Fence); !errors.Is(err, machine.ErrNotDue) {
		t.Fatalf("expired before its time: %v", err)
	}
	r.now = r.now.Add(50 * time.Second)
	beaten, err := machine.Beat(r.now, c, c.Fence, time.Hour, machine.Payload{})
	if err != nil || !beaten.LeaseUntil.Equal(c.Deadline) {
		t.Fatalf("a heartbeat went past the deadline: %v, %v", beaten, err)
	}
	r.tokens[c.ID] = beaten
	r.now = r.now.Add(10 * time.Second)
	r.put(r.m.Expire(r.env(), r.state(c.ID), c.Fence))
	r.ended(machine.Failed, machine.FailureTimeout, "1m0s")
}

// TestInstants reads the instant of a sleep (WF-2).
func TestInstants(t *testing.T) {
	t.Parallel()
	nodes := map[string]*wigglev1.Node{
		"sleep": {Kind: &wigglev1.Node_Sleep{Sleep: &wigglev1.SleepNode{Until: &wigglev1.SleepNode_Instant{Instant: "/at/0"}, Next: "a"}}},
		"a":     task("end"), "end": end(),
	}
	for input, due := range map[string]time.Time{
		`{"at":["2026-11-29T18:52:37.25Z"]}`:   time.Date(2026, 11, 29, 18, 52, 37, 250_000_000, time.UTC),
		`{"at":["2026-11-29T19:52:37+01:00"]}`: time.Date(2026, 11, 29, 18, 52, 37, 0, time.UTC),
		`{"at":[1764442357.5]}`:                time.Unix(1764442357, 500_000_000).UTC(),
		`{"at":[1.7644423575e9]}`:              time.Unix(1764442357, 500_000_000).UTC(),
		`{"at":[12]}`:                          {}, // long ago: no wait
	} {
		r := start(t, "sleep", nodes, input)
		if got := r.tokens[machine.ID{1}].DueAt; !got.Equal(due) {
			t.Errorf("%s: due %s, want %s", input, got, due)
		}
	}
	for _, input := range []string{`{}`, `{"at":[]}`, `{"at":[true]}`, `{"at":["tomorrow"]}`, `{"at":[1e400]}`, `{"at":[1e30]}`, `{"at":{"0":{}}}`, `{"at":["0000-01-01T00:00:00Z"]}`} {
		r := start(t, "sleep", nodes, input)
		if r.instance.State != machine.Failed || r.instance.Failure.GetType() != machine.FailureInstant || r.instance.Failure.GetNode() != "sleep" {
			t.Errorf("%s: %s %v", input, r.instance.State, r.instance.Failure)
		}
	}
}

// TestCancel needs no token, is answered the same twice, and is refused after
// another end (ENG-24).
func TestCancel(t *testing.T) {
	t.Parallel()
	r := start(t, "a", map[string]*wigglev1.Node{"a": task("end"), "end": end()}, `1`)
	c := r.claim("a")
	r.put(r.m.Cancel(r.env(), r.instance, "enough"))
	r.ended(machine.Cancelled, machine.FailureCancelled, "enough")
	if again, err := r.m.Cancel(r.env(), r.instance, "more"); err != nil || !again.Duplicate {
		t.Fatalf("cancelled twice: %+v, %v", again, err)
	}
	if _, err := r.m.Report(r.env(), machine.State{Instance: r.instance, Token: c}, result(`1`)); !errors.Is(err, machine.ErrLeaseLost) {
		t.Fatalf("a report after the cancel: %v", err)
	}
	r.instance.State = machine.Completed
	if _, err := r.m.Cancel(r.env(), r.instance, ""); !errors.Is(err, machine.ErrEnded) {
		t.Fatalf("cancelled after its end: %v", err)
	}
}
