package topology_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/wiggle-run/wiggle/pkg/topology"
)

// FuzzParse holds Parse to SHD-12 on documents of any shape: it never panics, what it accepts can be used, and no error
// has a password. Of the two passwords in the fixtures, the one from the environment must never be seen, wherever its variable
// stands; the one that is written out must not as long as it stands where a password may: the fuzzer also moves it to where it is a
// name, which an error may repeat.
func FuzzParse(f *testing.F) {
	for _, dir := range []string{"valid", "broken"} {
		for _, name := range fixtures(f, dir) {
			f.Add(readFixture(f, name+".json"))
		}
	}
	for _, url := range seedURLs() {
		doc, err := json.Marshal(map[string]any{
			"shards": []any{map[string]any{"id": 0, "password": literal, "primary": map[string]any{"url": url, "password": literal}}},
		})
		if err != nil {
			f.Fatal(err)
		}
		f.Add(doc)
	}
	f.Fuzz(func(t *testing.T, doc []byte) {
		top, err := topology.Parse(doc, testEnv)
		if err == nil {
			checkUsable(t, top)
			return
		}
		if top != nil {
			t.Fatal("a topology with an error")
		}
		if strings.Contains(err.Error(), secret) {
			t.Fatalf("password from the environment in %v", err)
		}
		var tree any
		if json.Unmarshal(doc, &tree) == nil && onlyInPlace(tree) && strings.Contains(err.Error(), literal) {
			t.Fatalf("password in %v", err)
		}
	})
}

func seedURLs() []string {
	return []string{
		"postgres://u:" + literal + "@h:5432/db",
		"postgres://" + literal + "@h/db",
		"u:" + literal + "@h",
		"postgres://u:" + literal + "%@h",
		"postgres://h/db?password=" + literal,
		"postgres://h/db?user=" + literal + "&a=%",
		"postgres://u:" + literal + "#@h",
		"jdbc:postgres://u:x/" + literal + "@h",
		"postgres://u:" + literal,
		"postgres://[" + literal + "/db",
		"postgres://h/db/" + literal,
		"jdbc:" + literal,
		"postgres://u:${WIGGLE_DB_PASSWORD}@h/db",
		"${WIGGLE_DB_PASSWORD}",
	}
}

// onlyInPlace reports whether the written password is nowhere but in values of the fields password and url, and these have
// it whole, as the fuzzer has not put an escape inside.
func onlyInPlace(tree any) bool {
	switch v := tree.(type) {
	case map[string]any:
		for key, value := range v {
			_, isText := value.(string)
			if strings.Contains(key, literal) || !(isText && (key == "password" || key == "url")) && !onlyInPlace(value) {
				return false
			}
		}
	case []any:
		for _, value := range v {
			if !onlyInPlace(value) {
				return false
			}
		}
	case string:
		return !strings.Contains(v, literal)
	}
	return true
}

func checkUsable(t *testing.T, top *topology.Topology) {
	t.Helper()
	if top.Home().State != topology.StateActive || top.Auth().State != topology.StateActive {
		t.Fatalf("home or auth is not active in %v", top)
	}
	for i, s := range top.Shards {
		if i > 0 && top.Shards[i-1].ID >= s.ID {
			t.Fatalf("shards are not in order in %v", top)
		}
		for _, m := range append([]topology.Member{s.Primary}, s.Replicas...) {
			if m.Role != "" && (m.ConnString() == "" || m.Pool < 1 || m.MaxLag <= 0 || m.Fallback == "" || m.Commit == "") {
				t.Fatalf("%v is not resolved", m)
			}
		}
	}
	top.Connections()
	if p := topology.Check(top, nil, nil); p != nil {
		t.Fatal(p)
	}
}

// FuzzURL checks that a URL in the settings never shows a password that stands where a user or password does.
func FuzzURL(f *testing.F) {
	for _, url := range seedURLs() {
		f.Add(url)
	}
	f.Fuzz(func(t *testing.T, url string) {
		read := func(string) ([]byte, error) { return nil, os.ErrNotExist }
		_, err := topology.Load(env(map[string]string{"WIGGLE_DATABASE_URL": url, "WIGGLE_REPLICA_URLS": url}), read)
		if err != nil && strings.Contains(err.Error(), literal) {
			t.Fatalf("password in %v", err)
		}
		if err == nil {
			return
		}
		_, err = topology.Load(env(map[string]string{"WIGGLE_STORAGE_TOPOLOGY": url}), read)
		if err != nil && strings.Contains(url, ":"+literal+"@") && strings.Contains(err.Error(), literal) {
			t.Fatalf("password in %v", err)
		}
	})
}

func TestEveryRefusalHasAFixture(t *testing.T) { // SHD-13
	t.Parallel()
	several, facts := 0, 0
	for _, name := range fixtures(t, "broken") {
		if lines := strings.Count(string(readFixture(t, name+".want")), "\n"); lines > 3 {
			several++
		}
		if _, err := os.Stat(name + ".facts.json"); err == nil {
			facts++
		}
	}
	orphans, err := filepath.Glob("testdata/*/*.want")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range orphans {
		if _, err := os.Stat(strings.TrimSuffix(want, ".want") + ".json"); err != nil {
			t.Error(err)
		}
	}
	if several < 4 || facts < 5 {
		t.Errorf("%d fixtures with several problems, %d with facts", several, facts)
	}
}
