package machine

import (
	"fmt"
	"slices"
	"time"
)

// Following is a step of a batched workflow that its worker ran by itself, after the
// one that it was handed (WRK-14).
type Following struct {
	// Node is where the worker found the token.
	Node string
	// Report is what came out. Its Fence counts for nothing: the step was never leased.
	Report Report
}

// BatchError tells why the steps that a worker ran by itself are not taken. Nothing
// of the report is applied then, neither the step that was leased.
type BatchError struct {
	Workflow string
	Version  int32
	// Node is where the worker found the token, Found where it is by the engine, and
	// how. Both are empty where the workflow is not batched.
	Node, Found string
}

// Error names the workflow and its mode, or both nodes.
func (e *BatchError) Error() string {
	if e.Node == "" {
		return fmt.Sprintf("workflow %s version %d is durable: report each step by itself, without followed_by"+
			" (the definition's defaults.mode MODE_BATCHED allows more)", e.Workflow, e.Version)
	}
	return fmt.Sprintf("a step that followed was run at node %q of workflow %s version %d, but the token is %s;"+
		" nothing of the report was applied: report the first step alone", e.Node, e.Workflow, e.Version, e.Found)
}

// ReportBatch applies a step that is done and those that its worker ran after it by
// itself: the same transitions, one by one, as if each had been dispatched to that
// worker, all of them or none. Between two of them the token must stand READY, so
// that only the last step may fan out, sleep, arrive or end.
//
// The history of a step that followed says what is known: it was queued and
// dispatched when its worker began it, by the worker's clock, but no later than now.
func (m *Machine) ReportBatch(env Env, st State, ev Report, following []Following) (*Changes, error) {
	all, err := m.Report(env, st, ev)
	if err != nil || all.Duplicate || len(following) == 0 {
		return all, err
	}
	if !m.graph.Batched {
		return nil, &BatchError{Workflow: m.graph.Name, Version: m.graph.Version}
	}
	worker := st.Token.Worker
	for _, f := range following {
		after, err := m.after(all, st, f.Node)
		if err != nil {
			return nil, err
		}
		if after.Token, err = claimFollowing(env.Now, after.Token, worker, f.Report.StartedAt); err != nil {
			return nil, err
		}
		f.Report.Fence = after.Token.Fence
		one, err := m.Report(env, after, f.Report)
		if err != nil {
			return nil, err
		}
		all.append(one)
	}
	return all, nil
}

// after is what changes leave of a state, whose token must stand READY at a node. Its
// parent is as it was: only a token that leaves its branch changes it.
func (m *Machine) after(c *Changes, st State, node string) (State, error) {
	if c.Instance != nil {
		st.Instance = c.Instance
	}
	i := slices.IndexFunc(c.Updated, func(t *Token) bool { return t.ID == st.Token.ID })
	if i < 0 {
		return State{}, fmt.Errorf("%w: a report left its token at node %q as it was", ErrTransition, st.Token.Node)
	}
	st.Token = c.Updated[i]
	refused := &BatchError{Workflow: m.graph.Name, Version: m.graph.Version, Node: node}
	switch t := st.Token; {
	case c.Ended:
		refused.Found = "gone: the instance is " + st.Instance.State.String()
	case t.State != Ready || !t.DueAt.IsZero() || t.Node != node:
		refused.Found = fmt.Sprintf("%s at node %q", t.State, t.Node)
	case t.Width > 0:
		refused.Found = fmt.Sprintf("%s at node %q, a combine, which is handed out with what the branches brought", t.State, t.Node)
	default:
		return st, nil
	}
	return State{}, refused
}

// claimFollowing leases a token for a step that its worker has run already.
func claimFollowing(now time.Time, t *Token, worker string, started time.Time) (*Token, error) {
	c, err := Claim(now, t, worker, 0)
	if err != nil {
		return nil, err
	}
	began := now
	if !started.IsZero() && started.Before(now) {
		began = started
	}
	c.QueuedAt, c.LeasedAt = began, began
	return c, nil
}

// append adds the changes of the next event on the same token. A token's newest state
// counts. What goes or comes in bulk has one place in all of them: children of the
// token go with the first, as a combine never follows, and come with the last.
func (c *Changes) append(next *Changes) {
	if next.Instance != nil {
		c.Instance = next.Instance
	}
	for _, t := range next.Updated {
		i := slices.IndexFunc(c.Updated, func(old *Token) bool { return old.ID == t.ID })
		if i < 0 {
			c.Updated = append(c.Updated, t)
		} else {
			c.Updated[i] = t
		}
	}
	c.Merged = append(c.Merged, next.Merged...)
	c.Created = append(c.Created, next.Created...)
	c.LetIn = append(c.LetIn, next.LetIn...)
	c.History = append(c.History, next.History...)
	c.Events = append(c.Events, next.Events...)
	c.Ended = next.Ended
}
