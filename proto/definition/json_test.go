package definition_test

import (
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/wiggle-run/wiggle/proto/definition"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
)

func randomBytes(seed uint64) []byte {
	r := rand.New(rand.NewPCG(seed, 1))
	data := make([]byte, 4+r.IntN(80))
	for i := range data {
		data[i] = byte(r.Uint32())
	}
	return data
}

// TestFromJSONFaults names the place and the nearest known name.
func TestFromJSONFaults(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ text, want string }{
		"empty":    {"", "line 1, column 1: the text ends in the middle of a value"},
		"cut":      {"{\n \"name\": \"x\"", "line 2, column 13: the text ends in the middle of a value"},
		"not JSON": {"{\"name\": x}", "line 1, column 10: invalid character 'x' looking for beginning of value"},
		"more":     {"{}\n {}", "line 2, column 2: there is more after the definition"},
		"list":     {"[]", "line 1, column 1: unexpected token ["},
		"unknown fields": {
			"{\n  \"nam\": \"x\",\n  \"nodes\": {\n    \"a\": {\"tsk\": {}},\n    \"b\": {\"task\": {\"nxt\": \"c\", \"step\": {\"zzz\": [{}]}}}\n  }\n}",
			"line 2, column 3: unknown field \"nam\" of Definition; did you mean \"name\"?\n" +
				"line 4, column 11: unknown field \"tsk\" of Node; did you mean \"task\"?\n" +
				"line 5, column 20: unknown field \"nxt\" of TaskNode; did you mean \"next\"?\n" +
				"line 5, column 41: unknown field \"zzz\" of Step",
		},
		"in a list": {
			`{"nodes": {"f": {"fork": {"branches": [{"name": "a", "strat": "b"}]}}}}`,
			`line 1, column 54: unknown field "strat" of Branch; did you mean "start"?`,
		},
		"duplicate": {
			"{\"nodes\": {\"a\": {\"end\": {}},\n\"a\": {\"end\": {}}}}",
			`line 2, column 1: duplicate key "a"`,
		},
		"two spellings": {
			`{"nodes": {"a": {"for_each": {}, "forEach": {}}}}`, `line 1, column 34: duplicate field "forEach"`,
		},
		"null kind":  {`{"nodes": {"a": {"end": null}}}`, `line 1, column 25: "end" is null; write {} for one without settings`},
		"two kinds":  {`{"nodes": {"a": {"end": {}, "task": {}}}}`, `line 1, column 29: error parsing "task", oneof wiggle.v1.Node.kind is already set`},
		"wrong type": {"{\"name\":\n 7}", `line 2, column 2: invalid value for string field name: 7`},
		"duration":   {`{"defaults": {"timeout": "5 minutes"}}`, `line 1, column 26: invalid google.protobuf.Duration value "5 minutes"`},
		"wrong map":  {`{"nodes": [{"x": 1}]}`, `line 1, column 11: unexpected token [`},
		"wrong list": {`{"nodes": {"f": {"fork": {"branches": {"a": "b"}}}}}`, `line 1, column 39: unexpected token {`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := definition.FromJSON([]byte(c.text))
			if err == nil || err.Error() != c.want {
				t.Errorf("got  %v\nwant %s", err, c.want)
			}
		})
	}
}

// TestFromJSONSpellings takes both spellings of names.
func TestFromJSONSpellings(t *testing.T) {
	t.Parallel()
	snake, err := definition.FromJSON([]byte(`{"nodes": {"a": {"for_each": {"max_in_flight": 3}}}}`))
	if err != nil {
		t.Fatal(err)
	}
	camel, err := definition.FromJSON([]byte(`{"nodes": {"a": {"forEach": {"maxInFlight": 3}}}}`))
	if err != nil {
		t.Fatal(err)
	}
	if definition.Fingerprint(snake) != definition.Fingerprint(camel) {
		t.Error("the spellings differ")
	}
}

// TestFromJSONDeep reads text that is nested deeply without using up the stack.
func TestFromJSONDeep(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		strings.Repeat("[", 1<<20),
		`{"x":` + strings.Repeat("[", 1<<20) + strings.Repeat("]", 1<<20) + "}",
		strings.Repeat(`{"nodes":`, 1<<17),
	} {
		began := time.Now()
		if _, err := definition.FromJSON([]byte(text)); err == nil {
			t.Error("no error")
		}
		if took := time.Since(began); took > 20*time.Second {
			t.Errorf("took %s", took)
		}
	}
}

// TestToJSONRefuses tells of what JSON cannot hold.
func TestToJSONRefuses(t *testing.T) {
	t.Parallel()
	for _, d := range []*wigglev1.Definition{
		{Name: "\xff"},
		{Defaults: &wigglev1.Defaults{Timeout: &durationpb.Duration{Seconds: 1 << 60}}},
	} {
		if text, err := definition.ToJSON(d); err == nil {
			t.Errorf("wrote %s", text)
		}
	}
}
