package storetest

import (
	"bytes"
	"errors"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/wiggle-run/wiggle/services/instances/internal/machine"
	"github.com/wiggle-run/wiggle/services/instances/internal/store"
)

func testInstance(s *shard) {
	if _, err := s.Instance(s.Context(), s.newID(), 1); !errors.Is(err, store.ErrNotFound) {
		s.Errorf("an instance that is not there gives %v", err)
	}
	m := forEach(0)
	id := s.start(m, `[1,2,3]`)
	s.report(m, s.claimOne(), `0`)
	v, err := s.Instance(s.Context(), id, 2)
	s.must(err)
	// One of the branches has arrived; its token is there until the combine, but settled.
	if v.Active != 3 || len(v.Tokens) != 2 || v.Tokens[0].ID != id || v.Tokens[1].Index != 1 || v.Tokens[1].Parent != id {
		s.Errorf("%d active, listed %d: %+v", v.Active, len(v.Tokens), v.Tokens)
	}
	if string(v.Instance.Context.Data) != `[1,2,3]` {
		s.Errorf("context is %s", v.Instance.Context.Data)
	}
	if v, err = s.Instance(s.Context(), id, 0); v.Active != 3 || len(v.Tokens) != 0 || err != nil {
		s.Errorf("without tokens: %+v, %v", v, err)
	}
}

func testEnded(s *shard) {
	m := one("w", 1)
	running, done, none := s.start(m, `1`), s.start(m, `1`), s.newID()
	s.cancel(m, done)
	ended, err := s.Ended(s.Context(), []machine.ID{running, none, done})
	s.must(err)
	if slices.SortFunc(ended, compareIDs); !slices.Equal(ended, []machine.ID{done, none}) {
		s.Errorf("ended are %x, want %x and %x", ended, done, none)
	}
	if ended, err = s.Ended(s.Context(), nil); len(ended) != 0 || err != nil {
		s.Errorf("none of none: %x, %v", ended, err)
	}
}

func compareIDs(a, b machine.ID) int { return bytes.Compare(a[:], b[:]) }

func testHistoryPages(s *shard) {
	m := forEach(0)
	id := s.start(m, `[1,2,3,4,5]`)
	for range 5 {
		s.report(m, s.claimOne(), `0`)
	}
	s.report(m, s.claimOne(), `0`)
	all, err := s.History(s.Context(), id, store.HistoryKey{}, 1000)
	s.must(err)
	if len(all) < 15 || all[0].Entry.GetKind() != started || all[len(all)-1].Entry.GetKind() != completed {
		s.Fatalf("history has %d entries: %v", len(all), s.kinds(id))
	}
	var paged []store.HistoryRow
	after := store.HistoryKey{}
	for {
		page, err := s.History(s.Context(), id, after, 4)
		s.must(err)
		paged = append(paged, page...)
		if len(page) < 4 {
			break
		}
		after = page[3].Key
	}
	if !slices.EqualFunc(all, paged, func(a, b store.HistoryRow) bool { return a.Key == b.Key && a.Entry.GetKind() == b.Entry.GetKind() }) {
		s.Errorf("paged, history is %d entries, want %d", len(paged), len(all))
	}
	for _, r := range all {
		if !r.Entry.GetRecordedAt().AsTime().Equal(r.Key.RecordedAt) {
			s.Errorf("recorded at %s under key %s", r.Entry.GetRecordedAt().AsTime(), r.Key.RecordedAt)
		}
	}
	if rows, err := s.History(s.Context(), s.newID(), store.HistoryKey{}, 10); len(rows) != 0 || err != nil {
		s.Errorf("history of nothing: %v, %v", rows, err)
	}
}

