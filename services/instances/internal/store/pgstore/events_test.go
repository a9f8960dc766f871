package pgstore

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/wiggle-run/wiggle/pkg/postgres"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	"github.com/wiggle-run/wiggle/services/instances/internal/machine"
	"github.com/wiggle-run/wiggle/services/instances/internal/store"
)

// batches keeps the statements of each batch that a pool sends.
type batches struct {
	mu   sync.Mutex
	sent [][]string
}

func (b *batches) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	return ctx
}
func (b *batches) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}
func (b *batches) TraceBatchStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceBatchStartData) context.Context {
	b.mu.Lock()
	defer b.mu.Unlock()
	var sent []string
	for _, q := range data.Batch.QueuedQueries {
		sent = append(sent, q.SQL)
	}
	b.sent = append(b.sent, sent)
	return ctx
}
func (b *batches) TraceBatchQuery(context.Context, *pgx.Conn, pgx.TraceBatchQueryData) {}
func (b *batches) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData)     {}

// Events take their numbers behind everything else that a transaction writes, right before its commit: readers rely on
// a transaction having its id before it takes a number (EVT-3).
func TestEventsAreWrittenLast(t *testing.T) {
	t.Parallel()
	b := &batches{}
	s := New(open(t, func(c *postgres.MemberConfig) { c.Tracer = b }))
	id := number(1)
	var position int32
	put := func(c *machine.Changes) {
		t.Helper()
		c.History = []machine.Entry{{Instance: id, Position: position, Value: &wigglev1.HistoryEntry{}}}
		position++
		keys := store.Keys{Instances: []machine.ID{id}, Tokens: []machine.ID{id}}
		if err := s.Update(t.Context(), keys, func(w *store.World) error { w.Put(c, id); return nil }); err != nil {
			t.Fatal(postgres.Detail(err))
		}
	}
	in := &machine.Instance{ID: id, Namespace: "n", Workflow: "w", Version: 1, State: machine.Running, CreatedAt: time.Unix(1, 0)}
	token := &machine.Token{ID: id, Instance: id, State: machine.Ready, Queue: "q"}
	put(&machine.Changes{Instance: in, Created: []*machine.Token{token}, Events: []machine.Event{{Type: machine.EventStarted}}})
	put(&machine.Changes{Updated: []*machine.Token{token}, Events: []machine.Event{{Type: "emitted", Node: "a", Payload: []byte("{}")}}})
	ended := in.Clone()
	ended.State = machine.Completed
	put(&machine.Changes{Instance: ended, Ended: true, Events: []machine.Event{{Type: machine.EventCompleted}}})
	put(&machine.Changes{Instance: ended})

	b.mu.Lock()
	defer b.mu.Unlock()
	seen := 0
	for _, sent := range b.sent {
		at := slices.IndexFunc(sent, func(sql string) bool { return strings.HasPrefix(sql, "insert into events") })
		if at < 0 {
			continue
		}
		seen++
		if at != len(sent)-2 || at == 0 || sent[at+1] != "commit" {
			t.Errorf("a batch writes events, and then this: %q", sent)
		}
	}
	if seen != 3 {
		t.Errorf("%d batches wrote events, want 3", seen)
	}
}
