package machine

import (
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/wiggle-run/wiggle/proto/definition"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
)

// Machine applies events to the instances of one definition.
type Machine struct {
	graph *definition.Graph
}

// New makes the machine of a definition's graph.
func New(graph *definition.Graph) *Machine { return &Machine{graph: graph} }

// Graph is the graph that the machine runs.
func (m *Machine) Graph() *definition.Graph { return m.graph }

// State is what an event needs of what is stored. Parent is nil for the first token.
type State struct {
	Instance *Instance
	Token    *Token
	Parent   *Token
}

// step carries one event through the machine: what was loaded is copied before it
// is changed, and dropped if the event ends in an error.
type step struct {
	*Machine
	env     Env
	in      *Instance
	changed bool // the instance
	out     Changes
	// live holds the copies of tokens by id, so that each is copied once.
	live map[ID]*Token
	// fanning are the tokens whose branches are being made, outermost first.
	fanning []ID
}

func (m *Machine) begin(env Env, in *Instance) *step {
	return &step{Machine: m, env: env, in: in.Clone(), live: make(map[ID]*Token, 2)}
}

// load copies a stored token for changing.
func (s *step) load(t *Token) *Token {
	if c, ok := s.live[t.ID]; ok {
		return c
	}
	c := t.Clone()
	s.live[t.ID] = c
	s.out.Updated = append(s.out.Updated, c)
	return c
}

// done gives the changes away.
func (s *step) done() *Changes {
	if s.changed {
		s.out.Instance = s.in
	}
	for i := range s.out.Events {
		s.out.Events[i].Revision = s.in.Position
	}
	return &s.out
}

// Start makes a new instance (WF-12: it keeps this definition's version to its end).
func (m *Machine) Start(env Env, ev Start) (*Changes, error) {
	if err := env.Limits.Payload("input", ev.Input); err != nil {
		return nil, err
	}
	input := ev.Input
	if input.Absent() {
		input = Payload{Data: []byte("null")}
	}
	s := m.begin(env, &Instance{
		ID: ev.ID, Namespace: ev.Namespace, Workflow: m.graph.Name, Version: m.graph.Version,
		State: Running, Priority: ev.Priority, CreatedAt: env.Now, Trace: ev.Trace,
	})
	s.changed = true
	s.record(nil, &wigglev1.HistoryEntry{Kind: wigglev1.HistoryKind_HISTORY_KIND_STARTED})
	s.log(EventStarted)
	root := &Token{ID: ev.ID, Instance: ev.ID, View: input, Node: m.graph.Start}
	s.live[root.ID] = root
	s.out.Created = append(s.out.Created, root)
	if ev.Delay > 0 {
		return s.finish(s.hold(root, env.Now.Add(ev.Delay)))
	}
	return s.finish(s.drive(root, nil, m.graph.Start, 0))
}

// finish ends an event.
func (s *step) finish(err error) (*Changes, error) {
	if err != nil {
		return nil, err
	}
	return s.done(), nil
}

// hold lets a token wait before it enters its node; a zero time waits to be let in.
func (s *step) hold(t *Token, until time.Time) error {
	t.Held, t.DueAt = true, until
	return t.move(Sleeping)
}

// held reports whether the event's lease is the token's, or how it is not: the
// same call sent twice, or a lease that is lost.
func (st State) held(fence int64, by SettledBy) (duplicate bool, err error) {
	t := st.Token
	switch {
	case t == nil:
		return false, ErrLeaseLost
	case t.Settled.Fence == fence && t.Settled.By == by && fence > 0:
		return true, nil
	case st.Instance.State.Terminal() || t.State != Leased || t.Fence != fence:
		return false, ErrLeaseLost
	}
	return false, nil
}

