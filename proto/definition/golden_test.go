package definition_test

import (
	"bytes"
	"encoding/hex"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/wiggle-run/wiggle/proto/definition"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
)

var update = flag.Bool("update", false, "write the golden files")

// TestValid_WF7 finds no problems in the valid definitions, and compares the
// resolved graph with the golden one.
func TestValid_WF7(t *testing.T) {
	t.Parallel()
	eachFixture(t, "testdata/valid", 12, func(t *testing.T, path string, d *wigglev1.Definition) {
		if p := definition.Validate(d, definition.DefaultLimits()); p != nil {
			t.Fatal(p)
		}
		g, p := definition.Analyze(d)
		if p != nil {
			t.Fatal(p)
		}
		compare(t, strings.TrimSuffix(path, ".json")+".graph", []byte(dump(g)))
	})
}

// dump writes a graph with a line for each node, leaving out what is zero.
func dump(g *definition.Graph) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s version=%d start=%s", g.Name, g.Version, g.Start)
	if g.Batched {
		b.WriteString(" batched")
	}
	b.WriteByte('\n')
	for i := range g.Nodes {
		n := &g.Nodes[i]
		fmt.Fprintf(&b, "%s %s", n.ID, n.Kind)
		v := reflect.ValueOf(*n)
		for j := range v.NumField() {
			f, name := v.Field(j), v.Type().Field(j).Name
			if f.IsZero() || name == "ID" || name == "Kind" {
				continue
			}
			if f.Kind() == reflect.Pointer {
				f = f.Elem()
			}
			fmt.Fprintf(&b, " %s=%+v", name, f.Interface())
		}
		b.WriteByte('\n')
	}
	return b.String()
}

// TestBroken_WF7 finds exactly the golden problems, each time.
func TestBroken_WF7(t *testing.T) {
	t.Parallel()
	eachFixture(t, "testdata/broken", 45, func(t *testing.T, path string, d *wigglev1.Definition) {
		p := definition.Validate(d, definition.DefaultLimits())
		if p == nil {
			t.Fatal("no problems")
		}
		text := problemLines(p)
		compare(t, strings.TrimSuffix(path, ".json")+".want", []byte(text))
		for range 5 {
			again := definition.Validate(proto.CloneOf(d), definition.DefaultLimits())
			if problemLines(again) != text {
				t.Fatalf("another answer for the same definition:\n%s", problemLines(again))
			}
		}
	})
}

// TestFingerprintGolden_WF10 keeps the fingerprints of all fixtures. A difference
// here means that stored definitions would no longer be recognised: do not update
// the file, repair the encoder.
func TestFingerprintGolden_WF10(t *testing.T) {
	t.Parallel()
	var lines bytes.Buffer
	for _, dir := range []string{"testdata/valid", "testdata/broken"} {
		for _, path := range fixtures(t, dir) {
			sum := definition.Fingerprint(read(t, path))
			lines.WriteString(hex.EncodeToString(sum[:]) + "  " + path + "\n")
		}
	}
	compare(t, "testdata/fingerprints.txt", lines.Bytes())
}

// TestJSONRoundTrip reads back what it wrote.
func TestJSONRoundTrip(t *testing.T) {
	t.Parallel()
	for _, path := range fixtures(t, "testdata/valid") {
		d := read(t, path)
		text, err := definition.ToJSON(d)
		if err != nil {
			t.Fatal(err)
		}
		back, err := definition.FromJSON(text)
		if err != nil {
			t.Fatal(err)
		}
		if !proto.Equal(d, back) {
			t.Errorf("%s: came back as another definition:\n%s", path, text)
		}
		if again, err := definition.ToJSON(back); err != nil || !bytes.Equal(text, again) {
			t.Errorf("%s: wrote the same definition differently (%v)", path, err)
		}
	}
}

func problemLines(p *definition.Problems) string {
	var b strings.Builder
	for _, q := range p.List {
		b.WriteString(q.GetWhere() + ": " + q.GetMessage() + "\n")
	}
	return b.String()
}

func eachFixture(t *testing.T, dir string, least int, check func(*testing.T, string, *wigglev1.Definition)) {
	t.Helper()
	paths := fixtures(t, dir)
	if len(paths) < least {
		t.Fatalf("%d fixtures in %s, want at least %d", len(paths), dir, least)
	}
	for _, path := range paths {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".json"), func(t *testing.T) {
			t.Parallel()
			check(t, path, read(t, path))
		})
	}
}

func fixtures(t testing.TB, dir string) []string {
	t.Helper()
	paths, err := filepath.Glob(dir + "/*.json")
	if err != nil {
		t.Fatal(err)
	}
	return paths
}

func read(t testing.TB, path string) *wigglev1.Definition {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	d, err := definition.FromJSON(text)
	if err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	return d
}

func compare(t *testing.T, path string, got []byte) {
	t.Helper()
	if *update {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s differs; got:\n%s\nwant:\n%s", path, got, want)
	}
}
