package pgstore

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	"github.com/wiggle-run/wiggle/services/instances/internal/machine"
	"github.com/wiggle-run/wiggle/services/instances/internal/store"
)

// recorder keeps the text of every statement that a store sends.
type recorder struct {
	mu  sync.Mutex
	sql map[string]bool
}

func (r *recorder) note(sql string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sql[sql] = true
}

func (r *recorder) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	r.note(data.SQL)
	return ctx
}

func (r *recorder) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

func (r *recorder) TraceBatchStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceBatchStartData) context.Context {
	for _, q := range data.Batch.QueuedQueries {
		r.note(q.SQL)
	}
	return ctx
}

func (r *recorder) TraceBatchQuery(context.Context, *pgx.Conn, pgx.TraceBatchQueryData) {}
func (r *recorder) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData)     {}

// exercise makes a store send every statement that it has.
func exercise(t *testing.T, s *Store) {
	t.Helper()
	ctx := t.Context()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	id, child := machine.ID{1}, machine.ID{2}
	in := &machine.Instance{ID: id, Namespace: "n", Workflow: "w", Version: 1, State: machine.Running, CreatedAt: at}
	root := &machine.Token{ID: id, Instance: id, State: machine.Ready, Queue: "q", Width: 1}
	branch := &machine.Token{ID: child, Instance: id, Parent: id, State: machine.Ready, Queue: "q"}
	put := func(c *machine.Changes, tokens ...machine.ID) {
		t.Helper()
		keys := store.Keys{
			Instances: []machine.ID{id}, Tokens: tokens, Latest: []store.WorkflowKey{{Namespace: "n", Workflow: "w"}},
			Leases: []store.Lease{{Instance: id, Token: id, Fence: 9}},
		}
		must(s.Update(ctx, keys, func(w *store.World) error { w.Put(c, id); return nil }))
	}
	put(&machine.Changes{
		Instance: in, Created: []*machine.Token{root, branch}, History: []machine.Entry{{Instance: id, Value: &wigglev1.HistoryEntry{}}},
		Events: []machine.Event{{Type: machine.EventStarted}},
	})
	put(&machine.Changes{Updated: []*machine.Token{branch}, LetIn: []machine.LetIn{{Instance: id, Parent: id, DueAt: at}}}, child)
	_, err := s.Claim(ctx, store.Claim{Namespace: "n", Queues: []string{"q"}, Max: 5, Lease: time.Hour})
	must(err)
	_, err = s.Advance(ctx, at, []store.Move{{From: branch, To: branch, Entry: machine.Entry{Value: &wigglev1.HistoryEntry{}}}})
	must(err)
	front := s.fronts.of(store.QueueKey{Namespace: "n", Queue: "q"}, "")
	front.passed, front.looked, front.took = usedUp, time.Now(), time.Hour
	_, err = s.Claim(ctx, store.Claim{Namespace: "n", Queues: []string{"q"}, Max: 5, Lease: time.Hour})
	must(err)
	_, err = s.Beat(ctx, []store.Beat{{Token: child, Fence: 1}, {Token: id, Fence: 7}})
	must(err)
	_, err = s.extend(ctx, map[lease]store.Beat{{token: child}: {}}, "")
	must(err)
	_, err = s.Tick(ctx, "me", 0, true)
	must(err)
	_, err = s.Due(ctx, at, 5)
	must(err)
	_, err = s.Expired(ctx, 5)
	must(err)
	_, err = s.Instance(ctx, id, 5)
	must(err)
	_, err = s.Instances(ctx, []machine.ID{id}, 1)
	must(err)
	for _, heads := range []bool{true, false} {
		_, _, err = s.Scan(ctx, store.Scan{Limit: 5, HeadsOnly: heads})
		must(err)
	}
	_, err = s.Ended(ctx, []machine.ID{id})
	must(err)
	_, err = s.InstanceSubjects(ctx, []machine.ID{id})
	must(err)
	_, err = s.TaskSteps(ctx, []store.Lease{{Instance: id, Token: id, Fence: 1}})
	must(err)
	_, err = s.History(ctx, id, store.HistoryKey{}, 5)
	must(err)
	for _, f := range []store.Filter{{Namespace: "n"}, {Namespace: "n", Workflow: "w", From: at, Before: at}} {
		_, err = s.List(ctx, f, store.ListKey{CreatedAt: at, ID: id}, 5)
		must(err)
		_, err = s.Count(ctx, f)
		must(err)
	}
	_, _, err = s.Register(ctx, "n", "w", func([]store.Definition) (store.Definition, error) {
		return store.Definition{Version: 1, Graph: &wigglev1.Definition{}}, nil
	})
	must(err)
	d, err := s.Definition(ctx, "n", "w", 0)
	must(err)
	_, err = s.Definition(ctx, "n", "w", 1)
	must(err)
	_, err = s.PutDefinitions(ctx, []store.Definition{d})
	must(err)
	_, err = s.ListDefinitions(ctx, store.DefinitionQuery{Limit: 5})
	must(err)
	put(&machine.Changes{Instance: &machine.Instance{ID: id, State: machine.Failed, EndedAt: at}, Merged: []machine.ID{id}}, id)
	put(&machine.Changes{Instance: &machine.Instance{ID: id, State: machine.Failed, EndedAt: at}, Ended: true})
}