// Report applies a step that is done.
func (m *Machine) Report(env Env, st State, ev Report) (*Changes, error) {
	if duplicate, err := st.held(ev.Fence, ByReport); err != nil {
		return nil, err
	} else if duplicate {
		return &Changes{Duplicate: true}, nil
	}
	node, err := m.node(st.Token.Node)
	if err != nil {
		return nil, err
	}
	if err := env.Limits.Payload("result", ev.Result); err != nil {
		return nil, err
	}
	if err := fits(node, ev); err != nil {
		return nil, err
	}
	if err := env.Limits.emitted(ev.Events); err != nil {
		return nil, err
	}
	s := m.begin(env, st.Instance)
	t := s.load(st.Token)
	s.emit(t.Node, ev.Events)
	entry := s.attemptEntry(t, node, wigglev1.HistoryKind_HISTORY_KIND_STEP_COMPLETED, ev.StartedAt, ev.FinishedAt)
	if ev.Kind == OutcomeResult && !node.Effect {
		t.View = ev.Result
		entry.Output, entry.OutputTruncated = env.Limits.cut(ev.Result)
	}
	if node.Combines != "" && t.Width > 0 {
		s.out.Merged = append(s.out.Merged, t.ID)
		t.Width, t.Pending, t.Next = 0, 0, 0
	}
	next, stop := s.edge(t, node, ev, entry)
	s.settle(t, ByReport, entry)
	if stop != nil {
		return s.finish(s.fail(t, stop))
	}
	if next == "" { // a false gate without otherwise
		return s.finish(s.leave(t, st.Parent, false))
	}
	return s.finish(s.drive(t, st.Parent, next, 0))
}

// fits checks a report against the kind of its step.
func fits(node *definition.Node, ev Report) error {
	ok := false
	switch node.Kind {
	case definition.KindTask:
		ok = ev.Kind == OutcomeResult || ev.Kind == OutcomeUnchanged
	case definition.KindGate:
		ok = ev.Kind == OutcomeGate
	case definition.KindChoose:
		ok = ev.Kind == OutcomeChoice
	default: // run by the server: no worker is ever handed one
	}
	if ok && (ev.Kind != OutcomeResult || !ev.Result.Absent()) {
		return nil
	}
	return &OutcomeError{Node: node.ID, Kind: node.Kind.String(), Got: ev.Kind.String()}
}

// edge picks the edge that a report takes; stop is why the instance cannot go on.
func (s *step) edge(t *Token, node *definition.Node, ev Report, entry *wigglev1.HistoryEntry) (next string, stop *wigglev1.Failure) {
	switch node.Kind {
	case definition.KindGate:
		entry.Answer = fmt.Sprint(ev.Gate)
		back := node.NextLoops
		if next = node.Next; !ev.Gate {
			next, back = node.Otherwise, node.OtherwiseLoops
		}
		if back {
			stop = loop(t, node)
		}
		return next, stop
	case definition.KindChoose:
		entry.Answer = ev.Choice
		if next = node.Follows(ev.Choice); next == "" {
			stop = failure(FailureChoice, node.ID,
				"step %q chose %.100q, which is none of its cases, and there is no default", node.Step.Name, ev.Choice)
		}
		return next, stop
	default:
		return node.Next, nil
	}
}

// loop counts an edge that leads back against the gate's budget (WF-4).
func loop(t *Token, node *definition.Node) *wigglev1.Failure {
	if t.Loops == nil {
		t.Loops = make(map[string]int32, 1)
	}
	t.Loops[node.ID]++
	if int(t.Loops[node.ID]) <= node.LoopBudget {
		return nil
	}
	return failure(FailureLoop, node.ID,
		"the loop at gate %q went back more than %d times (loop_budget of the gate)", node.ID, node.LoopBudget)
}

// settle ends the token's lease.
func (s *step) settle(t *Token, by SettledBy, entry *wigglev1.HistoryEntry) {
	t.Settled = Settled{Fence: t.Fence, By: by}
	s.recordSettled(t, by, entry)
	t.Progress = Payload{}
	t.Failure = nil
	t.Worker = ""
	t.LeasedAt, t.LeaseUntil, t.Deadline = time.Time{}, time.Time{}, time.Time{}
}

