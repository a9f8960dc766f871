package machine_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	"github.com/wiggle-run/wiggle/services/instances/internal/machine"
)

func emit(kind, payload string) machine.Emitted {
	return machine.Emitted{Type: kind, Payload: machine.Payload{Data: []byte(payload)}}
}

// leased starts an instance whose first token is leased at its first step.
func leased(t *testing.T, nodes map[string]*wigglev1.Node) *run {
	t.Helper()
	r := start(t, "a", nodes, `{}`)
	c, err := machine.Claim(r.now, r.at("a"), "w", 0)
	if err != nil {
		t.Fatal(err)
	}
	r.tokens[c.ID] = c
	return r
}

func (r *run) reportEvents(events ...machine.Emitted) (*machine.Changes, error) {
	id := machine.ID{1}
	return r.m.Report(r.env(), r.state(id), machine.Report{Fence: r.tokens[id].Fence, Kind: machine.OutcomeUnchanged, Events: events})
}

// What a handler emits comes before what becomes of the instance with its report, and all of a change bear the
// revision that it leaves (EVT-1).
func TestEvents(t *testing.T) {
	t.Parallel()
	r := leased(t, map[string]*wigglev1.Node{"a": task("end"), "end": end()})
	c, err := r.reportEvents(emit("one", `{"n":1}`), machine.Emitted{Type: "two"})
	if err != nil {
		t.Fatal(err)
	}
	want := []machine.Event{
		{Type: "one", Node: "a", Payload: []byte(`{"n":1}`)}, {Type: "two", Node: "a", Payload: []byte(`{}`)}, {Type: machine.EventCompleted},
	}
	if !slices.EqualFunc(c.Events, want, func(got, want machine.Event) bool {
		return got.Type == want.Type && got.Node == want.Node && string(got.Payload) == string(want.Payload) && got.Revision == c.Instance.Position
	}) {
		t.Errorf("events are %+v of revision %d, want %+v", c.Events, c.Instance.Position, want)
	}
}

// A step in the middle leaves the instance as it is; its events bear the revision all the same.
func TestEventsOfAStep(t *testing.T) {
	t.Parallel()
	r := leased(t, map[string]*wigglev1.Node{"a": task("b"), "b": task("end"), "end": end()})
	c, err := r.reportEvents(emit("x", `{}`))
	if err != nil || c.Instance != nil || len(c.Events) != 1 || c.Events[0].Revision != r.instance.Position {
		t.Errorf("changes are %+v, %v", c, err)
	}
}

// What is no event is refused with its report, and nothing of that is applied (EVT-1).
func TestEventsRefused(t *testing.T) {
	t.Parallel()
	limit := machine.DefaultLimits().EventBytes
	object := func(size int) string { return `{"a":"` + strings.Repeat("x", size-len(`{"a":""}`)) + `"}` }
	many := make([]machine.Emitted, 101)
	for i := range many {
		many[i].Type = "x"
	}
	for name, test := range map[string]struct {
		events []machine.Emitted
		want   string // part of the error; empty: taken
	}{
		"the engine's":      {[]machine.Emitted{emit("ok", `{}`), emit("wf.started", `{}`)}, "engine's own"},
		"the engine's one":  {[]machine.Emitted{emit("wf.", `{}`)}, "engine's own"},
		"like the engine's": {[]machine.Emitted{emit("wf", `{}`), emit("wfx.started", `{}`), emit("WF.x", `{}`)}, ""},
		"no type":           {[]machine.Emitted{emit("", `{}`)}, "is no type"},
		"a space":           {[]machine.Emitted{emit("a b", `{}`)}, "is no type"},
		"not ASCII":         {[]machine.Emitted{emit("größe", `{}`)}, "is no type"},
		"a point first":     {[]machine.Emitted{emit(".a", `{}`)}, "is no type"},
		"a long type":       {[]machine.Emitted{emit(strings.Repeat("x", 129), `{}`)}, "is no type"},
		"the longest type":  {[]machine.Emitted{emit(strings.Repeat("x", 128), `{}`), emit("0.A_b-c", `{}`)}, ""},
		"a list":            {[]machine.Emitted{emit("x", `[]`)}, "no JSON object"},
		"a text":            {[]machine.Emitted{emit("x", `"{}"`)}, "no JSON object"},
		"nothing":           {[]machine.Emitted{emit("x", "")}, "no JSON object"},
		"half an object":    {[]machine.Emitted{emit("x", `{"a":`)}, "no JSON object"},
		"two objects":       {[]machine.Emitted{emit("x", `{}{}`)}, "no JSON object"},
		"spaces":            {[]machine.Emitted{emit("x", " \n{\t} ")}, ""},
		"not JSON": {
			[]machine.Emitted{{Type: "x", Payload: machine.Payload{ContentType: "image/png", Data: []byte("{}")}}},
			"want a JSON object",
		},
		"too large":     {[]machine.Emitted{emit("x", object(limit+1))}, "over the limit"},
		"just so large": {[]machine.Emitted{emit("x", object(limit))}, ""},
		"too many":      {many, "at most 100"},
		"just so many":  {many[:100], ""},
	} {
		r := leased(t, map[string]*wigglev1.Node{"a": task("end"), "end": end()})
		c, err := r.reportEvents(test.events...)
		if test.want == "" {
			if err != nil || len(c.Events) != len(test.events)+1 {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		var refused *machine.EmitError
		var large *machine.LimitError
		if c != nil || err == nil || !strings.Contains(err.Error(), test.want) || !errors.As(err, &refused) && !errors.As(err, &large) {
			t.Errorf("%s: %v, want one that says %q", name, err, test.want)
		}
	}
}
