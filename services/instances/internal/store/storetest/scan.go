package storetest

import (
	"slices"
	"strings"

	"github.com/wiggle-run/wiggle/services/instances/internal/machine"
	"github.com/wiggle-run/wiggle/services/instances/internal/store"
)

// Many instances are read in the order that was asked for: those that run with their first token's view, those that ended
// with their result, those that are not there as such.
func testInstances(s *shard) {
	m := chain()
	running, done, none := s.start(m, `{"a":1}`), s.start(one("w", 1), `{"a":2}`), s.newID()
	s.report(m, s.claimOne(), `{"a":3}`)
	s.report(one("w", 1), s.claimOneOf(done), `{"a":4}`)
	got, err := s.Instances(s.Context(), []machine.ID{none, done, running, none, done}, 1<<20)
	s.must(err)
	if len(got) != 5 || got[0] != nil || got[3] != nil {
		s.Fatalf("read %v", got)
	}
	for i, want := range map[int]struct {
		id       machine.ID
		state    machine.InstanceState
		context  string
		position int32
	}{
		1: {done, machine.Completed, `{"a":4}`, 2},
		2: {running, machine.Running, `{"a":3}`, 1},
		4: {done, machine.Completed, `{"a":4}`, 2},
	} {
		in := got[i]
		if in.ID != want.id || in.State != want.state || string(in.Context.Data) != want.context || in.Workflow == "" ||
			in.CreatedAt.IsZero() || in.EndedAt.IsZero() == want.state.Terminal() {
			s.Errorf("%d: read %+v with %s, want %+v", i, in, in.Context.Data, want)
		}
		if view := s.view(want.id).Instance; view.Position != in.Position {
			s.Errorf("%d: the position is %d, and %d alone", i, in.Position, view.Position)
		}
	}
	if got, err = s.Instances(s.Context(), nil, 1); len(got) != 0 || err != nil {
		s.Errorf("none of none: %v, %v", got, err)
	}
}

// An answer ends before its contexts become too many bytes; the first is always in it.
func testInstancesBytes(s *shard) {
	m, large := one("w", 1), `"`+strings.Repeat("x", 5000)+`"`
	var ids []machine.ID
	for range 4 {
		ids = append(ids, s.start(m, large))
	}
	for most, want := range map[int]int{1: 1, 5002: 1, 5003: 1, 10_004: 2, 1 << 20: 4} {
		got, err := s.Instances(s.Context(), ids, most)
		s.must(err)
		if len(got) != want {
			s.Errorf("within %d bytes %d were read, want %d", most, len(got), want)
		}
		list, more, err := s.Scan(s.Context(), store.Scan{Limit: 4, MaxBytes: most})
		s.must(err)
		if len(list) != want || more != (want < 4) {
			s.Errorf("within %d bytes %d were scanned, want %d; more: %t", most, len(list), want, more)
		}
	}
}

// A scan goes over all instances by id, whatever their namespace, and a filter narrows it.
func testScan(s *shard) {
	v, w := one("v", 1), one("w", 1)
	var all, ofW []machine.ID
	for i := range 11 {
		switch i % 3 {
		case 0:
			all = append(all, s.start(v, `1`))
		case 1:
			id := s.start(w, `2`)
			all, ofW = append(all, id), append(ofW, id)
		default:
			all = append(all, s.start(w, `3`, in("other")))
		}
	}
	s.cancel(v, all[0])
	for name, test := range map[string]struct {
		scan store.Scan
		want []machine.ID
	}{
		"all":       {store.Scan{}, all},
		"namespace": {store.Scan{Namespace: "other"}, []machine.ID{all[2], all[5], all[8]}},
		"workflow":  {store.Scan{Namespace: namespace, Workflow: "w"}, ofW},
		"heads":     {store.Scan{HeadsOnly: true}, all},
		"none":      {store.Scan{Namespace: "none"}, nil},
	} {
		test.scan.Limit, test.scan.MaxBytes = 3, 1<<20
		var got []machine.ID
		for more := true; more; {
			var list []*machine.Instance
			var err error
			list, more, err = s.Scan(s.Context(), test.scan)
			s.must(err)
			if more && len(list) != 3 {
				s.Errorf("%s: a page has %d, and more are to come", name, len(list))
			}
			for _, in := range list {
				got = append(got, in.ID)
				if in.Context.Absent() != test.scan.HeadsOnly || in.Position == 0 || in.Version != 1 {
					s.Errorf("%s: scanned %+v", name, in)
				}
			}
			if len(list) > 0 {
				test.scan.After = list[len(list)-1].ID
			}
		}
		if !slices.Equal(got, test.want) {
			s.Errorf("%s: scanned %x, want %x", name, got, test.want)
		}
	}
}

// claimOneOf claims the token of an instance, among those that stand ready.
func (s *shard) claimOneOf(id machine.ID) store.Claimed {
	s.Helper()
	for _, c := range s.claim(100) {
		if c.Token.Instance == id {
			return c
		}
	}
	s.Fatalf("instance %x has no token to claim", id)
	return store.Claimed{}
}
