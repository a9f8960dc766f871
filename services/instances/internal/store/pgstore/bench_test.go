package pgstore

import (
	"encoding/binary"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/wiggle-run/wiggle/proto/definition"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	"github.com/wiggle-run/wiggle/services/instances/internal/machine"
	"github.com/wiggle-run/wiggle/services/instances/internal/store"
)

// The figures are for one connection and a server that does not flush: they tell
// what statements cost, not what a shard can do.

// benchBatch is how many items are in a batch.
const benchBatch = 100

// looping is a workflow whose one step follows itself.
func looping(b *testing.B) *machine.Machine {
	b.Helper()
	nodes := map[string]*wigglev1.Node{
		"a":   {Kind: &wigglev1.Node_Task{Task: &wigglev1.TaskNode{Next: "g"}}},
		"g":   {Kind: &wigglev1.Node_Gate{Gate: &wigglev1.GateNode{Next: "a", Otherwise: "end", LoopBudget: 1 << 30}}},
		"end": {Kind: &wigglev1.Node_End{End: &wigglev1.EndNode{}}},
	}
	graph, problems := definition.Analyze(&wigglev1.Definition{Name: "w", Version: 1, Start: "a", Nodes: nodes})
	if problems != nil {
		b.Fatal(problems)
	}
	return machine.New(graph)
}

type bencher struct {
	*testing.B
	s   *Store
	m   *machine.Machine
	ids uint64
}

func newBencher(b *testing.B) *bencher {
	b.Helper()
	return &bencher{B: b, s: New(open(b)), m: looping(b), ids: 1 << 40}
}

func (b *bencher) newID() (id machine.ID) {
	b.ids++
	binary.BigEndian.PutUint64(id[:8], b.ids)
	return id
}

func (b *bencher) env(now time.Time) machine.Env {
	return machine.Env{Now: now, NewID: b.newID, Random: func() float64 { return 0 }, Limits: machine.DefaultLimits()}
}

func (b *bencher) must(err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
}

func (b *bencher) start(n int) {
	var keys store.Keys
	for range n {
		keys.Instances = append(keys.Instances, b.newID())
	}
	b.must(b.s.Update(b.Context(), keys, func(w *store.World) error {
		for _, id := range keys.Instances {
			c, err := b.m.Start(b.env(w.Now), machine.Start{ID: id, Namespace: "n", Input: machine.Payload{Data: make([]byte, 200)}})
			if err != nil {
				return err
			}
			w.Put(c, id)
		}
		return nil
	}))
}

func (b *bencher) claim(n int) []store.Claimed {
	claimed, err := b.s.Claim(b.Context(), store.Claim{Namespace: "n", Queues: []string{"default"}, Worker: "w", Lease: time.Hour, Max: n})
	b.must(err)
	return claimed
}

func (b *bencher) report(claimed []store.Claimed) {
	var keys store.Keys
	for _, c := range claimed {
		keys.Instances, keys.Tokens = append(keys.Instances, c.Token.Instance), append(keys.Tokens, c.Token.ID)
	}
	b.must(b.s.Update(b.Context(), keys, func(w *store.World) error {
		for _, c := range claimed {
			ev := machine.Report{Fence: c.Token.Fence, Kind: machine.OutcomeResult, Result: machine.Payload{Data: make([]byte, 200)}}
			if c.Token.Node == "g" {
				ev = machine.Report{Fence: c.Token.Fence, Kind: machine.OutcomeGate, Gate: true}
			}
			changes, err := b.m.Report(b.env(w.Now), w.State(c.Token.Instance, c.Token.ID), ev)
			if err != nil {
				return err
			}
			w.Put(changes, c.Token.Instance)
		}
		return nil
	}))
}

func (b *bencher) perItem() {
	b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N*benchBatch), "us/item")
}

func BenchmarkStart(b *testing.B) {
	x := newBencher(b)
	for b.Loop() {
		x.start(benchBatch)
	}
	x.perItem()
}

// BenchmarkStep claims and reports a batch of steps.
func BenchmarkStep(b *testing.B) {
	x := newBencher(b)
	x.start(benchBatch)
	for b.Loop() {
		x.report(x.claim(benchBatch))
	}
	x.perItem()
}

func BenchmarkStepAlone(b *testing.B) {
	x := newBencher(b)
	x.start(1)
	for b.Loop() {
		x.report(x.claim(1))
	}
}

func BenchmarkBeat(b *testing.B) {
	x := newBencher(b)
	x.start(benchBatch)
	var beats []store.Beat
	for _, c := range x.claim(benchBatch) {
		beats = append(beats, store.Beat{Token: c.Token.ID, Fence: c.Token.Fence, Extend: time.Hour})
	}
	for b.Loop() {
		_, err := x.s.Beat(b.Context(), beats)
		x.must(err)
	}
	x.perItem()
}

// BenchmarkBacklog claims, and asks what there is to do, over a million ready tokens.
func BenchmarkBacklog(b *testing.B) {
	const million = `
insert into instances (id, created_at, version, position, state, priority, namespace, workflow)
select lpad(to_hex(g), 32, '0')::uuid, now(), 1, 2, 1, 5, 'n', 'w' from generate_series(1, 1000000) g;
insert into tokens (id, instance_id, fence, settled_fence, timeout_us, idx, attempt, version, width, pending, next_idx, position, state,
	priority, settled_by, held, has_result, namespace, workflow, queue, node, key, worker, view_type, progress_type, view)
select lpad(to_hex(g), 32, '0')::uuid, lpad(to_hex(g), 32, '0')::uuid, 1, 0, 0, 0, 1, 1, 0, 0, 0, 0, 1, g % 10, 0, false, false, 'n', 'w',
	case when g % 100 = 0 then 'rare' || g % 7 else 'default' end, 'a', '', '', '', '', 'x'
from generate_series(1, 1000000) g;`
	x := newBencher(b)
	if testing.Short() {
		b.Skip("fills a table of a million rows")
	}
	conn, err := x.s.pool.Acquire(b.Context())
	x.must(err)
	for _, sql := range []string{"set statement_timeout = 0", million, "analyze"} {
		_, err := conn.Exec(b.Context(), sql, pgx.QueryExecModeSimpleProtocol)
		x.must(err)
	}
	conn.Release()
	for _, n := range []int{1, benchBatch} {
		b.Run(fmt.Sprintf("claim %d", n), func(b *testing.B) {
			for b.Loop() {
				x.claim(n)
			}
		})
	}
	b.Run("tick", func(b *testing.B) {
		for b.Loop() {
			_, err := x.s.Tick(b.Context(), "me", time.Second, true)
			x.must(err)
		}
	})
}
