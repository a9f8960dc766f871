package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/wiggle-run/wiggle/internal/cli/shell"
)

// dataDir is one that PostgreSQL's account can reach, which t.TempDir is not for root.
func dataDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "wiggle-cli-test-") //nolint:usetesting // as said
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if left := postgresOf(t, dir); len(left) > 0 {
			t.Errorf("processes are left: %v", left)
		}
		_ = os.RemoveAll(dir)
	})
	return dir
}

// postgresOf lists the PostgreSQL processes that work on a directory: those whose command line names it, or that are in it.
func postgresOf(t *testing.T, dir string) []string {
	t.Helper()
	all, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, path := range all {
		command, err := os.ReadFile(path + "/cmdline")
		if err != nil || !bytes.Contains(command, []byte("postgres")) && !bytes.Contains(command, []byte("initdb")) {
			continue
		}
		place, _ := os.Readlink(path + "/cwd") // gone by now
		if bytes.Contains(command, []byte(dir)) || strings.HasPrefix(place, dir) {
			found = append(found, fmt.Sprintf("%s %q", filepath.Base(path), bytes.ReplaceAll(command, []byte{0}, []byte{' '})))
		}
	}
	return found
}

// wiggle is the command line as a process.
func wiggleProcess(t *testing.T, args ...string) (*exec.Cmd, *bytes.Buffer, *bytes.Buffer) {
	t.Helper()
	var out, errs bytes.Buffer
	cmd := exec.CommandContext(t.Context(), os.Args[0], args...)
	cmd.Env = append(os.Environ(), asCommand+"=1")
	cmd.Stdout, cmd.Stderr = &out, &errs
	return cmd, &out, &errs
}

func devJSONRun(t *testing.T, args ...string) demoJSON {
	t.Helper()
	cmd, out, errs := wiggleProcess(t, append([]string{"dev", "--port", "0", "--exit", "-o", "json", "--durable=false"}, args...)...)
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v\n%s%s", err, out, errs)
	}
	decoder := json.NewDecoder(out)
	decoder.DisallowUnknownFields()
	var document demoJSON
	if err := decoder.Decode(&document); err != nil || decoder.More() {
		t.Fatalf("the output is not one document: %v\n%s", err, out)
	}
	return document
}

func TestDemo(t *testing.T) {
	t.Parallel()
	dir := dataDir(t)
	const orders = 25
	// The second run finds the data of the first, the third starts over with more shards than they had.
	for _, more := range [][]string{nil, nil, {"--reset", "--shards", "3"}, {"--shards", "4"}} {
		document := devJSONRun(t, append([]string{"--data-dir", dir, "--demo", fmt.Sprint(orders)}, more...)...)
		shards, sum := 2, 0
		if more != nil {
			shards = int(more[len(more)-1][0] - '0')
		}
		for _, n := range document.ByShard {
			sum += n
		}
		if document.Started != orders || document.Completed != orders || document.Failed != 0 || sum != orders || len(document.ByShard) != shards {
			t.Errorf("%v: %+v", more, document)
		}
		if document.Steps < 9*orders || document.P50 <= 0 || document.P99 < document.P50 || document.Seconds <= 0 || document.StepsPerSecond <= 0 || document.Example == "" {
			t.Errorf("%v: implausible %+v", more, document)
		}
	}
	cmd, _, errs := wiggleProcess(t, "dev", "--port", "0", "--data-dir", dir, "--exit", "--shards", "2")
	if err := cmd.Run(); err == nil || !strings.Contains(errs.String(), "has 4 shards") {
		t.Errorf("fewer shards: %v, %s", err, errs)
	}
}

func TestDemoForPeople(t *testing.T) {
	t.Parallel()
	cmd, out, errs := wiggleProcess(t, "dev", "--port", "0", "--exit", "--demo", "20", "--data-dir", dataDir(t), "--durable=false")
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v\n%s%s", err, out, errs)
	}
	for _, want := range []string{"completed     20 of 20", "steps ", "per second", "p50 ", "p99 ", "by shard ", "price-line", "notify", "shard 1 "} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is not in\n%s", want, out)
		}
	}
	_, trace, _ := strings.Cut(out.String(), "one of them")
	for line := range strings.Lines(trace) {
		if n := len([]rune(line)); n > 90 {
			t.Errorf("%d columns: %s", n, line)
		}
	}
}

// TestStoppedAtAnyMoment stops a run in the middle of each phase of its start, in the demo, and after it.
func TestStoppedAtAnyMoment(t *testing.T) {
	t.Parallel()
	exists := func(names ...string) func(dir, errs string) bool {
		return func(dir, _ string) bool {
			for _, name := range names {
				if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
					return false
				}
			}
			return true
		}
	}
	moments := map[string]func(dir, errs string) bool{
		"at once":          func(string, string) bool { return true },
		"initdb":           exists("data.new/global"),
		"PostgreSQL":       exists("data/postmaster.pid"),
		"databases":        exists("wiggle-dev.json"),
		"orders under way": func(_, errs string) bool { return strings.Contains(errs, "orders,") },
	}
	for moment, reached := range moments {
		t.Run(moment, func(t *testing.T) {
			t.Parallel()
			stopAt(t, syscall.SIGINT, reached)
		})
	}
	t.Run("killed", func(t *testing.T) {
		t.Parallel()
		stopAt(t, syscall.SIGKILL, moments["orders under way"])
	})
}

