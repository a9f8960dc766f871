package definitionfile_test

import (
	"encoding/hex"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/wiggle-run/wiggle/pkg/definitionfile"
	"github.com/wiggle-run/wiggle/proto/definition"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
)

const order = `# An order, from the cart to the label.
---
name: order-fulfilment
start: validate
defaults:
  {retry: {max_attempts: 5, initial_backoff: 0.1s}, mode: MODE_BATCHED}
nodes:
  validate:
    task: {next: "in-stock"}
  in-stock:
    gate:
      next: pay
  pay:
    fork:
      branches:
        - {name: payment, start: authorise}
        - name: shipping
          start: 1
      join: joined
  authorise: {task: {next: joined}}
  1:
    task:
      step:
        name: >-
          reserve
          stock
      next: joined
  joined: {join: {next: merge}}
  merge: {task: {next: done}}
  done: {end: {}}
...
`

// TestYAML_WF22 reads the same graph from YAML and JSON.
func TestYAML_WF22(t *testing.T) {
	t.Parallel()
	text := strings.Replace(order, "start: 1\n", "start: \"1\"\n", 1)
	for name, text := range map[string]string{"a.yaml": text, "a.YML": "\uFEFF" + strings.ReplaceAll(text, "\n", "\r\n")} {
		d, err := definitionfile.Parse(name, []byte(text))
		if err != nil {
			t.Fatal(err)
		}
		if p := definition.Validate(d, definition.DefaultLimits()); p != nil {
			t.Fatal(p)
		}
		if got := d.GetNodes()["1"].GetTask().GetStep().GetName(); got != "reserve stock" {
			t.Errorf("%s: step name %q", name, got)
		}
		if got := d.GetDefaults().GetMode(); got != wigglev1.Mode_MODE_BATCHED {
			t.Errorf("%s: mode %v", name, got)
		}
		written, err := definition.ToJSON(d)
		if err != nil {
			t.Fatal(err)
		}
		back, err := definitionfile.Parse("a.json", written)
		if err != nil {
			t.Fatal(err)
		}
		if a, b := definition.Fingerprint(d), definition.Fingerprint(back); a != b {
			t.Errorf("%s: YAML %s, JSON %s", name, hex.EncodeToString(a[:]), hex.EncodeToString(b[:]))
		}
	}
}

// TestFaults_WF22 names the place in the file.
func TestFaults_WF22(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ file, text, want string }{
		"ending":       {"a.toml", "", "a.toml: the name must end in .yaml, .yml or .json"},
		"empty":        {"a.yaml", "", "a.yaml:1:1: the file is empty"},
		"comment only": {"a.yaml", "# nothing\n", "a.yaml:1:1: the file is empty"},
		"not a number": {"a.yaml", order, `a.yaml:18:18: invalid value for string field start: 1; put it in quotes`},
		"unknown fields": {
			"a.yaml", "nam: x\nnodes:\n  a:\n    task:\n      nxt: b\n    tsak: {}\n",
			"a.yaml:1:1: unknown field \"nam\" of Definition; did you mean \"name\"?\n" +
				"a.yaml:5:7: unknown field \"nxt\" of TaskNode; did you mean \"next\"?\n" +
				"a.yaml:6:5: unknown field \"tsak\" of Node; did you mean \"task\"?",
		},
		"kind without settings": {
			"a.yaml", "nodes:\n  done:\n    end:\n", `a.yaml:3:10: "end" is null; write {} for one without settings`,
		},
		"duplicate":        {"a.yaml", "name: x\nstart: a\nname: y\n", `a.yaml:3:1: mapping key "name" already defined at [1:1]`},
		"two documents":    {"a.yaml", "name: x\n---\nname: y\n", "a.yaml:3:5: there is a second document; a file holds one definition"},
		"anchor":           {"a.yaml", "name: &n x\nstart: *n\n", "a.yaml:1:7: anchors are not supported: write the value out"},
		"alias":            {"a.yaml", "start: *n\n", "a.yaml:1:8: aliases are not supported: write the value out, or quote a text that begins with \"*\""},
		"merge key":        {"a.yaml", "<<: {name: x}\n", "a.yaml:1:1: merge keys are not supported: write the fields out"},
		"tag":              {"a.yaml", "name: !!str x\n", "a.yaml:1:7: tags are not supported; quote a text that begins with \"!\""},
		"directive":        {"a.yaml", "%YAML 1.2\n---\nname: x\n", "a.yaml:1:1: directives are not supported"},
		"complex key":      {"a.yaml", "? name\n: x\n", "a.yaml:1:1: complex keys (\"?\") are not supported"},
		"duration":         {"a.yaml", "defaults:\n  timeout: 5\n", "a.yaml:2:12: unexpected token 5"},
		"list":             {"a.yaml", "- a\n", "a.yaml:1:1: unexpected token ["},
		"scalar":           {"a.yaml", "a\n", `a.yaml:1:1: unexpected token "a"`},
		"broken":           {"a.yaml", "name: \"x\nstart: y\n", `a.yaml:1:7: could not find end character of double-quoted text`},
		"not UTF-8":        {"a.yaml", "name: x\nstart: \xff\n", "a.yaml:2:8: the text is not UTF-8, or has a NUL character"},
		"NUL":              {"a.json", "{\"name\": \"\x00\"}", "a.json:1:11: the text is not UTF-8, or has a NUL character"},
		"JSON":             {"a.json", "{\n  \"nam\": \"x\"}", "a.json:2:3: unknown field \"nam\" of Definition; did you mean \"name\"?"},
		"too large":        {"a.json", strings.Repeat(" ", definitionfile.MaxBytes+1), "a.json: the file has 4194305 bytes; the limit is 4194304"},
		"too large number": {"a.yaml", "version: 1e999\n", `a.yaml:1:10: invalid value for int32 field version: "1e999"`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := definitionfile.Parse(c.file, []byte(c.text))
			var e *definitionfile.Error
			if !errors.As(err, &e) || err.Error() != c.want {
				t.Errorf("got  %v\nwant %s", err, c.want)
			}
		})
	}
}