// Rows that are added while a list is paged are neither repeated nor make others
// be skipped.
func testListPages(s *shard) {
	m := one("w", 1)
	var want []machine.ID
	for range 25 {
		want = append(want, s.start(m, `1`))
	}
	slices.Reverse(want)
	var got []machine.ID
	after := store.ListKey{}
	for {
		page, err := s.List(s.Context(), store.Filter{Namespace: namespace}, after, 7)
		s.must(err)
		for _, in := range page {
			got = append(got, in.ID)
		}
		if len(page) < 7 {
			break
		}
		after = store.ListKey{CreatedAt: page[6].CreatedAt, ID: page[6].ID}
		s.start(m, `1`)
	}
	if !slices.Equal(got, want) {
		s.Errorf("listed %d, want %d", len(got), len(want))
	}
	// All of one time: the id decides.
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	var same []machine.ID
	for i := range 5 {
		in := &machine.Instance{
			ID: s.newID(), Namespace: "same", Workflow: "w", Version: 1, State: machine.Running, CreatedAt: at,
			Trace: map[string]string{"i": strconv.Itoa(i)},
		}
		s.put(in.ID, &machine.Changes{Instance: in})
		same = append(same, in.ID)
	}
	first, err := s.List(s.Context(), store.Filter{Namespace: "same"}, store.ListKey{}, 2)
	s.must(err)
	rest, err := s.List(s.Context(), store.Filter{Namespace: "same"}, store.ListKey{CreatedAt: at, ID: first[1].ID}, 10)
	s.must(err)
	if len(rest) != 3 || first[0].ID != same[4] || rest[0].ID != same[2] || rest[2].ID != same[0] {
		s.Errorf("of one time: %d, then %d", len(first), len(rest))
	}
}

func testListFilters(s *shard) {
	v, w := one("v", 1), one("w", 1)
	a := s.start(v, `1`)
	b := s.start(w, `1`)
	c := s.start(w, `1`)
	s.start(w, `1`, in("other"))
	s.cancel(w, c)
	three := []machine.InstanceState{machine.Running, machine.Cancelled, machine.Failed}
	created := func(id machine.ID) time.Time { return s.view(id).Instance.CreatedAt }
	for name, test := range map[string]struct {
		filter store.Filter
		want   []machine.ID
	}{
		"all":           {store.Filter{}, []machine.ID{c, b, a}},
		"workflow":      {store.Filter{Workflow: "w"}, []machine.ID{c, b}},
		"state":         {store.Filter{States: []machine.InstanceState{machine.Running}}, []machine.ID{b, a}},
		"states":        {store.Filter{States: three}, []machine.ID{c, b, a}},
		"same state":    {store.Filter{States: []machine.InstanceState{machine.Running, machine.Running}}, []machine.ID{b, a}},
		"both":          {store.Filter{Workflow: "w", States: []machine.InstanceState{machine.Cancelled}}, []machine.ID{c}},
		"from":          {store.Filter{From: created(b)}, []machine.ID{c, b}},
		"before":        {store.Filter{Before: created(b)}, []machine.ID{a}},
		"from, before":  {store.Filter{From: created(b), Before: created(c)}, []machine.ID{b}},
		"no such state": {store.Filter{States: []machine.InstanceState{machine.Failed}}, nil},
	} {
		test.filter.Namespace = namespace
		list, err := s.List(s.Context(), test.filter, store.ListKey{}, 10)
		s.must(err)
		var got []machine.ID
		for _, in := range list {
			got = append(got, in.ID)
			if !in.Context.Absent() || in.Workflow == "" || in.Version != 1 || in.Priority != 5 {
				s.Errorf("%s: listed %+v", name, in)
			}
		}
		if !slices.Equal(got, test.want) {
			s.Errorf("%s: %x, want %x", name, got, test.want)
		}
	}
}

func testCount(s *shard) {
	v, w := one("v", 1), one("w", 1)
	for range 3 {
		s.start(v, `1`)
	}
	s.cancel(v, s.start(v, `1`))
	s.cancel(w, s.start(w, `1`))
	s.start(w, `1`, in("other"))
	for name, test := range map[string]struct {
		filter store.Filter
		want   map[machine.InstanceState]int64
	}{
		"all":      {store.Filter{}, map[machine.InstanceState]int64{machine.Running: 3, machine.Cancelled: 2}},
		"workflow": {store.Filter{Workflow: "v"}, map[machine.InstanceState]int64{machine.Running: 3, machine.Cancelled: 1}},
		"state":    {store.Filter{States: []machine.InstanceState{machine.Running}}, map[machine.InstanceState]int64{machine.Running: 3}},
		"none":     {store.Filter{Before: time.Unix(0, 0)}, map[machine.InstanceState]int64{}},
	} {
		test.filter.Namespace = namespace
		got, err := s.Count(s.Context(), test.filter)
		s.must(err)
		if !maps.Equal(got, test.want) {
			s.Errorf("%s: %v, want %v", name, got, test.want)
		}
	}
}
