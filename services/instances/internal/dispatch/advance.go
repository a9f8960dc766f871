package dispatch

import (
	"context"
	"slices"
	"time"

	"github.com/wiggle-run/wiggle/proto/definition"
	"github.com/wiggle-run/wiggle/services/instances/internal/machine"
	"github.com/wiggle-run/wiggle/services/instances/internal/store"
)

// guarded is what an operation needs to go the guarded way (WRK-18): a report on a
// token that this process leased and still knows.
type guarded struct {
	held    store.Claimed
	ev      *Event
	outcome *Outcome
	room    *room
	changes *machine.Changes
}

// Alone tells whether the report of a lease will likely be written by itself: the token
// is known here and another step follows. A caller that has several reports does well
// to submit those together, and the others, which take longer, apart.
func (s *Shard) Alone(l store.Lease) bool { return s.held.has(l) }

// hold keeps those of the tasks that were leased whose reports may go the guarded way.
func (s *Shard) hold(tasks []store.Claimed) {
	s.held.put(slices.DeleteFunc(slices.Clone(tasks), func(c store.Claimed) bool { return !s.steps(&c) }))
}

// steps tells whether a task's token stands at a step behind which there is another: the
// end of an instance, a fan-out or a pause takes the locked way. What follows a gate or
// a choose is found out by trying.
func (s *Shard) steps(held *store.Claimed) bool {
	in := held.Instance
	g := s.machines.graph(machineKey{in.Namespace, in.Workflow, in.Version})
	if g == nil {
		return false
	}
	node := g.Node(held.Token.Node)
	if node == nil || node.Kind != definition.KindTask {
		return node != nil
	}
	next := g.Node(node.Next)
	return next != nil && (next.Kind == definition.KindTask || next.Kind == definition.KindGate || next.Kind == definition.KindChoose)
}

// guard prepares the operations of a call for the guarded way that may go it. Events on
// one token keep their order: they go the locked way together.
func (s *Shard) guard(ops []*op, events []Event, outcomes []Outcome, r *room) {
	first := make(map[machine.ID]*op, len(events))
	hits, misses := 0, 0
	for i := range events {
		ev := &events[i]
		if earlier := first[ev.Lease.Token]; earlier != nil {
			earlier.guarded = nil
			continue
		}
		first[ev.Lease.Token] = ops[i]
		if ev.By != machine.ByReport || ev.Following > 0 {
			continue
		}
		held, ok := s.held.take(ev.Lease)
		if ok {
			hits++
		} else {
			misses++
		}
		if ok && !ev.Emits {
			ops[i].guarded = &guarded{held: held, ev: ev, outcome: &outcomes[i], room: r}
		}
	}
	s.metrics.looked(&s.metrics.heldTokens, hits, misses)
}

// advance runs a batch of reports the guarded way: what the machine makes of the
// tokens as they were leased is written where they still are so, in one statement and
// without a read. What concerns more than its token, what the guard refuses and
// whatever fails goes the locked way, which knows a report again that was written after all.
func (s *Shard) advance(ctx context.Context, batch []*op) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.cfg.CommitTimeout)
	defer cancel()
	w := store.NewWorld(s.advanceTime(batch))
	alone, rest := s.applyGuarded(ctx, w, batch)
	var given gifts
	s.offer(w, &given)
	moves := make([]store.Move, len(alone))
	for i, o := range alone {
		t := o.guarded.held.Token
		moves[i] = store.Move{
			Namespace: o.guarded.held.Instance.Namespace, From: t, To: w.State(t.Instance, t.ID).Token, Entry: o.guarded.changes.History[0],
		}
	}
	var moved []bool
	var err error
	work, tx := s.open(ctx, alone)
	if len(moves) > 0 {
		if moved, err = s.store.Advance(work, w.Now, moves); err != nil {
			s.noteFailure(err)
		}
	}
	s.closed(&tx, alone, wayGuarded, err)
	refused := set[machine.ID]{}
	for i, o := range alone {
		if err == nil && moved[i] {
			continue
		}
		refused[moves[i].From.ID] = struct{}{}
		o.guarded.room.forget(&o.guarded.outcome.Next)
		rest = append(rest, o)
	}
	given.without(refused)
	s.metrics.batch(ctx, wayGuarded, len(alone)-len(refused), time.Since(tx.began))
	given.deliver(s)
	for i, o := range alone {
		if _, ok := refused[moves[i].From.ID]; ok {
			continue
		}
		if t := moves[i].To; t.State == machine.Ready {
			s.Ready(store.QueueKey{Namespace: o.guarded.held.Instance.Namespace, Queue: t.Queue})
		}
		answer([]*op{o}, nil)
	}
	for _, o := range rest {
		o.guarded = nil
	}
	s.enqueue(s.lanes, rest)
}

// applyGuarded puts into the world what concerns its token alone, and tells what does
// not. Errors are left to the locked way, which sees what is true.
func (s *Shard) applyGuarded(ctx context.Context, w *store.World, batch []*op) (alone, rest []*op) {
	for _, o := range batch {
		g := o.guarded
		st := machine.State{Instance: g.held.Instance, Token: g.held.Token, Parent: g.held.Parent}
		m, err := s.machines.of(ctx, st.Instance)
		if err == nil {
			g.changes, err = g.ev.Apply(m, s.env(w.Now), st)
		}
		if err != nil || !store.Simple(st.Token, g.changes) {
			rest = append(rest, o)
			continue
		}
		s.traced(o, spanNames[g.ev.By], st.Instance, st.Token, g.changes)
		w.LoadInstance(st.Instance)
		w.LoadToken(st.Token)
		if st.Parent != nil {
			w.LoadToken(st.Parent)
		}
		w.Put(g.changes, st.Token.Instance)
		g.outcome.Changes = g.changes
		g.outcome.Next = s.goOn(w, g.ev, g.changes, g.room)
		alone = append(alone, o)
	}
	return alone, rest
}

// advanceTime is the time of a batch that reads no clock of the store: the store's as
// this process knows it, which may be a little behind, but never before the leases
// that end. So what happens to a token has its order in time.
func (s *Shard) advanceTime(batch []*op) time.Time {
	now := s.Now().UTC().Truncate(time.Microsecond)
	for _, o := range batch {
		if at := o.guarded.held.Token.LeasedAt; at.After(now) {
			now = at
		}
	}
	return now
}
