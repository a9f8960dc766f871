package dispatch

import (
	"context"
	"slices"
	"sync/atomic"

	"github.com/wiggle-run/wiggle/services/instances/internal/machine"
	"github.com/wiggle-run/wiggle/services/instances/internal/store"
)

// room is how many further tasks come with the answer to a call's reports.
type room struct {
	claim *store.Claim // nil: none
	left  atomic.Int64
	// to is the consumer that reports; nil for a call. Beyond left it has its credits.
	to *Consumer
}

// newRoom is the room of a call.
func newRoom(claim *store.Claim) *room {
	r := &room{claim: claim}
	if claim != nil {
		r.left.Store(int64(claim.Max))
	}
	return r
}

// take takes a place, if there is one.
func (r *room) take() bool {
	if r.left.Add(-1) >= 0 {
		return true
	}
	r.left.Add(1)
	return r.to != nil && r.to.take(1) == 1
}

// back gives a place back that was not used after all.
func (r *room) back() { r.left.Add(1) }

// forget gives the place of a task back that was not kept after all.
func (r *room) forget(next **store.Claimed) {
	if *next != nil {
		*next = nil
		r.back()
	}
}

// goOn leases the step that follows a report to whoever reported it: the token is
// written once, as leased. It is only ever the reported token itself, at a step
// that needs nothing but what the batch has in hand: a combine, whose branches'
// results have to be read, and the branches of a fan-out wait for a poll.
//
// A report that is repeated, because its answer was lost, brings the task that came
// with the first again: the worker still holds that lease.
func (s *Shard) goOn(w *store.World, ev *Event, c *machine.Changes, r *room) *store.Claimed {
	if r.claim == nil || ev.By != machine.ByReport || c.Ended {
		return nil
	}
	st := w.State(ev.Lease.Instance, ev.Lease.Token)
	t := st.Token
	if t == nil || t.Width > 0 || (!t.Parent.IsZero() && st.Parent == nil) || !serves(r.claim, st.Instance, t) {
		return nil
	}
	switch {
	case c.Duplicate:
		if t.State != machine.Leased || t.Worker != r.claim.Worker || t.Fence != ev.Lease.Fence+ev.Following+1 || !r.take() {
			return nil
		}
	case t.State != machine.Ready || !t.DueAt.IsZero() || !r.take():
		return nil
	default:
		leased, err := machine.Claim(w.Now, t, r.claim.Worker, r.claim.Lease)
		if err != nil {
			r.back()
			return nil
		}
		w.Put(&machine.Changes{Updated: []*machine.Token{leased}}, ev.Lease.Instance)
		t = leased
	}
	next := leasedIn(t, st)
	return &next
}

// leasedIn is the task of a token that a batch leases.
func leasedIn(t *machine.Token, st machine.State) store.Claimed {
	task := store.Claimed{Token: t, Instance: st.Instance, Parent: st.Parent}
	if st.Parent != nil {
		task.Base = st.Parent.View
	}
	return task
}

// serves tells whether a claim takes the token of an instance.
func serves(c *store.Claim, in *machine.Instance, t *machine.Token) bool {
	if in.Namespace != c.Namespace || !slices.Contains(c.Queues, t.Queue) {
		return false
	}
	return len(c.Workflows) == 0 || slices.ContainsFunc(c.Workflows, func(b store.Binding) bool {
		return b.Workflow == in.Workflow && (b.Version == 0 || b.Version == in.Version)
	})
}

// wentOn takes note of the leases that were given with answers.
func (s *Shard) wentOn(outcomes []Outcome) {
	var given []store.Claimed
	for _, o := range outcomes {
		if o.Next != nil {
			given = append(given, *o.Next)
		}
	}
	if len(given) > 0 {
		s.metrics.claimed(context.Background(), len(given))
		s.lease(soonest(given))
		s.hold(given)
	}
}
