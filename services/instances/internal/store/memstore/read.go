package memstore

import (
	"bytes"
	"cmp"
	"context"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/wiggle-run/wiggle/services/instances/internal/machine"
	"github.com/wiggle-run/wiggle/services/instances/internal/store"
)

// record is one row of an instance's history, kept in the order of its keys.
type record struct {
	store.HistoryRow
	fence int64
	by    machine.SettledBy
}

func (s *Store) record(now time.Time, order int32, e machine.Entry) {
	rows := s.history[e.Instance]
	r := record{fence: e.Fence, by: e.By, HistoryRow: store.HistoryRow{
		Key:   store.HistoryKey{RecordedAt: now, Order: order, Token: e.Token, Position: e.Position},
		Entry: proto.CloneOf(e.Value),
	}}
	// A test's clock may stand still or go back; the order is that of recording all
	// the same, as the history's last row tells.
	if n := len(rows); n > 0 && compareRecorded(r.Key, rows[n-1].Key) <= 0 {
		r.Key.RecordedAt, r.Key.Order = rows[n-1].Key.RecordedAt, rows[n-1].Key.Order+1
	}
	s.history[e.Instance] = append(rows, r)
}

// compareRecorded orders rows by when they were recorded.
func compareRecorded(a, b store.HistoryKey) int {
	return cmp.Or(a.RecordedAt.Compare(b.RecordedAt), cmp.Compare(a.Order, b.Order))
}

func compareHistory(a, b store.HistoryKey) int {
	return cmp.Or(a.RecordedAt.Compare(b.RecordedAt), cmp.Compare(a.Order, b.Order),
		bytes.Compare(a.Token[:], b.Token[:]), cmp.Compare(a.Position, b.Position))
}

// settled tells how history says that a lease ended.
func (s *Store) settled(l store.Lease) (machine.Settled, bool) {
	for _, r := range s.history[l.Instance] {
		if r.Key.Token == l.Token && r.fence == l.Fence && r.by != machine.NotSettled {
			return store.SettledFrom(r.fence, r.by, r.Entry), true
		}
	}
	return machine.Settled{}, false
}

// Instance implements [store.Store].
func (s *Store) Instance(ctx context.Context, id machine.ID, tokens int) (store.InstanceView, error) {
	if err := ctx.Err(); err != nil {
		return store.InstanceView{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.instances[id] == nil {
		return store.InstanceView{}, store.ErrNotFound
	}
	view := store.InstanceView{Instance: s.instances[id].Clone()}
	if root := s.tokens[id]; root != nil {
		view.Instance.Context = root.View
	}
	var active []*machine.Token
	for member := range s.members[id] {
		if t := s.tokens[member]; !store.IsSettled(t.State) {
			active = append(active, t)
		}
	}
	view.Active = len(active)
	slices.SortFunc(active, func(a, b *machine.Token) int { return bytes.Compare(a.ID[:], b.ID[:]) })
	for _, t := range active[:min(tokens, len(active))] {
		t = t.Clone()
		t.View, t.Progress = machine.Payload{}, machine.Payload{}
		view.Tokens = append(view.Tokens, t)
	}
	return view, nil
}

// Ended implements [store.Store].
func (s *Store) Ended(ctx context.Context, ids []machine.ID) ([]machine.ID, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var ended []machine.ID
	for _, id := range ids {
		if in := s.instances[id]; in == nil || in.State.Terminal() {
			ended = append(ended, id)
		}
	}
	return ended, nil
}

// History implements [store.Store].
func (s *Store) History(ctx context.Context, id machine.ID, after store.HistoryKey, limit int) ([]store.HistoryRow, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var rows []store.HistoryRow
	for _, r := range s.history[id] {
		if len(rows) == limit {
			break
		}
		if after == (store.HistoryKey{}) || compareHistory(r.Key, after) > 0 {
			rows = append(rows, store.HistoryRow{Key: r.Key, Entry: proto.CloneOf(r.Entry)})
		}
	}
	return rows, nil
}

// List implements [store.Store].
func (s *Store) List(ctx context.Context, f store.Filter, after store.ListKey, limit int) ([]*machine.Instance, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var list []*machine.Instance
	for _, in := range s.instances {
		if matches(f, in) && (after == (store.ListKey{}) || compareList(key(in), after) > 0) {
			list = append(list, in)
		}
	}
	slices.SortFunc(list, func(a, b *machine.Instance) int { return compareList(key(a), key(b)) })
	list = list[:min(limit, len(list))]
	for i, in := range list {
		list[i] = in.Clone()
		list[i].Context = machine.Payload{}
	}
	return list, nil
}

func key(in *machine.Instance) store.ListKey {
	return store.ListKey{CreatedAt: in.CreatedAt, ID: in.ID}
}

// compareList orders newest first.
func compareList(a, b store.ListKey) int {
	return cmp.Or(b.CreatedAt.Compare(a.CreatedAt), bytes.Compare(b.ID[:], a.ID[:]))
}

func matches(f store.Filter, in *machine.Instance) bool {
	return in.Namespace == f.Namespace &&
		(f.Workflow == "" || in.Workflow == f.Workflow) && f.Only.Match(in.Workflow) &&
		(len(f.States) == 0 || slices.Contains(f.States, in.State)) &&
		(f.From.IsZero() || !in.CreatedAt.Before(f.From)) &&
		(f.Before.IsZero() || in.CreatedAt.Before(f.Before))
}

// Count implements [store.Store].
func (s *Store) Count(ctx context.Context, f store.Filter) (map[machine.InstanceState]int64, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	counts := map[machine.InstanceState]int64{}
	for _, in := range s.instances {
		if matches(f, in) {
			counts[in.State]++
		}
	}
	return counts, nil
}
