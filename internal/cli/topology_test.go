package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/wiggle-run/wiggle/internal/app"
	"github.com/wiggle-run/wiggle/internal/cli/shell"
	"github.com/wiggle-run/wiggle/internal/pgtest"
)

// What the fixtures take from the environment.
var fixtureEnviron = []string{
	"WIGGLE_DB_USER=wiggle", "WIGGLE_DB_PASSWORD=env-0nly-s3cr3t", "WIGGLE_S1_PASSWORD=env-0nly-s3cr3t/@1", "WIGGLE_EMPTY=",
}

const fixtureDir = "../../pkg/topology/testdata"

func fixtures(t *testing.T, dir string) []string {
	t.Helper()
	all, err := filepath.Glob(filepath.Join(fixtureDir, dir, "*.json"))
	if err != nil || len(all) == 0 {
		t.Fatalf("no fixtures in %s: %v", dir, err)
	}
	var names []string
	for _, path := range all {
		if !strings.HasSuffix(path, ".facts.json") {
			names = append(names, strings.TrimSuffix(path, ".json"))
		}
	}
	return names
}

// checkArgs is the command line that checks a fixture, with its facts where it has some.
func checkArgs(name string, more ...string) []string {
	args := append([]string{"topology", "check", name + ".json"}, more...)
	if _, err := os.Stat(name + ".facts.json"); err == nil {
		args = append(args, "--facts", name+".facts.json")
	}
	return args
}

// TestBrokenTopologies: every problem of every broken topology is named, one a line (SHD-13).
func TestBrokenTopologies(t *testing.T) {
	t.Parallel()
	for _, name := range fixtures(t, "broken") {
		t.Run(filepath.Base(name), func(t *testing.T) {
			t.Parallel()
			want, err := os.ReadFile(name + ".want")
			if err != nil {
				t.Fatal(err)
			}
			r := run(t, fixtureEnviron, "", checkArgs(name)...)
			if r.code != shell.ExitFailure || r.out != string(want) || !strings.Contains(r.err, "is refused") {
				t.Errorf("exit %d, %s, output\n%swant\n%s", r.code, r.err, r.out, want)
			}
			r = run(t, fixtureEnviron, "", checkArgs(name, "-o", "json")...)
			var document topologyJSON
			if err := json.Unmarshal([]byte(r.out), &document); err != nil || document.OK || r.code != shell.ExitFailure || r.err != "" {
				t.Errorf("-o json: exit %d, %v, %s, %s", r.code, err, r.out, r.err)
			}
			if lines := strings.Count(string(want), "\n"); len(document.Problems) != lines {
				t.Errorf("-o json has %d problems, want %d", len(document.Problems), lines)
			}
			for _, secret := range []string{"s3cr3t-p4ss", "env-0nly-s3cr3t"} {
				if strings.Contains(r.out+r.err, secret) {
					t.Errorf("a password is shown")
				}
			}
		})
	}
}

func TestValidTopologies(t *testing.T) {
	t.Parallel()
	for _, name := range fixtures(t, "valid") {
		t.Run(filepath.Base(name), func(t *testing.T) {
			t.Parallel()
			args := checkArgs(name)
			golden(t, "topology-"+filepath.Base(name)+".txt", transcript(run(t, fixtureEnviron, "", args...), args...))
			r := run(t, fixtureEnviron, "", checkArgs(name, "-o", "json")...)
			var document topologyJSON
			if err := json.Unmarshal([]byte(r.out), &document); err != nil || !document.OK || r.code != shell.ExitOK || len(document.Shards) == 0 {
				t.Errorf("-o json: exit %d, %v, %s", r.code, err, r.out)
			}
		})
	}
}

func TestTopologyFromStandardInput(t *testing.T) {
	t.Parallel()
	r := run(t, nil, "{", "topology", "check", "-")
	if r.code != shell.ExitFailure || r.out == "" {
		t.Errorf("got %+v", r)
	}
	if r := run(t, nil, "", "topology", "check", "/nowhere.json"); r.code != shell.ExitFailure || !strings.Contains(r.err, "/nowhere.json") {
		t.Errorf("a missing file: %+v", r)
	}
}

// TestTopologyOnline checks topologies against the databases of a cluster that has run with two shards.
func TestTopologyOnline(t *testing.T) { // SHD-13
	t.Parallel()
	home, other := pgtest.NewDatabase(t), pgtest.NewDatabase(t)
	const document = `{"generations":[{"id":1,"activeFrom":"2020-01-01T00:00:00Z","weights":%s}],"shards":[
		{"id":0,"state":"active","roles":["instances","home","auth"],"primary":{"url":%q}}%s]}`
	second := fmt.Sprintf(`,{"id":1,"state":"active","roles":["instances"],"primary":{"url":%q}}`, other)
	both := fmt.Sprintf(document, `{"0":1,"1":1}`, home, second)
	if r := run(t, nil, both, "topology", "check", "-", "--online"); r.code != shell.ExitOK || strings.Count(r.out, "not claimed yet") != 2 {
		t.Errorf("before the cluster: %+v", r)
	}
	address := "127.0.0.1:" + freePort(t)
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- app.ServeAll(ctx, []string{
			"WIGGLE_AUTH=off",
			"WIGGLE_STORAGE_TOPOLOGY=" + both, "WIGGLE_ROUTER_ADDR=" + address, "WIGGLE_LOG_LEVEL=error", "WIGGLE_GRACE=1s",
		})
	}()
	eventually(t, func() bool {
		res, err := http.Get("http://" + address + "/readyz")
		return err == nil && res.Body.Close() == nil && res.StatusCode == http.StatusOK
	})
	stop()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if r := run(t, nil, both, "topology", "check", "-", "--online"); r.code != shell.ExitOK || strings.Contains(r.out, "not claimed") {
		t.Errorf("the cluster's topology: %+v", r)
	}
	without := fmt.Sprintf(document, `{"0":1}`, home, "")
	r := run(t, nil, without, "topology", "check", "-", "--online")
	if r.code != shell.ExitFailure || !strings.HasPrefix(r.out, "shard 1: ") {
		t.Errorf("a shard is left out: %+v", r)
	}
	if r := run(t, nil, without, "topology", "check", "-"); r.code != shell.ExitOK {
		t.Errorf("without the databases nothing is wrong with it: %+v", r)
	}
}
