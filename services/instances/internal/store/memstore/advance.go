package memstore

import (
	"context"
	"time"

	"github.com/wiggle-run/wiggle/services/instances/internal/machine"
	"github.com/wiggle-run/wiggle/services/instances/internal/store"
)

// Advance implements [store.Store].
func (s *Store) Advance(ctx context.Context, now time.Time, moves []store.Move) ([]bool, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	moved := make([]bool, len(moves))
	for i, m := range moves {
		t := s.tokens[m.From.ID]
		if t == nil || t.State != machine.Leased || t.Fence != m.From.Fence || t.Position != m.From.Position {
			continue
		}
		s.putToken(m.To.Clone())
		s.record(micro(now), 0, m.Entry)
		moved[i] = true
	}
	return moved, nil
}