// Fail applies a failed attempt (ENG-14).
func (m *Machine) Fail(env Env, st State, ev Fail) (*Changes, error) {
	if duplicate, err := st.held(ev.Fence, ByFailure); err != nil {
		return nil, err
	} else if duplicate {
		return &Changes{Duplicate: true, RetryAt: st.Token.Settled.RetryAt}, nil
	}
	kind := ev.Type
	if kind == "" {
		kind = "Error"
	}
	return m.spend(env, st, ByFailure, ev, &wigglev1.Failure{Type: kind, Message: ev.Message, Stack: ev.Stack})
}

// Expire takes a lease back whose time is over, or whose attempt passed its
// start-to-finish timeout. It spends the attempt (ENG-14).
func (m *Machine) Expire(env Env, st State, fence int64) (*Changes, error) {
	if duplicate, err := st.held(fence, ByExpiry); err != nil {
		return nil, err
	} else if duplicate {
		return &Changes{Duplicate: true}, nil
	}
	t := st.Token
	timedOut := !t.Deadline.IsZero() && !env.Now.Before(t.Deadline)
	switch {
	case timedOut:
		why := failure(FailureTimeout, t.Node, "the attempt took longer than its timeout of %s", t.Timeout)
		return m.spend(env, st, ByExpiry, Fail{}, why)
	case !env.Now.Before(t.LeaseUntil):
		why := failure(FailureLeaseExpired, t.Node, "worker %q let the lease run out", t.Worker)
		return m.spend(env, st, ByExpiry, Fail{}, why)
	}
	return nil, ErrNotDue
}

// spend uses up an attempt: the step is tried again, or the instance fails.
func (m *Machine) spend(env Env, st State, by SettledBy, ev Fail, why *wigglev1.Failure) (*Changes, error) {
	node, err := m.node(st.Token.Node)
	if err != nil {
		return nil, err
	}
	s := m.begin(env, st.Instance)
	t := s.load(st.Token)
	why.Node, why.Attempt, why.Worker = t.Node, t.Attempt, t.Worker
	entry := s.attemptEntry(t, node, wigglev1.HistoryKind_HISTORY_KIND_STEP_FAILED, ev.StartedAt, ev.FinishedAt)
	entry.Failure = why
	progress := t.Progress
	if !retryable(node.Step.Retry, t.Attempt, ev.NonRetryable, why.GetType()) {
		s.settle(t, by, entry)
		return s.finish(s.fail(t, why))
	}
	pause := backoff(node.Step.Retry, t.Attempt, env.Random)
	if ev.HasRetryDelay {
		pause = ev.RetryDelay
	}
	// To the microsecond that stores keep, so that a repeated call is answered the same.
	retryAt := env.Now.Add(pause).Truncate(time.Microsecond)
	entry.DueAt = timestamppb.New(retryAt)
	s.settle(t, by, entry)
	t.Settled.RetryAt, s.out.RetryAt = retryAt, retryAt
	t.Failure, t.Progress = why, progress
	t.Attempt++
	t.QueuedAt = retryAt
	if pause > 0 {
		t.DueAt = retryAt
	}
	return s.finish(t.move(Ready))
}

// Release takes a task back that its worker did not do. No attempt is spent.
func (m *Machine) Release(env Env, st State, fence int64) (*Changes, error) {
	if duplicate, err := st.held(fence, ByRelease); err != nil {
		return nil, err
	} else if duplicate {
		return &Changes{Duplicate: true}, nil
	}
	s := m.begin(env, st.Instance)
	t := s.load(st.Token)
	t.Settled = Settled{Fence: t.Fence, By: ByRelease}
	t.Worker = ""
	t.LeasedAt, t.LeaseUntil, t.Deadline = time.Time{}, time.Time{}, time.Time{}
	return s.finish(t.move(Ready))
}

