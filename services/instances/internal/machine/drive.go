package machine

import (
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/wiggle-run/wiggle/proto/definition"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
)

// driveBudget bounds how many server-run nodes one token passes in one event
// (ENG-5). The width of a fan-out does not count against it, its depth does.
const driveBudget = 10_000

// drive moves a token that is in flight into a node and over the server-run nodes
// behind it, until it parks or the instance ends.
func (s *step) drive(t, parent *Token, id string, depth int) error {
	for ; ; depth++ {
		node, err := s.node(id)
		if err != nil {
			return err
		}
		if depth >= driveBudget {
			return s.fail(t, failure(FailureDepth, id, "passed %d server-run nodes without a step or a pause", driveBudget))
		}
		t.Node = id
		switch node.Kind {
		case definition.KindSleep:
			parked, err := s.sleep(t, node)
			if err != nil || parked {
				return err
			}
			id = node.Next
		case definition.KindFork, definition.KindForEach:
			elements, why := s.elements(t, node)
			if why != nil {
				return s.fail(t, why)
			}
			if len(elements) > 0 {
				return s.fanOut(t, node, elements, depth+1)
			}
			if id, err = s.afterCombine(node); err != nil {
				return err
			}
		case definition.KindJoin:
			return s.arrive(t, parent, true)
		case definition.KindEnd:
			if node.Failed {
				return s.fail(t, failure(FailureEnd, id, "%s", reasonOr(node.Reason, "the workflow ended at node "+id)))
			}
			return s.leave(t, parent, true)
		default:
			return s.ready(t, node)
		}
	}
}

func reasonOr(reason, otherwise string) string {
	if reason != "" {
		return reason
	}
	return otherwise
}

// node finds a node. Definitions are checked before they are stored, so a node
// that is not there is a defect.
func (m *Machine) node(id string) (*definition.Node, error) {
	if n := m.graph.Node(id); n != nil {
		return n, nil
	}
	return nil, fmt.Errorf("%w: %s version %d has no node %q", ErrTransition, m.graph.Name, m.graph.Version, id)
}

// ready parks a token at a step.
func (s *step) ready(t *Token, node *definition.Node) error {
	t.Attempt, t.QueuedAt, t.DueAt = 1, s.env.Now, time.Time{}
	t.Queue, t.Timeout, t.Priority = node.Step.Queue, node.Step.Timeout, s.in.Priority
	if p := node.Step.Priority; p != definition.InheritPriority {
		t.Priority = int16(p) //nolint:gosec // 0 to 9, checked at registration
	}
	return t.move(Ready)
}

// sleep parks a token at a sleep; false if the sleep's time is over already.
func (s *step) sleep(t *Token, node *definition.Node) (parked bool, err error) {
	due := s.env.Now.Add(node.SleepFor)
	if node.SleepUntil != nil {
		if due, err = instant(t.View, node.SleepUntil); err != nil {
			return true, s.fail(t, failure(FailureInstant, node.ID, "the instant at %q: %v", node.SleepUntil.Text, err))
		}
	}
	if !due.After(s.env.Now) {
		return false, nil
	}
	t.DueAt = due
	s.record(t, &wigglev1.HistoryEntry{Kind: wigglev1.HistoryKind_HISTORY_KIND_TIMER_SET, DueAt: timestamppb.New(due)})
	return true, t.move(Sleeping)
}

// elements are the branches of a fan-out: what each is called and starts with.
func (s *step) elements(t *Token, node *definition.Node) ([]element, *wigglev1.Failure) {
	if node.Kind == definition.KindFork {
		elements := make([]element, len(node.Branches))
		for i, b := range node.Branches {
			elements[i] = element{key: b.Name}
		}
		return elements, nil
	}
	elements, err := collection(t.View, node.Items)
	if err != nil {
		return nil, failure(FailureItems, node.ID, "the items at %q of for_each %q: %v", node.Items.Text, node.ID, err)
	}
	if n := len(elements); n > s.env.Limits.Branches {
		limit := &LimitError{Limit: "branches", Setting: SettingBranches, Maximum: s.env.Limits.Branches, Actual: n}
		return nil, failure(FailureLimit, node.ID, "for_each %q: %v", node.ID, limit)
	}
	return elements, nil
}

