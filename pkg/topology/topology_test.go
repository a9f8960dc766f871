package topology_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/wiggle-run/wiggle/pkg/topology"
)

// update writes what is found to the .want files, to be read through before they are kept.
var update = flag.Bool("update", false, "write the .want files in testdata")

// literal is the password written in the fixtures; secret is the one that they take from the environment.
const (
	literal = "s3cr3t-p4ss"
	secret  = "env-0nly-s3cr3t"
)

func testEnv(name string) (string, bool) {
	text, ok := map[string]string{
		"WIGGLE_DB_USER":     "wiggle",
		"WIGGLE_DB_PASSWORD": secret,
		"WIGGLE_S1_PASSWORD": secret + "/@1",
		"WIGGLE_EMPTY":       "",
	}[name]
	return text, ok
}

type facts struct {
	Registry []topology.RegistryEntry
	Claims   map[int]topology.Claim
}

func fixtures(tb testing.TB, dir string) []string {
	tb.Helper()
	all, err := filepath.Glob(filepath.Join("testdata", dir, "*.json"))
	if err != nil {
		tb.Fatal(err)
	}
	var names []string
	for _, path := range all {
		if name, ok := strings.CutSuffix(path, ".json"); ok && !strings.HasSuffix(name, ".facts") {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		tb.Fatalf("no fixtures in %s", dir)
	}
	return names
}

func readFixture(tb testing.TB, path string) []byte {
	tb.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		tb.Fatal(err)
	}
	return data
}

// judge parses and checks a fixture.
func judge(t *testing.T, name string) (*topology.Topology, error) {
	t.Helper()
	top, err := topology.Parse(readFixture(t, name+".json"), testEnv)
	if err != nil {
		return top, err
	}
	data, err := os.ReadFile(name + ".facts.json")
	if errors.Is(err, os.ErrNotExist) {
		return top, nil
	}
	if err != nil {
		t.Fatal(err)
	}
	var f facts
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&f); err != nil {
		t.Fatal(err)
	}
	return top, topology.Check(top, f.Registry, f.Claims).Err()
}

func compareWant(t *testing.T, name, got string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(name+".want", []byte(got), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if want := string(readFixture(t, name+".want")); got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
}

func noPassword(t *testing.T, text string) {
	t.Helper()
	for _, password := range []string{literal, secret} {
		if strings.Contains(text, password) {
			t.Errorf("a password is in %q", text)
		}
	}
}

func TestBrokenDocuments(t *testing.T) { // SHD-11, SHD-12, SHD-13
	t.Parallel()
	for _, name := range fixtures(t, "broken") {
		t.Run(filepath.Base(name), func(t *testing.T) {
			t.Parallel()
			_, err := judge(t, name)
			problems, ok := errors.AsType[*topology.Problems](err)
			if !ok {
				t.Fatalf("not refused: %v", err)
			}
			var lines strings.Builder
			for _, p := range problems.List {
				fmt.Fprintln(&lines, p)
			}
			compareWant(t, name, lines.String())
			for line := range strings.SplitSeq(strings.TrimSpace(lines.String()), "\n") {
				if !strings.Contains(err.Error(), line) {
					t.Errorf("the error leaves out %q", line)
				}
			}
			noPassword(t, err.Error())
		})
	}
}

func TestValidDocuments(t *testing.T) { // SHD-10, SHD-11, SHD-12, SHD-13
	t.Parallel()
	for _, name := range fixtures(t, "valid") {
		t.Run(filepath.Base(name), func(t *testing.T) {
			t.Parallel()
			top, err := judge(t, name)
			if err != nil {
				t.Fatal(err)
			}
			got := top.String()
			for _, s := range top.Shards {
				for _, m := range append([]topology.Member{s.Primary}, s.Replicas...) {
					if m.ConnString() != "" {
						shown := strings.NewReplacer(secret, "SECRET", literal, "LITERAL").Replace(m.ConnString())
						got += fmt.Sprintf("%s connects to %s\n", m.Name(), shown)
					}
				}
			}
			compareWant(t, name, got)
			noPassword(t, top.String())
		})
	}
}
