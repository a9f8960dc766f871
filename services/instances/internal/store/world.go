package store

import (
	"slices"
	"time"

	"github.com/wiggle-run/wiggle/services/instances/internal/machine"
)

// World is what one batch sees of a shard: what was loaded, and what the batch's
// events have made of it so far, so that each event sees those before it.
type World struct {
	// Now is the time by the shard's clock, read after the locks were taken.
	Now time.Time

	instances map[machine.ID]*machine.Instance
	tokens    map[machine.ID]*machine.Token
	// members lists, by instance, the tokens that the world has or had, so that an
	// instance's end costs what the instance is large, not the batch.
	members map[machine.ID][]machine.ID
	latest  map[WorkflowKey]int32
	settled map[Lease]machine.Settled
	writes  Writes
}

// Writes is what a batch writes. A store applies it in this order: instances, the
// children of Merged go, NewTokens, Tokens, LetIn, the tokens of Ended go, History,
// Events.
// (A combine may be followed by the next fan-out of the same token at once, so
// the old children go before the new ones come.)
type Writes struct {
	// NewInstances and Instances are inserted and updated.
	NewInstances, Instances map[machine.ID]*machine.Instance
	// Merged are parents whose children, as they are stored, are deleted.
	Merged []machine.ID
	// NewTokens and Tokens are inserted and updated. None belongs to Ended.
	NewTokens, Tokens map[machine.ID]*machine.Token
	// LetIn become due.
	LetIn []machine.LetIn
	// Ended are instances whose tokens are all deleted.
	Ended map[machine.ID]bool
	// History is appended.
	History []machine.Entry
	// Events are appended to the event log, in this order.
	Events []LogEntry
}

// LogEntry is an event of an instance.
type LogEntry struct {
	Instance *machine.Instance
	machine.Event
	// Trace is the span of the operation that writes it, as a W3C traceparent.
	Trace string
}

// NewWorld makes a world of what a store loaded.
func NewWorld(now time.Time) *World {
	return &World{
		Now:       now,
		instances: map[machine.ID]*machine.Instance{},
		tokens:    map[machine.ID]*machine.Token{},
		members:   map[machine.ID][]machine.ID{},
		latest:    map[WorkflowKey]int32{},
		settled:   map[Lease]machine.Settled{},
		writes: Writes{
			NewInstances: map[machine.ID]*machine.Instance{}, Instances: map[machine.ID]*machine.Instance{},
			NewTokens: map[machine.ID]*machine.Token{}, Tokens: map[machine.ID]*machine.Token{},
			Ended: map[machine.ID]bool{},
		},
	}
}

// LoadInstance, LoadToken, LoadLatest and LoadSettled put into the world what a
// store read.
func (w *World) LoadInstance(in *machine.Instance) { w.instances[in.ID] = in }

// LoadToken puts a loaded token into the world. How its last lease ended is kept
// apart: the batch may move the token on, or drop it, before it comes to a call
// that repeats what ended that lease.
func (w *World) LoadToken(t *machine.Token) {
	w.keep(t)
	if t.Settled.Fence > 0 {
		w.settled[Lease{Instance: t.Instance, Token: t.ID, Fence: t.Settled.Fence}] = t.Settled
	}
}

// LoadLatest puts a workflow's latest version into the world.
func (w *World) LoadLatest(k WorkflowKey, version int32) { w.latest[k] = version }

// LoadSettled puts into the world how history says that a lease ended.
func (w *World) LoadSettled(l Lease, s machine.Settled) { w.settled[l] = s }

// Instance is the instance as the batch has it now; nil if there is none.
func (w *World) Instance(id machine.ID) *machine.Instance { return w.instances[id] }

// Latest is the workflow's latest version; 0 if it has none.
func (w *World) Latest(k WorkflowKey) int32 { return w.latest[k] }

// Settled tells how a lease ended, as far as history was asked or the batch knows.
func (w *World) Settled(l Lease) machine.Settled { return w.settled[l] }

// State is what an event on a token needs. Token is nil if it is gone.
func (w *World) State(instance, token machine.ID) machine.State {
	st := machine.State{Instance: w.instances[instance], Token: w.tokens[token]}
	if st.Token != nil && st.Token.Instance != instance {
		st.Token = nil
	}
	if st.Token != nil && !st.Token.Parent.IsZero() {
		st.Parent = w.tokens[st.Token.Parent]
	}
	return st
}

