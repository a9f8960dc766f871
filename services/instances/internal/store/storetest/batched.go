package storetest

import (
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	"github.com/wiggle-run/wiggle/services/instances/internal/machine"
	"github.com/wiggle-run/wiggle/services/instances/internal/store"
)

// again is a workflow of two steps and a for_each that a gate repeats, in batched mode.
func again() *machine.Machine {
	m := compile("again", 1, "a", map[string]*wigglev1.Node{
		"a": task("b", nil), "b": task("each", nil),
		"each": each(0), "body": task("join", nil), "join": join("combine"), "combine": task("more", nil),
		"more": {Kind: &wigglev1.Node_Gate{Gate: &wigglev1.GateNode{Next: "each", Otherwise: "end"}}}, "end": end(),
	})
	m.Graph().Batched = true
	return m
}

// reportBatch reports a result and what followed it.
func (s *shard) reportBatch(m *machine.Machine, c store.Claimed, result string, following ...machine.Following) {
	s.Helper()
	ev := machine.Report{Fence: c.Token.Fence, Worker: worker, Kind: machine.OutcomeResult, Result: json(result)}
	s.must(s.update(on(c), c.Token.Instance, func(w *store.World) (*machine.Changes, error) {
		return m.ReportBatch(s.env(w.Now), w.State(c.Token.Instance, c.Token.ID), ev, following)
	}))
}

// Several steps in one event: the token's last state counts, a fan-out may be among
// what it brings, also of the token whose combine came first, and each lease is known
// afterwards (WRK-14, WRK-5).
func testBatchedSteps(s *shard) {
	m := again()
	id := s.start(m, `0`)
	first := s.claimOne()
	s.reportBatch(m, first, `1`, machine.Following{Node: "b", Report: machine.Report{Kind: machine.OutcomeResult, Result: json(`[1,2]`)}})
	s.expect(id, machine.Running, `[1,2]`)
	if v := s.view(id); v.Active != 3 {
		s.Errorf("%d tokens after the fan-out", v.Active)
	}
	gate := machine.Report{Kind: machine.OutcomeGate, Gate: true}
	for _, next := range []string{`[3,4,5]`, `"done"`} {
		for _, c := range s.claim(10) {
			s.report(m, c, `"element"`)
		}
		combine := s.claimOne()
		s.reportBatch(m, combine, next, machine.Following{Node: "more", Report: gate})
		gate.Gate = false
		if v := s.view(id); next == `[3,4,5]` && (v.Active != 4 || v.Instance.State != machine.Running) {
			s.Errorf("%d tokens after the second fan-out", v.Active)
		}
	}
	s.expect(id, machine.Completed, `"done"`)
	for fence := range int64(6) {
		keys := on(first)
		keys.Leases[0].Fence = fence + 1
		s.must(s.Update(s.Context(), keys, func(w *store.World) error {
			if got := w.Settled(keys.Leases[0]); got.Fence != fence+1 || got.By != machine.ByReport {
				s.Errorf("lease %d is settled as %+v", fence+1, got)
			}
			return nil
		}))
	}
	var next int32
	rows, err := s.History(s.Context(), id, store.HistoryKey{}, 1000)
	s.must(err)
	for _, r := range rows {
		if r.Key.Token == id {
			if r.Entry.GetPosition() != next {
				s.Errorf("the history goes on with position %d, want %d", r.Entry.GetPosition(), next)
			}
			next++
		}
	}
}