// Wake moves a token whose time has come: a sleep ends, a held token enters its
// node, a retry may be claimed.
func (m *Machine) Wake(env Env, st State) (*Changes, error) {
	t := st.Token
	if t == nil || st.Instance.State.Terminal() || t.DueAt.IsZero() || t.DueAt.After(env.Now) {
		return nil, ErrNotDue
	}
	s := m.begin(env, st.Instance)
	c := s.load(t)
	c.DueAt = time.Time{}
	switch {
	case c.State == Ready:
		return s.finish(c.move(Ready))
	case c.State != Sleeping:
		return nil, ErrNotDue
	case c.Held:
		c.Held = false
		return s.finish(s.drive(c, st.Parent, c.Node, 0))
	}
	node, err := m.node(c.Node)
	if err != nil {
		return nil, err
	}
	s.record(c, &wigglev1.HistoryEntry{Kind: wigglev1.HistoryKind_HISTORY_KIND_TIMER_FIRED})
	return s.finish(s.drive(c, st.Parent, node.Next, 0))
}

// Cancel ends the instance. It needs no token (ENG-24).
func (m *Machine) Cancel(env Env, in *Instance, reason string) (*Changes, error) {
	if in.State == Cancelled {
		return &Changes{Duplicate: true}, nil
	}
	if in.State.Terminal() {
		return nil, ErrEnded
	}
	s := m.begin(env, in)
	return s.finish(s.end(Cancelled, &wigglev1.Failure{Type: FailureCancelled, Message: reason}))
}

// Claim leases a READY token to a worker. Stores do the same to many tokens in one
// statement; this is what that statement means.
func Claim(now time.Time, t *Token, worker string, lease time.Duration) (*Token, error) {
	if t.State != Ready || !t.DueAt.IsZero() {
		return nil, ErrNotDue
	}
	c := t.Clone()
	if err := c.move(Leased); err != nil {
		return nil, err
	}
	c.Fence++
	c.Worker, c.LeasedAt, c.LeaseUntil, c.Deadline = worker, now, now.Add(lease), time.Time{}
	if c.Timeout > 0 {
		c.Deadline = now.Add(c.Timeout)
		if c.Deadline.Before(c.LeaseUntil) {
			c.LeaseUntil = c.Deadline
		}
	}
	return c, nil
}

// Beat extends a lease, never past the attempt's deadline.
func Beat(now time.Time, t *Token, fence int64, extend time.Duration, progress Payload) (*Token, error) {
	if t == nil || t.State != Leased || t.Fence != fence {
		return nil, ErrLeaseLost
	}
	c := t.Clone()
	c.LeaseUntil = now.Add(extend)
	if !c.Deadline.IsZero() && c.Deadline.Before(c.LeaseUntil) {
		c.LeaseUntil = c.Deadline
	}
	if !progress.Absent() {
		c.Progress = progress
	}
	return c, nil
}

// retryable says whether a failed attempt is followed by another.
func retryable(p definition.Retry, attempt int32, never bool, kind string) bool {
	if never || (p.MaxAttempts > 0 && int(attempt) >= p.MaxAttempts) {
		return false
	}
	return !slices.Contains(p.NonRetryable, kind)
}

// backoff is the pause after the given attempt: exponential, capped, and spread by
// the jitter so that what failed together does not come back together.
func backoff(p definition.Retry, attempt int32, random func() float64) time.Duration {
	pause := float64(p.InitialBackoff)
	for i := int32(1); i < attempt && pause < float64(p.MaxBackoff); i++ {
		if p.Multiplier <= 1 {
			break
		}
		pause *= p.Multiplier
	}
	pause = min(pause, float64(p.MaxBackoff))
	if p.Jitter > 0 {
		pause *= 1 + p.Jitter*(2*random()-1)
	}
	return time.Duration(pause)
}