// Writes is what the batch writes.
func (w *World) Writes() *Writes { return &w.writes }

// Missing lists the leases whose token the world does not have under that fence:
// those that history has to be asked about.
func (w *World) Missing(leases []Lease) []Lease {
	var missing []Lease
	for _, l := range leases {
		t := w.tokens[l.Token]
		if t == nil || (t.Fence != l.Fence && t.Settled.Fence != l.Fence) {
			missing = append(missing, l)
		}
	}
	return missing
}

// Put merges the changes of one event.
func (w *World) Put(c *machine.Changes, instance machine.ID) {
	if c.Duplicate {
		return
	}
	w.putInstance(c, instance)
	w.writes.History = append(w.writes.History, c.History...)
	for _, e := range c.Events {
		w.writes.Events = append(w.writes.Events, LogEntry{Instance: w.instances[instance], Event: e, Trace: c.Trace})
	}
	for _, e := range c.History {
		if e.By != machine.NotSettled {
			// The same call sent twice may be in this very batch, after its token went.
			w.settled[Lease{Instance: instance, Token: e.Token, Fence: e.Fence}] = SettledFrom(e.Fence, e.By, e.Value)
		}
	}
	if c.Ended {
		w.end(instance)
		return
	}
	for _, parent := range c.Merged {
		w.merge(instance, parent)
	}
	for _, t := range c.Created {
		w.keep(t)
		w.writes.NewTokens[t.ID] = t
	}
	for _, t := range c.Updated {
		w.keep(t)
		if w.writes.NewTokens[t.ID] != nil {
			w.writes.NewTokens[t.ID] = t
		} else {
			w.writes.Tokens[t.ID] = t
		}
	}
	w.writes.LetIn = append(w.writes.LetIn, c.LetIn...)
}

func (w *World) putInstance(c *machine.Changes, instance machine.ID) {
	in := c.Instance
	if in == nil {
		return
	}
	if c.Ended && in.Context.Absent() {
		in = w.withContext(c, in)
	}
	if w.instances[instance] == nil || w.writes.NewInstances[instance] != nil {
		w.writes.NewInstances[instance] = in
	} else {
		w.writes.Instances[instance] = in
	}
	w.instances[instance] = in
}

// withContext gives an instance that failed or was cancelled the context that its
// first token had last, where this batch knows it: what the batch made of the
// token is never written, as the token goes. Where the token was not loaded the
// store copies what it has.
func (w *World) withContext(c *machine.Changes, in *machine.Instance) *machine.Instance {
	root := w.tokens[in.ID]
	for _, changed := range [][]*machine.Token{c.Created, c.Updated} {
		for _, t := range changed {
			if t.ID == in.ID {
				root = t
			}
		}
	}
	if root == nil {
		return in
	}
	in = in.Clone()
	in.Context = root.View
	return in
}

// merge drops the children of a parent from the world.
func (w *World) merge(instance, parent machine.ID) {
	w.writes.Merged = append(w.writes.Merged, parent)
	w.writes.LetIn = slices.DeleteFunc(w.writes.LetIn, func(l machine.LetIn) bool { return l.Parent == parent })
	w.drop(instance, func(t *machine.Token) bool { return t.Parent == parent })
}

// end drops an instance's tokens from the world.
func (w *World) end(instance machine.ID) {
	w.writes.Ended[instance] = true
	w.drop(instance, func(*machine.Token) bool { return true })
}

// keep puts a token's newest state into the world.
func (w *World) keep(t *machine.Token) {
	if w.tokens[t.ID] == nil {
		w.members[t.Instance] = append(w.members[t.Instance], t.ID)
	}
	w.tokens[t.ID] = t
}

func (w *World) drop(instance machine.ID, gone func(*machine.Token) bool) {
	w.members[instance] = slices.DeleteFunc(w.members[instance], func(id machine.ID) bool {
		if !gone(w.tokens[id]) {
			return false
		}
		delete(w.tokens, id)
		delete(w.writes.NewTokens, id)
		delete(w.writes.Tokens, id)
		return true
	})
}