// fanOut starts a branch for each element and parks the token at the join.
func (s *step) fanOut(t *Token, node *definition.Node, elements []element, depth int) error {
	width := int32(len(elements)) //nolint:gosec // bounded by Limits.Branches
	s.record(t, &wigglev1.HistoryEntry{Kind: wigglev1.HistoryKind_HISTORY_KIND_FANNED_OUT, Branches: width})
	t.Node, t.Width, t.Pending = node.Join, width, width
	if err := t.move(Joined); err != nil {
		return err
	}
	limit := t.Width
	if m := node.MaxInFlight; m > 0 && m < int(limit) {
		limit = int32(m) //nolint:gosec // below limit
	}
	s.fanning = append(s.fanning, t.ID)
	defer func() { s.fanning = s.fanning[:len(s.fanning)-1] }()
	for i, e := range elements {
		child := &Token{ID: s.env.NewID(), Instance: t.Instance, Parent: t.ID, Index: int32(i), Key: e.key}
		start := node.Body
		child.View = Payload{ContentType: t.View.ContentType, Data: e.value}
		if node.Kind == definition.KindFork {
			start, child.View = node.Branches[i].Start, t.View
		}
		child.Node = start
		s.live[child.ID] = child
		s.out.Created = append(s.out.Created, child)
		// Pending counts down as children arrive at once (an empty branch, a sleep
		// that is over), so what is in flight is what started less what arrived.
		if inFlight := t.Next - (t.Width - t.Pending); inFlight >= limit {
			if err := s.hold(child, time.Time{}); err != nil {
				return err
			}
			continue
		}
		t.Next++
		if err := s.drive(child, t, start, depth); err != nil || s.out.Ended {
			return err
		}
	}
	return nil
}

// afterCombine is where a token goes that has nothing to fan out to (ENG-9).
func (s *step) afterCombine(node *definition.Node) (string, error) {
	join, err := s.node(node.Join)
	if err != nil {
		return "", err
	}
	combine, err := s.node(join.Next)
	if err != nil {
		return "", err
	}
	return combine.Next, nil
}

// leave ends a token's chain: the branch, or the instance.
func (s *step) leave(t, parent *Token, hasResult bool) error {
	if t.Parent.IsZero() {
		s.in.Context = t.View
		return s.end(Completed, nil)
	}
	return s.arrive(t, parent, hasResult)
}

// arrive ends a branch at its join and counts it off.
func (s *step) arrive(t, parent *Token, hasResult bool) error {
	if parent == nil || parent.ID != t.Parent {
		return fmt.Errorf("%w: branch at node %q has no parent", ErrTransition, t.Node)
	}
	if err := t.move(Done); err != nil {
		return err
	}
	t.HasResult = hasResult
	if !hasResult {
		t.View = Payload{}
	}
	s.record(t, &wigglev1.HistoryEntry{Kind: wigglev1.HistoryKind_HISTORY_KIND_ARRIVED})
	p := s.live[parent.ID]
	if p == nil {
		p = s.load(parent)
	}
	if p.State != Joined || p.Pending <= 0 {
		return fmt.Errorf("%w: branch arrived at node %q, whose token is %s with %d pending", ErrTransition, p.Node, p.State, p.Pending)
	}
	p.Pending--
	if p.Pending == 0 {
		return s.combine(p)
	}
	return s.letIn(p)
}

// letIn lets the next held element in; while its fan-out is being made, fanOut does.
func (s *step) letIn(p *Token) error {
	if p.Next >= p.Width || slices.Contains(s.fanning, p.ID) {
		return nil
	}
	s.out.LetIn = append(s.out.LetIn, LetIn{Instance: p.Instance, Parent: p.ID, Index: p.Next, DueAt: s.env.Now})
	p.Next++
	return nil
}

// combine makes the token at a join ready for its combine.
func (s *step) combine(p *Token) error {
	join, err := s.node(p.Node)
	if err != nil {
		return err
	}
	node, err := s.node(join.Next)
	if err != nil {
		return err
	}
	s.record(p, &wigglev1.HistoryEntry{Kind: wigglev1.HistoryKind_HISTORY_KIND_JOINED, Branches: p.Width})
	p.Node = node.ID
	return s.ready(p, node)
}

// fail settles a token as failed, and its instance with it.
func (s *step) fail(t *Token, why *wigglev1.Failure) error {
	if err := t.move(TokenFailed); err != nil {
		return err
	}
	return s.end(Failed, why)
}

// end makes the instance terminal. Its tokens go with it.
func (s *step) end(state InstanceState, why *wigglev1.Failure) error {
	s.changed = true
	s.in.State, s.in.EndedAt, s.in.Failure = state, s.env.Now, why
	s.out.Ended = true
	kind, event := wigglev1.HistoryKind_HISTORY_KIND_COMPLETED, EventCompleted
	switch state {
	case Failed:
		kind, event = wigglev1.HistoryKind_HISTORY_KIND_FAILED, EventFailed
	case Cancelled:
		kind, event = wigglev1.HistoryKind_HISTORY_KIND_CANCELLED, EventCancelled
	default: // completed
	}
	s.record(nil, &wigglev1.HistoryEntry{Kind: kind, Failure: why, Node: why.GetNode()})
	s.log(event)
	return nil
}
