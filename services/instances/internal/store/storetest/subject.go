package storetest

import (
	"slices"

	"github.com/wiggle-run/wiggle/pkg/permission"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	"github.com/wiggle-run/wiggle/services/instances/internal/machine"
	"github.com/wiggle-run/wiggle/services/instances/internal/store"
)

// Whoever may see some workflows gets lists and counts of these, and pages as if there were no others (AUT-3).
func testOnly(s *shard) {
	byName := map[string][]machine.ID{}
	for _, name := range []string{"refund", "pay", "re", "reorder", "pay_", "pa"} {
		s.register(name, 1, name)
		m := one(name, 1)
		for range 3 {
			byName[name] = append(byName[name], s.start(m, `1`))
		}
		s.cancel(m, byName[name][0])
		s.start(m, `1`, in("other"))
	}
	for _, test := range []struct {
		filter store.Filter
		only   permission.Names
		want   []string
	}{
		{want: nil},
		{only: permission.Names{Exact: []string{"pay"}}, want: []string{"pay"}},
		{
			only: permission.Names{Exact: []string{"none", "pay_"}, Prefixes: []string{"re"}},
			want: []string{"refund", "re", "reorder", "pay_"},
		},
		{only: permission.Names{Prefixes: []string{"pay", "ref", "x"}}, want: []string{"refund", "pay", "pay_"}},
		{filter: store.Filter{Workflow: "pay"}, only: permission.Names{Prefixes: []string{"pa"}}, want: []string{"pay"}},
		{filter: store.Filter{Workflow: "pay"}, only: permission.Names{Prefixes: []string{"re"}}, want: nil},
	} {
		var want []machine.ID
		counts := map[machine.InstanceState]int64{}
		for _, name := range test.want {
			want = append(want, byName[name]...)
			counts[machine.Running] += 2
			counts[machine.Cancelled]++
		}
		slices.SortFunc(want, func(a, b machine.ID) int { return compareIDs(b, a) })
		test.filter.Namespace, test.filter.Only = namespace, &test.only
		var got []machine.ID
		for after := (store.ListKey{}); ; {
			page, err := s.List(s.Context(), test.filter, after, 2)
			s.must(err)
			for _, in := range page {
				got = append(got, in.ID)
				after = store.ListKey{CreatedAt: in.CreatedAt, ID: in.ID}
			}
			if len(page) < 2 {
				break
			}
		}
		if !slices.Equal(got, want) {
			s.Errorf("%+v: listed %x, want %x", test.only, got, want)
		}
		n, err := s.Count(s.Context(), test.filter)
		s.must(err)
		if len(n) != len(counts) || n[machine.Running] != counts[machine.Running] || n[machine.Cancelled] != counts[machine.Cancelled] {
			s.Errorf("%+v: counted %v, want %v", test.only, n, counts)
		}
	}
}

func testInstanceSubjects(s *shard) {
	a, b := s.start(one("v", 1), `1`), s.start(one("w", 1), `1`, in("other"))
	got, err := s.InstanceSubjects(s.Context(), []machine.ID{b, s.newID(), a, b})
	s.must(err)
	v, w := store.Subject{Namespace: namespace, Workflow: "v"}, store.Subject{Namespace: "other", Workflow: "w"}
	if !slices.Equal(got, []store.Subject{w, {}, v, w}) {
		s.Errorf("the subjects are %+v", got)
	}
	if got, err = s.InstanceSubjects(s.Context(), nil); len(got) != 0 || err != nil {
		s.Errorf("of none: %v, %v", got, err)
	}
}

// A task is where its token is leased, else where its lease was settled, else where its token stands; of what is gone without
// a word the instance alone is known.
func testTaskSteps(s *shard) {
	m := compile("w", 1, "a", map[string]*wigglev1.Node{
		"a": task("b", &wigglev1.Step{Queue: "qa"}), "b": task("end", &wigglev1.Step{Queue: "qb"}), "end": end(),
	})
	at := func(queue string) func(*store.Claim) {
		return func(c *store.Claim) { c.Queues = []string{queue} }
	}
	id := s.start(m, `1`)
	expect := func(when string, fence int64, queue, node string) {
		s.Helper()
		got, err := s.TaskSteps(s.Context(), []store.Lease{{Instance: id, Token: id, Fence: fence}, {Token: s.newID()}})
		s.must(err)
		want := store.TaskStep{Namespace: namespace, Queue: queue, Workflow: "w", Version: 1, Node: node}
		if got[0] != want || got[1] != (store.TaskStep{}) {
			s.Errorf("%s: lease %d is at %+v, want %+v, and none is at %+v", when, fence, got[0], want, got[1])
		}
	}
	expect("ready", 0, "qa", "")
	first := s.claimOne(at("qa"))
	expect("leased", first.Token.Fence, "qa", "")
	expect("leased, under a lease to come", first.Token.Fence+1, "qa", "")
	s.report(m, first, `2`)
	expect("reported", first.Token.Fence, "", "a")
	expect("reported, whichever lease", 0, "qb", "")
	second := s.claimOne(at("qb"))
	expect("the next leased", first.Token.Fence, "", "a")
	expect("the next leased", second.Token.Fence, "qb", "")
	s.report(m, second, `3`)
	s.expect(id, machine.Completed, `3`)
	expect("ended", first.Token.Fence, "", "a")
	expect("ended", 0, "", "b")
	expect("ended, under a lease that never was", 77, "", "")

	id = s.start(m, `1`)
	c := s.claimOne(at("qa"))
	s.cancel(m, id)
	expect("cancelled while leased", c.Token.Fence, "", "")
}
