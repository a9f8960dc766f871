package storetest

import (
	"bytes"
	"reflect"
	"time"

	"google.golang.org/protobuf/proto"

	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	"github.com/wiggle-run/wiggle/services/instances/internal/machine"
	"github.com/wiggle-run/wiggle/services/instances/internal/store"
)

// A payload comes back as it went in, to the byte.
func testPayloads(s *shard) {
	m := chain()
	for name, p := range map[string]machine.Payload{
		"big integer":  json(`{"n":9007199254740993,"m":123456789012345678901234567890,"f":1.10}`),
		"unicode":      json("{\"é\":\"\\u0000 🙂\"} \n"),
		"empty bytes":  {ContentType: "application/octet-stream", Data: []byte{}},
		"binary":       {ContentType: "application/x-protobuf", Data: []byte{0, 1, 2, 0xff, 0}},
		"large":        {ContentType: "text/plain; charset=utf-8", Data: bytes.Repeat([]byte("0123456789abcdef"), 1<<14)},
		"invalid utf8": {ContentType: "text/plain", Data: []byte{0xc3, 0x28}},
	} {
		id := s.start(m, "", func(ev *machine.Start) { ev.Input = p })
		c := s.claimOne()
		if !same(c.Token.View, p) || !same(s.view(id).Instance.Context, p) {
			s.Errorf("%s: claimed with %q %.50q", name, c.Token.View.ContentType, c.Token.View.Data)
		}
		s.report(m, c, "") // leaves it
		c = s.claimOne()
		if !same(c.Token.View, p) {
			s.Errorf("%s: after a step %q %.50q", name, c.Token.View.ContentType, c.Token.View.Data)
		}
		ev := machine.Report{Fence: c.Token.Fence, Kind: machine.OutcomeResult, Result: p}
		s.must(s.update(on(c), id, func(w *store.World) (*machine.Changes, error) {
			return m.Report(s.env(w.Now), w.State(id, id), ev)
		}))
		if got := s.view(id).Instance; got.State != machine.Completed || !same(got.Context, p) {
			s.Errorf("%s: ended with %q %.50q", name, got.Context.ContentType, got.Context.Data)
		}
	}
}

func same(a, b machine.Payload) bool {
	return a.ContentType == b.ContentType && bytes.Equal(a.Data, b.Data) && a.Absent() == b.Absent()
}

// Every field of an instance and a token is kept: written with values of their own
// first, then with others, then with zeros.
func testEveryField(s *shard) {
	base := time.Date(2026, 1, 2, 3, 4, 5, 678901000, time.UTC)
	in := &machine.Instance{
		ID: s.newID(), Namespace: namespace, Workflow: "w", Version: 3, State: machine.Running, Priority: 9, CreatedAt: base,
		Trace: map[string]string{"traceparent": "00-ab", "tracestate": "ü=1", "empty": ""}, Position: 4,
	}
	full := &machine.Token{
		ID: in.ID, Instance: in.ID, Node: "n", State: machine.Leased, Held: true, DueAt: base, Attempt: 2, Fence: 1 << 40,
		Queue: "q", Priority: 7, Timeout: 3 * time.Second, QueuedAt: base.Add(time.Second), Worker: "w-ü",
		LeasedAt:   base.Add(2 * time.Second),
		LeaseUntil: base.Add(3 * time.Second), Deadline: base.Add(4 * time.Second),
		View:      machine.Payload{ContentType: "a/b", Data: []byte("v")},
		HasResult: true, Progress: machine.Payload{ContentType: "c/d", Data: []byte("p")},
		Failure: &wigglev1.Failure{Type: "T", Message: "m"},
		Width:   3, Pending: 2, Next: 1, Loops: map[string]int32{"g": 5, "h": 1 << 30}, Position: 6,
		Settled: machine.Settled{Fence: 1<<40 - 1, By: machine.ByFailure, RetryAt: base.Add(5 * time.Second)},
	}
	child := full.Clone()
	child.ID, child.Parent, child.Index, child.Key, child.View = s.newID(), in.ID, 2, "key-ü", machine.Payload{}
	s.put(in.ID, &machine.Changes{Instance: in, Created: []*machine.Token{full, child}})
	s.loaded(in, full, child)

	other := full.Clone()
	other.Node, other.State, other.Held, other.DueAt, other.Queue = "o", machine.Joined, false, base.Add(time.Hour), "p"
	other.View, other.Progress = json(`1`), machine.Payload{Data: []byte{}}
	other.Failure, other.Loops = &wigglev1.Failure{Type: "U"}, map[string]int32{"i": 1}
	s.put(in.ID, &machine.Changes{Updated: []*machine.Token{other}})
	s.loaded(in, other, child)

	bare := &machine.Token{ID: in.ID, Instance: in.ID, State: machine.Ready, View: other.View}
	changed := in.Clone()
	changed.Position, changed.Failure, changed.EndedAt = 9, &wigglev1.Failure{Type: "F"}, base.Add(time.Minute)
	s.put(in.ID, &machine.Changes{Instance: changed, Updated: []*machine.Token{bare}})
	s.loaded(changed, bare, child)
}

// put writes changes that no event made.
func (s *shard) put(id machine.ID, c *machine.Changes) {
	s.Helper()
	tokens := make([]machine.ID, 0, len(c.Updated))
	for _, t := range c.Updated {
		tokens = append(tokens, t.ID)
	}
	keys := store.Keys{Instances: []machine.ID{id}, Tokens: tokens}
	s.must(s.update(keys, id, func(*store.World) (*machine.Changes, error) { return c, nil }))
}

// loaded checks what an Update sees. The last token's parent is the first.
func (s *shard) loaded(in *machine.Instance, tokens ...*machine.Token) {
	s.Helper()
	last := tokens[len(tokens)-1]
	s.must(s.Update(s.Context(), store.Keys{Instances: []machine.ID{in.ID}, Tokens: []machine.ID{last.ID}}, func(w *store.World) error {
		if got := w.Instance(in.ID); !equalInstance(got, in) {
			s.Errorf("loaded %+v, want %+v", got, in)
		}
		st := w.State(in.ID, last.ID)
		for i, got := range []*machine.Token{st.Parent, st.Token} {
			if got == nil || !equalToken(got, tokens[i]) {
				s.Errorf("loaded %+v, want %+v", got, tokens[i])
			}
		}
		return nil
	}))
}

func equalToken(a, b *machine.Token) bool {
	if !proto.Equal(a.Failure, b.Failure) {
		return false
	}
	a, b = a.Clone(), b.Clone()
	a.Failure, b.Failure = nil, nil
	return reflect.DeepEqual(a, b)
}

func equalInstance(a, b *machine.Instance) bool {
	if a == nil || !proto.Equal(a.Failure, b.Failure) {
		return false
	}
	a, b = a.Clone(), b.Clone()
	a.Failure, b.Failure = nil, nil
	a.Context, b.Context = machine.Payload{}, machine.Payload{}
	return reflect.DeepEqual(a, b)
}