func stopAt(t *testing.T, signal syscall.Signal, reached func(dir, errs string) bool) {
	t.Helper()
	dir := dataDir(t)
	errs := filepath.Join(dir, "stderr")
	file, err := os.Create(errs)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	cmd, _, _ := wiggleProcess(t, "dev", "--port", "0", "--data-dir", dir, "--demo", "2000", "--exit", "--durable=false")
	cmd.Stderr = file
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	eventually(t, func() bool {
		text, _ := os.ReadFile(errs)
		return reached(dir, string(text)) || len(ended) > 0
	})
	_ = cmd.Process.Signal(signal)
	select {
	case <-ended:
	case <-time.After(30 * time.Second):
		_ = cmd.Process.Kill()
		t.Fatal("it does not stop")
	}
	text, _ := os.ReadFile(errs)
	if code := cmd.ProcessState.ExitCode(); signal == syscall.SIGINT && code != shell.ExitInterrupted && code != -1 {
		t.Errorf("exit code %d\n%s", code, text)
	}
	// After SIGKILL the kernel tells PostgreSQL, which takes a moment.
	eventually(t, func() bool { return signal == syscall.SIGINT || len(postgresOf(t, dir)) == 0 })
	if left := postgresOf(t, dir); len(left) > 0 {
		t.Errorf("processes are left: %v", left)
	}
	if document := devJSONRun(t, "--data-dir", dir, "--demo", "3"); document.Completed != 3 {
		t.Errorf("the next run: %+v", document)
	}
}

// eventually waits for what another process does.
func eventually(t *testing.T, is func() bool) {
	t.Helper()
	deadline := time.After(time.Minute)
	poll := time.NewTicker(2 * time.Millisecond)
	defer poll.Stop()
	for !is() {
		select {
		case <-poll.C:
		case <-deadline:
			t.Fatal("it does not happen")
		}
	}
}

// TestDevServes follows what wiggle dev tells people to try.
func TestDevServes(t *testing.T) {
	t.Parallel()
	dir, port := dataDir(t), freePort(t)
	server := "http://127.0.0.1:" + port
	cmd, out, errs := wiggleProcess(t, "dev", "--port", port, "--data-dir", dir, "--durable=false")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() bool {
		res, err := http.Get(server + "/readyz")
		if err != nil {
			return false
		}
		defer func() { _ = res.Body.Close() }()
		return res.StatusCode == http.StatusOK && run(t, nil, "", "workflows", "order-fulfilment", "--server", server).code == shell.ExitOK
	})
	order := `{"customer":{"name":"Ada Lovelace"},"lines":[{"sku":"tea","quantity":2}]}`
	started := run(t, nil, "", "start", "order-fulfilment", "--server", server, "--input", order, "--wait", "-o", "json")
	var document startedJSON
	if err := json.Unmarshal([]byte(started.out), &document); err != nil || started.code != shell.ExitOK || document.Instance.State != "COMPLETED" {
		t.Fatalf("start: %+v", started)
	}
	if r := run(t, nil, "", "get", document.ID, "--history", "--server", server); r.code != shell.ExitOK || !strings.Contains(r.out, "price-line") {
		t.Errorf("get: %+v", r)
	}
	if r := run(t, nil, "", "list", "--server", server); !strings.Contains(r.out, document.ID) {
		t.Errorf("list: %+v", r)
	}
	refused := run(t, nil, "", "start", "order-fulfilment", "--server", server, "--input", `{"customer":{"name":"A"},"lines":[{"sku":"x","quantity":1}]}`, "--wait")
	if refused.code != shell.ExitNotWell || !strings.Contains(refused.err, "the shop does not sell") {
		t.Errorf("an order that is refused: %+v", refused)
	}
	second, _, secondErrs := wiggleProcess(t, "dev", "--port", port, "--data-dir", dir)
	if err := second.Run(); err == nil || !strings.Contains(secondErrs.String(), "--port 0") {
		t.Errorf("a second one on the port: %v, %s", err, secondErrs)
	}
	second, _, secondErrs = wiggleProcess(t, "dev", "--port", "0", "--data-dir", dir)
	if err := second.Run(); err == nil || !strings.Contains(secondErrs.String(), "in use by another wiggle dev") {
		t.Errorf("a second one on the directory: %v, %s", err, secondErrs)
	}
	_ = cmd.Process.Signal(syscall.SIGINT)
	if err := cmd.Wait(); err != nil {
		t.Errorf("%v\n%s", err, errs)
	}
	if !strings.Contains(out.String(), server) || !strings.Contains(errs.String(), "the data stays") {
		t.Errorf("it said\n%s%s", out, errs)
	}
}

func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	_, port, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return port
}

// TestDevReplicas: the databases have as many replicas as are asked for, whatever the run before had.
func TestDevReplicas(t *testing.T) {
	t.Parallel()
	dir := dataDir(t)
	for _, replicas := range []int{1, 0, 1} {
		cmd, out, errs := wiggleProcess(t, "dev", "--port", "0", "--exit", "-o", "json", "--durable=false", "--shards", "1",
			"--data-dir", dir, "--replicas", strconv.Itoa(replicas))
		if err := cmd.Run(); err != nil {
			t.Fatalf("%v\n%s%s", err, out, errs)
		}
		var document devJSON
		if err := json.Unmarshal(out.Bytes(), &document); err != nil {
			t.Fatal(err)
		}
		// The search and auth shards come last and have none: they are not read from replicas.
		if len(document.Databases) != 3 || len(document.Databases[0].Replicas) != replicas || document.Databases[1].Roles != "search" ||
			document.Databases[2].Roles != "auth" || len(document.Databases[1].Replicas)+len(document.Databases[2].Replicas) != 0 {
			t.Errorf("with %d: %+v", replicas, document.Databases)
		}
		if _, err := os.Stat(filepath.Join(dir, "replica-0")); (err == nil) != (replicas == 1) {
			t.Errorf("with %d: the copy is there: %v", replicas, err)
		}
		if left := postgresOf(t, dir); len(left) > 0 {
			t.Errorf("with %d: left behind: %v", replicas, left)
		}
	}
}
