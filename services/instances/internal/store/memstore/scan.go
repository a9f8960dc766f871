package memstore

import (
	"bytes"
	"context"
	"slices"

	"github.com/wiggle-run/wiggle/services/instances/internal/machine"
	"github.com/wiggle-run/wiggle/services/instances/internal/store"
)

// Instances implements [store.Store].
func (s *Store) Instances(ctx context.Context, ids []machine.ID, maxBytes int) ([]*machine.Instance, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	list := make([]*machine.Instance, 0, len(ids))
	size, some := 0, false
	for _, id := range ids {
		in := s.withContext(id)
		if in != nil {
			if size += len(in.Context.Data); size > maxBytes && some {
				break
			}
			some = true
		}
		list = append(list, in)
	}
	return list, nil
}

// withContext is an instance as it is read, or nil.
func (s *Store) withContext(id machine.ID) *machine.Instance {
	in := s.instances[id]
	if in == nil {
		return nil
	}
	in = in.Clone()
	if root := s.tokens[id]; root != nil {
		in.Context = root.View
	}
	return in
}

// Scan implements [store.Store].
func (s *Store) Scan(ctx context.Context, q store.Scan) (list []*machine.Instance, more bool, err error) {
	if err := ctx.Err(); err != nil {
		return nil, false, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var ids []machine.ID
	for id, in := range s.instances {
		if bytes.Compare(id[:], q.After[:]) > 0 && (q.Namespace == "" || in.Namespace == q.Namespace) &&
			(q.Workflow == "" || in.Workflow == q.Workflow) {
			ids = append(ids, id)
		}
	}
	slices.SortFunc(ids, func(a, b machine.ID) int { return bytes.Compare(a[:], b[:]) })
	size := 0
	for _, id := range ids {
		in := s.withContext(id)
		if q.HeadsOnly {
			in.Context = machine.Payload{}
		}
		size += len(in.Context.Data)
		if n := len(list); n == q.Limit || n > 0 && size > q.MaxBytes {
			return list, true, nil
		}
		list = append(list, in)
	}
	return list, false, nil
}