// TestBombs_WF22 refuses what would use up memory, the stack or time.
func TestBombs_WF22(t *testing.T) {
	t.Parallel()
	const n = definitionfile.MaxBytes / 16
	deep := &strings.Builder{}
	for i := range 2000 {
		deep.WriteString(strings.Repeat(" ", i) + "a:\n")
	}
	for name, text := range map[string]string{
		"flow lists":    strings.Repeat("[", n),
		"flow mappings": strings.Repeat("{a: ", n/4),
		"compact lists": strings.Repeat("- ", n/2),
		"indentation":   deep.String(),
		"anchors":       strings.Repeat("&a ", n/3),
		"tags":          strings.Repeat("!!a ", n/4),
		"keys":          strings.Repeat("? ", n/2),
		"colons":        strings.Repeat("a: ", n/3),
		"quotes":        strings.Repeat("'", n),
		"comments":      strings.Repeat("#\n", n/2),
		"block":         "a: |\n" + strings.Repeat("  x\n", n/4),
		"documents":     strings.Repeat("---\n", n/4),
		"laughs":        "a: &a [x, x]\nb: &b [*a, *a]\nc: &c [*b, *b]\n",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			began := time.Now()
			if _, err := definitionfile.Parse("a.yaml", []byte(text)); err == nil {
				t.Error("no error")
			} else if len(err.Error()) > 1000 {
				t.Errorf("error of %d bytes: %.100s", len(err.Error()), err)
			}
			if took := time.Since(began); took > 20*time.Second {
				t.Errorf("took %s", took)
			} else {
				t.Logf("took %s", took)
			}
		})
	}
}

// FuzzParse reads anything as YAML, and reads what it read back from JSON.
func FuzzParse(f *testing.F) {
	f.Add([]byte(order))
	f.Add([]byte("name: 'x'\nnodes: {a: {end: {reason: |\n  x\n}}}\n"))
	f.Add([]byte("{\"name\": \"x\", \"nodes\": {\"a\": {\"task\": {\"next\": \"b\"}}}}"))
	f.Add([]byte("a: [1, 0x1, 0o7, .inf, -.inf, .nan, 1e3, ~, null, true, >\n x\n]\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		d, err := definitionfile.Parse("a.yaml", text)
		if err != nil {
			var e *definitionfile.Error
			if !errors.As(err, &e) || len(e.Faults) == 0 {
				t.Errorf("error %T %v", err, err)
			}
			return
		}
		written, err := definition.ToJSON(d)
		if err != nil {
			t.Fatal(err)
		}
		back, err := definitionfile.Parse("a.json", written)
		if err != nil {
			t.Fatalf("%v\n%s", err, written)
		}
		if definition.Fingerprint(d) != definition.Fingerprint(back) {
			t.Errorf("another graph came back:\n%s", written)
		}
	})
}
